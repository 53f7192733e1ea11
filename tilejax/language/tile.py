"""`Tile`: a value with named axes, and how several of them broadcast by the identity of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import DtypeError, ScopeError, ShapeError, TileTypeError
from .axis import Dim, Shape, as_shape, labels
from .trace import Frame, check_open, current_or_none

Scalar = Any
"""A Python number, a rank-0 array or tracer, or a rank-0 `Tile`."""


class Tile:
    """A snapshot of values over `axes`. It is immutable; operations make new tiles.

    Made by loads and by the functions of `tilejax`; a tile of no axes is a scalar."""

    __slots__ = ("axes", "frame", "value")
    __array_ufunc__ = None  # NumPy scalars and arrays defer to our reflected operators
    __hash__ = object.__hash__

    def __init__(self, value: Any, axes: Sequence[Dim] = ()):
        self.value, self.axes = value, Shape(axes)
        self.frame: Frame | None = current_or_none()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, in the order of `axes`."""
        return self.axes.extents

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.value.dtype)

    @property
    def weak_type(self) -> bool:
        """Whether the dtype came from a Python scalar and gives way to another operand's."""
        return bool(jax.typeof(self.value).weak_type)

    def astype(self, dtype: Any) -> Tile:
        """The same values as `dtype`: floats round to nearest even and keep NaN and inf; a float becomes an
        integer by truncation, saturating, NaN becoming 0."""
        from .ops.elementwise import cast

        return cast(self, dtype)

    def __repr__(self) -> str:
        return f"Tile[{self.dtype}]({', '.join(map(repr, self.axes))})"

    def __bool__(self) -> bool:
        raise TileTypeError(
            f"the truth value of {self!r} is not known while tracing: `if`, `and`, `or` and `not` don't "
            "work on tiles. "
            "Use tilejax.where, and & | ~ for logic"
        )

    def __index__(self) -> int:
        raise TileTypeError(f"{self!r} is not a Python int: its value is not known while tracing")

    def __int__(self) -> int:
        raise TileTypeError(f"{self!r} is not a Python int: its value is not known while tracing")

    def __float__(self) -> float:
        raise TileTypeError(f"{self!r} is not a Python float: its value is not known while tracing")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TileTypeError(f"{self!r} is not an array: use the functions of tilejax, not those of numpy")

    def __iter__(self) -> Any:
        raise TileTypeError(f"{self!r} can't be iterated over. Reduce, scan or gather along an axis instead")

    def __getitem__(self, _: Any) -> Any:
        raise TileTypeError(f"{self!r} can't be subscripted. Use tilejax.gather or tilejax.reindex")

    def __matmul__(self, _: Any) -> Any:
        raise TileTypeError("tiles have no `@`: write tilejax.mma(a, b, acc), which names the accumulator")

    __rmatmul__ = __matmul__

    def __add__(self, other: Scalar | Tile) -> Tile:
        return _ops().add(self, other)

    def __radd__(self, other: Scalar) -> Tile:
        return _ops().add(other, self)

    def __sub__(self, other: Scalar | Tile) -> Tile:
        return _ops().subtract(self, other)

    def __rsub__(self, other: Scalar) -> Tile:
        return _ops().subtract(other, self)

    def __mul__(self, other: Scalar | Tile) -> Tile:
        return _ops().multiply(self, other)

    def __rmul__(self, other: Scalar) -> Tile:
        return _ops().multiply(other, self)

    def __truediv__(self, other: Scalar | Tile) -> Tile:
        return _ops().divide(self, other)

    def __rtruediv__(self, other: Scalar) -> Tile:
        return _ops().divide(other, self)

    def __floordiv__(self, other: Scalar | Tile) -> Tile:
        return _ops().floor_divide(self, other)

    def __rfloordiv__(self, other: Scalar) -> Tile:
        return _ops().floor_divide(other, self)

    def __mod__(self, other: Scalar | Tile) -> Tile:
        return _ops().remainder(self, other)

    def __rmod__(self, other: Scalar) -> Tile:
        return _ops().remainder(other, self)

    def __pow__(self, other: Scalar | Tile) -> Tile:
        return _ops().power(self, other)

    def __rpow__(self, other: Scalar) -> Tile:
        return _ops().power(other, self)

    def __and__(self, other: Scalar | Tile) -> Tile:
        return _ops().bitwise_and(self, other)

    def __rand__(self, other: Scalar) -> Tile:
        return _ops().bitwise_and(other, self)

    def __or__(self, other: Scalar | Tile) -> Tile:
        return _ops().bitwise_or(self, other)

    def __ror__(self, other: Scalar) -> Tile:
        return _ops().bitwise_or(other, self)

    def __xor__(self, other: Scalar | Tile) -> Tile:
        return _ops().bitwise_xor(self, other)

    def __rxor__(self, other: Scalar) -> Tile:
        return _ops().bitwise_xor(other, self)

    def __lshift__(self, other: Scalar | Tile) -> Tile:
        return _ops().left_shift(self, other)

    def __rlshift__(self, other: Scalar) -> Tile:
        return _ops().left_shift(other, self)

    def __rshift__(self, other: Scalar | Tile) -> Tile:
        return _ops().right_shift(self, other)

    def __rrshift__(self, other: Scalar) -> Tile:
        return _ops().right_shift(other, self)

    def __lt__(self, other: Scalar | Tile) -> Tile:
        return _ops().less(self, other)

    def __le__(self, other: Scalar | Tile) -> Tile:
        return _ops().less_equal(self, other)

    def __gt__(self, other: Scalar | Tile) -> Tile:
        return _ops().greater(self, other)

    def __ge__(self, other: Scalar | Tile) -> Tile:
        return _ops().greater_equal(self, other)

    def __eq__(self, other: Scalar | Tile) -> Tile:  # type: ignore[override]
        return _ops().equal(self, other)

    def __ne__(self, other: Scalar | Tile) -> Tile:  # type: ignore[override]
        return _ops().not_equal(self, other)

    def __neg__(self) -> Tile:
        return _ops().negative(self)

    def __invert__(self) -> Tile:
        return _ops().invert(self)

    def __abs__(self) -> Tile:
        return _ops().abs(self)


