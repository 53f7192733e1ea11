"""Views: what a kernel sees in place of arrays, and the references to tiles of them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import (
    BoundsError,
    DtypeError,
    ReadOnlyError,
    ScopeError,
    ShapeError,
    TileTypeError,
    assigned_name,
)
from ..ir import primitives as ir
from ..ir.types import Bounds
from . import trace
from .axis import Coord, Shape, check_extent
from .dtypes import as_dtype
from .tile import Scalar, Tile, as_tile, place_axes


class TensorView:
    """An array as a kernel sees it: loads read a tile of it, stores (if it is writable) make its next
    version.

    `A(origin, shape)` is a reference to a tile, `A[origin, shape]` loads it.
    """

    __hash__ = object.__hash__

    def __init__(self, initial: Any, name: str, writable: bool):
        self.initial, self.name, self.writable = initial, name, writable
        self.owner = trace.current(name).root
        self._shape, self._dtype = tuple(initial.shape), np.dtype(initial.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        return self._dtype

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    def extent(self, i: int) -> int:
        """The length of dimension `i`."""
        try:
            return self._shape[i]
        except IndexError:
            raise ShapeError(f"{self.name}.extent({i}): the view has rank {self.ndim}") from None

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"

    def __call__(self, origin: Coord, shape: Shape, bounds: Bounds = Bounds.ZERO) -> MemoryRef:
        """A reference to the tile of `shape` at `origin`; reads nothing."""
        return MemoryRef(self, origin, shape, bounds)

    tile = __call__

    def __getitem__(self, key: Any) -> Tile:
        """`A[origin, shape]` or `A[origin, shape, bounds]`: one load."""
        if isinstance(key, tuple) and len(key) in (2, 3) and isinstance(key[0], Coord):
            return MemoryRef(self, *key).load()
        raise TileTypeError(
            f"{self.name}[{_subscript(key)}]: views are read a tile at a time: "
            f"{self.name}[tilejax.coord(...), tilejax.shape(...)]. "
            "For single elements there is tilejax.lowlevel.load"
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TileTypeError(
            f"assignment to {self.name}[...] does not store: write {self.name}(origin, shape).store(tile)"
        )

    def __iter__(self) -> Any:
        raise TileTypeError(f"{self.name} can't be iterated over: views are read a tile at a time")

    def __bool__(self) -> bool:
        raise TileTypeError(f"{self.name} is a view: it has no truth value")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TileTypeError(
            f"{self.name} is a view, not an array: load a tile, and use the functions of tilejax on it"
        )

    def _no_arithmetic(self, *_: Any) -> Any:
        raise TileTypeError(
            f"{self!r} is a view, not a value: load a tile first, {self.name}[tilejax.coord(...), "
            "tilejax.shape(...)]"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = (
        _no_arithmetic
    )
    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __invert__ = __and__ = __or__ = _no_arithmetic
    __array_ufunc__ = None


def _subscript(key: Any) -> str:
    """`key` as it may have been written: a traced index stands as `...`, a slice as `a:b`."""
    if isinstance(key, tuple) and not isinstance(key, Shape):
        return ", ".join(map(_subscript, key))
    if isinstance(key, slice):
        parts = [key.start, key.stop] if key.step is None else [key.start, key.stop, key.step]
        return ":".join("" if part is None else _subscript(part) for part in parts)
    return "..." if isinstance(key, jax.Array) else repr(key)


class MemoryRef:
    """A tile's place in a view: the view, where it starts, its shape and what happens outside."""

    __slots__ = ("bounds", "origin", "shape", "view")

    def __init__(self, view: TensorView, origin: Coord, shape: Shape, bounds: Bounds = Bounds.ZERO):
        name = view.name
        if not isinstance(origin, Coord):
            raise TileTypeError(
                f"{name}(origin, shape): the origin must be tilejax.coord(...), got {origin!r}"
            )
        if not isinstance(shape, Shape):
            raise TileTypeError(f"{name}(origin, shape): the shape must be tilejax.shape(...), got {shape!r}")
        if not isinstance(bounds, Bounds):
            raise TileTypeError(
                f"{name}(origin, shape, bounds): bounds must be Bounds.ZERO or Bounds.ASSUME, got {bounds!r}"
            )
        if len(origin) != view.ndim or len(shape) != view.ndim:
            raise ShapeError(
                f"{name} has rank {view.ndim} (shape {view.shape}), but the origin {origin!r} has "
                f"{len(origin)} entries "
                f"and {shape!r} has {len(shape)}: a tile has the rank of its view"
            )
        for i, start in enumerate(origin):
            if isinstance(start, Tile):
                raise ShapeError(
                    f"{name}: entry {i} of the origin is a tile of {start.axes}, but a tile starts at one "
                    "place: give a scalar "
                    "(tilejax.reshape(tile, tilejax.shape()) of one element). tilejax.gather and reindex "
                    "take tiles of indices"
                )
        self.view, self.origin, self.shape, self.bounds = view, origin, shape, bounds

    def __repr__(self) -> str:
        return f"{self.view.name}({self.origin!r}, {self.shape!r})"

    def load(self, fallback: Scalar = 0) -> Tile:
        """The tile's values now; elements outside the view are `fallback`, which the dtype must hold
        (else `DtypeError`).
        """
        self._check("load")
        (value,) = ir.load_p.bind(
            trace.version(self.view),
            *self._starts(),
            fill_value(fallback, self.view.dtype, f"{self.view.name}.load: fallback"),
            shape=self.shape.extents,
            bounds=self.bounds,
            name=self.view.name,
            loc=trace.here(),
        )
        return Tile(value, self.shape)

    def store(self, tile: Tile | Scalar) -> None:
        """Writes the tile; elements outside the view are dropped.

        The tile's axes go by identity, missing ones broadcast; if not all are in the shape, then rank
        and extents must be the same. Raises `ReadOnlyError` for an input view, `ShapeError`, and
        `DtypeError` for a dtype that does not widen to the view's.
        """
        self._check("store")
        view = self.view
        if not view.writable:
            raise ReadOnlyError(
                f"{view.name} is read-only: store to a tilejax.output, or to tilejax.update({view.name}) "
                "for a changed copy"
            )
        what = f"{view.name}.store"
        value = as_tile(tile, what)
        array = place_axes(value, self.shape, what)
        array = widen(array, value, view.dtype, what)
        (new,) = ir.store_p.bind(
            trace.version(view), array, *self._starts(), bounds=self.bounds, name=view.name, loc=trace.here()
        )
        trace.bind_version(view, new)

    def _starts(self) -> list[Any]:
        for i, start in enumerate(self.origin):
            trace.check_open(start, f"{self.view.name}: entry {i} of the origin")
        return [np.int32(s) if isinstance(s, int) else s for s in self.origin]

    def _check(self, what: str) -> None:
        view = self.view
        if trace.current(f"{what} of {view.name}").root is not view.owner:
            raise ScopeError(
                f"{what} of {view.name}: the view belongs to another kernel, or to a call that has ended"
            )
        if self.bounds is not Bounds.ASSUME:
            return
        for i, (start, extent, length) in enumerate(
            zip(self.origin, self.shape.extents, view.shape, strict=True)
        ):
            if isinstance(start, int) and extent and (start < 0 or start + extent > length):
                raise BoundsError(
                    f"{what} of {self!r} under Bounds.ASSUME: dimension {i} ({self.shape[i]!r}) covers "
                    f"[{start}, {start + extent}) "
                    f"of a view of length {length}. Use Bounds.ZERO, which masks"
                )


