"""The tile operations in what Pallas lowers for Triton; what it lacks is a tree, a network or a select."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.monoids import identity, is_exact
from ...ir.types import Order
from . import extrema
from .elementwise import maximum, minimum
from .moves import rearrange
from .tiles import (
    along,
    back,
    full,
    halves,
    inside,
    join,
    last,
    masked,
    padded,
    select_sum,
    tree,
)

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": maximum,
    "min": minimum,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def reduce(tile: Any, shape, *, op: str, axes: tuple[int, ...], order: Order, loc: Any, **_: Any) -> Any:
    """`tile_reduce`."""
    exact = is_exact(op, tile.dtype)
    if not exact and order not in (Order.UNORDERED_TREE, Order.ORDERED_TREE):
        return fold_in_order(tile, shape, identity(op, tile.dtype), axes, order, COMBINE[op])
    tile = masked(tile, shape, identity(op, tile.dtype), axes)
    if not axes:
        return tile
    if op in extrema.REDUCTIONS:
        return extrema.extremum(tile, axes, op)
    if op == "add" and (exact or order is Order.UNORDERED_TREE):
        return _sum(tile, axes)
    flat, count = _compact(tile, shape, axes)
    own = lax.broadcasted_iota(np.int32, flat.shape, flat.ndim - 1) < np.int32(count)
    flat = jnp.where(own, flat, full(flat.shape, identity(op, tile.dtype), tile.dtype))
    (out,) = tree([flat], flat.ndim - 1, lambda a, b: [COMBINE[op](a[0], b[0])])
    return COMBINE[op](full(out.shape, identity(op, out.dtype), out.dtype), out)  # only -0.0 sums up to 0.0


def _sum(tile: Any, axes: Sequence[int]) -> Any:
    if tile.dtype == np.bool_:
        return extrema.extremum(tile, axes, "or")
    return along(jnp.sum, tile, axes, dtype=tile.dtype)


def _flatten(tile: Any, axes: Sequence[int]) -> tuple[Any, int]:
    """The tile with `axes`, in the order given, as one last axis."""
    rest = [i for i in range(tile.ndim) if i not in axes]
    moved = lax.transpose(tile, [*rest, *axes]) if [*rest, *axes] != list(range(tile.ndim)) else tile
    count = math.prod(tile.shape[i] for i in axes)
    return lax.reshape(moved, (*(tile.shape[i] for i in rest), count)), count


def _compact(tile: Any, shape: Sequence[int], axes: Sequence[int]) -> tuple[Any, int]:
    """The tile with `axes` as one last axis whose first elements, so many, are the tile's own, in order."""
    flat, _ = _flatten(tile, axes)
    inner = [shape[i] for i in axes]
    count = math.prod(inner)
    if any(n != padded(n) for n in inner[1:]):
        lead = flat.shape[:-1]
        flat = rearrange(lax.reshape(flat, (*lead, *map(padded, inner))), (*lead, *inner), (*lead, count))
    return flat, count


def fold_in_order(
    tile: Any, shape, start: Any, axes, order: Order, combine: Callable[[Any, Any], Any]
) -> Any:
    """A fold, one element after another; each is selected from the tile."""
    flat, count = _flatten(tile, axes)
    own = _flatten(jnp.broadcast_to(_mask(shape, axes, tile), tile.shape), axes)[0]
    at = lax.broadcasted_iota(np.int32, flat.shape, flat.ndim - 1)
    acc = jnp.broadcast_to(jnp.asarray(start, tile.dtype), flat.shape[:-1])

    def step(i: Any, acc: Any) -> Any:
        i = i if order is Order.FOLD_LEFT else np.int32(count - 1) - i
        here = at == i
        x = select_sum(here, flat, -1)
        live = jnp.sum(jnp.where(here & own, 1, 0).astype(np.int32), -1) > 0
        new = combine(acc, x) if order is Order.FOLD_LEFT else combine(x, acc)
        return jnp.where(live, new, acc)

    return lax.fori_loop(0, count, step, acc)


def _mask(shape, axes, tile: Any) -> Any:
    mask = inside(shape, axes)
    return full(tile.shape, True, np.bool_) if mask is None else mask


def fold(tile: Any, shape, start: Any, axes, order: Order, combine: Callable[[Any, Any], Any]) -> Any:
    """`tile_fold`. In a tree an odd last element is carried up alone: the identity is used once."""
    if order in (Order.FOLD_LEFT, Order.FOLD_RIGHT):
        return fold_in_order(tile, shape, start, axes, order, combine)
    flat, count = _compact(tile, shape, axes)
    lead = flat.shape[:-1]
    if not count:
        return jnp.broadcast_to(jnp.asarray(start, flat.dtype), lead)
    first = lax.broadcasted_iota(np.int32, flat.shape, flat.ndim - 1) == np.int32(0)
    flat = jnp.where(first, combine(jnp.broadcast_to(start, flat.shape), flat), flat)
    while flat.shape[-1] > 1:
        left, right = (lax.reshape(x, x.shape[:-1]) for x in halves(flat, 1))
        paired = lax.broadcasted_iota(np.int32, left.shape, left.ndim - 1) < np.int32(count // 2)
        flat, count = jnp.where(paired, combine(left, right), left), (count + 1) // 2
    return lax.reshape(flat, lead)


def scan(tile: Any, shape, *, op: str, axis: int, reverse: bool, **_: Any) -> Any:
    """`tile_scan`."""
    if op == "add" and not reverse and tile.dtype in (np.float32, np.int32):
        return jnp.cumsum(masked(tile, shape, 0, (axis,)), axis)
    (out,) = scan_with(
        [masked(tile, shape, identity(op, tile.dtype), (axis,))],
        axis,
        shape[axis],
        reverse,
        lambda a, b: [COMBINE[op](a[0], b[0])],
    )
    return out


def scan_with(
    tiles: Sequence[Any], axis: int, count: int, reverse: bool, combine: Callable[..., Sequence[Any]]
) -> list[Any]:
    """An inclusive scan of `count` elements and padding: at each level the later half of every block takes in
    the end of the earlier half, unless that is padding.
    """
    arrays = [last(t, axis) for t in tiles]
    n, distance = arrays[0].shape[-1], 1
    place_along = lax.iota(np.int32, n)
    while distance < n:
        pairs = [halves(a, distance) for a in arrays]
        early, late = [p[reverse] for p in pairs], [p[not reverse] for p in pairs]
        end = 0 if reverse else distance - 1
        ends = [_broadcast_last(_pick(e, end), distance) for e in early]
        taken = list(combine(ends, late))
        if reverse and count < n:
            at = _broadcast_last(_pick(halves(place_along, distance)[1], 0), distance)
            own = at < np.int32(count)
            taken = [jnp.where(own, new, old) for new, old in zip(taken, late, strict=True)]
        arrays = [join(b, a) if reverse else join(a, b) for a, b in zip(early, taken, strict=True)]
        distance *= 2
    return [back(a, axis) for a in arrays]


def _pick(array: Any, index: int) -> Any:
    """The elements at `index` along the last axis."""
    if array.shape[-1] == 1:
        return lax.reshape(array, array.shape[:-1])
    here = lax.broadcasted_iota(np.int32, array.shape, array.ndim - 1) == index
    return select_sum(here, array, -1)


def _broadcast_last(array: Any, n: int) -> Any:
    return jnp.broadcast_to(array[..., None], (*array.shape, n))
