"""Reductions: a thread for each result where there are enough of them, else several threads for each, that
meet in threadgroup memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....ir.monoids import identity
from ....ir.types import Order
from .block import Block
from .elementwise import arithmetic
from .evaluate import Frame, derived, rule
from .fold import fold
from .storage import Index, Tile, stored
from .types import accumulator, convert, is_float, literal, type_of

State = list[str]
Combine = Callable[[Block, State, State], State]


def _none(op: str, dtype: np.dtype) -> str:
    """What changes nothing."""
    return literal(identity(op, dtype), dtype)


@rule("tile_reduce")
def _reduce(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    op, axes, order = (eqn.params[key] for key in ("op", "axes", "order"))
    first = _none(op, tile.dtype)
    if order is not Order.UNORDERED_TREE:
        return fold(frame, tile, first, axes, order, lambda _, x, y: arithmetic(op, tile.dtype, x, y))
    wide = accumulator(tile.dtype)

    def element(block: Block, index: Index, _: str) -> State:
        return [convert(block.get(tile, index), tile.dtype, wide)]

    def combine(block: Block, x: State, y: State) -> State:
        return [arithmetic(op, wide, x[0], y[0])]

    (total,) = _lanes(frame, tile, axes, [wide], [convert(first, tile.dtype, wide)], element, combine)
    return cast(total, tile.dtype)


def cast(tile: Tile, dtype: np.dtype) -> Tile:
    """The tile in another dtype."""
    if tile.dtype == dtype:
        return tile

    def element(block: Block, index: Index) -> str:
        return block.define(type_of(dtype), convert(block.get(tile, index), tile.dtype, dtype))

    return derived(tile.shape, dtype, element, [tile], 1)


@rule("tile_argreduce")
def _argreduce(frame: Frame, eqn: Any, tile: Tile) -> Tile:
    """The index of the first NaN, else of the first extremum."""
    op, axis, dtype = (eqn.params[key] for key in ("op", "axis", "index_dtype"))
    wide, sign = accumulator(tile.dtype), ">" if op == "max" else "<"

    def element(block: Block, index: Index, number: str) -> State:
        return [convert(block.get(tile, index), tile.dtype, wide), number]

    def combine(block: Block, x: State, y: State) -> State:
        (a, i), (b, j) = x, y
        better, equal = f"{b} {sign} {a}", f"{b} == {a}"
        if is_float(wide):
            better = f"(isnan({b}) ? !isnan({a}) : {better})"
            equal = f"({equal} || (isnan({a}) && isnan({b})))"
        second = block.define("bool", f"{better} || ({equal} && {j} < {i})")
        return [f"{second} ? {b} : {a}", f"{second} ? {j} : {i}"]

    none = [_none(op, wide), f"{2**32 - 1}u"]
    types = [wide, np.dtype(np.uint32)]
    _, place = _lanes(frame, tile, (axis,), types, none, element, combine)
    return cast(place, np.dtype(dtype))


def _lanes(
    frame: Frame,
    tile: Tile,
    axes: Sequence[int],
    dtypes: Sequence[np.dtype],
    none: State,
    element: Callable[[Block, Index, str], State],
    combine: Combine,
) -> list[Tile]:
    """The combination, in any order, of the states of the elements along `axes`; `none` is that of no
    element."""
    kernel = frame.kernel
    assert kernel is not None
    kept = [d for d in range(len(tile.shape)) if d not in axes]
    shape, extents = tuple(tile.shape[d] for d in kept), [tile.shape[d] for d in axes]
    count, length = math.prod(shape), math.prod(extents)
    parts = min(kernel.lanes // power(count), power(length)) if count else 1

    def accumulate(block: Block, index: Index, start: Any, step: int) -> State:
        state = [block.variable(type_of(t), text) for t, text in zip(dtypes, none, strict=True)]
        with block.count(length, start, step) as (inner, number):
            along = inner.unravel(number, extents)
            both = dict(zip(axes, along, strict=True)) | dict(zip(kept, index, strict=True))
            given = element(inner, tuple(both[d] for d in range(len(tile.shape))), number)
            assign(inner, state, combine(inner, state, given))
        return state

    if parts <= 1:
        storages = [kernel.allocate(t, count, frame) for t in dtypes]
        with kernel.each(shape) as (block, index):
            state = accumulate(block, index, 0, 1) if length else none
            for storage, text in zip(storages, state, strict=True):
                block.write(storage, block.flatten(index, shape), text, "flat")
        return [stored(s, shape) for s in storages]

    storages = [kernel.scratch(t, kernel.lanes) for t in dtypes]
    with kernel.step() as block:
        part = block.index(f"lane % {parts}u")
        with block.inner(f"if (lane < {count * parts}u)") as own:
            index = own.unravel(own.index(f"lane / {parts}u"), shape)
            for storage, text in zip(storages, accumulate(own, index, part, parts), strict=True):
                own.write(storage, "lane", text, "lane")
    half = kernel.fresh("k")
    with (
        kernel.loop(f"for (uint {half} = {parts // 2}u; {half} > 0; {half} /= 2)", True),
        kernel.step() as block,
        block.inner(f"if (lane % {parts}u < {half})") as own,
    ):
        mine = [own.read(s, "lane", "lane") for s in storages]
        other = [own.read(s, f"lane + {half}", None) for s in storages]
        for storage, text in zip(storages, combine(own, mine, other), strict=True):
            own.write(storage, "lane", text, "lane")

    def place(block: Block, index: Index) -> str:
        flat = block.flatten(index, shape)
        return flat if flat == "0u" else block.index(f"{flat} * {parts}u")

    return [stored(s, shape, place, ("parts", parts, count)) for s in storages]


def assign(block: Block, state: State, values: State) -> None:
    """Assigns the values to the variables."""
    if len(state) > 1:  # each may be computed from the others
        values = [block.define("auto", v) for v in values]
    block.lines += [f"{name} = {text};" for name, text in zip(state, values, strict=True)]


def power(n: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()
