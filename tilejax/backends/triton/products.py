"""Products of two matrices, by dots whose extents are at least 16."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .tiles import full, paired, scalar


def matrices(a: Any, b: Any, precision: Any) -> Any:
    """The product of two matrices of any extents."""
    depth = least_depth(a.dtype.itemsize)
    out = product(_at_least(a, 16, depth), _at_least(b, depth, 16), precision)
    return _top(out, a.shape[0], b.shape[1])


def least_depth(itemsize: int) -> int:
    """What the matrix units multiply at least at once: of shorter products of bytes Triton makes twice the
    value."""
    return 32 if itemsize == 1 else 16


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
    pair = paired(matrix, jnp.zeros_like(matrix))  # (m, k, 2)
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
    """The product of two matrices, in int32, float32 or float64, at least `least_depth` deep."""
    if a.shape[1] < least_depth(a.dtype.itemsize):
        raise AssertionError(f"a product of {a.shape} and {b.shape} of {a.dtype}")
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


def dots_of(a: Any, b: Any, precision: Any) -> int:
    """How many dots a product of matrices of these dtypes is."""
    if jnp.issubdtype(a, np.integer):
        return 2 ** [a, b].count(np.uint8)
    return 6 if a == np.float32 and precision is None else 1


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
