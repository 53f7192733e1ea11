"""Tracing the functions that users give to operations: reducers and scan operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _compat
from .._errors import CarryError
from .axis import Shape
from .tile import Tile, as_tile
from .trace import frame, own

TileType = tuple[Shape, np.dtype]


def trace_function(
    fn: Callable[..., Sequence[Any]], inputs: Sequence[TileType], label: str
) -> tuple[Any, list[Any]]:
    """`fn`, from tiles of the given types to arrays, as a closed jaxpr `consts, inputs -> outputs`, and
    the consts.
    """

    def body(*values: Any) -> Sequence[Any]:
        with frame("function", label) as inner:
            own(values, inner)
            return fn(*(Tile(value, axes) for value, (axes, _) in zip(values, inputs, strict=True)))

    jaxpr, consts = _compat.trace(body, [jax.ShapeDtypeStruct(axes.extents, dtype) for axes, dtype in inputs])
    return _compat.close(jaxpr, 0, jaxpr.constvars), consts


def keep_type(value: Any, axes: Shape, dtype: np.dtype, what: str) -> Any:
    """The array of `value` if it is a tile of these axes and this dtype, or a weak scalar or tile that
    takes it; else `CarryError`.
    """
    tile = as_tile(value, what)
    if tile.ndim == 0 and tile.weak_type and jax.numpy.promote_types(tile.dtype, dtype) == dtype:
        return jax.lax.convert_element_type(jax.lax.broadcast(tile.value, axes.extents), dtype)
    if tile.axes != axes:
        raise CarryError(f"{what}: it must keep its axes {axes}, but {tile.axes} came back")
    if tile.dtype != dtype and not (tile.weak_type and jax.dtypes.result_type(tile.value, dtype) == dtype):
        raise CarryError(
            f"{what}: it must keep its dtype {dtype}, but {tile.dtype} came back; use astype({dtype})"
        )
    return jax.lax.convert_element_type(tile.value, dtype)
