"""Nests that leave parts of their work in arrays of their own: over splits, then programs, then the part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from .. import _compat
from ..ir import primitives as ir
from ..ir.types import Bounds
from .replace import typed

INDEX = jax.ShapeDtypeStruct((), np.int32)


class Splits(str):
    """The name of the axis of splits, the first of its nest."""


def is_split(nest: Any) -> bool:
    """Whether a nest has one."""
    return any(isinstance(name, Splits) for name in nest.params["names"])


def nest_of(
    nest: Any, program: Callable[..., list[Any]], consts: Sequence[Any], views: Sequence[Any], splits: int = 0
) -> list[Any]:
    """A parallel nest with the grid of another, and an axis of splits if there are any. `program` gives the
    new versions of the views from the indices, the consts and the views."""
    params = {**nest.params, "num_views": len(views)}
    if splits:
        params["names"] = (Splits("splits"), *params["names"])
        params["extents"] = (splits, *params["extents"])
    avals = [INDEX] * len(params["extents"]) + [typed(x) for x in (*consts, *views)]
    return ir.parallel_p.bind(*consts, *views, **{**params, "body": _compat.trace_closed(program, avals)})


def put(view: Any, value: Any, place: Sequence[Any], loc: Any) -> Any:
    """The array of parts with that of the given place."""
    tile = lax.reshape(value, (1,) * len(place) + value.shape)
    starts = [*place, *[np.int32(0)] * len(value.shape)]
    return ir.store_p.bind(view, tile, *starts, bounds=Bounds.ASSUME, name="parts", loc=loc)[0]


def take(view: Any, place: Sequence[Any], loc: Any) -> Any:
    """The part at a place."""
    shape = view.shape[len(place) :]
    starts = [*place, *[np.int32(0)] * len(shape)]
    tile = ir.load_p.bind(
        view,
        *starts,
        np.zeros((), view.dtype)[()],
        shape=(1,) * len(place) + shape,
        bounds=Bounds.ASSUME,
        name="parts",
        loc=loc,
    )[0]
    return lax.reshape(tile, shape)
