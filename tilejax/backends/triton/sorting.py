"""Sorts and selections: bitonic networks of integers that hold a key, in the order of the values, and the
index that breaks ties. A comparator is symmetric: each of its two places computes what it keeps."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.jaxprs import equations
from .pairs import Arrays, Pairs
from .scratch import Need, Scratch
from .selection import scratch_size, select
from .tiles import back, full, last, padded, padded_shape, place

_LONG = 2048
"""Rows from this length on are selected from by a search, if few are wanted; shorter ones by a network."""
_FEW = 8
"""How many times longer than what is wanted, at least."""


def needs_of(jaxpr: Any, length: int = 0) -> list[Need]:
    """The scratch memory that a body's selections want: those from rows of `length`, which go through a
    program in pieces, and from others where a search is faster than a network."""
    needs = []
    for eqn in equations(jaxpr.eqns):
        if eqn.primitive.name == "tile_top_k":
            shape, axis, k = eqn.invars[0].aval.shape, eqn.params["axis"], eqn.params["k"]
            n = shape[axis]
            if n == length or n >= max(_LONG, _FEW * k):
                rows = math.prod(padded_shape(shape)) // padded(n)
                needs.append(Need(eqn, scratch_size(rows, k)))
    return needs


def sort(tile: Any, shape, *, axis: int, descending: bool, **_: Any) -> list[Any]:
    """`tile_sort`."""
    n, tile, index = shape[axis], last(tile, axis), last(place(shape, axis), axis)
    pairs = Pairs(tile.dtype, n, descending)
    arrays = _sorted(pairs.pack(pairs.keys(tile, index), index), padded(n))
    return [back(x, axis) for x in pairs.unpack(arrays)]


def top_k(
    tile: Any, shape, *, axis: int, k: int, largest: bool, scratch: Scratch | None = None, **_: Any
) -> list[Any]:
    """`tile_top_k`: a network, or a selection where there is scratch memory for it."""
    n, tile, index = shape[axis], last(tile, axis), last(place(shape, axis), axis)
    pairs = Pairs(tile.dtype, n, largest)
    keys = pairs.keys(tile, index)
    if scratch is not None:
        row = keys, index
        keys, index = select(lambda step, carry: step(*row, carry), keys, True, k, scratch)
    arrays = selected(pairs.pack(keys, index), padded(k))
    return [back(x, axis) for x in pairs.unpack(arrays)]


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