def fill_value(value: Scalar, dtype: np.dtype, what: str) -> Any:
    """The scalar `value` as a constant of `dtype`, which must hold it."""
    from .ops.make import check_fits

    if isinstance(value, (bool, int, float)):  # of which not each is a scalar without a dtype
        check_fits(value, dtype, what)
        return np.asarray(value).astype(dtype)[()]
    tile = as_tile(value, what)
    if tile.ndim:
        raise ShapeError(f"{what}: expected a scalar, got a tile of {tile.axes}")
    if isinstance(value, (np.generic, np.ndarray)):
        check_fits(value, dtype, what)
        return np.asarray(value).astype(dtype)[()]
    return widen(tile.value, tile, dtype, what)


def widen(array: Any, tile: Tile, dtype: np.dtype, what: str) -> Any:
    """`array` as `dtype` if its own widens to that within its kind, or if it is weak and fits the kind;
    else `DtypeError`.
    """
    have = tile.dtype
    if have == dtype:
        return array
    integers = [d == np.bool_ or jnp.issubdtype(d, np.integer) for d in (have, dtype)]
    if tile.weak_type:
        ok = have == np.bool_ or (integers[0] and dtype != np.bool_) or not integers[1]
    else:
        ok = integers[0] == integers[1] and _promoted(have, dtype) == dtype
    if not ok:
        raise DtypeError(
            f"{what}: values of {have} do not go into {dtype} without loss; say astype({dtype}) if that is "
            "meant"
        )
    return jax.lax.convert_element_type(array, dtype)


