"""Many small programs as one: neighbours along the last axis of the grid are the lanes of a launch.

A value is a grid of cells, one for each element along its short dimensions, which are unrolled; a cell is an
array of the lanes and of the long dimensions. What is the same for all lanes has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .tiles import padded_shape

SHORT = 16
"""Dimensions of up to so many elements are unrolled."""
CELLS = 64
"""More cells are not worth it."""


class NotLanes(Exception):
    """The programs have to run one by one."""


def is_short(n: int) -> bool:
    return n <= SHORT


@dataclass(frozen=True)
class Lanes:
    """A tile of logical `shape`, without dimensions of extent 1."""

    shape: tuple[int, ...]
    cells: np.ndarray
    """Of arrays `(lanes or 1, *long extents, padded)`; its dimensions are the short ones, in their order."""

    @property
    def dtype(self) -> Any:
        return self.cells.flat[0].dtype

    def map(self, fn: Callable[[Any], Any]) -> Lanes:
        return Lanes(self.shape, each(fn, self.cells))


def each(fn: Callable[..., Any], *grids: np.ndarray) -> np.ndarray:
    """`fn` of the cells at each place."""
    grids = tuple(np.broadcast_arrays(*grids))
    out = np.empty(grids[0].shape, object)
    for place in np.ndindex(out.shape):
        out[place] = fn(*(g[place] for g in grids))
    return out


def cell(array: Any) -> np.ndarray:
    """The grid of one cell."""
    out = np.empty((), object)
    out[()] = array
    return out


def grid(shape: Sequence[int], fn: Callable[[tuple[int, ...]], Any]) -> np.ndarray:
    """A grid of the short extents of `shape`, `fn` of each place."""
    short = tuple(n for n in shape if is_short(n))
    if not 0 < math.prod(short) <= CELLS:
        raise NotLanes  # too much to unroll, or nothing of which to know the dtype
    out = np.empty(short, object)
    for place in np.ndindex(short):
        out[place] = fn(place)
    return out


def spread(value: Any, shape: tuple[int, ...]) -> Lanes:
    """A scalar, traced or of lanes, as a tile."""
    extents = padded_shape([n for n in shape if not is_short(n)])
    array = value.cells[()] if isinstance(value, Lanes) else lax.broadcast(value, (1,))
    array = lax.broadcast_in_dim(array, (array.shape[0], *extents), (0,))
    return Lanes(shape, grid(shape, lambda _: array))


def as_tile(value: Any, shape: tuple[int, ...]) -> Lanes:
    """A value as a tile, if it is a scalar."""
    return value if isinstance(value, Lanes) else spread(value, shape)


def split_axis(shape: Sequence[int], axis: int) -> tuple[bool, int]:
    """Whether a dimension is unrolled, and which it is among its kind."""
    kind = is_short(shape[axis])
    return kind, sum(is_short(n) == kind for n in shape[:axis])


def move(tile: Lanes, axis: int) -> list[Any]:
    """The cells along a short dimension: grids of the other short ones."""
    return list(np.moveaxis(tile.cells, split_axis(tile.shape, axis)[1], 0))


def as_grid(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else cell(x)


def unmove(parts: Sequence[Any], shape: tuple[int, ...], axis: int) -> Lanes:
    """The tile of `shape` with the given grids along a short dimension."""
    return Lanes(shape, np.moveaxis(_stack([as_grid(p) for p in parts]), 0, split_axis(shape, axis)[1]))


def _stack(parts: Sequence[np.ndarray]) -> np.ndarray:
    out = np.empty((len(parts), *parts[0].shape), object)
    for i, part in enumerate(parts):
        for place in np.ndindex(part.shape):
            out[(i, *place)] = part[place]
    return out


def regroup(tile: Lanes, shape: tuple[int, ...]) -> Lanes:
    """A reshape, where it takes apart and joins short dimensions alone."""
    if _runs(tile.shape) != _runs(shape):
        raise NotLanes
    short = tuple(n for n in shape if is_short(n))
    return Lanes(shape, tile.cells.reshape(short))


def _runs(shape: Sequence[int]) -> list[Any]:
    """The long extents, and the sizes of what is between them."""
    out: list[Any] = [1]
    for n in shape:
        if is_short(n):
            out[-1] *= n
        else:
            out += [("long", n), 1]
    return out


def same_width(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of the same rank, broadcast along their lanes."""
    width = max(a.shape[0] for a in arrays)
    return [a if a.shape[0] == width else jnp.broadcast_to(a, (width, *a.shape[1:])) for a in arrays]
