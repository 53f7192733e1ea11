"""Nests that leave parts of their work in arrays of their own, which are reduced over the splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
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


@dataclass(frozen=True)
class Parts:
    """The array of the parts that a grid of programs leaves, each of a shape. `last` says that the splits are
    its last dimension, not its first: few results of many parts are then reduced along lines of memory."""

    grid: tuple[int, ...]
    shape: tuple[int, ...]
    last: bool

    @classmethod
    def of(cls, grid: Sequence[int], shape: Sequence[int]) -> Parts:
        return cls(tuple(grid), tuple(shape), math.prod((*grid, *shape)) < _FEW)

    @property
    def axis(self) -> int:
        """The dimension of the splits."""
        return len(self.grid) + len(self.shape) if self.last else 0

    def empty(self, splits: int, dtype: Any) -> Any:
        around = (*self.grid, *self.shape)
        return jnp.zeros((*around, splits) if self.last else (splits, *around), dtype)

    def put(self, array: Any, part: Any, place: Sequence[Any], loc: Any) -> Any:
        """The array with the part of a split and a program."""
        starts, sizes = self._at(place)
        tile = lax.reshape(part, sizes)
        return ir.store_p.bind(array, tile, *starts, bounds=Bounds.ASSUME, name="parts", loc=loc)[0]

    def take(self, array: Any, place: Sequence[Any], loc: Any) -> Any:
        """The part of a split and a program; of a program, if nothing is left of the splits."""
        if not array.shape:  # a scalar of a grid without axes, which is no view
            return array
        starts, sizes = self._at(place)
        none = np.zeros((), array.dtype)[()]
        params = {"shape": sizes, "bounds": Bounds.ASSUME, "name": "parts", "loc": loc}
        return lax.reshape(ir.load_p.bind(array, *starts, none, **params)[0], self.shape)

    def _at(self, place: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
        split, indices = place[: len(place) - len(self.grid)], place[len(place) - len(self.grid) :]
        around = [*indices, *[np.int32(0)] * len(self.shape)]
        sizes = (*[1] * len(self.grid), *self.shape)
        ones = (1,) * len(split)
        return ([*around, *split], (*sizes, *ones)) if self.last else ([*split, *around], (*ones, *sizes))


_FEW = 1024
