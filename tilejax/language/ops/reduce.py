"""Reductions over named axes.

Sums and products of f16 and bf16 run in f32 and round once; those of bool and narrow integers widen as
`jnp.sum` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import AxisError, ShapeError, TileTypeError
from ...ir import primitives as ir
from ...ir.types import Order
from .. import trace
from ..axis import Axis, Shape
from ..dtypes import inexact
from ..region import keep_type, trace_function
from ..tile import Tile, as_tile
from . import elementwise as ew
from .elementwise import Operand
from .make import check_fits, named_axis


@dataclass(frozen=True)
class Reducer:
    """A reduction by `fn(a, b)`, a function of two scalars in the tile's dtype, whose neutral element is
    `identity`.
    """

    fn: Callable[[Any, Any], Any]
    identity: Any


_NAMED = {
    ew.add: "add",
    ew.multiply: "mul",
    ew.maximum: "max",
    ew.minimum: "min",
    ew.logical_and: "and",
    ew.logical_or: "or",
}
_EMPTY_IS_ERROR = {"max", "min"}


def reduce(tile: Operand, axes: Axis | Shape, op: Any, *, order: str = "unordered_tree") -> Tile:
    """Removes `axes` (an axis or a `shape(...)` of axes) by `op`: `tilejax.add multiply maximum minimum
    logical_and logical_or`, or a `Reducer`.

    `order` is "unordered_tree" (any association), "ordered_tree", "fold_left" or "fold_right" (exactly
    as the reference page says, over the axes in the order given, row-major). An empty axis gives the
    identity; for max and min it is a `ShapeError`. The dtype is the tile's, widened for sums and
    products of bools and narrow ints.
    """
    name = "reduce"
    value = as_tile(tile, name)
    positions = positions_of(value, axes, name)
    if order not in {o.value for o in Order}:
        raise ShapeError(f"{name}: unknown order {order!r}; it is one of {', '.join(o.value for o in Order)}")
    if isinstance(op, Reducer):
        return _fold(value, positions, op, order)
    if not isinstance(op, Callable) or op not in _NAMED:
        raise TileTypeError(
            f"{name}: {getattr(op, '__name__', repr(op))} is not a reduction; give tilejax.add, multiply, "
            "maximum, minimum, "
            "logical_and, logical_or or a tilejax.Reducer(fn, identity)"
        )
    return _named(value, positions, _NAMED[op], order, name)


def _named(tile: Tile, positions: tuple[int, ...], op: str, order: str, name: str) -> Tile:
    if op in _EMPTY_IS_ERROR and 0 in (tile.shape[i] for i in positions):
        raise ShapeError(
            f"{name}: {op} over the empty axis of {tile.axes} has no value; mask it with a fallback instead"
        )
    result = tile.dtype
    if op in ("and", "or"):
        tile = ew.cast(tile, np.bool_)
        result = np.dtype(np.bool_)
    elif op in ("add", "mul"):
        wide, result = _accumulator(tile.dtype)
        tile = ew.cast(tile, wide)
    elif tile.dtype == np.bool_:
        op = "or" if op == "max" else "and"
    (value,) = ir.reduce_p.bind(tile.value, op=op, axes=positions, order=Order(order), loc=trace.here())
    reduced = Tile(value, remaining(tile, positions))
    return reduced if reduced.dtype == result else ew.cast(reduced, result)


def _accumulator(dtype: np.dtype) -> tuple[Any, np.dtype]:
    """The dtype that a sum runs in and the one that it has."""
    if jnp.issubdtype(dtype, np.floating):
        return (np.float32 if jnp.finfo(dtype).bits < 32 else dtype), dtype
    wide = jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), dtype)).dtype
    return wide, wide


def _fold(tile: Tile, positions: tuple[int, ...], op: Reducer, order: str) -> Tile:
    label = "the function of a Reducer"
    identity = as_tile(op.identity, "Reducer: the identity")
    if identity.ndim:
        raise ShapeError(f"Reducer: the identity must be a scalar, got a tile of {identity.axes}")
    check_fits(op.identity, tile.dtype, "Reducer: the identity")
    scalar = (Shape(), tile.dtype)
    fn, consts = trace_function(
        lambda a, b: [keep_type(op.fn(a, b), *scalar, label)], [scalar, scalar], label
    )
    (value,) = ir.fold_p.bind(
        tile.value,
        ew.cast(identity, tile.dtype).value,
        *consts,
        axes=positions,
        order=Order(order),
        fn=fn,
        loc=trace.here(),
    )
    return Tile(value, remaining(tile, positions))


def positions_of(tile: Tile, axes: Any, name: str) -> tuple[int, ...]:
    """Where `axes` (an axis, or several) are in `tile`, in the order given."""
    wanted = tuple(axes) if isinstance(axes, (tuple, list)) else (axes,)
    found = [position_of(tile, a, name) for a in wanted]
    if len(set(found)) != len(found):
        raise AxisError(f"{name}: an axis appears twice in {axes!r}")
    return tuple(found)


def position_of(tile: Tile, axis: Any, name: str) -> int:
    """Where `axis` is in `tile`; `AxisError` if it is not an axis or not there."""
    named_axis(axis, name)
    for i, dim in enumerate(tile.axes):
        if dim is axis:
            return i
    same = [d for d in tile.axes if isinstance(d, Axis) and d.name == axis.name]
    hint = "; it has another axis of that name: axes are the same only if they are one object" if same else ""
    raise AxisError(f"{name}: the tile of {tile.axes} has no axis {axis!r}{hint}")


def remaining(tile: Tile, positions: tuple[int, ...]) -> Shape:
    return Shape(d for i, d in enumerate(tile.axes) if i not in positions)


def sum(tile: Operand, axes: Axis | Shape) -> Tile:
    """The sum over `axes`; an empty one gives 0."""
    return reduce(tile, axes, ew.add)


def prod(tile: Operand, axes: Axis | Shape) -> Tile:
    """The product over `axes`; an empty one gives 1."""
    return reduce(tile, axes, ew.multiply)


def max(tile: Operand, axes: Axis | Shape) -> Tile:
    """The greatest element over `axes`, NaN if any is; an empty axis is a `ShapeError`."""
    return reduce(tile, axes, ew.maximum)


def min(tile: Operand, axes: Axis | Shape) -> Tile:
    """The least element over `axes`, NaN if any is; an empty axis is a `ShapeError`."""
    return reduce(tile, axes, ew.minimum)


def any(tile: Operand, axes: Axis | Shape) -> Tile:
    """Whether any element over `axes` is nonzero, a bool tile."""
    return reduce(tile, axes, ew.logical_or)


def all(tile: Operand, axes: Axis | Shape) -> Tile:
    """Whether all elements over `axes` are nonzero, a bool tile."""
    return reduce(tile, axes, ew.logical_and)


def mean(tile: Operand, axes: Axis | Shape) -> Tile:
    """The mean over `axes`, a float also for integers; it runs in f32 for shorter floats; NaN over an
    empty axis.
    """
    value = as_tile(tile, "mean")
    count = math.prod(value.shape[i] for i in positions_of(value, axes, "mean"))
    result = inexact(value.dtype)
    wide, _ = _accumulator(result)
    total = sum(ew.cast(value, wide), axes)
    return ew.cast(ew.divide(total, float(count)), result)


def argmax(tile: Operand, axis: Axis) -> Tile:
    """The index of the first NaN, else of the first greatest element; int32 (int64 under x64)."""
    return _arg(tile, axis, "max")


def argmin(tile: Operand, axis: Axis) -> Tile:
    """The index of the first NaN, else of the first least element; int32 (int64 under x64)."""
    return _arg(tile, axis, "min")


def _arg(tile: Operand, axis: Axis, op: str) -> Tile:
    name = f"arg{op}"
    value = as_tile(tile, name)
    position = position_of(value, axis, name)
    if value.shape[position] == 0:
        raise ShapeError(f"{name}: the empty axis {axis!r} has no {op}imum")
    dtype = np.dtype(jnp.result_type(int))
    (index,) = ir.argreduce_p.bind(value.value, op=op, axis=position, index_dtype=dtype, loc=trace.here())
    return Tile(index, remaining(value, (position,)))