def _promoted(a: np.dtype, b: np.dtype) -> Any:
    with jax.numpy_dtype_promotion("standard"):
        try:
            return jnp.promote_types(a, b)
        except TypeError:  # eight-bit floats promote with nothing
            return None


def output(shape: Any, dtype: Any, *, init: Any = 0) -> TensorView:
    """A new writable view. Elements that no program stores hold `init`: a scalar, or an array of that
    shape.

    Made outside nests (`ScopeError` inside). Returned, it is a result of the kernel; else it is scratch
    between its nests.
    """
    _outside_nests("output")
    dims = (
        shape.extents if isinstance(shape, Shape) else shape if isinstance(shape, (tuple, list)) else (shape,)
    )
    extents = tuple(check_extent(n, f"output: dimension {i}") for i, n in enumerate(dims))
    target = as_dtype(dtype, "output")
    if isinstance(init, TensorView):
        init = trace.version(init)
    if np.ndim(init):
        if tuple(init.shape) != extents:
            raise ShapeError(f"output: init has shape {tuple(init.shape)}, the output {extents}")
        array = jnp.copy(jax.lax.convert_element_type(init, target))
    else:
        array = jax.lax.full(extents, fill_value(init, target, "output: init"), target)
    return TensorView(array, assigned_name() or f"output {list(extents)}", True)


def output_like(x: Any) -> TensorView:
    """`output` of the shape and dtype of `x`, a view or an array."""
    return output(tuple(x.shape), x.dtype)


def update(x: Any) -> TensorView:
    """A writable view that starts as `x` (a view or an array, as it is at this point). Returned, it is
    the updated copy; in place when `x` is donated. Made outside nests (`ScopeError` inside).
    """
    _outside_nests("update")
    if isinstance(x, TensorView):
        return TensorView(jnp.copy(trace.version(x)), assigned_name() or f"update({x.name})", True)
    # The copy gives the new view a variable of its own; backends read it as the array itself.
    return TensorView(jnp.copy(_array(x, "update")), assigned_name() or "update(array)", True)


def view(array: Any) -> TensorView:
    """A captured array (JAX, NumPy, or a tracer of an enclosing transformation) as a read-only view."""
    if isinstance(array, TensorView):
        return array
    return TensorView(_array(array, "view"), assigned_name() or "view(array)", False)


def _array(x: Any, what: str) -> Any:
    if isinstance(x, (Tile, MemoryRef)) or not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise TileTypeError(f"{what}: expected an array, got {type(x).__name__}")
    dtype = as_dtype(x.dtype, what)
    return np.asarray(x, dtype) if isinstance(x, (np.ndarray, np.generic)) else x


def _outside_nests(what: str) -> None:
    here = trace.current(what)
    if here.kind != "kernel":
        raise ScopeError(f"{what} inside {here}: make it in the kernel, outside its nests")
