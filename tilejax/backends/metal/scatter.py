"""Scatters without `scatter`: each place of the result finds its updates, or the updates go in one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .elementwise import full
from .indexing import clamped, column, inside, int32, piece, take_rows

_AT_ONCE = 2**22
"""So many elements are compared or added at once."""


def _one_by_one(join: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A loop of updates in place, each of one slice, which becomes `join(old, update)`."""

    def rule(x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **_: Any) -> Any:
        starts, rows, sizes = _normal(x, indices, updates, dimension_numbers)
        if not rows.size:
            return x

        def step(n: Any, x: Any) -> Any:
            start = {d: lax.squeeze(piece(s, n, 1), (0,)) for d, s in starts.items()}
            at = clamped([start.get(d, np.int32(0)) for d in range(x.ndim)], x.shape, sizes)
            old = lax.dynamic_slice(x, at, sizes, allow_negative_indices=False)
            new = join(old, lax.squeeze(piece(rows, n, 1), (0,)))
            if start and mode != lax.GatherScatterMode.CLIP:
                new = lax.select(lax.broadcast_in_dim(inside(start, x.shape, sizes), sizes, ()), new, old)
            return lax.dynamic_update_slice(x, new, at, allow_negative_indices=False)

        return lax.fori_loop(np.int32(0), np.int32(rows.shape[0]), step, x)

    return rule


def _by_place(
    whole: Callable[[Any, Any, Any, Callable[[], Any]], Any], each: Callable[..., Any]
) -> Callable[..., Any]:
    """`whole(rows of x, their flat indices, rows of updates, fallback)` where all updates are whole rows, and
    few enough places are compared with them; else, and where `fallback` is called, `each`, one by one."""

    def rule(x: Any, indices: Any, updates: Any, *, dimension_numbers: Any, mode: Any, **_: Any) -> Any:
        starts, rows, sizes = _normal(x, indices, updates, dimension_numbers)
        indexed = sorted(starts)
        rest = [d for d in range(x.ndim) if d not in starts]
        order = (*indexed, *rest)
        fits = all(sizes[d] == 1 for d in indexed) and all(sizes[d] == x.shape[d] for d in rest)
        count, width = (math.prod(x.shape[d] for d in ds) for ds in (indexed, rest))

        def fallback() -> Any:
            return each(x, indices, updates, dimension_numbers=dimension_numbers, mode=mode)

        if not rows.size or not fits or not indexed or 8 * count > _AT_ONCE:
            return fallback()
        flat = lax.full((rows.shape[0],), 0, np.int32)
        for d in indexed:
            limit = full(flat, x.shape[d] - 1)
            flat = flat * full(flat, x.shape[d]) + lax.clamp(full(flat, 0), starts[d], limit)
        if mode != lax.GatherScatterMode.CLIP:
            flat = lax.select(inside(starts, x.shape, sizes), flat, full(flat, -1))

        def matrix(x: Any) -> Any:
            return lax.reshape(lax.transpose(x, order), (count, width))

        rows = lax.reshape(rows, (rows.shape[0], width))
        out = whole(matrix(x), flat, rows, lambda: matrix(fallback()))
        return lax.transpose(lax.reshape(out, [x.shape[d] for d in order]), np.argsort(order))

    return rule


def _normal(x: Any, indices: Any, updates: Any, dims: Any) -> tuple[dict[int, Any], Any, list[int]]:
    """Each indexed dimension's starts, one an update; the updates, each of the rank of `x`; their sizes."""
    batch = indices.shape[:-1]
    columns = {d: column(indices, i) for i, d in enumerate(dims.scatter_dims_to_operand_dims)}
    for d, b in zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True):
        columns[d] = lax.broadcasted_iota(np.int32, batch, b)
    starts = {d: int32(lax.reshape(c, (math.prod(batch),))) for d, c in columns.items()}
    single = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    window = iter(dims.update_window_dims)
    sizes = [1 if d in single else updates.shape[next(window)] for d in range(x.ndim)]
    rest = [d for d in range(updates.ndim) if d not in dims.update_window_dims]
    rows = lax.transpose(updates, (*rest, *dims.update_window_dims))
    return starts, lax.reshape(rows, (math.prod(batch), *sizes)), sizes