def _ops() -> Any:
    from .ops import elementwise

    return elementwise


def as_tile(value: Any, what: str) -> Tile:
    """`value` as a tile: tiles as they are, scalars as rank 0.

    Raises `ScopeError` for a tile or index whose nest has closed, `TileTypeError` for anything else."""
    if isinstance(value, Tile):
        if value.frame is not None and value.frame.closed:
            raise ScopeError(
                f"{what}: a tile defined in {value.frame} ({value!r}) is used after that closed. Carry it "
                "out, or store it to a view"
            )
        return value
    check_open(value, what)
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
        if np.ndim(value) == 0:
            if isinstance(value, np.ndarray):
                value = value[()]
            return Tile(value if isinstance(value, jax.Array) else _scalar(value, what))
        raise TileTypeError(
            f"{what}: got an array of shape {np.shape(value)}; tiles combine with tiles and scalars. "
            "Make a view of it with tilejax.view(array) and load a tile"
        )
    from .view import MemoryRef, TensorView

    if isinstance(value, (TensorView, MemoryRef)):
        raise TileTypeError(
            f"{what}: got {value!r}, which is not a value; load a tile from it: A[coord(...), shape(...)]"
        )
    raise TileTypeError(f"{what}: expected a tile or a number, got {type(value).__name__}")


def _scalar(value: Any, what: str) -> Any:
    """A Python number as a weak scalar constant, a NumPy one as a strong one."""
    if isinstance(value, complex):
        raise DtypeError(f"{what}: complex numbers are not supported, got {value!r}")
    if isinstance(value, int) and not isinstance(value, bool):
        kind = np.iinfo(np.int64 if jax.config.jax_enable_x64 else np.int32)  # type: ignore[attr-defined]
        if not kind.min <= value <= kind.max:
            raise DtypeError(
                f"{what}: the integer {value} does not fit {kind.dtype}; give it a dtype: "
                f"tilejax.full(shape(), {value}, dtype)"
            )
    return jnp.asarray(value)


def broadcast_axes(tiles: Sequence[Tile], what: str) -> Shape:
    """The union of the axes: in the order of the highest-rank tile (the leftmost of equals), then the
    others in order of appearance. Positional axes are the same if they are as far from the right among
    the positional ones; they must have one extent, or 1.
    """
    extents: dict[Any, Dim] = {}
    lead = max(tiles, key=lambda t: t.ndim)
    for tile in [lead, *(t for t in tiles if t is not lead)]:
        for label, dim in zip(labels(tile.axes), tile.axes, strict=True):
            known = extents.setdefault(label, dim)
            if isinstance(label, int) and known != dim:
                if known != 1 and dim != 1:
                    raise ShapeError(
                        f"{what}: positional axis {-1 - label} has extent {known} in {lead.axes} and {dim} "
                        f"in {tile.axes}; "
                        "they must be equal, or one of them 1"
                    )
                extents[label] = dim if known == 1 else known
    # Positional axes keep their order from the right whatever order they appeared in.
    places = iter(sorted((label for label in extents if isinstance(label, int)), reverse=True))
    return Shape(extents[next(places) if isinstance(label, int) else label] for label in extents)


def place(tile: Tile, axes: Shape) -> Any:
    """The array of `tile` at exactly `axes`, which has all of the tile's; missing ones are broadcast."""
    if tile.shape == axes.extents and tile.axes == axes:
        return tile.value
    target, own = labels(axes), labels(tile.axes)
    order = sorted(range(tile.ndim), key=lambda i: target.index(own[i]))
    value = tile.value if order == list(range(tile.ndim)) else jax.lax.transpose(tile.value, order)
    places = tuple(target.index(own[i]) for i in order)
    return value if value.shape == axes.extents else jax.lax.broadcast_in_dim(value, axes.extents, places)


def align(values: Sequence[Any], what: str) -> tuple[Shape, list[Any]]:
    """Tiles and scalars as arrays of one shape, and its axes; scalars stay rank 0."""
    tiles = [as_tile(v, what) for v in values]
    axes = broadcast_axes(tiles, what)
    return axes, [place(t, axes) if t.ndim else t.value for t in tiles]


def place_axes(tile: Tile, target: Any, what: str) -> Any:
    """The array of `tile` at the shape `target`: its axes by identity, missing ones broadcast; if not
    all of them are in `target`, all axes by position, rank and extents being equal. Else `ShapeError`.
    """
    target = as_shape(target, what)
    have = dict(zip(labels(target), target, strict=True))
    own = dict(zip(labels(tile.axes), tile.axes, strict=True))
    if all(label in have and dim in (1, have[label]) for label, dim in own.items()):
        return place(tile, target)
    if tile.shape == target.extents:
        return tile.value
    raise ShapeError(
        f"{what}: a tile of {tile.axes} does not fit {target}: its axes are not all among them, and rank "
        "and extents "
        f"differ ({tile.shape} against {target.extents}). Use tilejax.reshape, relabel or broadcast_to"
    )
