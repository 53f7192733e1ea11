"""Operations that move elements: changes of shape, and gathers, which select."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .casts import convert
from .tiles import full, padded, padded_shape, select_sum


def _broadcast_in_dim(values, shapes, target, params) -> Any:
    dims = params["broadcast_dimensions"]
    extents = padded_shape(target)
    return lax.broadcast_in_dim(values[0], extents, dims)


def _reshape(values, shapes, target, params) -> Any:
    (value,), (shape,) = values, shapes
    if shape != target and any(n != padded(n) for n in (*shape, *target)):
        return rearrange(value, shape, target)
    return lax.reshape(value, padded_shape(target))


def rearrange(value: Any, shape: tuple[int, ...], target: tuple[int, ...]) -> Any:
    """A reshape of extents that are padded: each element is selected from the whole tile."""
    extents = padded_shape(target)
    source, rest = jnp.zeros(extents, np.int32), jnp.zeros(extents, np.int32)
    for d, n in enumerate(target):
        rest = rest * np.int32(n) + lax.broadcasted_iota(np.int32, extents, d)
    stride = 1
    for n in reversed(shape):
        source = source + lax.rem(rest, np.int32(max(n, 1))) * np.int32(stride)
        rest, stride = lax.div(rest, np.int32(max(n, 1))), stride * padded(n)
    whole = (*extents, stride)
    flat = lax.broadcast_in_dim(lax.reshape(value, (stride,)), whole, (len(extents),))
    here = lax.broadcasted_iota(np.int32, whole, len(extents)) == _expand(source, len(whole))
    return select_sum(here, flat, len(extents))


def _transpose(values, shapes, target, params) -> Any:
    return lax.transpose(values[0], params["permutation"])


def _iota(values, shapes, target, params) -> Any:
    if params["dimension"] is None:
        return full(padded_shape(target), 0, params["dtype"])
    index = lax.broadcasted_iota(np.int32, padded_shape(target), params["dimension"])
    return convert(index, new_dtype=params["dtype"])


SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "iota": _iota,
}


def gather(
    values: list[Any], shapes: list[tuple[int, ...]], *, shape, dims, coord_dims, loc, **_: Any
) -> Any:
    """`tile_gather`: for each indexed dimension, a select among its elements."""
    tile, *coords, fallback = values
    extents = padded_shape(shape)
    sources = tuple(i for i, d in enumerate(dims) if d is None)
    # The tile over the result's dimensions and, after them, its indexed ones.
    where = [d if d is not None else len(shape) + sources.index(i) for i, d in enumerate(dims)]
    order = sorted(range(len(dims)), key=lambda i: where[i])
    whole = (*extents, *(padded(shapes[0][i]) for i in sources))
    spread = lax.broadcast_in_dim(
        lax.transpose(tile, order), _ones_except(whole, [where[i] for i in order]), [where[i] for i in order]
    )
    spread = jnp.broadcast_to(spread, whole)
    inside: Any = full(extents, True, np.bool_)
    for k, i in reversed(list(enumerate(sources))):
        index = at_result(coords[k], coord_dims[k], extents)
        axis = len(shape) + k
        here = lax.broadcasted_iota(np.int32, spread.shape, axis) == _expand(index, spread.ndim)
        spread = select_sum(here, spread, axis)
        inside = inside & (index >= 0) & (index < np.int32(shapes[0][i]))
    if not sources:
        return spread
    return jnp.where(inside, spread, jnp.broadcast_to(fallback, extents))


def _ones_except(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    return [n if i in dims else 1 for i, n in enumerate(shape)]


def at_result(coord: Any, dims: Sequence[int], extents: Sequence[int]) -> Any:
    """A coordinate along dimensions `dims` of a result, broadcast to all of it."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    moved = lax.transpose(coord, order) if order != list(range(len(dims))) else coord
    ones = lax.broadcast_in_dim(moved, _ones_except(extents, dims), [dims[i] for i in order])
    return jnp.broadcast_to(ones, tuple(extents))


def _expand(array: Any, rank: int) -> Any:
    return lax.reshape(array, (*array.shape, *(1,) * (rank - array.ndim)))