def _blocks(flat: Any, size: int, step: Callable[[Any, Any, Any], Any], start: Any) -> Any:
    """`step(its first index, block of flat, result so far)` over blocks of `flat`, past whose end is -1."""
    size = min(size, flat.size)
    count = -(-flat.size // size)
    flat = lax.pad(flat, np.int32(-1), ((0, count * size - flat.size, 0),))

    def trip(i: Any, out: Any) -> Any:
        first = lax.mul(i, np.int32(size))
        return step(first, piece(flat, first, size), out)

    return lax.fori_loop(np.int32(0), np.int32(count), trip, start) if count > 1 else step(0, flat, start)


def _hits(flat: Any, count: int) -> Any:
    """Which place (second dimension) each index names."""
    shape = (flat.size, count)
    return lax.eq(lax.broadcast_in_dim(flat, shape, (0,)), lax.broadcasted_iota(np.int32, shape, 1))


def _set(x: Any, flat: Any, rows: Any, _: Callable[[], Any]) -> Any:
    """Each place takes the last row that names it."""
    count = x.shape[0]

    def step(first: Any, block: Any, last: Any) -> Any:
        hits = _hits(block, count)
        number = lax.broadcasted_iota(np.int32, hits.shape, 0) + first
        return lax.max(last, lax.reduce_max(lax.select(hits, number, full(number, -1)), (0,)))

    last = _blocks(flat, _AT_ONCE // count, step, lax.full((count,), -1, np.int32))
    new = take_rows(rows, 1, lax.max(last, full(last, 0)))
    return lax.select(lax.broadcast_in_dim(lax.ge(last, full(last, 0)), x.shape, (0,)), new, x)


def _add(x: Any, flat: Any, rows: Any, fallback: Callable[[], Any]) -> Any:
    """Each place adds the rows that name it, short floats in f32.

    Wide rows of finite floats are multiplied by zeros and ones. Others are selected, for a NaN or an infinity
    in another place's row is nothing to it; one by one if that would be too much.
    """
    count, width = x.shape
    floating = jnp.issubdtype(x.dtype, np.floating)
    wide = np.float32 if floating else x.dtype
    start, rows = (lax.convert_element_type(v, wide) for v in (x, rows))

    def chosen(hits: Any, rows: Any) -> Any:
        shape = (*hits.shape, width)
        spread = lax.broadcast_in_dim(rows, shape, (0, 2))
        terms = lax.select(lax.broadcast_in_dim(hits, shape, (0, 1)), spread, full(spread, 0))
        return lax.reduce_sum(terms, (0,))

    def multiplied(hits: Any, rows: Any) -> Any:
        hits = lax.convert_element_type(hits, wide)
        return lax.dot_general(hits, rows, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)

    def summed(term: Callable[[Any, Any], Any], size: int) -> Any:
        size = min(size, flat.size)
        padded = lax.pad(rows, np.asarray(0, wide), ((0, -flat.size % size, 0), (0, 0, 0)))

        def step(first: Any, block: Any, total: Any) -> Any:
            here = padded if padded.shape[0] == size else piece(padded, first, size)
            return total + term(_hits(block, count), here)

        return lax.convert_element_type(_blocks(flat, size, step, start), x.dtype)

    def selected() -> Any:
        at_once = _AT_ONCE // (count * width)
        return summed(chosen, at_once) if at_once >= 8 else fallback()

    if not floating or width < 4:
        return selected()
    finite = lax.reduce_and(lax.is_finite(rows), (0, 1))
    return lax.cond(finite, lambda: summed(multiplied, _AT_ONCE // count), selected)


_ADD = _by_place(_add, _one_by_one(lax.add))
_SET = _by_place(_set, _one_by_one(lambda old, new: new))

RULES: dict[str, Callable[..., Any]] = {
    "scatter": _SET,
    "scatter-add": _ADD,
    "scatter_add": _ADD,
    "scatter-mul": _one_by_one(lax.mul),
    "scatter_mul": _one_by_one(lax.mul),
    "scatter-min": _one_by_one(lax.min),
    "scatter_min": _one_by_one(lax.min),
    "scatter-max": _one_by_one(lax.max),
    "scatter_max": _one_by_one(lax.max),
}
