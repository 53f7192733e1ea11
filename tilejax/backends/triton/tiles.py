"""Tiles in registers. Triton takes only extents that are powers of two, so every extent is rounded up and
what is beyond the tile's own is padding: anything may be in it, and an operation that would see it masks it
first."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal


def padded(n: int) -> int:
    """The extent that a dimension of `n` has in registers."""
    return 1 << max(n - 1, 0).bit_length()


def padded_shape(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(padded, shape))


@dataclass(frozen=True)
class View:
    """A view as a kernel sees it: a flat reference to global memory and the array's shape."""

    ref: Any
    shape: tuple[int, ...]
    room: tuple[int, ...]
    """The shape in memory: what is beyond the view's own is 0."""
    stored: bool
    """Whether the programs store it."""
    barrier: bool
    """Whether a program both loads and stores it: its threads then wait for each other in between."""

    @property
    def index_type(self) -> Any:
        """What counts its elements."""
        return np.dtype(np.int64 if math.prod(self.room) > 2**31 - 1 else np.int32)


def wide_types(dtype: Any) -> Any:
    """A context in which values of a dtype of 8 bytes can be made."""
    return jax.enable_x64(True) if np.dtype(dtype).itemsize == 8 else contextlib.nullcontext()


def as_index(index: Any, dtype: Any) -> Any:
    """An int32 index as another integer, also where JAX has no such type by default."""
    with wide_types(dtype):
        return lax.convert_element_type(index, dtype)


def scalar(value: Any, dtype: Any) -> Any:
    """A rank-0 constant, made in the kernel: captured arrays are not allowed there."""
    if np.dtype(dtype) == np.bool_:
        return jnp.bool_(bool(value))
    plain = float(value) if jnp.issubdtype(dtype, np.floating) else int(value)
    with wide_types(dtype):
        if dtype == np.uint64 and not 0 <= plain < 2**63:  # Pallas makes integers of 64 bits from signed ones
            signed = (plain + 2**63) % 2**64 - 2**63
            return lax.bitcast_convert_type(computed(scalar(signed, np.int64)), dtype)
        return lax.convert_element_type(plain, dtype)


def computed(value: Any) -> Any:
    """A value as the result of an operation, for a scalar may be a constant: Triton's loops yield none, nor
    does it raise one to a power."""
    if value.shape:
        return value
    if value.dtype == np.bool_:
        return lax.bitwise_or(value, value)
    return lax.mul(value, scalar(1, value.dtype))


def read(env: dict[Any, Any], var: Any) -> Any:
    """The value of a variable of a body, or of a literal."""
    if not isinstance(var, Literal):
        return env[var]
    aval: Any = var.aval
    return scalar(var.val, aval.dtype)


def full(shape: Sequence[int], value: Any, dtype: Any) -> Any:
    return lax.broadcast(scalar(value, dtype), tuple(shape))


def place(shape: Sequence[int], dim: int) -> Any:
    """The int32 index along `dim`, of padded shape."""
    return lax.broadcasted_iota(np.int32, padded_shape(shape), dim)


def inside(shape: Sequence[int], dims: Sequence[int] | None = None) -> Any:
    """The mask of a tile's own elements along `dims` (all of them), or None where nothing is padding."""
    mask = None
    for d in range(len(shape)) if dims is None else dims:
        if padded(shape[d]) != shape[d]:
            own = place(shape, d) < np.int32(shape[d])
            mask = own if mask is None else mask & own
    return mask


def masked(array: Any, shape: Sequence[int], value: Any, dims: Sequence[int] | None = None) -> Any:
    """The array with `value` in the padding along `dims`."""
    mask = inside(shape, dims)
    return array if mask is None else jnp.where(mask, array, full(array.shape, value, array.dtype))


def last(array: Any, axis: int) -> Any:
    """The array with `axis` moved to the end."""
    order = [*(i for i in range(array.ndim) if i != axis), axis]
    return array if order == list(range(array.ndim)) else lax.transpose(array, order)


def back(array: Any, axis: int) -> Any:
    """The array with the last axis moved to `axis`."""
    order = list(range(array.ndim - 1))
    order.insert(axis, array.ndim - 1)
    return array if order == list(range(array.ndim)) else lax.transpose(array, order)


def halves(array: Any, distance: int) -> tuple[Any, Any]:
    """Along the last axis, the elements whose bit `distance` is 0 and those in which it is 1: `(..., n /
    2d, d)` each."""
    *lead, n = array.shape
    pairs = lax.reshape(array, (*lead, n // (2 * distance), 2, distance))
    left, right = jnp.unstack(last(pairs, pairs.ndim - 2), axis=-1)
    return left, right


def paired(left: Any, right: Any) -> Any:
    """Two arrays along a new last dimension. Triton's compiler crashes where it joins single elements."""
    if math.prod(left.shape) > 1:
        return jnp.stack([left, right], axis=-1)
    both = (*left.shape, 2)
    second = lax.broadcasted_iota(np.int32, both, left.ndim) == 1
    left, right = (jnp.broadcast_to(x[..., None], both) for x in (left, right))
    return jnp.where(second, right, left)


def join(left: Any, right: Any) -> Any:
    """What `halves` took apart."""
    *lead, blocks, distance = left.shape
    pairs = back(paired(left, right), left.ndim - 1)
    return lax.reshape(pairs, (*lead, blocks * 2 * distance))


def tree(arrays: Sequence[Any], axis: int, combine: Callable[..., Sequence[Any]]) -> list[Any]:
    """Neighbours along `axis` combined level by level until one is left, which is removed."""
    arrays = [last(a, axis) for a in arrays]
    while arrays[0].shape[-1] > 1:
        pairs = [halves(a, 1) for a in arrays]
        combined = combine([p[0] for p in pairs], [p[1] for p in pairs])
        arrays = [lax.reshape(a, a.shape[:-1]) for a in combined]
    return [lax.reshape(a, a.shape[:-1]) for a in arrays]


def widened(tile: Any) -> Any:
    """The values in four bytes at least, in which Triton computes and reduces."""
    if tile.dtype.itemsize >= 4:
        return tile
    return tile.astype(np.float32 if jnp.issubdtype(tile.dtype, np.floating) else np.int32)


def along(reduction: Callable[..., Any], tile: Any, axes: Sequence[int], **options: Any) -> Any:
    """A reduction over one axis after another, from the last."""
    for axis in sorted(axes, reverse=True):
        tile = reduction(tile, axis, **options)
    return tile


def select_sum(here: Any, array: Any, axis: int) -> Any:
    """The one element along `axis` where `here` is true (0 if none is): a sum of bits, which keeps -0.0."""
    dtype, floating = array.dtype, jnp.issubdtype(array.dtype, np.floating)
    wide = np.dtype(np.float32 if floating else np.int32) if dtype.itemsize < 4 else dtype
    bits = np.dtype(f"int{8 * wide.itemsize}") if floating else wide
    values = array.astype(wide)
    values = lax.bitcast_convert_type(values, bits) if floating else values
    found = jnp.sum(jnp.where(here, values, full(values.shape, 0, bits)), axis, dtype=bits)
    return (lax.bitcast_convert_type(found, wide) if floating else found).astype(dtype)
