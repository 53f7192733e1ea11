"""Extrema and their places. Triton's own drop NaN, and its search for a place takes pairs through the
reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.monoids import identity
from .keys import to_keys
from .tiles import along, full, masked, place, scalar

REDUCTIONS: dict[str, Callable[..., Any]] = {"max": jnp.max, "or": jnp.max, "min": jnp.min, "and": jnp.min}


def extremum(tile: Any, axes: Sequence[int], op: str) -> Any:
    """The maximum or minimum, NaN if there is one."""
    seen, found = _found(_wide(tile), axes, op)
    if seen is not None:
        found = jnp.where(seen, full(found.shape, math.nan, found.dtype), found)
    return found != 0 if tile.dtype == np.bool_ else found.astype(tile.dtype)


def argreduce(tile: Any, shape, *, op: str, axis: int, index_dtype: Any, **_: Any) -> Any:
    """`tile_argreduce`: the first place of a NaN, else of the extremum."""
    wide = _wide(masked(tile, shape, identity(op, tile.dtype), (axis,)))
    others = [i for i in range(wide.ndim) if i != axis]
    seen, found = _found(wide, (axis,), op)
    here = wide == lax.broadcast_in_dim(found, wide.shape, others)
    if seen is not None:
        here = jnp.where(lax.broadcast_in_dim(seen, wide.shape, others), wide != wide, here)
    places = jnp.where(here, place(shape, axis), full(wide.shape, wide.shape[axis], np.int32))
    return jnp.min(places, axis).astype(index_dtype)


def _wide(tile: Any) -> Any:
    """The values as what Triton reduces."""
    if tile.dtype.itemsize >= 4:
        return tile
    return tile.astype(np.float32 if jnp.issubdtype(tile.dtype, np.floating) else np.int32)


def _found(tile: Any, axes: Sequence[int], op: str) -> tuple[Any, Any]:
    """Whether there is a NaN, of which the magnitude's bits are the greatest (None if there can't be), and
    the extremum of the others."""
    seen = None
    if jnp.issubdtype(tile.dtype, np.floating):
        info, integer = jnp.finfo(tile.dtype), np.dtype(f"int{8 * tile.dtype.itemsize}")
        bits = lax.bitcast_convert_type(tile, integer)
        magnitude = bits & scalar(jnp.iinfo(integer).max, integer)
        infinity = (2**info.nexp - 1) << info.nmant
        seen = along(jnp.max, magnitude, axes) > scalar(infinity, integer)
    return seen, along(REDUCTIONS[op], tile, axes)


def arg_keys(tile: Any, op: str) -> tuple[Any, int]:
    """Integers in the order of the values, NaN the extremum, and what is none."""
    keys = to_keys(tile)
    info = jnp.iinfo(keys.dtype)
    if op == "max":
        return keys, int(info.min)
    if jnp.issubdtype(tile.dtype, np.floating):  # the keys of NaN are greatest
        nan = keys == scalar(2 ** (8 * tile.dtype.itemsize - 1) - 1, keys.dtype)
        keys = jnp.where(nan, full(keys.shape, info.min, keys.dtype), keys)
    return keys, int(info.max)
