"""JAX's primitives that move elements: other indices into the same tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .block import Block
from .evaluate import Frame, derived, rule
from .storage import Index, Tile
from .types import INT32, convert, type_of


def _moved(eqn: Any, tile: Tile, source: Callable[[Block, Index], Index]) -> Tile:
    """The tile whose element at an index is that of `tile` at `source(block, index)`."""
    out = eqn.outvars[0].aval
    return derived(
        tuple(out.shape), out.dtype, lambda block, index: block.get(tile, source(block, index)), [tile]
    )


@rule("broadcast_in_dim")
def _broadcast_in_dim(frame: Frame, eqn: Any, tile: Tile, *_: Any) -> Tile:
    dims = eqn.params["broadcast_dimensions"]

    def source(block: Block, index: Index) -> Index:
        return tuple("0u" if n == 1 else index[d] for d, n in zip(dims, tile.shape, strict=True))

    return _moved(eqn, tile, source)


@rule("reshape", "squeeze", "expand_dims")
def _reshape(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    shape = tuple(eqn.outvars[0].aval.shape)
    if [n for n in shape if n != 1] == [n for n in tile.shape if n != 1]:

        def source(block: Block, index: Index) -> Index:
            kept = iter(i for i, n in zip(index, shape, strict=True) if n != 1)
            return tuple("0u" if n == 1 else next(kept) for n in tile.shape)
    else:

        def source(block: Block, index: Index) -> Index:
            return block.unravel(block.flatten(index, shape), tile.shape)

    return _moved(eqn, tile, source)


@rule("transpose")
def _transpose(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    order = eqn.params["permutation"]
    return _moved(eqn, tile, lambda block, index: tuple(index[order.index(d)] for d in range(len(order))))


@rule("rev")
def _rev(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    dims = eqn.params["dimensions"]

    def source(block: Block, index: Index) -> Index:
        return tuple(
            block.index(f"{n - 1}u - {i}") if d in dims and n != 1 else i
            for d, (i, n) in enumerate(zip(index, tile.shape, strict=True))
        )

    return _moved(eqn, tile, source)


@rule("slice")
def _slice(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    starts = eqn.params["start_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)

    def source(block: Block, index: Index) -> Index:
        return tuple(_scaled(block, i, s, first) for i, s, first in zip(index, strides, starts, strict=True))

    return _moved(eqn, tile, source)


def _scaled(block: Block, index: str, factor: int, first: int) -> str:
    if index == "0u":
        return f"{first}u"
    text = index if factor == 1 else f"{index} * {factor}u"
    return block.index(f"{text} + {first}u" if first else text)


@rule("concatenate")
def _concatenate(frame: Frame, eqn: Any, *tiles: Tile) -> Tile:
    out, axis = eqn.outvars[0].aval, eqn.params["dimension"]

    def element(block: Block, index: Index) -> str:
        result = block.variable(type_of(out.dtype), f"{type_of(out.dtype)}(0)")
        first = 0
        for tile in tiles:
            if math.prod(tile.shape):
                end = first + tile.shape[axis]
                with block.inner(f"if ({index[axis]} >= {first}u && {index[axis]} < {end}u)") as inside:
                    at = "0u" if tile.shape[axis] == 1 else inside.index(f"{index[axis]} - {first}u")
                    value = inside.get(tile, (*index[:axis], at, *index[axis + 1 :]))
                    inside.add(f"{result} = {value};")
            first += tile.shape[axis]
        return result

    return derived(tuple(out.shape), out.dtype, element, tiles, 4)


@rule("iota")
def _iota(frame: Frame, eqn: Any) -> Tile:
    out, dim = eqn.outvars[0].aval, eqn.params["dimension"]

    def element(block: Block, index: Index) -> str:
        return block.define(type_of(out.dtype), convert(f"int({index[dim]})", INT32, out.dtype))

    return derived(tuple(out.shape), out.dtype, element, ())
