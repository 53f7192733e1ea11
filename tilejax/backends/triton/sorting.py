"""Sorts and selections: which way is taken for which, and what scratch memory it wants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from ...ir.jaxprs import equations
from . import bitonic, merges
from .device import cores
from .pairs import Pairs
from .scratch import Need, Scratch, rows_at
from .selection import scratch_size, select
from .tiles import back, last, padded, padded_shape, place

_LONG = 1024
"""Rows from this length on are selected from by a search, if few are wanted; shorter ones by a network."""
_FEW = 8
"""How many times longer than what is wanted, at least."""
_PART = 8192
"""Rows are not shared in shorter parts."""
_MOST = 2048
"""What a search selects at most, no more than a piece of a row holds: more are taken from a sort."""


def needs_of(jaxpr: Any, length: int = 0) -> list[Need]:
    """The scratch memory that a body's sorts and selections want; rows of `length` go through a program in
    pieces, so that what is done with them needs some."""
    needs, seen = [], Counter(map(id, equations(jaxpr.eqns)))
    for eqn in equations(jaxpr.eqns):
        name, p = eqn.primitive.name, eqn.params
        if name not in ("tile_sort", "tile_top_k"):
            continue
        shape, k = eqn.invars[0].aval.shape, p.get("k", math.inf)
        n = shape[p["axis"]]
        rows = math.prod(padded_shape(shape)) // padded(n)
        if searches(n, k, n == length):
            needs.append(Need(eqn, scratch_size(rows, k)))
        elif n > merges.BLOCK and (name == "tile_top_k" or seen[id(eqn)] == 1):
            needs.append(Need(eqn, rows * padded(n)))
    return needs


def searches(n: int, k: float, streams: bool) -> bool:
    """Whether the first `k` of rows of `n` are found by a search."""
    return k <= _MOST and (streams or n >= max(_LONG, _FEW * k))


def shares(nest: Any, eqn: Any) -> int:
    """Into how many parts of one length to cut the rows of a selection, where programs are few: two for each
    multiprocessor, if the rows are that long. Parts start where rows of eight elements do."""
    n, k = eqn.invars[0].aval.shape[eqn.params["axis"]], eqn.params["k"]
    programs = max(math.prod(nest.params["extents"]), 1)
    most = min(2 * cores() // programs, n // max(_PART, _FEW * k))
    return next((parts for parts in range(most, 3, -1) if n % (8 * parts) == 0), 1)


def sort(
    tile: Any, shape, *, axis: int, descending: bool, scratch: Scratch | None = None, **_: Any
) -> list[Any]:
    """`tile_sort`: a network in registers, or in scratch memory where there is some for it."""
    n, index = shape[axis], place(shape, axis)
    pairs = Pairs(tile.dtype, n, descending)
    if scratch is None:  # The axis stays where it is: Triton takes a minute to compile a transposed network.
        rows = (*tile.shape[:axis], math.prod(tile.shape[axis:]))
        tile, index, stride = lax.reshape(tile, rows), lax.reshape(index, rows), rows[-1] // padded(n)
        arrays = bitonic.ordered(pairs.pack(pairs.keys(tile, index), index), padded(n), stride)
        return [lax.reshape(x, padded_shape(shape)) for x in pairs.unpack(arrays)]
    tile, index = last(tile, axis), last(index, axis)
    keys, index = _in_memory(pairs.keys(tile, index), index, pairs, scratch, padded(n))
    return [back(x, axis) for x in (pairs.values(keys), index)]


def _in_memory(keys: Any, index: Any, pairs: Pairs, scratch: Scratch, k: int) -> tuple[Any, Any]:
    """The first `k` keys and indices of sorted rows."""
    *lead, n = keys.shape
    scratch.barrier()
    scratch.store(rows_at(keys.shape, n) + index, keys, index)
    merges.sort(scratch, pairs, math.prod(lead), n)
    return scratch.load(places(lead, n, k))


def places(lead: Sequence[int], n: int, k: int) -> Any:
    """Where the first `k` of rows of `n` are."""
    shape = (*lead, k)
    return rows_at(shape, n) + lax.broadcasted_iota(np.int32, shape, len(lead))


def top_k(
    tile: Any, shape, *, axis: int, k: int, largest: bool, scratch: Scratch | None = None, **_: Any
) -> list[Any]:
    """`tile_top_k`: a network, or a selection where there is scratch memory for it."""
    n, tile, index = shape[axis], last(tile, axis), last(place(shape, axis), axis)
    pairs = Pairs(tile.dtype, n, largest)
    keys = pairs.keys(tile, index)
    if scratch is not None and not searches(n, k, False):
        keys, index = _in_memory(keys, index, pairs, scratch, padded(k))
        return [back(x, axis) for x in (pairs.values(keys), index)]
    if scratch is not None:
        row = keys, index
        keys, index = select(lambda step, carry: step(*row, carry), keys, True, k, scratch)
    arrays = bitonic.selected(pairs.pack(keys, index), padded(k))
    return [back(x, axis) for x in pairs.unpack(arrays)]
