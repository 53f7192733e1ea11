"""Sorts and selections: bitonic networks of integers that hold a key, in the order of the values, and the
index that breaks ties. A comparator is symmetric: each of its two places computes what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .keys import from_keys, to_keys
from .tiles import back, full, last, padded, place, scalar

Arrays = Sequence[Any]


def sort(tile: Any, shape, *, axis: int, descending: bool, **_: Any) -> list[Any]:
    """`tile_sort`."""
    arrays, unpack = _pack(last(tile, axis), last(place(shape, axis), axis), shape[axis], descending)
    return [back(x, axis) for x in unpack(_sorted(arrays, arrays[0].shape[-1], True))]


def top_k(tile: Any, shape, *, axis: int, k: int, largest: bool, **_: Any) -> list[Any]:
    """`tile_top_k`: sorted blocks, of two of which the better half stays, until one is left."""
    arrays, unpack = _pack(last(tile, axis), last(place(shape, axis), axis), shape[axis], largest)
    return [back(x, axis) for x in unpack(selected(arrays, padded(k)))]


def selected(arrays: Arrays, k: int) -> list[Any]:
    """The `k` first along the last axis, in order; `k` is a power of two."""
    arrays = _sorted(arrays, k, False)
    while (n := arrays[0].shape[-1]) > k:
        # Of two blocks, one up and one down, the first of each pair are the first of all, bitonic.
        pairs = [lax.reshape(x, (*x.shape[:-1], n // (2 * k), 2, k)) for x in arrays]
        better = _exchange(pairs, full(pairs[0].shape, True, np.bool_))
        halves = [_first(x) for x in better]
        arrays = [lax.reshape(x, (*x.shape[:-2], n // 2)) for x in halves]
        arrays = _merge(arrays, k)
    return list(arrays)


def _first(pairs: Any) -> Any:
    """Either of two equal elements along the last dimension but one."""
    here = lax.broadcasted_iota(np.int32, pairs.shape, pairs.ndim - 2) == 0
    zero = full(pairs.shape, 0, pairs.dtype)
    return lax.reduce_sum(jnp.where(here, pairs, zero), (pairs.ndim - 2,))


def _sorted(arrays: Arrays, block: int, whole: bool) -> list[Any]:
    """The last axis sorted in blocks, in turn up and down; all of it up if `whole`."""
    size = 2
    while size <= block:
        arrays = _merge(arrays, size)
        size *= 2
    return list(arrays)


def _merge(arrays: Arrays, size: int) -> list[Any]:
    """Bitonic blocks of the last axis, in order: in turn up and down."""
    n, distance = arrays[0].shape[-1], size // 2
    while distance:
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
    dim = pairs[0].ndim - 2
    others = [jnp.expand_dims(lax.reduce_sum(x, (dim,)), dim) - x for x in pairs]
    swap = _after(pairs, others) == first
    return [jnp.where(swap, other, x) for x, other in zip(pairs, others, strict=True)]


def _after(a: Arrays, b: Arrays) -> Any:
    """Whether `a` is greater, by the first array that differs."""
    after = a[-1] > b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1], strict=True):
        after = (x > y) | ((x == y) & after)
    return after


def _pack(
    values: Any, index: Any, count: int, descending: bool
) -> tuple[list[Any], Callable[[Arrays], list[Any]]]:
    """Arrays whose order is that of the values and then of the indices, padding last; and what gives values
    and indices back."""
    keys = to_keys(values)
    keys = ~keys if descending else keys
    narrow = values.dtype.itemsize <= 2 and values.shape[-1] <= 2**16
    inside = index < np.int32(count)

    def pad(x: Any) -> Any:
        worst = full(x.shape, jnp.iinfo(x.dtype).max, x.dtype)
        return x if count == values.shape[-1] else jnp.where(inside, x, worst)

    def value(keys: Any) -> Any:
        return from_keys(~keys if descending else keys, values.dtype)

    if narrow:
        packed = [pad((keys << scalar(16, np.int32)) | index)]
        low = 2**16 - 1
        return packed, lambda x: [value(x[0] >> scalar(16, np.int32)), x[0] & scalar(low, np.int32)]
    if keys.dtype.itemsize == 8:
        return [pad(keys), index], lambda x: [value(x[0]), x[1]]
    with jax.enable_x64(True):
        wide, shift = lax.convert_element_type(keys, np.int64), scalar(32, np.int64)
        packed = [pad((wide << shift) | lax.convert_element_type(index, np.int64))]

    def unpack(x: Arrays) -> list[Any]:
        with jax.enable_x64(True):
            keys = lax.convert_element_type(x[0] >> shift, np.int32)
            return [value(keys), lax.convert_element_type(x[0], np.int32)]

    return packed, unpack
