"""Sorts and selections of rows that go through a program in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import bitonic, merges, sorting
from .keys import key_type
from .pairs import Pairs
from .scratch import Scratch, rows_at
from .selection import Walk, select
from .stream_pieces import NotStreams, Piece, Stream
from .tiles import full, padded, padded_shape
from .units import Call, squeezed


def _walk(kernel: Any, stream: Any, pairs: Pairs) -> Walk:
    """The keys and indices of each piece in turn."""

    def walk(step: Callable[[Any, Any, Any], Any], start: Any) -> Any:
        def one(piece: Piece, carry: Any) -> Any:
            array = stream.at(piece)
            index = lax.broadcasted_iota(np.int32, array.shape, array.ndim - 1) + piece.start
            return step(pairs.keys(array, index), index, carry)

        return kernel.over_pieces(one, start)

    return walk


def _in_memory(kernel: Any, this: Call, stream: Any, descending: bool) -> tuple[Scratch, Pairs]:
    """Sorted rows in scratch memory."""
    p, (*lead, n) = this.params, this.shapes[0]
    if p["axis"] != len(lead) or "scratch" not in p:
        raise NotStreams
    scratch, pairs, n = p["scratch"], Pairs(this.dtypes[0], n, descending), padded(n)

    def keep(keys: Any, index: Any, carry: Any) -> Any:
        scratch.store(rows_at(keys.shape, n) + index, keys, index)
        return carry

    scratch.barrier()
    _walk(kernel, stream, pairs)(keep, np.int32(0))
    merges.sort(scratch, pairs, math.prod(padded_shape(lead)), n)
    return scratch, pairs


def sort(kernel: Any, this: Call, values: list[Any]) -> list[Any]:
    """`tile_sort`: its results lie in scratch memory, and are loaded where a piece of them is needed."""
    lead, p = padded_shape(this.shapes[0][:-1]), this.params
    scratch, pairs = _in_memory(kernel, this, values[0], p["largest" if "k" in p else "descending"])

    def at(piece: Piece) -> tuple[Any, Any]:
        return scratch.load(sorting.places(lead, padded(kernel.length), piece.width) + piece.start)

    return [Stream(lambda piece: pairs.values(at(piece)[0])), Stream(lambda piece: at(piece)[1])]


def top_k(kernel: Any, this: Call, values: list[Any]) -> list[Any]:
    """`tile_top_k`: a search, whose sample is the least of each place in all pieces; or a sort's first."""
    p, (*lead, n) = this.params, this.shapes[0]
    lead, k = padded_shape(lead), padded(p["k"])
    if p["k"] == n:
        return sort(kernel, this, values)
    if not sorting.searches(n, p["k"], True):
        scratch, pairs = _in_memory(kernel, this, values[0], p["largest"])
        keys, index = scratch.load(sorting.places(lead, padded(n), k))
        out = [pairs.values(keys), index]
    elif p["axis"] != len(lead) or k > kernel.width:
        raise NotStreams
    else:
        pairs = Pairs(this.dtypes[0], n, p["largest"])
        walk, dtype = _walk(kernel, values[0], pairs), key_type(pairs.dtype)
        worst = full((*lead, kernel.width), jnp.iinfo(dtype).max, dtype)
        sample = walk(lambda keys, _, best: lax.min(best, keys), worst)
        found = select(walk, sample, False, p["k"], p["scratch"])
        out = pairs.unpack(bitonic.selected(pairs.pack(*found), k))
    return [lax.reshape(x, padded_shape(squeezed(this.targets[0]))) for x in out]
