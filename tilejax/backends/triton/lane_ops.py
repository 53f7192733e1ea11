"""Operations on the tiles of many programs: what is short is unrolled, what is long a dimension of a cell."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.monoids import is_exact
from ...ir.types import Order
from ..xla.extremum import in_pairs
from ..xla.order import network
from . import instructions, lane_products, tile_ops
from .lanes import (
    Lanes,
    NotLanes,
    as_grid,
    as_tile,
    each,
    grid,
    is_short,
    move,
    same_width,
    split_axis,
    spread,
    unmove,
)
from .tiles import full, padded_shape
from .units import Call, squeezed


def iota(this: Call, target: tuple[int, ...]) -> Lanes:
    d, (dtype,) = this.params["dimension"], this.dtypes
    extents = (1, *padded_shape([n for n in target if not is_short(n)]))
    if d is None:
        return Lanes(target, grid(target, lambda _: full(extents, 0, dtype)))
    short, k = split_axis(target, d)
    if short:
        return Lanes(target, grid(target, lambda place: full(extents, place[k], dtype)))
    index = lax.broadcasted_iota(np.int32, extents, k + 1).astype(dtype)
    return Lanes(target, grid(target, lambda _: index))


def broadcast(tile: Lanes, target: tuple[int, ...], dims: Sequence[int]) -> Lanes:
    short = [split_axis(target, d)[1] for d in dims if is_short(target[d])]
    long = [0, *(split_axis(target, d)[1] + 1 for d in dims if not is_short(target[d]))]
    extents = padded_shape([n for n in target if not is_short(n)])
    wide = tile.map(lambda x: lax.broadcast_in_dim(x, (x.shape[0], *extents), long))
    return Lanes(target, grid(target, lambda place: wide.cells[tuple(place[k] for k in short)]))


def transpose(tile: Lanes, target: tuple[int, ...], order: Sequence[int]) -> Lanes:
    kinds = [split_axis(tile.shape, d) for d in order]
    cells = np.transpose(tile.cells, [k for short, k in kinds if short])
    dims = [0, *(k + 1 for short, k in kinds if not short)]
    plain = dims == list(range(len(dims)))
    return Lanes(target, cells if plain else each(lambda x: lax.transpose(x, dims), cells))


def _reduce(this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
    p, (shape,) = this.params, this.shapes
    tile = as_tile(values[0], shape)
    if not is_exact(p["op"], tile.dtype) and p["order"] is not Order.UNORDERED_TREE:
        raise NotLanes
    combine, shape = tile_ops.COMBINE[p["op"]], tile.shape
    for axis in sorted((a for a in p["axes"] if is_short(shape[a])), reverse=True):
        parts = map(as_grid, move(tile, axis))
        cells = in_pairs(functools.partial(each, combine), list(parts))
        tile = Lanes((*tile.shape[:axis], *tile.shape[axis + 1 :]), cells)
    long = [n for n in shape if not is_short(n)]
    axes = tuple(split_axis(shape, a)[1] + 1 for a in p["axes"] if not is_short(shape[a]))
    if axes:
        params = {**p, "axes": axes}
        tile = Lanes(
            this.targets[0], each(lambda x: tile_ops.reduce(x, (x.shape[0], *long), **params), tile.cells)
        )
    return [tile]


def _sort(this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
    """A network on cells. Where nobody asks for the indices it exchanges values alone: the lesser is the
    one that is a number, the greater NaN if either is."""
    axis, (shape,) = this.params["axis"], this.shapes
    if not isinstance(values[0], Lanes) or shape != values[0].shape or not is_short(shape[axis]) or wanted[1]:
        raise NotLanes
    parts = [as_grid(p) for p in move(values[0], axis)]
    for i, j in network(len(parts)):
        parts[i], parts[j] = each(_lesser, parts[i], parts[j]), each(_greater, parts[i], parts[j])
    if this.params["descending"]:
        parts.reverse()
    return [unmove(parts, shape, axis), None]


def _lesser(a: Any, b: Any) -> Any:
    return _ordered(lax.min, a, b, instructions.lesser_number)


def _greater(a: Any, b: Any) -> Any:
    return _ordered(lax.max, a, b, instructions.maximum)


def _ordered(op: Any, a: Any, b: Any, floating: Any) -> Any:
    a, b = same_width([a, b])
    if a.dtype == np.bool_:
        return lax.bitwise_and(a, b) if op is lax.min else lax.bitwise_or(a, b)
    return floating(a, b) if jnp.issubdtype(a.dtype, np.floating) else op(a, b)


def _gather(this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
    """From short dimensions: a select among cells; one of constants is none."""
    p, shape, (target,) = this.params, this.shapes[0], this.targets
    sources = [i for i, d in enumerate(p["dims"]) if d is None]
    if any(not is_short(shape[i]) for i in sources):
        raise NotLanes
    tile = as_tile(values[0], squeezed(shape))
    cells = tile.cells.reshape([n for n in shape if is_short(n)])
    matched = [
        (split_axis(shape, i)[1], split_axis(target, d)[1])
        for i, d in enumerate(p["dims"])
        if d is not None and is_short(shape[i])
    ]
    long = [
        0,
        *(
            split_axis(target, d)[1] + 1
            for i, d in enumerate(p["dims"])
            if d is not None and not is_short(shape[i])
        ),
    ]
    extents = padded_shape([n for n in target if not is_short(n)])
    fallback = spread(values[-1], target)
    coords = [
        broadcast(as_tile(v, squeezed(s)), target, dims)
        for v, s, dims in zip(values[1:-1], this.shapes[1:-1], p["coord_dims"], strict=True)
    ]

    def picked(place: tuple[int, ...]) -> Any:
        at: list[Any] = [slice(None)] * cells.ndim
        for k, to in matched:
            at[k] = place[to]
        rest = as_grid(cells[tuple(at)])
        rest = each(lambda x: lax.broadcast_in_dim(x, (x.shape[0], *extents), long), rest)
        if not coords:  # every dimension is one of the result's
            return rest[()]
        found = fallback.cells[place]
        for inner in np.ndindex(rest.shape):
            here = [c.cells[place] == np.int32(n) for c, n in zip(coords, inner, strict=True)]
            test = here[0]
            for other in here[1:]:
                test = jnp.logical_and(*same_width([test, other]))
            found = jnp.where(*same_width([test, rest[inner], found]))
        return found

    return [Lanes(target, grid(target, picked))]


def _mma(this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
    a, b, acc = map(as_tile, values, this.shapes)
    return [lane_products.mma(a, b, acc, this.params)]


RULES: dict[str, Callable[[Call, list[Any], list[bool]], list[Any]]] = {
    "tile_reduce": _reduce,
    "tile_sort": _sort,
    "tile_gather": _gather,
    "tile_mma": _mma,
}
"""By the name of the operation: from its operands, and which of its results are wanted."""
