"""The first few of a long row without sorting it: a search over the bits of the keys for one that has at
least `k` up to it and not many more before it, then one pass that moves those to scratch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .scratch import Scratch, rows_at
from .tiles import full, padded, scalar

Walk = Callable[[Callable[[Any, Any, Any], Any], Any], Any]
"""`walk(step, carry)` gives `step(keys, index, carry)` of a row's pieces one after another: arrays whose last
axis is along the row. Keys beyond its end are the greatest, and so are their indices."""


def room_of(k: int) -> int:
    """How many candidates are sorted for `k`: with some to spare the search ends early."""
    return max(2 * padded(k), 32)


def scratch_size(rows: int, k: int) -> int:
    """The pairs of scratch memory that `select` takes: of keys before the one that was found, and of equal
    ones."""
    return rows * 2 * room_of(k)


def select(walk: Walk, sample: Any, whole: bool, k: int, scratch: Scratch) -> tuple[Any, Any]:
    """Keys and indices of `room_of(k)` candidates along the last axis, in no order: the first `k` of all, by
    key and then by index, are among them. What is no candidate has the greatest key and index.

    `sample` is the `whole` row in one piece; or keys of which `k` up to one are `k` of the row's, the least
    among them.
    """
    k = max(k, 1)
    room, lead = room_of(k), sample.shape[:-1]
    low, high = lax.reduce_min(sample, (len(lead),)), lax.reduce_max(sample, (len(lead),))

    def count(key: Any) -> Any:
        return _sum(sample < _row(key))

    def collect(key: Any) -> Any:
        """How many are before a key, with as many as there is room for in scratch memory, and behind them
        those equal to it, the first ones."""

        def step(keys: Any, index: Any, seen: Any) -> Any:
            before, equal = keys < _row(key), keys == _row(key)
            ranks = [x + _row(n - np.int32(1)) for x, n in zip(_ranks(before, equal), seen, strict=True)]
            place = jnp.where(before, ranks[0], ranks[1])
            kept = (before | equal) & (place < np.int32(room))
            behind = jnp.where(before, full(place.shape, 0, np.int32), full(place.shape, room, np.int32))
            scratch.store(rows_at(place.shape, 2 * room) + behind + place, keys, index, kept)
            return [n + _sum(x) for n, x in zip(seen, (before, equal), strict=True)]

        scratch.barrier()
        return walk(step, [full(lead, 0, np.int32)] * 2)[0]

    if whole:
        key, _ = _search(count, low, high, k, room)
        before = collect(key)
    else:
        bound, _ = _search(count, low, high, k, k + (room - k) // 4)
        key, before = _search(collect, low, bound, k, room)
    scratch.barrier()
    place = lax.broadcasted_iota(np.int32, (*lead, room), len(lead))
    first = _row(before)
    found = place < jnp.maximum(first, np.int32(k))
    behind = jnp.where(place < first, full(place.shape, 0, np.int32), np.int32(room) - first)
    return scratch.load(rows_at(place.shape, 2 * room) + behind + place, found)


def _search(count: Callable[[Any], Any], low: Any, high: Any, k: int, room: int) -> tuple[Any, Any]:
    """A key of each row from `low` to `high` with at most `room` keys before it and at least `k` up to it,
    and how many are before it. `count` tells that; of `low` it is less than `k`, and `k` are up to `high`."""

    def step(state: list[Any]) -> list[Any]:
        low, high, key, _, _ = state
        before = count(key)
        few = before < np.int32(k)
        found = (before <= np.int32(room)) & (~few | (key == high))
        low = jnp.where(few & ~found, key, low)
        high = jnp.where(few | found, high, key - scalar(1, key.dtype))
        middle = (low | high) - ((low ^ high) >> scalar(1, key.dtype))  # rounded up, without overflow
        open_rows = jnp.max((~found).astype(np.int32))
        return [low, high, jnp.where(found, key, middle), before, open_rows]

    none = full(low.shape, 0, np.int32)
    start = [low, high, high, none, scalar(1, np.int32)]
    _, _, key, before, _ = lax.while_loop(lambda state: state[-1] > 0, step, start)
    return key, before


def _ranks(first: Any, second: Any) -> list[Any]:
    """For each of two masks, how many are true up to each place along the last axis."""
    axis = first.ndim - 1
    a, b = first.astype(np.int32), second.astype(np.int32)
    if first.shape[-1] >= 2**15:
        return [lax.cumsum(a, axis), lax.cumsum(b, axis)]
    both = lax.cumsum(a | (b << np.int32(16)), axis)
    return [both & np.int32(2**16 - 1), both >> np.int32(16)]


def _sum(mask: Any) -> Any:
    return jnp.sum(mask.astype(np.int32), mask.ndim - 1, dtype=np.int32)


def _row(value: Any) -> Any:
    """A value of each row beside the row's elements."""
    return value[..., None] if value.ndim else value
