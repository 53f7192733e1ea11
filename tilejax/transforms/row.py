"""The equations of a body on a piece of a long row: what has the long dimension is made for that alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Literal

from ..ir.jaxprs import bind, variables
from ..ir.types import Bounds
from .along import NotPieces, Piece, scanned_piece
from .replace import read


class Row:
    """A body without calls, whose long dimension has `length` elements."""

    def __init__(self, jaxpr: Any, length: int):
        self.jaxpr, self.length = jaxpr, length
        made = [v for e in jaxpr.eqns if e.primitive.name != "tile_store" for v in e.outvars]
        self.streams = {v for v in made if self.long(v) is not None}
        """The tiles that have the long dimension."""
        self.scans: set[Any] = set()
        """Those that are scanned along it."""

    def is_stream(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self.streams

    def long(self, var: Any) -> int | None:
        """Which dimension of a tile is the long one."""
        dims = [d for d, n in enumerate(var.aval.shape) if n == self.length]
        if len(dims) > 1:
            raise NotPieces
        return dims[0] if dims else None

    def evaluate(self, wanted: Sequence[Any], env: dict[Any, Any], piece: Piece | None) -> None:
        """Adds the variables wanted to an environment."""
        asked, order = {v for v in variables(wanted) if v not in env}, []
        for eqn in reversed(self.jaxpr.eqns):
            if any(v in asked for v in eqn.outvars):
                order.append(eqn)
                reads = eqn.invars[1:] if self._picks(eqn) else eqn.invars
                asked |= {v for v in variables(reads) if v not in env}
        for eqn in reversed(order):
            env.update(zip(eqn.outvars, self._apply(eqn, env, piece), strict=True))

    def _picks(self, eqn: Any) -> bool:
        return eqn.primitive.name == "tile_gather" and self.is_stream(eqn.invars[0])

    def _apply(self, eqn: Any, env: dict[Any, Any], piece: Piece | None) -> list[Any]:
        if self._picks(eqn):
            return [self._pick(eqn, env)]
        values = [read(env, v) for v in eqn.invars]
        if not any(v in self.streams for v in (*variables(eqn.invars), *eqn.outvars)):
            return bind(eqn, values)
        if piece is None:
            raise NotPieces
        (out,) = eqn.outvars[:1]
        if out in self.scans:
            if out not in piece.before:
                raise NotPieces
            return [scanned_piece(eqn, values[0], piece.before[out], self.long(out) or 0, piece)]
        results = self._in_piece(eqn, values, piece)
        for var, x in zip(eqn.outvars, results, strict=True):
            if x.shape != tuple(piece.width if n == self.length else n for n in var.aval.shape):
                raise NotPieces
        return results

    def _in_piece(self, eqn: Any, values: list[Any], piece: Piece) -> list[Any]:
        name, p, out = eqn.primitive.name, dict(eqn.params), eqn.outvars[0]
        d, source = self.long(out), self.long(eqn.invars[0]) if eqn.invars else None
        if name.startswith("tile_") and name != "tile_load":
            if name not in _ACROSS or source in (p.get("axis"), *p.get("axes", ())):
                raise NotPieces
            return bind(eqn, values)
        if d is None:
            raise NotPieces
        shape = tuple(piece.width if i == d else n for i, n in enumerate(out.aval.shape))
        if name == "tile_load":
            values[1 + d] = lax.add(values[1 + d], piece.start)
            bounds = Bounds.ZERO if self.length % piece.width else p["bounds"]
            p.update(shape=shape, bounds=bounds)
        elif name == "iota":
            if p["dimension"] == d:
                return [lax.convert_element_type(piece.places(shape, d), p["dtype"])]
            p["shape"] = shape
        elif name == "broadcast_in_dim":
            if self.is_stream(eqn.invars[0]) and p["broadcast_dimensions"][source] != d:
                raise NotPieces
            p["shape"] = shape
        elif name == "reshape":
            before = eqn.invars[0].aval.shape
            if source is None or math.prod(before[:source]) != math.prod(shape[:d]):
                raise NotPieces
            p["new_sizes"] = shape
        return bind(eqn.replace(params=p), values)

    def _pick(self, eqn: Any, env: dict[Any, Any]) -> Any:
        """One element of a row: a piece that is only that."""
        tile, *coords, fallback = eqn.invars
        if len(coords) != 1 or tile.aval.size != self.length or eqn.outvars[0].aval.size != 1:
            raise NotPieces
        index, shape = lax.reshape(read(env, coords[0]), ()), eqn.outvars[0].aval.shape
        here = lax.clamp(np.int32(0), index, np.int32(self.length - 1))
        inner = {v: x for v, x in env.items() if v not in self.streams}
        self.evaluate([tile], inner, Piece(here, 1, self.length, {}))
        found = lax.reshape(inner[tile], shape)
        inside = lax.broadcast(lax.eq(index, here), shape)
        return lax.select(inside, found, lax.broadcast(read(env, fallback), shape))


_ACROSS = ("tile_reduce", "tile_argreduce", "tile_fold", "tile_scan", "tile_sort", "tile_top_k")
"""What may work along another dimension than the long one."""
