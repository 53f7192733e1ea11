"""Inclusive scans along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .block import Block
from .elementwise import arithmetic
from .evaluate import Frame, Value, rule
from .kernel import Kernel
from .reduce import identity, power
from .storage import Index, Storage, Stored, Tile, stored
from .types import accumulator, convert, type_of


def _at(index: Index, axis: int, along: str) -> Index:
    """The index of a tile from that of its other dimensions and the one along the axis."""
    return (*index[:axis], along, *index[axis:])


def _others(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d != axis)


@rule("tile_scan")
def _scan(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    """Each row is cut into chunks, one a thread. Each thread adds up its chunk, then scans it from the sum of
    the chunks before."""
    kernel = frame.kernel
    assert kernel is not None
    op, axis, reverse = (eqn.params[key] for key in ("op", "axis", "reverse"))
    rows, length = _others(tile.shape, axis), tile.shape[axis]
    count, wide = math.prod(rows), accumulator(tile.dtype)
    kind, none = type_of(wide), convert(identity(op, tile.dtype), tile.dtype, wide)
    storage = kernel.allocate(tile.dtype, tile.size, frame)
    if not tile.size:
        return stored(storage, tile.shape)
    parts = max(min(kernel.lanes // power(count), power(length)), 1)
    chunk = -(-length // parts)

    def steps(block: Block, index: Index, part: str, total: str, keep: bool) -> None:
        first = block.index(f"{part} * {chunk}u")
        end = block.index(f"min({first} + {chunk}u, {length}u)")
        with block.count(end, first) as (inner, number):
            along = inner.index(f"{length - 1}u - {number}") if reverse else number
            along = "0u" if length == 1 else along
            here = _at(index, axis, along)
            value = convert(inner.get(tile, here), tile.dtype, wide)
            inner.add(f"{total} = {arithmetic(op, wide, total, value)};")
            if keep:
                text = convert(total, wide, tile.dtype)
                inner.write(storage, inner.flatten(here, tile.shape), text, ("rows", axis, parts))

    if parts == 1:
        with kernel.each(rows) as (block, index):
            steps(block, index, "0u", block.variable(kind, none), True)
        return stored(storage, tile.shape)
    tile = frame.often(tile)
    totals = kernel.scratch(wide, kernel.lanes)
    for keep in (False, True):
        with kernel.step() as block, block.inner(f"if (lane < {count * parts}u)") as own:
            part = own.index(f"lane % {parts}u")
            index = own.unravel(own.index(f"lane / {parts}u"), rows)
            total = own.variable(kind, none)
            if keep:
                with own.count(part) as (inner, number):
                    before = inner.read(totals, inner.index(f"lane - {part} + {number}"), None)
                    inner.add(f"{total} = {arithmetic(op, wide, total, before)};")
            steps(own, index, part, total, keep)
            if not keep:
                own.write(totals, "lane", total, "lane")
    kernel.release(totals)
    return stored(storage, tile.shape)


@rule("tile_associative_scan")
def _associative_scan(frame: Frame, eqn: Any, *operands: Tile) -> list[Value]:
    """One element along the axis after another, all threads at the same."""
    kernel, params = frame.kernel, eqn.params
    assert kernel is not None
    axis, reverse, fn = params["axis"], params["reverse"], params["fn"].jaxpr
    consts, tiles = operands[: params["num_consts"]], operands[params["num_consts"] :]
    length = tiles[0].shape[axis]
    storages = [kernel.allocate(t.dtype, t.size, frame) for t in tiles]
    if not length:
        return [stored(s, t.shape) for s, t in zip(storages, tiles, strict=True)]
    first = f"{length - 1 if reverse else 0}u"
    for storage, tile in zip(storages, tiles, strict=True):
        _keep(kernel, storage, tile.shape, axis, first, _slice(tile, axis, first))
    number = kernel.fresh("k")
    with kernel.loop(f"for (uint {number} = 1; {number} < {length}u; ++{number})", length > 1):
        here = f"({length - 1}u - {number})" if reverse else number
        before = f"({length}u - {number})" if reverse else f"({number} - 1u)"
        done = [_element(s, t.shape, axis, before) for s, t in zip(storages, tiles, strict=True)]
        given = [_slice(t, axis, here) for t in tiles]
        inside = Frame(kernel, frame.name, frame)
        scalars = [inside.settle(x) for x in (*done, *given)]
        results = inside.run(fn, [*consts, *scalars])
        for storage, tile, result in zip(storages, tiles, results, strict=True):
            assert isinstance(result, Tile)
            _keep(kernel, storage, tile.shape, axis, here, result)
    return [stored(s, t.shape) for s, t in zip(storages, tiles, strict=True)]


def _keep(
    kernel: Kernel, storage: Storage, shape: Sequence[int], axis: int, along: str, element: Tile
) -> None:
    with kernel.each(element.shape) as (block, index):
        offset = block.flatten(_at(index, axis, along), shape)
        block.write(storage, offset, block.get(element, index), ("slices", axis))


def _slice(tile: Tile, axis: int, along: str) -> Tile:
    def element(block: Block, index: Index) -> str:
        return block.get(tile, _at(index, axis, along))

    return Tile(_others(tile.shape, axis), tile.dtype, element, tile.reads, tile.cost, tile.depth)


def _element(storage: Storage, shape: Sequence[int], axis: int, along: str) -> Stored:
    """What a storage holds of one place along the axis."""
    return stored(
        storage,
        _others(shape, axis),
        lambda block, index: block.flatten(_at(index, axis, along), shape),
        ("slices", axis),
    )
