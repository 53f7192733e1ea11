"""Conversions between dtypes as JAX defines them, and the dtype that arithmetic is done in."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np


@functools.cache
def is_float(dtype: np.dtype) -> bool:
    """Also true of bfloat16 and the 8-bit floats, which NumPy does not count as floating."""
    return bool(jnp.issubdtype(dtype, np.floating))


def widen(x: np.ndarray) -> np.ndarray:
    """Floats narrower than f32 as f32, where one operation is exact enough to be rounded once."""
    return x.astype(np.float32) if is_float(x.dtype) and jnp.finfo(x.dtype).bits < 32 else x


def cast(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats round to nearest even, integers wrap, to bool is `!= 0`.

    Float to integer truncates and saturates, and NaN gives 0."""
    x = np.asarray(x)
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return np.not_equal(widen(x), 0)
    if is_float(x.dtype) and jnp.issubdtype(dtype, np.integer):
        x = x.astype(np.float64)
        low, high = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
        inside = (x > float(low)) & (x < float(high))
        result = np.where(inside, x, 0).astype(dtype)
        result = np.where(x >= float(high), np.asarray(high, dtype), result)
        return np.where(x <= float(low), np.asarray(low, dtype), result)
    return x.astype(dtype)
