"""The tile operations in what Pallas lowers for Triton; what it lacks is a tree, a network or a select."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.types import Order
from ..xla.tile_ops import identity
from .elementwise import maximum, minimum, rearrange
from .tiles import back, full, halves, inside, join, last, masked, padded, place, select_sum, tree

_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lax.add,
    "mul": lax.mul,
    "max": maximum,
    "min": minimum,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def reduce(tile: Any, shape, *, op: str, axes: tuple[int, ...], order: Order, loc: Any, **_: Any) -> Any:
    """`tile_reduce`."""
    exact = op in ("max", "min", "and", "or") or jnp.issubdtype(tile.dtype, np.integer)
    if not exact and order not in (Order.UNORDERED_TREE, Order.ORDERED_TREE):
        return fold_in_order(tile, shape, identity(op, tile.dtype), axes, order, _COMBINE[op])
    tile = masked(tile, shape, identity(op, tile.dtype), axes)
    if op == "add" and order is Order.UNORDERED_TREE and tile.dtype != np.bool_:
        for axis in sorted(axes, reverse=True):
            tile = jnp.sum(tile, axis, dtype=tile.dtype)
        return tile
    flat, count = _compact(tile, shape, axes)
    own = lax.broadcasted_iota(np.int32, flat.shape, flat.ndim - 1) < np.int32(count)
    flat = jnp.where(own, flat, full(flat.shape, identity(op, tile.dtype), tile.dtype))
    (out,) = tree([flat], flat.ndim - 1, lambda a, b: [_COMBINE[op](a[0], b[0])])
    return out


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
        zero = full(flat.shape, 0, tile.dtype)
        x = jnp.sum(jnp.where(here, flat, zero), -1, dtype=tile.dtype)
        live = jnp.sum(jnp.where(here & own, 1, 0).astype(np.int32), -1) > 0
        new = combine(acc, x) if order is Order.FOLD_LEFT else combine(x, acc)
        return jnp.where(live, new, acc)

    return lax.fori_loop(0, count, step, acc)


def _mask(shape, axes, tile: Any) -> Any:
    mask = inside(shape, axes)
    return full(tile.shape, True, np.bool_) if mask is None else mask


def fold(tile: Any, shape, start: Any, axes, order: Order, combine: Callable[[Any, Any], Any]) -> Any:
    """`tile_fold`. In a tree the padding holds the identity, which the last elements meet where they would
    be carried up alone."""
    if order in (Order.FOLD_LEFT, Order.FOLD_RIGHT):
        return fold_in_order(tile, shape, start, axes, order, combine)
    flat, count = _compact(tile, shape, axes)
    own = lax.broadcasted_iota(np.int32, flat.shape, flat.ndim - 1) < np.int32(count)
    flat = jnp.where(own, flat, jnp.broadcast_to(start, flat.shape))
    (out,) = tree([flat], flat.ndim - 1, lambda a, b: [combine(a[0], b[0])])
    return out


def argreduce(tile: Any, shape, *, op: str, axis: int, index_dtype: Any, **_: Any) -> Any:
    """`tile_argreduce`: a tree of pairs, in which NaN wins and then the lesser index."""
    values = masked(tile, shape, identity(op, tile.dtype), (axis,))
    index = place(shape, axis)
    after = (lambda a, b: a > b) if op == "max" else (lambda a, b: a < b)

    def better(a: Any, b: Any, ia: Any, ib: Any) -> Any:
        if not jnp.issubdtype(a.dtype, np.floating):
            return after(a, b) | ((a == b) & (ia < ib))
        nan_a, nan_b = a != a, b != b
        equal = (a == b) | (nan_a & nan_b)
        return (nan_a & ~nan_b) | (after(a, b) & ~nan_b) | (equal & (ia < ib))

    def combine(left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
        (a, ia), (b, ib) = left, right
        first = better(a, b, ia, ib)
        return [jnp.where(first, a, b), jnp.where(first, ia, ib)]

    _, index = tree([values, index], axis, combine)
    return index.astype(index_dtype)


def scan(tile: Any, shape, *, op: str, axis: int, reverse: bool, **_: Any) -> Any:
    """`tile_scan`."""
    if op == "add" and not reverse and tile.dtype in (np.float32, np.int32):
        return jnp.cumsum(masked(tile, shape, 0, (axis,)), axis)
    (out,) = scan_with(
        [masked(tile, shape, identity(op, tile.dtype), (axis,))],
        axis,
        shape[axis],
        reverse,
        lambda a, b: [_COMBINE[op](a[0], b[0])],
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
    place_along = lax.broadcasted_iota(np.int32, arrays[0].shape, arrays[0].ndim - 1)
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


def sort(tile: Any, shape, *, axis: int, descending: bool, **_: Any) -> list[Any]:
    """`tile_sort`: a bitonic network of values and indices; padding goes last."""
    values, index = last(tile, axis), last(place(shape, axis), axis)
    count, n = shape[axis], values.shape[-1]
    at = lax.broadcasted_iota(np.int32, values.shape, values.ndim - 1)
    block = 2
    while block <= n:
        distance = block // 2
        while distance:
            (a, b), (ia, ib), (pa, _) = (
                halves(values, distance),
                halves(index, distance),
                halves(at, distance),
            )
            swap = _after(a, b, ia, ib, count, descending)
            swap = jnp.where((pa & np.int32(block)) == 0, swap, ~swap) if block < n else swap
            values = join(jnp.where(swap, b, a), jnp.where(swap, a, b))
            index = join(jnp.where(swap, ib, ia), jnp.where(swap, ia, ib))
            distance //= 2
        block *= 2
    return [back(values, axis), back(index, axis)]


def top_k(tile: Any, shape, *, axis: int, k: int, largest: bool, **_: Any) -> list[Any]:
    """`tile_top_k`: the first of the sorted."""
    out = []
    for array in sort(tile, shape, axis=axis, descending=largest):
        array, n = last(array, axis), array.shape[axis]
        while n > padded(k):
            pair = lax.reshape(array, (*array.shape[:-1], 2, n // 2))
            array = jnp.unstack(last(pair, pair.ndim - 2), axis=-1)[0]
            n //= 2
        out.append(back(array, axis))
    return out


def _after(a: Any, b: Any, ia: Any, ib: Any, count: int, descending: bool) -> Any:
    """Whether `a` belongs after `b`: a total order of values, then of indices; padding (`index >= count`)
    after all."""
    x, y = (b, a) if descending else (a, b)
    greater, equal = x > y, x == y
    if jnp.issubdtype(a.dtype, np.floating):
        nan_x, nan_y = x != x, y != y
        greater = (greater & ~nan_y) | (nan_x & ~nan_y)
        equal = equal | (nan_x & nan_y)
    after = greater | (equal & (ia > ib))
    pad_a, pad_b = ia >= np.int32(count), ib >= np.int32(count)
    return (pad_a & ~pad_b) | (~pad_b & after) | (pad_a & pad_b & (ia > ib))


def mma(
    a: Any,
    b: Any,
    acc: Any,
    shapes: Sequence[tuple[int, ...]],
    *,
    a_labels,
    b_labels,
    acc_labels,
    allow_reassociation,
    precision,
    loc,
) -> Any:
    """`tile_mma`: one dot where it is a matrix product of at least 16 in every extent, padded up to that,
    else a sum of products."""
    extents = {
        x: n
        for labels, shape in zip((a_labels, b_labels, acc_labels), shapes, strict=True)
        for x, n in zip(labels, shape, strict=True)
    }
    if 0 in extents.values():
        return acc
    summed = [x for x in a_labels if x in b_labels and x not in acc_labels]
    batch = [x for x in a_labels if x in b_labels and x in acc_labels]
    rows = [x for x in a_labels if x not in b_labels]
    cols = [x for x in b_labels if x not in a_labels]
    extra = [x for x in acc_labels if x not in a_labels and x not in b_labels]
    wide = np.int32 if jnp.issubdtype(a.dtype, np.integer) else np.float32
    plain = a.dtype == b.dtype and not jnp.issubdtype(a.dtype, np.unsignedinteger)
    if not plain or not allow_reassociation or any(extents[x] != 1 for x in (*batch, *extra)):
        return _in_order(a, b, acc, extents, a_labels, b_labels, acc_labels, summed, wide)
    for x in summed:
        a = masked(a, shapes[0], 0, [a_labels.index(x)])
        b = masked(b, shapes[1], 0, [b_labels.index(x)])
    left = _matrix(a, a_labels, rows, summed)
    right = _matrix(b, b_labels, summed, cols)
    m, n = left.shape[0], right.shape[1]
    left, right = _at_least(left, 16, 16), _at_least(right, 16, 16)
    kind = lax.Precision.HIGHEST if precision is None and a.dtype == np.float32 else precision
    out = lax.dot_general(left, right, (((1,), (0,)), ((), ())), precision=kind, preferred_element_type=wide)
    out = _top(out, m, n)
    order = [*rows, *cols]
    full_shape = [padded(extents[x]) for x in order]
    out = lax.reshape(out, tuple(full_shape))
    wanted = [x for x in acc_labels if x in order]
    if wanted != order:
        out = lax.transpose(out, [order.index(x) for x in wanted])
    out = lax.reshape(out, tuple(padded(extents[x]) if x in order else 1 for x in acc_labels))
    return (acc.astype(wide) + out).astype(acc.dtype)


def _in_order(a: Any, b: Any, acc: Any, extents, a_labels, b_labels, acc_labels, summed, wide) -> Any:
    """Products added one contracted index after another, in ascending order; for any labels."""
    count = math.prod(extents[x] for x in summed)

    def member(tile: Any, labels: Sequence[int], at: dict[int, Any]) -> Any:
        """The tile at one contracted index, with the dimensions of the accumulator."""
        tile = tile.astype(wide)
        for x in summed:
            here = lax.broadcasted_iota(np.int32, tile.shape, labels.index(x)) == at[x]
            tile = select_sum(here, tile, labels.index(x))
            labels = [y for y in labels if y != x]
        order = sorted(range(len(labels)), key=lambda i: acc_labels.index(labels[i]))
        tile = lax.transpose(tile, order) if order != list(range(len(labels))) else tile
        ones = [padded(extents[x]) if x in labels else 1 for x in acc_labels]
        return lax.reshape(tile, tuple(ones))

    def step(i: Any, total: Any) -> Any:
        at, stride = {}, count
        for x in summed:
            stride //= extents[x]
            at[x] = lax.rem(lax.div(i, np.int32(stride)), np.int32(extents[x]))
        return total + member(a, list(a_labels), at) * member(b, list(b_labels), at)

    return lax.fori_loop(np.int32(0), np.int32(count), step, acc.astype(wide)).astype(acc.dtype)


def _matrix(tile: Any, labels, first: Sequence[int], second: Sequence[int]) -> Any:
    order = [labels.index(x) for x in (*first, *second)]
    order = [i for i in range(tile.ndim) if i not in order] + order  # batch axes, all of extent 1, go first
    moved = lax.transpose(tile, order) if order != list(range(tile.ndim)) else tile
    m = math.prod(tile.shape[labels.index(x)] for x in first)
    k = math.prod(tile.shape[labels.index(x)] for x in second)
    return lax.reshape(moved, (m, k))


def _at_least(matrix: Any, rows: int, cols: int) -> Any:
    """The matrix with zeros below and beside, so that it has at least so many rows and columns."""
    m, k = matrix.shape
    while m < rows:
        matrix = _double(matrix, 0)
        m *= 2
    while k < cols:
        matrix = _double(matrix, 1)
        k *= 2
    return matrix


def _double(matrix: Any, axis: int) -> Any:
    m, k = matrix.shape
    pair = jnp.stack([matrix, jnp.zeros_like(matrix)], -1)  # (m, k, 2)
    if axis == 0:
        return lax.reshape(lax.transpose(pair, (2, 0, 1)), (2 * m, k))
    return lax.reshape(lax.transpose(pair, (0, 2, 1)), (m, 2 * k))


def _top(matrix: Any, rows: int, cols: int) -> Any:
    """The first rows and columns."""
    m, n = matrix.shape
    while m > rows:
        top, _ = jnp.unstack(lax.transpose(lax.reshape(matrix, (2, m // 2, n)), (1, 2, 0)), axis=-1)
        matrix, m = top, m // 2
    while n > cols:
        left, _ = jnp.unstack(lax.transpose(lax.reshape(matrix, (m, 2, n // 2)), (0, 2, 1)), axis=-1)
        matrix, n = left, n // 2
    return matrix
