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
from .tiles import along, full, masked, place, scalar, widened

REDUCTIONS: dict[str, Callable[..., Any]] = {"max": jnp.max, "or": jnp.max, "min": jnp.min, "and": jnp.min}


def extremum(tile: Any, axes: Sequence[int], op: str) -> Any:
    """The maximum or minimum, NaN if there is one."""
    seen, found = _found(widened(tile), axes, op)
    if seen is not None:
        found = jnp.where(seen, full(found.shape, math.nan, found.dtype), found)
    return found != 0 if tile.dtype == np.bool_ else found.astype(tile.dtype)


def argreduce(tile: Any, shape, *, op: str, axis: int, index_dtype: Any, **_: Any) -> Any:
    """`tile_argreduce`: the first place of a NaN, else of the extremum."""
    own = masked(tile, shape, identity(op, tile.dtype), (axis,))
    return first_place(widened(own), place(shape, axis), axis, op).astype(index_dtype)


def first_place(tile: Any, places: Any, axis: int, op: str) -> Any:
    """The least of the places at which along `axis` a NaN is, else the extremum."""
    others = [i for i in range(tile.ndim) if i != axis]
    seen, found = _found(tile, (axis,), op)
    here = tile == lax.broadcast_in_dim(found, tile.shape, others)
    if seen is not None:
        here = jnp.where(lax.broadcast_in_dim(seen, tile.shape, others), tile != tile, here)
    return jnp.min(jnp.where(here, places, full(tile.shape, 2**31 - 1, np.int32)), axis)


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
