"""Sorts and selections: bitonic networks of integers that hold a key, in the order of the values, and the
index that breaks ties. A comparator is symmetric: each of its two places computes what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .keys import from_keys, to_keys
from .tiles import back, full, last, padded, place, scalar, wide_types

Arrays = Sequence[Any]


def sort(tile: Any, shape, *, axis: int, descending: bool, **_: Any) -> list[Any]:
    """`tile_sort`."""
    n = shape[axis]
    arrays = pack(last(tile, axis), last(place(shape, axis), axis), n, descending)
    return [back(x, axis) for x in unpack(_sorted(arrays, padded(n)), tile.dtype, n, descending)]


def top_k(tile: Any, shape, *, axis: int, k: int, largest: bool, **_: Any) -> list[Any]:
    """`tile_top_k`."""
    n = shape[axis]
    arrays = pack(last(tile, axis), last(place(shape, axis), axis), n, largest)
    return [back(x, axis) for x in unpack(selected(arrays, padded(k)), tile.dtype, n, largest)]


def selected(arrays: Arrays, k: int) -> list[Any]:
    """The `k` first along the last axis, in order; `k` is a power of two. Blocks are sorted, and of two of
    them the better half stays, until one is left."""
    arrays = _sorted(arrays, k)
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


def merged(a: Arrays, b: Arrays) -> list[Any]:
    """The first of two sorted sequences together, as many as each has."""
    n, distance = a[0].shape[-1], a[0].shape[-1] // 2
    turned = list(b)
    while distance:
        pairs = [lax.reshape(x, (*x.shape[:-1], n // (2 * distance), 2, distance)) for x in turned]
        turned = [lax.reshape(_other(x), (*x.shape[:-3], n)) for x in pairs]
        distance //= 2
    after = _after(a, turned)
    return _merge([jnp.where(after, y, x) for x, y in zip(a, turned, strict=True)], n)


def _sorted(arrays: Arrays, block: int) -> list[Any]:
    """The last axis sorted in blocks, in turn up and down, one block up."""
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
    others = [_other(x) for x in pairs]
    swap = _after(pairs, others) == first
    return [jnp.where(swap, other, x) for x, other in zip(pairs, others, strict=True)]


def _other(pairs: Any) -> Any:
    """At each place the other element along the last dimension but one."""
    dim = pairs.ndim - 2
    return jnp.expand_dims(lax.reduce_sum(pairs, (dim,)), dim) - pairs


def _after(a: Arrays, b: Arrays) -> Any:
    """Whether `a` is greater, by the first array that differs."""
    after = a[-1] > b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1], strict=True):
        after = (x > y) | ((x == y) & after)
    return after


def pack(values: Any, index: Any, count: int, descending: bool) -> list[Any]:
    """Arrays whose order is that of the values and then of the indices; those from `count` on go last."""
    keys = to_keys(values)
    keys = ~keys if descending else keys

    def pad(x: Any) -> Any:
        worst = full(x.shape, jnp.iinfo(x.dtype).max, x.dtype)
        return jnp.where(index < np.int32(count), x, worst)

    if _is_narrow(values.dtype, count):
        return [pad((keys << scalar(16, np.int32)) | index)]
    if keys.dtype.itemsize == 8:
        return [pad(keys), index]
    with wide_types(np.int64):
        wide = lax.convert_element_type(keys, np.int64) << scalar(32, np.int64)
        return [pad(wide | lax.convert_element_type(index, np.int64))]


def unpack(arrays: Arrays, dtype: Any, count: int, descending: bool) -> list[Any]:
    """Values and indices."""
    keys, *rest = arrays
    if _is_narrow(dtype, count):
        keys, rest = keys >> scalar(16, np.int32), [keys & scalar(2**16 - 1, np.int32)]
    elif not rest:
        rest = [lax.convert_element_type(keys, np.int32)]
        keys = lax.convert_element_type(keys >> scalar(32, np.int64), np.int32)
    return [from_keys(~keys if descending else keys, dtype), rest[0]]


def _is_narrow(dtype: Any, count: int) -> bool:
    """Whether key and index fit 32 bits."""
    return dtype.itemsize <= 2 and count <= 2**16
