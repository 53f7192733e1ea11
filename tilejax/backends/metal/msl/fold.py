"""Reductions of fixed order, and those by a user's function: a thread for each result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....ir.types import Order
from .block import Block
from .evaluate import Frame, rule
from .scalars import pointwise
from .storage import Index, Tile, stored, text_of
from .types import type_of


@rule("tile_fold")
def _tile_fold(frame: Frame, eqn: Any, tile: Tile, start: Tile, *consts: Tile) -> Tile:
    fn = pointwise(frame, eqn.params["fn"], consts)
    axes, order = eqn.params["axes"], eqn.params["order"]
    first = text_of(start)
    return fold(frame, tile, first, axes, order, lambda block, x, y: fn(block, (), [x, y])[0])


def fold(
    frame: Frame,
    tile: Tile,
    first: str,
    axes: Sequence[int],
    order: Order,
    fn: Callable[[Block, str, str], str],
) -> Tile:
    """A reduction of fixed order, by one thread for each result."""
    kernel = frame.kernel
    assert kernel is not None
    kept = [d for d in range(len(tile.shape)) if d not in axes]
    shape, extents = tuple(tile.shape[d] for d in kept), [tile.shape[d] for d in axes]
    length, kind = math.prod(extents), type_of(tile.dtype)
    storage = kernel.allocate(tile.dtype, math.prod(shape), frame)

    def at(block: Block, index: Index, number: str) -> str:
        both = dict(zip(axes, block.unravel(number, extents), strict=True)) | dict(
            zip(kept, index, strict=True)
        )
        return block.get(tile, tuple(both[d] for d in range(len(tile.shape))))

    with kernel.each(shape) as (block, index):
        if not length:
            total = first
        elif order is Order.ORDERED_TREE:
            total = _tree(block, kind, length, first, lambda b, n: at(b, index, n), fn)
        else:
            total = block.variable(kind, first)
            with block.count(length) as (inner, number):
                if order is Order.FOLD_RIGHT:
                    x = at(inner, index, inner.index(f"{length - 1}u - {number}"))
                    inner.add(f"{total} = {fn(inner, x, total)};")
                else:
                    inner.add(f"{total} = {fn(inner, total, at(inner, index, number))};")
        block.write(storage, block.flatten(index, shape), total, "flat")
    return stored(storage, shape)


def _tree(
    block: Block,
    kind: str,
    length: int,
    first: str,
    at: Callable[[Block, str], str],
    fn: Callable[[Block, str, str], str],
) -> str:
    """Neighbours level by level, as a stack: two blocks of one size are joined as soon as both are there,
    and in the end what is left from the right, for an odd one is carried up."""
    stack, top = block.kernel.fresh("stack"), block.kernel.fresh("top")
    block.lines += [f"{kind} {stack}[{length.bit_length() + 1}];", f"uint {top} = 0;"]
    with block.count(length) as (inner, number):
        x = inner.variable(kind, at(inner, number))
        with inner.inner(f"if ({number} == 0)") as start:
            start.add(f"{x} = {fn(start, first, x)};")
        bits = inner.kernel.fresh("k")
        with inner.inner(f"for (uint {bits} = {number}; {bits} % 2 == 1; {bits} /= 2)") as join:
            left = join.variable(kind, f"{stack}[--{top}]")
            join.add(f"{x} = {fn(join, left, x)};")
        inner.add(f"{stack}[{top}++] = {x};")
    total = block.variable(kind, f"{stack}[--{top}]")
    with block.inner(f"while ({top} > 0)") as rest:
        left = rest.variable(kind, f"{stack}[--{top}]")
        rest.add(f"{total} = {fn(rest, left, total)};")
    return total
