"""Reductions of rows that go through a program in pieces. Those that do not need each other share a loop,
which combines each piece with what those before left at its places; that is reduced at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.jaxprs import called, variables
from ...ir.monoids import identity, is_exact
from ...ir.types import Order
from . import extrema, tile_ops
from .stream_pieces import NotStreams, Piece, Stream
from .tiles import full, padded, padded_shape, widened
from .units import Call


@dataclass(frozen=True)
class _Accumulator:
    """`step(array, piece, carry)` takes one more piece, which is `none` beyond the row."""

    none: Any
    start: Any
    step: Callable[[Any, Piece, Any], Any]
    finish: Callable[[Any], Any]
    is_of_rows: bool = False
    """Whether it reduces the rows and nothing else."""


def pieces_of(jaxpr: Any) -> tuple[int, int, int] | None:
    """The extent of the rows of which a body wants nothing but reductions that do not need each other, that
    of the pieces in which they are best read, and by how many warps; None if it is another body."""
    tiles = [v.aval for e in jaxpr.eqns if e.primitive.name != "tile_store" for v in e.outvars]
    length = max((n for t in tiles for n in t.shape), default=0)
    if length < _LEAST:
        return None
    late: set[Any] = set()
    """What needs a reduction."""
    for eqn in jaxpr.eqns:
        name, needs = eqn.primitive.name, not late.isdisjoint(variables(eqn.invars))
        if (body := called(eqn)) is not None and any(_is_tile(e) for e in body.jaxpr.eqns):
            return None
        if (name in _RULES and needs) or (_is_tile(eqn) and name not in _TAKEN):
            return None
        if name == "tile_store" and length in eqn.invars[1].aval.shape:
            return None
        late.update(eqn.outvars if needs or name in _RULES else ())
    many = sum(e.primitive.name in _RULES for e in jaxpr.eqns) > _FEW
    if length > _MOST and not many:
        return None
    warps = 4 if many else 8  # what computes much wants room for more programs
    sizes = [padded(t.size // length) * t.dtype.itemsize for t in tiles if length in t.shape]
    return length, max(1, _BYTES * warps // max(sizes)), warps


def _is_tile(eqn: Any) -> bool:
    return eqn.primitive.name.startswith("tile_")


_TAKEN = ("tile_load", "tile_store", "tile_reduce", "tile_argreduce", "tile_gather")
_LEAST, _MOST = 2048, 2**15
"""Shorter rows are held as fast, longer ones go through a program anyway."""
_FEW = 4
"""So many reductions wait for memory rather than for each other."""
_BYTES = 256
"""What a warp loads of a piece."""


def takes(eqn: Any, operands: Sequence[Any]) -> bool:
    """Whether an equation is such a reduction."""
    return eqn.primitive.name in _RULES and isinstance(operands[0], Stream)


def reduced(kernel: Any, wanted: Sequence[tuple[Any, Stream]]) -> list[Any]:
    """The results of some reductions of streams."""
    if not wanted:
        return []
    eqns, streams = zip(*wanted, strict=True)
    found = [_RULES[e.primitive.name](kernel.call(e), e.invars[0].aval.dtype, kernel.width) for e in eqns]
    keys = [(e.invars[0], e.params["op"]) for e in eqns]
    at_places = {k: i for i, (k, e) in enumerate(zip(keys, eqns, strict=True)) if "axis" in e.params}
    # Where the place of an extremum is wanted too, it is at hand.
    sources = [at_places.get(k, i) if found[i].is_of_rows else i for i, k in enumerate(keys)]
    own = sorted({*sources})

    def step(piece: Piece, carries: dict[int, Any]) -> dict[int, Any]:
        arrays = {i: kernel.own(streams[i], piece, found[i].none) for i in own}
        return {i: found[i].step(arrays[i], piece, carries[i]) for i in own}

    carries = kernel.over_pieces(step, {i: found[i].start for i in own}, unroll=2)
    return [
        a.finish(carries[i] if i == source else carries[source][0])
        for i, (a, source) in enumerate(zip(found, sources, strict=True))
    ]


def _reduce(this: Call, dtype: Any, width: int) -> _Accumulator:
    p, (*lead, _), op = this.params, this.shapes[0], this.params["op"]
    if len(lead) not in p["axes"]:
        raise NotStreams
    if not is_exact(op, dtype) and p["order"] is not Order.UNORDERED_TREE:
        raise NotStreams
    none = identity(op, dtype)

    def step(array: Any, _: Piece, total: Any) -> Any:
        return tile_ops.COMBINE[op](total, widened(array))

    def finish(total: Any) -> Any:
        return tile_ops.reduce(total, (*lead, width), **p).astype(dtype)

    start = widened(full((*padded_shape(lead), width), none, dtype))
    return _Accumulator(none, start, step, finish, p["axes"] == (len(lead),))


def _argreduce(this: Call, dtype: Any, width: int) -> _Accumulator:
    p, (*lead, _), op = this.params, this.shapes[0], this.params["op"]
    if p["axis"] != len(lead):
        raise NotStreams
    extents, none = (*padded_shape(lead), width), identity(op, dtype)
    start = widened(full(extents, none, dtype)), full(extents, 0, np.int32)

    def step(array: Any, piece: Piece, carry: Any) -> Any:
        best, at = carry
        array = widened(array)
        better = lax.bitwise_not(array <= best if op == "max" else array >= best)  # NaN is
        if jnp.issubdtype(dtype, np.floating):  # the first stays
            better = better & (best == best)
        return jnp.where(better, array, best), jnp.where(better, piece.start, at)

    def finish(carry: Any) -> Any:
        best, at = carry
        places = at + lax.broadcasted_iota(np.int32, extents, len(lead))
        return extrema.first_place(best, places, len(lead), op).astype(this.dtypes[0])

    return _Accumulator(none, start, step, finish)


_RULES: dict[str, Callable[[Call, Any, int], _Accumulator]] = {
    "tile_reduce": _reduce,
    "tile_argreduce": _argreduce,
}
