"""Tiles from nothing: constants, iotas, functions of the index."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import AxisError, DtypeError, TileTypeError
from ..axis import Axis, Shape, as_shape
from ..dtypes import as_dtype
from ..tile import Scalar, Tile, as_tile, place
from .elementwise import cast


def full(shape: Any, value: Scalar, dtype: Any = None) -> Tile:
    """`value` everywhere. Without a dtype it has the value's: a Python number gives a weak tile."""
    return _fill("full", shape, value, dtype)


def zeros(shape: Any, dtype: Any = jnp.float32) -> Tile:
    """Zeros, float32 unless said."""
    return _fill("zeros", shape, 0, dtype)


def ones(shape: Any, dtype: Any = jnp.float32) -> Tile:
    """Ones, float32 unless said."""
    return _fill("ones", shape, 1, dtype)


def _fill(name: str, shape: Any, value: Scalar, dtype: Any) -> Tile:
    axes, target = as_shape(shape, name), None if dtype is None else as_dtype(dtype, name)
    if target is not None:
        check_fits(value, target, name)
        if isinstance(value, int):  # also where it fits no scalar without a dtype
            value = np.asarray(value).astype(target)[()]
    tile = as_tile(value, name)
    if tile.ndim:
        raise TileTypeError(f"{name}: the value must be a scalar, got a tile of {tile.axes}")
    return Tile(place(tile if target is None else cast(tile, target), axes), axes)


def iota(axis: Axis, dtype: Any = jnp.int32) -> Tile:
    """0, 1, ... along `axis`, a tile over that axis alone."""
    named_axis(axis, "iota")
    return Tile(jax.lax.iota(as_dtype(dtype, "iota"), axis.extent), (axis,))


def fromfunction(shape: Any, fn: Callable[..., Any]) -> Tile:
    """`fn(i, j, ...)` of one int32 index tile for each dimension of `shape`."""
    axes = as_shape(shape, "fromfunction")
    result = as_tile(fn(*index_tiles(axes)), "fromfunction: the function's result")
    return Tile(place(result, axes), axes)


def index_tiles(axes: Shape) -> list[Tile]:
    """For each dimension its int32 index, as a tile that broadcasts to `axes`."""
    tiles = []
    for i, dim in enumerate(axes):
        if isinstance(dim, Axis):
            tiles.append(iota(dim))
        else:  # a positional dimension needs those to its right for its place
            own: Shape = Shape(d for d in axes[i:] if not isinstance(d, Axis))
            ones_after = Shape((own[0], *(1 for _ in own[1:])))
            tiles.append(Tile(jax.lax.broadcasted_iota(np.int32, ones_after.extents, 0), ones_after))
    return tiles


def named_axis(axis: Any, what: str) -> Axis:
    if not isinstance(axis, Axis):
        hint = (
            "positional axes have no name: give the tile one with tilejax.relabel"
            if isinstance(axis, int)
            else "expected an axis"
        )
        raise AxisError(f"{what}: {axis!r} is not an axis; {hint}")
    return axis


def check_fits(value: Any, dtype: Any, what: str) -> None:
    """`DtypeError` if the number `value` is not one of `dtype`: rounding is fine; overflow to inf or
    NaN, a fraction or an out-of-range value for an integer, anything but 0 and 1 for bool are not.
    Traced values pass.
    """
    if not isinstance(value, (builtins.bool, int, float, np.generic, np.ndarray)):
        return
    target = jax.dtypes.canonicalize_dtype(dtype)
    problem = None
    if target == np.bool_:
        problem = None if value in (0, 1) else "anything but 0 and 1 is not a bool"
    elif jnp.issubdtype(target, np.integer):
        info = jnp.iinfo(target)
        if not np.isfinite(float(value)) or int(value) != value:
            problem = "it is not an integer"
        elif not info.min <= int(value) <= info.max:
            problem = f"its range is [{info.min}, {info.max}]"
    else:
        with np.errstate(all="ignore"):
            held = float(np.asarray(float(value), np.float64).astype(target))
        given = float(value)
        if np.isfinite(given) != np.isfinite(held):
            problem = "it overflows" if np.isfinite(given) else "it has no infinity"
        elif np.isnan(given) != np.isnan(held) or np.isinf(given) != np.isinf(held):
            problem = "it has no infinity" if np.isinf(given) else "it has no NaN"
    if problem:
        raise DtypeError(f"{what}: {target} cannot hold {value!r}: {problem}")
