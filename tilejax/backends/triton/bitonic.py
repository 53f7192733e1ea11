"""Bitonic networks along the last axis of arrays that are compared one after another. A comparator is
symmetric: each of its two places computes what it keeps."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .pairs import Arrays
from .tiles import full


def selected(arrays: Arrays, k: int) -> list[Any]:
    """The `k` first along the last axis, in order; `k` is a power of two. Blocks are sorted, and of two of
    them the better half stays, until one is left."""
    arrays = ordered(arrays, k)
    while (n := arrays[0].shape[-1]) > k:
        # Of two blocks, one up and one down, the first of each pair are the first of all, bitonic.
        pairs = [lax.reshape(x, (*x.shape[:-1], n // (2 * k), 2, k)) for x in arrays]
        better = _exchange(pairs, full(pairs[0].shape, True, np.bool_))
        halves = [_first(x) for x in better]
        arrays = [lax.reshape(x, (*x.shape[:-2], n // 2)) for x in halves]
        arrays = merge(arrays, k)
    return list(arrays)


def _first(pairs: Any) -> Any:
    """Either of two equal elements along the last dimension but one."""
    here = lax.broadcasted_iota(np.int32, pairs.shape, pairs.ndim - 2) == 0
    zero = full(pairs.shape, 0, pairs.dtype)
    return lax.reduce_sum(jnp.where(here, pairs, zero), (pairs.ndim - 2,))


def ordered(arrays: Arrays, block: int, stride: int = 1) -> list[Any]:
    """The last axis sorted in blocks, in turn up and down, one block up. With a `stride` it is so many
    sequences side by side."""
    size = 2
    while size <= block:
        arrays = merge(arrays, size, stride)
        size *= 2
    return list(arrays)


def merge(arrays: Arrays, size: int, stride: int = 1) -> list[Any]:
    """Bitonic blocks of the last axis, in order: in turn up and down."""
    n, size = arrays[0].shape[-1], size * stride
    distance = size // 2
    while distance >= stride:
        shape = (*arrays[0].shape[:-1], n // (2 * distance), 2, distance)
        pairs = [lax.reshape(x, shape) for x in arrays]
        first = lax.broadcasted_iota(np.int32, shape, len(shape) - 2) == 0
        if size < n:
            block = lax.broadcasted_iota(np.int32, shape, len(shape) - 3) & np.int32(size // (2 * distance))
            first = first == (block == 0)
        arrays = [lax.reshape(x, (*x.shape[:-3], n)) for x in _exchange(pairs, first)]
        distance //= 2
    return list(arrays)


def _exchange(pairs: Arrays, first: Any) -> list[Any]:
    """Of the two elements along the last dimension but one, at each place the lesser one where `first`."""
    others = [_other(x) for x in pairs]
    swap = after(pairs, others) == first
    return [jnp.where(swap, other, x) for x, other in zip(pairs, others, strict=True)]


def _other(pairs: Any) -> Any:
    """At each place the other element along the last dimension but one."""
    dim = pairs.ndim - 2
    return jnp.expand_dims(lax.reduce_sum(pairs, (dim,)), dim) - pairs


def after(a: Arrays, b: Arrays) -> Any:
    """Whether `a` is greater, by the first array that differs."""
    after = a[-1] > b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1], strict=True):
        after = (x > y) | ((x == y) & after)
    return after
