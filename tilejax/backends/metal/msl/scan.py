"""Inclusive scans along one axis. Each row is cut into chunks, one a thread, where there are few rows: a
thread combines its chunk, then scans it from the combination of the chunks before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .block import Block
from .elementwise import arithmetic
from .evaluate import Frame, Value, rule
from .kernel import Kernel
from .reduce import assign, power
from .scalars import is_pointwise, pointwise
from .storage import Index, Storage, Stored, Tile, stored
from .types import accumulator, convert, type_of

Combine = Callable[[Block, Index, Sequence[str], Sequence[str]], list[str]]
"""`combine(block, row, earlier, later)`: the texts of two states become that of both."""


@rule("tile_scan")
def _scan(frame: Frame, eqn: Any, tile: Tile) -> list[Value]:
    op, axis, reverse = (eqn.params[key] for key in ("op", "axis", "reverse"))
    wide = accumulator(tile.dtype)

    def combine(block: Block, row: Index, x: Sequence[str], y: Sequence[str]) -> list[str]:
        return [arithmetic(op, wide, x[0], y[0])]

    return list(_chunked(frame, [tile], axis, reverse, [wide], combine))


@rule("tile_associative_scan")
def _associative_scan(frame: Frame, eqn: Any, *operands: Tile) -> list[Value]:
    params = eqn.params
    axis, reverse, fn, count = (params[key] for key in ("axis", "reverse", "fn", "num_consts"))
    consts, tiles = operands[:count], operands[count:]
    if not is_pointwise(fn.jaxpr, set(fn.jaxpr.invars[count:])):
        return list(_stepwise(frame, tiles, axis, reverse, fn.jaxpr, consts))
    each = pointwise(frame, fn, consts)

    def combine(block: Block, row: Index, x: Sequence[str], y: Sequence[str]) -> list[str]:
        return each(block, row, [*x, *y])

    return list(_chunked(frame, tiles, axis, reverse, [t.dtype for t in tiles], combine))


def _chunked(
    frame: Frame, tiles: Sequence[Tile], axis: int, reverse: bool, wide: Sequence[Any], combine: Combine
) -> list[Tile]:
    """Scans of tiles of one shape along the axis, in states of the dtypes `wide`."""
    kernel = frame.kernel
    assert kernel is not None
    shape = tiles[0].shape
    rows, length = _others(shape, axis), shape[axis]
    count = math.prod(rows)
    storages = [kernel.allocate(t.dtype, t.size, frame) for t in tiles]
    results: list[Tile] = [stored(s, shape) for s in storages]
    if not count * length:
        return results
    parts = max(min(kernel.lanes // power(count), power(length)), 1)
    chunk = -(-length // parts)
    if parts > 1:
        tiles = [frame.often(t) for t in tiles]

    def element(block: Block, row: Index, number: str) -> tuple[Index, list[str]]:
        along = "0u" if length == 1 else number
        if reverse and length > 1:
            along = block.index(f"{length - 1}u - {number}")
        here = _at(row, axis, along)
        return here, [convert(block.get(t, here), t.dtype, w) for t, w in zip(tiles, wide, strict=True)]

    def keep(block: Block, here: Index, state: Sequence[str]) -> None:
        for storage, tile, w, text in zip(storages, tiles, wide, state, strict=True):
            offset = block.flatten(here, shape)
            block.write(storage, offset, convert(text, w, tile.dtype), ("rows", axis, parts))

    def run(block: Block, row: Index, first: str, end: str, before: Any, store: bool) -> list[str]:
        """Combines the elements from `first` to `end`, after what `before(block)` gives; the state."""
        here, start = element(block, row, first)
        state = [block.variable(type_of(w), text) for w, text in zip(wide, start, strict=True)]
        if before:
            before(block, state)
        if store:
            keep(block, here, state)
        with block.count(end, block.index(f"{first} + 1u")) as (inner, number):
            here, more = element(inner, row, number)
            assign(inner, state, combine(inner, row, state, more))
            if store:
                keep(inner, here, state)
        return state

    if parts == 1:
        with kernel.each(rows) as (block, row):
            run(block, row, "0u", f"{length}u", None, True)
        return results
    totals = [kernel.scratch(w, kernel.lanes) for w in wide]
    for store in (False, True):
        with kernel.step() as block, block.inner(f"if (lane < {count * parts}u)") as own:
            part = own.index(f"lane % {parts}u")
            row = own.unravel(own.index(f"lane / {parts}u"), rows)
            first = own.index(f"{part} * {chunk}u")

            def before(
                block: Block, state: list[str], part: str = part, row: Index = row, own: Block = own
            ) -> None:
                """Takes in the chunks of the parts before."""
                with block.inner(f"if ({part} > 0)") as inside:
                    offset = inside.index(f"lane - {part}")
                    sums = [
                        inside.variable(type_of(w), inside.read(s, offset, None))
                        for s, w in zip(totals, wide, strict=True)
                    ]
                    with inside.count(part, 1) as (inner, number):
                        at = inner.index(f"{offset} + {number}")
                        more = [inner.read(s, at, None) for s in totals]
                        assign(inner, sums, combine(inner, row, sums, more))
                    assign(inside, state, combine(inside, row, sums, state))

            with own.inner(f"if ({first} < {length}u)") as mine:
                end = mine.index(f"min({first} + {chunk}u, {length}u)")
                state = run(mine, row, first, end, before if store else None, store)
                if not store:
                    for storage, text in zip(totals, state, strict=True):
                        mine.write(storage, "lane", text, "lane")
    for storage in totals:
        kernel.release(storage)
    return results


def _stepwise(
    frame: Frame, tiles: Sequence[Tile], axis: int, reverse: bool, fn: Any, consts: Sequence[Tile]
) -> list[Tile]:
    """One element along the axis after another, all threads at the same: for operators that are not
    elementwise."""
    kernel = frame.kernel
    assert kernel is not None
    length = tiles[0].shape[axis]
    storages = [kernel.allocate(t.dtype, t.size, frame) for t in tiles]
    results: list[Tile] = [stored(s, t.shape) for s, t in zip(storages, tiles, strict=True)]
    if not length:
        return results
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
        for storage, tile, result in zip(storages, tiles, inside.run(fn, [*consts, *scalars]), strict=True):
            assert isinstance(result, Tile)
            _keep(kernel, storage, tile.shape, axis, here, result)
    return results


def _at(index: Index, axis: int, along: str) -> Index:
    """The index of a tile from that of its other dimensions and the one along the axis."""
    return (*index[:axis], along, *index[axis:])


def _others(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return tuple(n for d, n in enumerate(shape) if d != axis)


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
