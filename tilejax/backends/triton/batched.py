"""Products of many pairs of matrices, of which Triton multiplies one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from .tiles import last, paired

_SMALL = 16
"""Up to so many terms are multiplied and added where a matrix unit's smallest product is mostly padding."""
_FEW = 48
"""Up to so many dots are written out: more take long to compile."""
_HELD = 2**16
"""The operands of dots lie in shared memory, which may have to hold so many elements of one at once."""


def way(count: int, rows: int, depth: int, columns: int, each: int) -> str:
    """How `count` products of padded extents, of `each` so many dots, are best had: as "sums" of products of
    columns and rows, as "dots", or in "order", a contracted index at a time."""
    if count == 1:
        return "dots"
    if depth <= _SMALL and rows * columns <= 4 * _SMALL**2:
        return "sums"
    return "dots" if count * each <= _FEW and count * depth * max(rows, columns) <= _HELD else "order"


def sums(left: Any, right: Any, wide: Any) -> Any:
    """`(count, rows, depth)` times `(count, depth, columns)`."""
    columns, rows = (pieces(x.astype(wide), axis) for x, axis in ((left, 2), (right, 1)))
    total: Any = None
    for column, row in zip(columns, rows, strict=True):
        term = column[:, :, None] * row[:, None, :]
        total = term if total is None else total + term
    return total


def dots(left: Any, right: Any, product: Callable[[Any, Any], Any]) -> Any:
    """The same by `product`, of two matrices."""
    return _together([product(a, b) for a, b in zip(pieces(left, 0), pieces(right, 0), strict=True)])


def pieces(array: Any, axis: int) -> list[Any]:
    """The array at each index along `axis`."""
    array = last(array, axis)
    *lead, n = array.shape
    if n == 1:
        return [lax.reshape(array, lead)]
    halves = last(lax.reshape(array, (*lead, 2, n // 2)), array.ndim - 1)
    return [x for half in jnp.unstack(halves, axis=-1) for x in pieces(half, array.ndim - 1)]


def _together(arrays: list[Any]) -> Any:
    """What `pieces` along the first dimension took apart."""
    if len(arrays) == 1:
        return arrays[0][None]
    middle = len(arrays) // 2
    pair = paired(_together(arrays[:middle]), _together(arrays[middle:]))
    order = (pair.ndim - 1, *range(pair.ndim - 1))
    return lax.reshape(lax.transpose(pair, order), (len(arrays), *arrays[0].shape))
