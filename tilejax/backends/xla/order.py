"""Sorts of all programs at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import bfloat16, selection
from .access import slice_dim
from .stack import unstack
from .value import Plan, Val, constant, regroup, split_entries, unify

MAX_NETWORK = 16
"""The longest unrolled axis that is sorted by a network."""


def sort(plan: Plan, val: Val, *, axis: int, descending: bool, **_: Any) -> list[Val]:
    """`tile_sort`."""
    if val.shape[axis] == 1:
        return [val, constant(0, np.int32, val.shape)]
    if val.stack == (axis,) and val.shape[axis] <= MAX_NETWORK:
        return _sort_parts(plan, val, descending)
    whole = split_entries(plan, unstack(plan, val), [axis])
    dim = whole.groups.index((axis,))
    return [Val(val.shape, v.dtype, v, whole.groups) for v in _sorted(whole.array, dim, descending)]


def _sorted(array: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Values and indices. Ascending is XLA's stable sort, which puts NaN last; descending is that of the
    reversed sequence, reversed, which keeps the order of equals.
    """
    n = array.shape[dim]
    array = lax.rev(array, (dim,)) if descending else array
    index = lax.broadcasted_iota(np.int32, array.shape, dim)
    values, indices = lax.sort((array, index), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, indices = lax.rev(values, (dim,)), np.int32(n - 1) - lax.rev(indices, (dim,))
    return values, indices


def top_k(plan: Plan, val: Val, *, axis: int, k: int, largest: bool, **_: Any) -> list[Val]:
    """`tile_top_k`."""
    shape = (*val.shape[:axis], k, *val.shape[axis + 1 :])
    if k == 0:
        return [Val(shape, d, jnp.zeros(0, d), ((axis,),)) for d in (val.dtype, np.dtype(np.int32))]
    if val.shape[axis] == 1:
        return [val, constant(0, np.int32, shape)]
    whole = split_entries(plan, unstack(plan, val), [axis])
    rest = tuple(g for g in whole.groups if g != (axis,))
    rows = regroup(plan, whole, (*rest, (axis,)))
    last = rows.ndim - 1
    if (indices := _selected(rows, k, largest)) is not None:
        out = [jnp.take_along_axis(rows, indices, last, mode="clip"), indices]
    else:
        out = [slice_dim(v, last, 0, k) for v in _sorted(rows, last, largest)]
    groups = rest if k == 1 else (*rest, (axis,))
    out = [lax.squeeze(v, (v.ndim - 1,)) for v in out] if k == 1 else out
    return [Val(shape, v.dtype, v, groups) for v in out]


def _selected(rows: Any, k: int, largest: bool) -> Any:
    """The indices of the `k` first of each row; None where sorting all of it is better."""
    floating, n = jnp.issubdtype(rows.dtype, np.floating), rows.shape[-1]
    topk = floating and jnp.finfo(rows.dtype).bits <= 32 and 4 * k <= n
    # TopK pays for each row, but is quick with few; to find the least it has to look for NaN first.
    quick = topk and largest and rows.size + 128 * (rows.size // n) < 2**16
    if not quick and 2 * k <= selection.WIDTH and selection.countable(rows.dtype):
        return selection.few(rows, k, largest)
    if topk:
        return _top(rows, k) if largest else _least(rows, k)
    return None


def _top(rows: Any, k: int) -> Any:
    """The indices of the `k` greatest of each row. XLA selects in f32, and orders -0 and the sign of NaN."""
    rows = lax.convert_element_type(rows, np.float32)
    rows = jnp.where(jnp.isnan(rows), np.float32(np.nan), jnp.where(rows == 0, np.float32(0), rows))
    return lax.top_k(rows, k)[1]


def _least(rows: Any, k: int) -> Any:
    """The indices of the `k` least: the greatest of the negated, but for NaN, which is greatest in both."""
    return lax.cond(
        jnp.isnan(rows).any(),
        lambda rows: slice_dim(_sorted(rows, rows.ndim - 1, False)[1], rows.ndim - 1, 0, k),
        lambda rows: _top(-rows, k),
        rows,
    )


def network(n: int) -> Iterator[tuple[int, int]]:
    """The comparators that sort `n` places: Batcher's odd-even merge sort; of nine Floyd's, which sorts three
    threes first, and of which fewer are left where only the median is read."""
    if n == 9:
        for column in (0, 3, 6):
            yield from ((column, column + 1), (column + 1, column + 2), (column, column + 1))
        for row in (0, 1, 2):
            yield from ((row, row + 3), (row + 3, row + 6), (row, row + 3))
        yield from ((1, 3), (5, 7), (2, 6), (4, 6), (2, 4), (2, 3), (5, 6))
        return
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        yield i + j, i + j + k
            k //= 2
        p *= 2


def _sort_parts(plan: Plan, val: Val, descending: bool) -> list[Val]:
    """`tile_sort` along the one unrolled dimension. The values go through a network of their own, in which
    ties need no order; the indices through one that breaks ties by index, of which nothing is left if
    nobody reads them."""
    groups = unify(val.parts)
    keys = bfloat16.compared(plan, [regroup(plan, part, groups) for part in val.parts])
    values, pairs = list(keys), [(k, jnp.full(k.shape, i, np.int32)) for i, k in enumerate(keys)]
    for i, j in network(len(keys)):
        swap = _after(values[i], values[j], descending)
        values[i], values[j] = (
            lax.select(swap, *v) for v in ((values[j], values[i]), (values[i], values[j]))
        )
        (a, ia), (b, ib) = pairs[i], pairs[j]
        swap = _after(a, b, descending) | (~_after(b, a, descending) & (ib < ia))
        pairs[i] = lax.select(swap, b, a), lax.select(swap, ib, ia)
        pairs[j] = lax.select(swap, a, b), lax.select(swap, ia, ib)
    out = []
    for arrays, dtype in ((values, val.dtype), ([i for _, i in pairs], np.dtype(np.int32))):
        arrays = [lax.convert_element_type(array, dtype) for array in arrays]
        parts = tuple(Val(val.shape, dtype, array, groups) for array in arrays)
        out.append(Val(val.shape, dtype, stack=val.stack, parts=parts))
    return out


def _after(a: Any, b: Any, descending: bool) -> Any:
    """Whether `a` belongs after `b`: greater (less, if descending); NaN is greatest and equals NaN."""
    if descending:
        a, b = b, a
    if not jnp.issubdtype(a.dtype, np.floating):
        return lax.gt(a, b)
    return ~lax.le(a, b) & lax.eq(b, b)
