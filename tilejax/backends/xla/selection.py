"""The first few of each row, by counting instead of comparing in turn.

Above the rows stands a pyramid: each level has the greatest of every few neighbours of the level below. The
`k` greatest of a level are among the children of the `k` greatest of the one above, so that only `WIDTH`
candidates a level are ever ranked: each by the number of those before it, which takes no branch. Elements
are compared as integer keys, and equal ones by index: neighbours have neighbouring indices, so the order of
the parents is that of their children.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH = 32
"""How many candidates are ranked at once: what XLA on the CPU still unrolls into vector instructions."""
_LEAST = np.int32(np.iinfo(np.int32).min)
_NAN = np.float32(np.nan).view(np.int32)


def few(rows: Any, k: int, largest: bool) -> Any:
    """The indices of the `k` greatest (least) of each row, best first; `2 * k <= WIDTH`, and the elements are
    `countable`."""
    n = rows.shape[-1]
    flat = lax.reshape(rows, (rows.size // n, n))
    factor = WIDTH // k
    levels = [_keys(flat, largest)]
    while levels[-1].shape[1] > WIDTH:
        levels.append(_greatest(levels[-1], factor))
    keys = levels.pop()
    index = lax.broadcasted_iota(np.int32, keys.shape, 1)
    while levels:
        below = levels.pop()
        best = _first(keys, index, k)
        index = best[:, :, None] * np.int32(factor) + np.arange(factor, dtype=np.int32)
        index = lax.reshape(index, (flat.shape[0], k * factor))
        # Keys of the lowest level are made again: kept, they would be an array as large as the rows.
        keys = _at(below, index) if levels else _keys(_at(flat, index), largest)
        # Outside is what the last parent lacks; the least, and by index the last, it is never chosen.
        keys = jnp.where(index < np.int32(below.shape[1]), keys, _LEAST)
    return lax.reshape(_first(keys, index, k), (*rows.shape[:-1], k))


def countable(dtype: Any) -> bool:
    """Whether elements of `dtype` have int32 keys less than the greatest int32."""
    if jnp.issubdtype(dtype, np.floating):
        return jnp.finfo(dtype).bits <= 32
    return dtype == np.bool_ or jnp.iinfo(dtype).bits < 32


def _keys(rows: Any, largest: bool) -> Any:
    """int32 in the order of the elements, or in the opposite one: zeros are equal, and so are all NaN, the
    greatest."""
    floating = jnp.issubdtype(rows.dtype, np.floating)
    keys = float_keys(rows) if floating else lax.convert_element_type(rows, np.int32)
    return keys if largest else ~keys


def float_keys(x: Any) -> Any:
    """int32 in the order of floats of at most 32 bits: zeros are equal, and so are all NaN, the greatest."""
    x = lax.convert_element_type(x, np.float32)
    return jnp.where(jnp.isnan(x), _NAN, float_bits(lax.bitcast_convert_type(x, np.int32)))


def float_bits(keys: Any) -> Any:
    """The bits of the floats of some keys, or the other way round: below zero the key is minus the magnitude,
    so that -0 is 0."""
    return jnp.where(keys < 0, _LEAST - keys, keys)


def _greatest(level: Any, factor: int) -> Any:
    """The greatest of every `factor` neighbours, the last of which may be fewer."""
    rows, n = level.shape
    whole = n // factor
    blocks = lax.reshape(level[:, : whole * factor], (rows, whole, factor))
    out = lax.reduce_max(blocks, (2,))
    if whole * factor == n:
        return out
    return jnp.concatenate([out, lax.reduce_max(level[:, whole * factor :], (1,))[:, None]], 1)


def _at(level: Any, index: Any) -> Any:
    return jnp.take_along_axis(level, index, 1, mode="clip")


def _first(keys: Any, index: Any, k: int) -> Any:
    """The `k` first elements of `index` by key, the greatest first, then by index."""
    a, b, i, j = keys[:, :, None], keys[:, None, :], index[:, :, None], index[:, None, :]
    before = a >= b + (i >= j).astype(np.int32)
    rank = lax.reduce_sum(before.astype(np.int32), (1,))
    here = rank[:, :, None] == np.arange(k, dtype=np.int32)
    return lax.reduce_sum(jnp.where(here, i, np.int32(0)), (1,))
