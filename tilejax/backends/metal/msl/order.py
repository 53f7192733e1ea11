"""Sorts. Few elements count those that come before them, which is where they go; many pass through a bitonic
network of values and indices. Equals keep the order of their indices, so that every order is strict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .block import Block
from .evaluate import Frame, Value, rule
from .reduce import cast, power
from .storage import Index, Storage, Tile, stored
from .types import INT32, is_float, literal, type_of, widened

_FEW = 32


@rule("tile_sort")
def _sort(frame: Frame, eqn: Any, tile: Tile) -> list[Value]:
    axis = eqn.params["axis"]
    return _ordered(frame, tile, axis, tile.shape[axis], eqn.params["descending"])


@rule("tile_top_k")
def _top_k(frame: Frame, eqn: Any, tile: Tile) -> list[Value]:
    return _ordered(frame, tile, eqn.params["axis"], eqn.params["k"], eqn.params["largest"])


def _ordered(frame: Frame, tile: Tile, axis: int, count: int, descending: bool) -> list[Value]:
    """The first `count` values of the order, and their indices."""
    order = _network if tile.shape[axis] > _FEW else _ranked
    return list(order(frame, tile, axis, count, descending))


def _ranked(frame: Frame, tile: Tile, axis: int, count: int, descending: bool) -> list[Tile]:
    kernel = frame.kernel
    assert kernel is not None
    length = tile.shape[axis]
    shape = (*tile.shape[:axis], count, *tile.shape[axis + 1 :])
    tile = frame.near(tile) if length > 1 else tile
    storages = [kernel.allocate(dtype, math.prod(shape), frame) for dtype in (tile.dtype, INT32)]
    with kernel.each(tile.shape if count else (0,) * len(shape)) as (block, index):
        value = block.get(tile, index)
        rank = block.variable("uint", "0u")
        with block.count(length) as (inner, number):
            other = inner.get(tile, (*index[:axis], number, *index[axis + 1 :]))
            after = _after(inner, tile.dtype, (value, index[axis]), (other, number), descending)
            inner.add(f"{rank} += {after} ? 1u : 0u;")
        with block.inner(f"if ({rank} < {count}u)") as inside:
            place = inside.flatten((*index[:axis], "0u" if count == 1 else rank, *index[axis + 1 :]), shape)
            for storage, text in zip(storages, (value, f"int({index[axis]})"), strict=True):
                inside.write(storage, place, text, None)
    return [stored(s, shape) for s in storages]


def _network(frame: Frame, tile: Tile, axis: int, count: int, descending: bool) -> list[Tile]:
    kernel = frame.kernel
    assert kernel is not None
    length, shape = tile.shape[axis], (*tile.shape[:axis], count, *tile.shape[axis + 1 :])
    rows, padded = (*tile.shape[:axis], *tile.shape[axis + 1 :]), power(length)
    size = math.prod(rows) * padded
    storages = [kernel.scratch(dtype, size) for dtype in (tile.dtype, np.dtype(np.uint32))]
    with kernel.each((*rows, padded)) as (block, index):
        value = block.variable(type_of(tile.dtype), literal(0, tile.dtype))
        with block.inner(f"if ({index[-1]} < {length}u)") as inside:
            element = inside.get(tile, (*index[:axis], index[-1], *index[axis:-1]))
            inside.add(f"{value} = {element};")
        for storage, text in zip(storages, (value, index[-1]), strict=True):
            block.write(storage, block.flatten(index, (*rows, padded)), text, "flat")
    width, distance = kernel.fresh("k"), kernel.fresh("k")
    with (
        kernel.loop(f"for (uint {width} = 2; {width} <= {padded}u; {width} *= 2)", True),
        kernel.loop(f"for (uint {distance} = {width} / 2; {distance} > 0; {distance} /= 2)", True),
        kernel.each((size // 2,)) as (block, (pair,)),
    ):
        _exchange(block, storages, tile.dtype, pair, width, distance, length, padded, descending)

    def place(block: Block, index: Index) -> str:
        row = block.flatten((*index[:axis], *index[axis + 1 :]), rows)
        return block.index(f"{row} * {padded}u + {index[axis]}")

    values, indices = (stored(s, shape, place, ("network", padded)) for s in storages)
    return [values, cast(indices, INT32)]


def _exchange(
    block: Block,
    storages: Sequence[Storage],
    dtype: np.dtype,
    pair: str,
    width: str,
    distance: str,
    length: int,
    padded: int,
    descending: bool,
) -> None:
    """Puts a pair in order: upwards in every other block of `width`. Padding comes after all."""
    low = block.index(f"{pair} / {distance} * 2u * {distance} + {pair} % {distance}")
    high = block.index(f"{low} + {distance}")
    (a, b), (i, j) = ([block.read(s, offset, None) for offset in (low, high)] for s in storages)
    after = _after(block, dtype, (a, i), (b, j), descending)
    pads = f"max({i}, {j}) < {length}u ? {after} : {i} > {j}" if padded > length else after
    with block.inner(f"if (({pads}) == (({low} % {padded}u & {width}) == 0))") as swap:
        for storage, texts in zip(storages, ((a, b), (i, j)), strict=True):
            for offset, text in zip((high, low), texts, strict=True):
                swap.write(storage, offset, text, None)


def _after(
    block: Block, dtype: np.dtype, this: tuple[str, str], that: tuple[str, str], descending: bool
) -> str:
    """Whether `this` comes after `that`, each a value and an index: NaN counts as greatest, equals keep their
    order."""
    (value, index), (other, number) = this, that
    value, other = widened(value, dtype), widened(other, dtype)
    x, y = (value, other) if descending else (other, value)  # x < y
    less, equal = f"{x} < {y}", f"{other} == {value}"
    if is_float(dtype):
        less = f"(isnan({y}) ? !isnan({x}) : {less})"
        equal = f"({equal} || (isnan({other}) && isnan({value})))"
    return block.define("bool", f"{less} || ({equal} && {number} < {index})")
