"""Contractions: a product of matrices where they are one, else a sum of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .tiles import full, masked, padded, scalar, select_sum


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
    wide = wide_type(a.dtype)
    if not allow_reassociation or batch or extra:
        return _in_order(a, b, acc, extents, a_labels, b_labels, acc_labels, summed, wide)
    for x in summed:
        a = masked(a, shapes[0], 0, [a_labels.index(x)])
        b = masked(b, shapes[1], 0, [b_labels.index(x)])
    left = _matrix(a, a_labels, rows, summed)
    right = _matrix(b, b_labels, summed, cols)
    m, n = left.shape[0], right.shape[1]
    depth = 32 if a.dtype.itemsize == 1 else 16
    out = _top(product(_at_least(left, 16, depth), _at_least(right, depth, 16), precision), m, n)
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
    for axis, least in enumerate((rows, cols)):
        if matrix.shape[axis] == 1:
            matrix = _alone(matrix, axis, least)
        while matrix.shape[axis] < least:
            matrix = _double(matrix, axis)
    return matrix


def _alone(matrix: Any, axis: int, n: int) -> Any:
    """The one row or column of a matrix, and zeros."""
    shape = tuple(n if i == axis else m for i, m in enumerate(matrix.shape))
    first = lax.broadcasted_iota(np.int32, shape, axis) == 0
    return jnp.where(first, jnp.broadcast_to(matrix, shape), full(shape, 0, matrix.dtype))


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


def product(a: Any, b: Any, precision: Any) -> Any:
    """The product of two matrices, in int32, float32 or float64."""
    if jnp.issubdtype(a.dtype, np.integer):
        return _integers(a, b)
    if a.dtype == np.float32 and precision is None and a.shape[1] <= _EXACT:
        return _exact(a, b)
    if a.dtype.itemsize >= 4 and precision is None:
        precision = lax.Precision.HIGHEST
    return lax.dot_general(a, b, _PLAIN, precision=precision, preferred_element_type=wide_type(a.dtype))


_PLAIN = (((1,), (0,)), ((), ()))
_EXACT = 128
"""The matrix units cut what they add up, so no longer sums than this are left to them."""


def wide_type(dtype: Any) -> Any:
    """What products of a dtype add up in."""
    if jnp.issubdtype(dtype, np.integer):
        return np.dtype(np.int32)
    return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)


def _integers(a: Any, b: Any) -> Any:
    """The matrix units take int8 alone: of a uint8 they get the lower seven bits, and the eighth."""
    parts = [[(x, 1)] if x.dtype == np.int8 else _sevens(x) for x in (a, b)]
    total: Any = None
    for left, high in parts[0]:
        for right, other in parts[1]:
            term = lax.dot_general(left, right, _PLAIN, preferred_element_type=np.int32)
            term = term * scalar(high * other, np.int32) if high * other > 1 else term
            total = term if total is None else total + term
    return total


def _sevens(x: Any) -> list[tuple[Any, int]]:
    low = (x & scalar(127, np.uint8)).astype(np.int8)
    return [(low, 1), ((x > scalar(127, np.uint8)).astype(np.int8), 128)]


def _exact(a: Any, b: Any) -> Any:
    """A product of float32 matrices on units that take bfloat16: 24 bits are three times 8, cut and not
    rounded, so that nothing overflows. Of the nine products those three are left out that are less than a
    rounding of the whole; a product that float32 holds exactly has none of them."""
    (a2, a1, a0), (b2, b1, b0) = _thirds(a), _thirds(b)
    total = full((a.shape[0], b.shape[1]), 0, np.float32)
    for left, right in ((a0, b2), (a2, b0), (a1, b1), (a0, b1), (a1, b0)):
        total = total + lax.dot_general(left, right, _PLAIN, preferred_element_type=np.float32)
    # Infinity times the 0 of a small part is NaN, but what it is times the number is in the last product.
    total = jnp.where(total == total, total, full(total.shape, 0, np.float32))
    return total + lax.dot_general(a0, b0, _PLAIN, preferred_element_type=np.float32)


def _thirds(x: Any) -> tuple[Any, Any, Any]:
    """The last, middle and first eight bits of the mantissas."""
    first = jnp.where(x == x, _cut(x), x)
    rest = x - first
    middle = _cut(rest)
    return (rest - middle).astype(jnp.bfloat16), middle.astype(jnp.bfloat16), first.astype(jnp.bfloat16)


def _cut(x: Any) -> Any:
    bits = lax.bitcast_convert_type(x, np.int32) & scalar(-(2**16), np.int32)
    return lax.bitcast_convert_type(bits, np.float32)
