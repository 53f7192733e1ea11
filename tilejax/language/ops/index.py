"""Moving elements: gather, reindex, and changes of shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import AxisError, DtypeError, ScopeError, ShapeError
from ...ir import primitives as ir
from .. import trace
from ..axis import Axis, Coord, Shape, as_shape, extent_of, labels
from ..tile import Scalar, Tile, as_tile, place
from ..view import fill_value
from .elementwise import Operand, cast
from .make import index_tiles, named_axis
from .reduce import position_of, remaining


def gather(tile: Operand, index: Operand, axis: Axis, *, fallback: Scalar = 0) -> Tile:
    """The elements of `tile` at `index` along `axis`.

    The result has the tile's axes less `axis`, then those of `index`; axes that both have are matched.
    So an index that itself has `axis` gives take-along-axis. Outside `[0, extent)` the result is
    `fallback`: nothing wraps.
    """
    value, where = as_tile(tile, "gather"), as_index_tile(index, "gather: the index")
    position = position_of(value, axis, "gather")
    kept = remaining(value, (position,))
    own = labels(kept)
    extra = [d for label, d in zip(labels(where.axes), where.axes, strict=True) if label not in own]
    axes = Shape((*kept, *extra))
    target = labels(axes)
    for label, d in zip(labels(where.axes), where.axes, strict=True):
        if extent_of(axes[target.index(label)]) != extent_of(d):
            raise ShapeError(
                f"gather: positional axes of the tile ({value.axes}) and of the index ({where.axes}) differ "
                "in extent"
            )
    dims: list[int | None] = [target.index(label) for label in own]
    dims.insert(position, None)
    return _gather(value, [where], axes, tuple(dims), fallback, "gather")


def reindex(tile: Operand, shape: Any, fn: Callable[[Any], Coord]) -> Tile:
    """A tile of `shape` whose elements are those of `tile` at `fn(nest)`, a `coord` for each element.

    `nest.index(axis)` is the element's place along an axis of `shape`, or an index of the enclosing
    nests. Outside the tile the result is 0.
    """
    value, axes = as_tile(tile, "reindex"), as_shape(shape, "reindex")
    result = fn(_Element(axes))
    if not isinstance(result, Coord):
        raise ShapeError(f"reindex: the function must return tilejax.coord(...), got {type(result).__name__}")
    if len(result) != value.ndim:
        raise ShapeError(
            f"reindex: coord of {len(result)} entries for a tile of rank {value.ndim} ({value.axes})"
        )
    coords = [as_index_tile(e, f"reindex: entry {i} of the coord") for i, e in enumerate(result)]
    for c in coords:
        missing = [d for label, d in zip(labels(c.axes), c.axes, strict=True) if label not in labels(axes)]
        if missing:
            raise AxisError(f"reindex: a coordinate has axis {missing[0]!r}, which is not in {axes}")
    return _gather(value, coords, axes, (None,) * value.ndim, 0, "reindex")


class _Element:
    """What the function of `reindex` gets in place of a nest."""

    def __init__(self, axes: Shape):
        self._axes, self._tiles = axes, index_tiles(axes)

    def index(self, axis: Axis | None = None) -> Any:
        if axis is None:
            if len(self._axes) != 1:
                raise AxisError(f"index() is for one axis; {self._axes} has {len(self._axes)}: name one")
            return self._tiles[0]
        named_axis(axis, "index")
        for own, tile in zip(self._axes, self._tiles, strict=True):
            if own is axis:
                return tile
        from ..nest import innermost

        nest = innermost()
        if nest is None:
            raise ScopeError(f"index: {axis!r} is not an axis of {self._axes}")
        try:
            return nest.index(axis)
        except AxisError:
            raise AxisError(
                f"reindex: {axis!r} is not an axis of {self._axes}, nor of {nest} or a nest around it"
            ) from None


def _gather(
    tile: Tile, coords: list[Tile], axes: Shape, dims: tuple[int | None, ...], fallback: Scalar, what: str
) -> Tile:
    target = labels(axes)
    (value,) = ir.gather_p.bind(
        tile.value,
        *(c.value for c in coords),
        fill_value(fallback, tile.dtype, f"{what}: fallback"),
        shape=axes.extents,
        dims=dims,
        coord_dims=tuple(tuple(target.index(label) for label in labels(c.axes)) for c in coords),
        loc=trace.here(),
    )
    return Tile(value, axes)


def as_index_tile(index: Any, what: str) -> Tile:
    """An integer tile or scalar as int32, saturating."""
    tile = as_tile(index, what)
    if not jnp.issubdtype(tile.dtype, np.integer):
        raise DtypeError(f"{what}: expected integers, got {tile.dtype}")
    info, limits = jnp.iinfo(tile.dtype), jnp.iinfo(np.int32)
    if info.max > limits.max:
        value = jax.lax.min(tile.value, jnp.full_like(tile.value, limits.max))
        tile = Tile(
            value if info.min == 0 else jax.lax.max(value, jnp.full_like(value, limits.min)), tile.axes
        )
    return cast(tile, np.int32)


def reshape(tile: Operand, shape: Any) -> Tile:
    """The same elements in row-major order with another shape of the same size; axes may come and go."""
    value, axes = as_tile(tile, "reshape"), as_shape(shape, "reshape")
    if math.prod(axes.extents) != math.prod(value.shape):
        raise ShapeError(
            f"reshape: {value.axes} has {math.prod(value.shape)} elements, {axes} has "
            f"{math.prod(axes.extents)}"
        )
    array = value.value if value.shape == axes.extents else jax.lax.reshape(value.value, axes.extents)
    return Tile(array, axes)


def broadcast_to(tile: Operand, shape: Any) -> Tile:
    """The tile at `shape`, which has all of its axes; the others repeat it."""
    value, axes = as_tile(tile, "broadcast_to"), as_shape(shape, "broadcast_to")
    have = dict(zip(labels(axes), axes, strict=True))
    for label, dim in zip(labels(value.axes), value.axes, strict=True):
        if label not in have:
            raise AxisError(f"broadcast_to: axis {dim!r} of the tile of {value.axes} is not in {axes}")
        if dim not in (1, have[label]):
            raise ShapeError(
                f"broadcast_to: positional axis of extent {dim} does not broadcast to {have[label]}"
            )
    return Tile(place(value, axes), axes)


def relabel(tile: Operand, shape: Any) -> Tile:
    """The same array with other axes, of the same extents in the same order."""
    value, axes = as_tile(tile, "relabel"), as_shape(shape, "relabel")
    if axes.extents != value.shape:
        raise ShapeError(f"relabel: the extents of {axes} are not those of the tile, {value.axes}")
    return Tile(value.value, axes)


def transpose(tile: Operand, shape: Any) -> Tile:
    """The same axes in the order of `shape`."""
    value, axes = as_tile(tile, "transpose"), as_shape(shape, "transpose")
    if len(axes) != value.ndim or any(label not in labels(value.axes) for label in labels(axes)):
        raise AxisError(f"transpose: {axes} must have the same axes as the tile, {value.axes}")
    return Tile(place(value, axes), axes)
