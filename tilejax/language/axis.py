"""Axes, shapes and coordinates: the names that tiles carry while a kernel is traced."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.core
import numpy as np

from .._errors import AxisError, DtypeError, ShapeError


class Axis:
    """A named extent. Two axes are the same only if they are the same object; the name is for messages."""

    __slots__ = ("extent", "name")

    def __init__(self, name: str, extent: int):
        if not isinstance(name, str):
            raise AxisError(f"axis(name, extent): the name must be a string, got {name!r}")
        self.name, self.extent = name, check_extent(extent, f"axis {name!r}")

    def __repr__(self) -> str:
        return f"{self.name}:{self.extent}"


Dim = Axis | int
"""A dimension of a shape: a named axis, or the extent of a positional one."""


def axis(name: str, extent: int) -> Axis:
    """A new axis of `extent` elements (a Python int >= 0).

    Raises `AxisError` for any other extent: shapes are static, so a traced value cannot be one."""
    return Axis(name, extent)


def check_extent(extent: Any, what: str) -> int:
    if isinstance(extent, jax.core.Tracer):
        raise AxisError(
            f"{what}: the extent is a traced value ({extent.aval}), but shapes are static. "
            "Pass it as a static argument (static_argnames=...) or take it from a view's shape"
        )
    if isinstance(extent, (bool, np.bool_)):
        raise AxisError(f"{what}: the extent must be an int >= 0, got {extent!r}")
    try:
        value = operator.index(extent)
    except TypeError:
        raise AxisError(f"{what}: the extent must be an int >= 0, got {extent!r}") from None
    if value < 0:
        raise AxisError(f"{what}: the extent must be >= 0, got {value}")
    return value


def extent_of(dim: Dim) -> int:
    return dim.extent if isinstance(dim, Axis) else dim


def cdiv(a: Any, b: Any) -> Any:
    """`ceil(a / b)` of integers, floor semantics for negatives: `cdiv(-7, 2)` is -3."""
    if isinstance(b, (int, np.integer)) and b == 0:
        raise ShapeError(f"cdiv({a!r}, 0): division by zero; a block size must be >= 1")
    return -(-a // b)


class Shape(tuple[Dim, ...]):
    """The dimensions of a tile, each an `Axis` or an int."""

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(extent_of(d) for d in self)

    def __repr__(self) -> str:
        return f"shape({', '.join(map(repr, self))})"


def shape(*dims: Dim) -> Shape:
    """The shape of a tile: axes, or ints for positional axes, which count from the right as NumPy's do.

    Raises `AxisError` for an axis that is named twice and for an entry that is neither."""
    checked = [d if isinstance(d, Axis) else check_extent(d, "shape(...)") for d in dims]
    named = [d for d in checked if isinstance(d, Axis)]
    for d in named:
        if named.count(d) > 1:
            raise AxisError(f"shape{dims}: axis {d!r} appears twice")
    return Shape(checked)


def as_shape(value: Any, what: str) -> Shape:
    """What stands where a shape is expected: `shape(...)`, one axis or extent, or a tuple of them."""
    if isinstance(value, Shape):
        return value
    if isinstance(value, (tuple, list)):
        return shape(*value)
    if isinstance(value, Axis):
        return shape(value)
    if isinstance(value, (int, np.integer)):
        return shape(int(value))
    raise ShapeError(f"{what}: expected tilejax.shape(...), got {type(value).__name__} {value!r}")


def labels(dims: tuple[Dim, ...]) -> list[Any]:
    """What identifies each dimension: the axis, or the place of a positional one, counted from the right."""
    count = sum(not isinstance(d, Axis) for d in dims)
    out: list[Any] = []
    for d in dims:
        if isinstance(d, Axis):
            out.append(d)
        else:
            count -= 1
            out.append(count)
    return out


class Coord:
    """Where a tile starts: one integer for each dimension of its view. Made by `coord`.

    For `reindex` the entries may be tiles of integers."""

    __slots__ = ("starts",)

    def __init__(self, starts: tuple[Any, ...]):
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.starts)

    def __repr__(self) -> str:
        return f"coord({', '.join(s if isinstance(s, str) else _short(s) for s in self.starts)})"


def _short(value: Any) -> str:
    return str(value) if isinstance(value, int) else "<traced>"


INT32 = np.iinfo(np.int32)


def as_index(value: Any, what: str) -> Any:
    """An integer scalar as a Python int (clipped to int32) or as an int32 tracer."""
    from .tile import Tile, check_open

    if isinstance(value, Tile):
        if value.shape:
            raise ShapeError(
                f"{what}: expected a scalar, got a tile of {value.axes}; reshape it to tilejax.shape()"
            )
        value = value.value
    check_open(value, what)
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_)):
        return int(min(max(int(value), INT32.min), INT32.max))
    dtype, rank = getattr(value, "dtype", None), getattr(value, "ndim", None)
    if dtype is None or not jax.numpy.issubdtype(dtype, np.integer):
        raise DtypeError(
            f"{what}: expected an integer, got {dtype or type(value).__name__} {_describe(value)}"
        )
    if rank != 0:
        raise ShapeError(f"{what}: expected a scalar, got an array of shape {np.shape(value)}")
    if dtype == np.int32:
        return value
    info = jax.numpy.iinfo(dtype)
    if info.max > INT32.max:
        value = jax.lax.min(value, jax.numpy.asarray(INT32.max, dtype))
    if info.min < INT32.min:
        value = jax.lax.max(value, jax.numpy.asarray(INT32.min, dtype))
    return jax.lax.convert_element_type(value, np.int32)


def _describe(value: Any) -> str:
    return "" if isinstance(value, jax.core.Tracer) else repr(value)


def coord(*starts: Any) -> Coord:
    """The origin of a tile: ints or integer scalars, one for each dimension of the view.

    They may be negative or past the end: `Bounds` says what happens there. In the function of `reindex`
    they may be tiles. Raises `DtypeError` for a start that is not an integer, `ScopeError` for an index
    whose nest has closed.
    """
    from .tile import Tile

    return Coord(
        tuple(
            s if isinstance(s, Tile) and s.ndim else as_index(s, f"coord: entry {i}")
            for i, s in enumerate(starts)
        )
    )
