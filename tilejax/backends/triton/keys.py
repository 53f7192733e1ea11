"""Integers in the order of values: what argmax, sorts and selections compare."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .tiles import full, scalar


def key_type(dtype: Any) -> np.dtype:
    """What holds the keys of values of a dtype."""
    return np.dtype(np.int64 if np.dtype(dtype).itemsize == 8 else np.int32)


def to_keys(tile: Any) -> Any:
    """Signed integers in the order of the values and equal where they are, NaN greatest: of 8 bytes for
    values of 8, else of 4, but within the range of an integer of the values' own width."""
    width = 8 * tile.dtype.itemsize
    if jnp.issubdtype(tile.dtype, np.floating):
        bits = lax.bitcast_convert_type(tile, np.dtype(f"int{width}"))
        keys = _flipped(bits if width >= 32 else bits.astype(np.int32), width)
        keys = jnp.where(keys == scalar(-1, keys.dtype), full(keys.shape, 0, keys.dtype), keys)  # -0
        wide = tile if width >= 32 else tile.astype(np.float32)
        return jnp.where(wide == wide, keys, full(keys.shape, 2 ** (width - 1) - 1, keys.dtype))
    if tile.dtype == np.bool_ or jnp.issubdtype(tile.dtype, np.signedinteger):
        return tile if width >= 32 else tile.astype(np.int32)
    if width < 32:
        return tile.astype(np.int32) - scalar(2 ** (width - 1), np.int32)
    signed = np.dtype(f"int{width}")
    return lax.bitcast_convert_type(tile, signed) ^ scalar(-(2 ** (width - 1)), signed)


def from_keys(keys: Any, dtype: Any) -> Any:
    """The values of some keys."""
    dtype = np.dtype(dtype)
    width = 8 * dtype.itemsize
    if jnp.issubdtype(dtype, np.floating):
        bits = _flipped(keys, width)
        bits = bits if width >= 32 else bits.astype(np.dtype(f"int{width}"))
        return lax.bitcast_convert_type(bits, dtype)
    if dtype == np.bool_:
        return keys != 0
    if jnp.issubdtype(dtype, np.signedinteger):
        return keys.astype(dtype)
    if width < 32:
        return (keys + scalar(2 ** (width - 1), np.int32)).astype(dtype)
    return lax.bitcast_convert_type(keys ^ scalar(-(2 ** (width - 1)), keys.dtype), dtype)


def _flipped(bits: Any, width: int) -> Any:
    """Of a negative number all bits but the sign, inverted: its own inverse."""
    sign = lax.shift_right_arithmetic(bits, full(bits.shape, 8 * bits.dtype.itemsize - 1, bits.dtype))
    return bits ^ (sign & scalar(2 ** (width - 1) - 1, bits.dtype))
