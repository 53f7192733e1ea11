"""Casts: saturating to integers, overflowing to what a short float has, exact for floats of eight bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .tiles import computed, full, widened


def is_byte_float(dtype: Any) -> bool:
    """Whether a dtype is one of the floats of eight bits, with which Triton only moves and casts."""
    return jnp.issubdtype(dtype, np.floating) and dtype.itemsize == 1


def convert(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    """A cast; a float becomes an integer saturating, NaN becoming 0, and overflows to what the dtype has."""
    target = np.dtype(new_dtype)
    if x.dtype == target:
        return x
    if is_byte_float(target) and not jnp.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    if jnp.issubdtype(x.dtype, np.floating) and jnp.issubdtype(target, np.integer):
        return _to_integer(widened(x), target)
    if target == np.uint64 and jnp.issubdtype(x.dtype, np.signedinteger):
        # JAX would cast a constant itself, and Pallas has none over the largest int64.
        return lax.bitcast_convert_type(computed(lax.convert_element_type(x, np.int64)), target)
    if is_byte_float(x.dtype) and (target == np.float64 or is_byte_float(target)):
        x = x.astype(np.float32)  # Triton's compiler aborts
    if is_byte_float(target):
        x = computed(_odd(x) if x.dtype == np.float64 else x)
    out = lax.convert_element_type(x, target)
    if target.name in _OVERFLOW and x.dtype.itemsize > 1:
        limit, code = _OVERFLOW[target.name]  # Triton saturates
        wide, bits = x.astype(np.float32), lax.bitcast_convert_type(out, np.int8)
        beyond = jnp.where(wide < 0, full(bits.shape, code - 128, np.int8), full(bits.shape, code, np.int8))
        bits = jnp.where(jnp.abs(wide) > np.float32(limit), beyond, bits)
        out = lax.bitcast_convert_type(bits, target)
    return out


def _odd(x: Any) -> Any:
    """A float64 as float32, cut; where that is not exact, to an odd mantissa: so it rounds as the whole."""
    near = x.astype(np.float32)
    wide, bits = near.astype(np.float64), lax.bitcast_convert_type(near, np.int32)
    bits = jnp.where(jnp.abs(wide) > jnp.abs(x), bits - 1, bits)
    return lax.bitcast_convert_type(jnp.where(wide == x, bits, bits | 1), np.float32)


_OVERFLOW = {"float8_e4m3fn": (464.0, 0x7F), "float8_e5m2": (61439.99609375, 0x7C)}
"""The greatest float32 that rounds to a finite value, and the bits of what lies beyond."""


def _to_integer(x: Any, target: np.dtype) -> Any:
    info = jnp.iinfo(target)
    low, high = float(info.min), float(info.max)
    clipped = jnp.clip(jnp.where(x != x, full(x.shape, 0, x.dtype), x), low, high)
    if target in (np.uint32, np.uint64):  # by way of the signed integer, which has half of its values
        bits = 8 * target.itemsize
        half = np.float32(2.0 ** (bits - 1))
        large = clipped >= half
        part = jnp.where(large, clipped - half, clipped)
        part = lax.convert_element_type(part, np.dtype(f"int{bits}")).astype(target)
        out = part + jnp.where(large, full(x.shape, 2 ** (bits - 1), target), full(x.shape, 0, target))
    else:
        out = lax.convert_element_type(clipped, np.int64 if target.itemsize == 8 else np.int32).astype(target)
    # The greatest value of a wide integer is not a float: its neighbour would overflow.
    return jnp.where(x >= high, full(x.shape, info.max, target), out)
