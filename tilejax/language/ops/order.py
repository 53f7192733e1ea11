"""Sorting along an axis: stable, NaN counting as the greatest value, -0.0 equal to 0.0."""

from __future__ import annotations

from typing import Any

from ..._errors import ShapeError
from ...ir import primitives as ir
from .. import trace
from ..axis import Axis, Shape, check_extent
from ..tile import Tile, as_tile
from .elementwise import Operand
from .reduce import position_of


def sort(tile: Operand, axis: Axis, *, descending: bool = False) -> tuple[Tile, Tile]:
    """`(values, indices)` along `axis`: stable both ways, NaN last (first when descending); indices are
    int32.
    """
    value = as_tile(tile, "sort")
    position = position_of(value, axis, "sort")
    values, indices = ir.sort_p.bind(
        value.value, axis=position, descending=bool(descending), loc=trace.here()
    )
    return Tile(values, value.axes), Tile(indices, value.axes)


def top_k(tile: Operand, axis: Axis, k: Any, *, largest: bool = True) -> tuple[Tile, Tile]:
    """`(values, indices)` of the `k` greatest (or least) elements along `axis`, in order; ties go by
    index.

    NaN of either sign counts as greatest. `k` is an int, or the `Axis` that takes the place of `axis` in
    the result. More than the extent is a `ShapeError`.
    """
    value = as_tile(tile, "top_k")
    position = position_of(value, axis, "top_k")
    count = k.extent if isinstance(k, Axis) else check_extent(k, "top_k: k")
    if count > axis.extent:
        raise ShapeError(f"top_k: k = {count} is more than the {axis.extent} elements of axis {axis!r}")
    values, indices = ir.top_k_p.bind(
        value.value, axis=position, k=count, largest=bool(largest), loc=trace.here()
    )
    axes = Shape((*value.axes[:position], k if isinstance(k, Axis) else count, *value.axes[position + 1 :]))
    return Tile(values, axes), Tile(indices, axes)
