"""Single elements of views, for reference code; tile kernels don't use them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from .._errors import ShapeError
from .axis import Shape, coord
from .ops import elementwise as ew
from .ops.index import reshape
from .tile import Scalar, Tile, as_tile
from .view import TensorView


def load(view: TensorView, *indices: Any, where: Any = True, fallback: Scalar = 0) -> Tile:
    """The element at `indices` (one integer scalar a dimension) as a rank-0 tile; `fallback` outside the
    view or where `where` is false.
    """
    origin, shape = _place(view, indices, where, "lowlevel.load")
    return reshape(view(origin, shape).load(fallback), Shape())


def store(view: TensorView, value: Scalar, *indices: Any, where: Any = True) -> None:
    """Stores one element at `indices`; nothing happens outside the view or where `where` is false."""
    origin, shape = _place(view, indices, where, "lowlevel.store")
    view(origin, shape).store(_scalar(value, "lowlevel.store: the value"))


def _place(view: TensorView, indices: tuple[Any, ...], where: Any, what: str) -> Any:
    if len(indices) != view.ndim:
        raise ShapeError(f"{what}: {len(indices)} indices for {view!r} of rank {view.ndim}")
    if not view.ndim:
        raise ShapeError(f"{what}: {view!r} has no elements to index")
    origin = coord(*indices)
    if where is not True:
        # A false condition moves the access outside, where it is dropped.
        first, outside = origin.starts[0], np.int32(view.shape[0])
        cond = _scalar(where, f"{what}: where")
        origin = coord(ew.where(cond, ew.add(first, jnp.int32(0)), outside), *origin.starts[1:])
    return origin, Shape((1,) * view.ndim)


def _scalar(value: Any, what: str) -> Tile:
    tile = as_tile(value, what)
    if tile.ndim:
        raise ShapeError(f"{what} must be a scalar, got a tile of {tile.axes}")
    return tile
