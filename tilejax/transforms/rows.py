"""Few long rows: a parallel nest that works along one long dimension, as nests with a program a piece.

What has the long dimension is a function of the piece, computed again wherever it is needed. What reduces or
scans along it divides the work: the programs of a nest for all that may be reduced at once leave the parts of
their pieces in arrays, which are combined over the pieces, on whole arrays; the nests that follow load the
totals. The last ones store: one with a program a piece, and one with the programs of the nest itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .. import _compat
from ..ir.jaxprs import variables
from ..ir.types import Bounds
from .accesses import Walk
from .affine import Affine
from .along import NotPieces, Piece, combined, left, parts, works_along
from .inline import inlined
from .parts import Parts, nest_of
from .pipeline import needed
from .replace import Rules, read, replaced, results, typed
from .row import Row


def spread_rows(program: Any, wanted: Callable[[Any], tuple[int, int] | None]) -> Any:
    """The same function of arrays, up to the order of sums that is left open: each parallel nest in pieces
    for which `wanted` gives the long extent and that of a piece, if it can be."""
    rules: Rules = {}
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name == "tile_parallel" and (cut := wanted(eqn)):
            try:
                body = _compat.trace_closed(_Rows(eqn, *cut).emit, [typed(v.aval) for v in eqn.invars])
            except NotPieces:
                continue
            rules[id(eqn)] = functools.partial(results, body.jaxpr)
    return replaced(program, rules)


class _Rows:
    """A parallel nest whose tiles have a dimension of extent `length`, to be cut in pieces of `width`."""

    def __init__(self, nest: Any, length: int, width: int):
        self.nest, self.length, self.width = nest, length, width
        self.count = -(-length // width)
        self.jaxpr = inlined(nest.params["body"])
        self.loc, self.axes = nest.params["loc"], len(nest.params["extents"])
        self.inputs = self.jaxpr.invars[self.axes :]
        self.views = self.inputs[len(self.inputs) - nest.params["num_views"] :]
        self.row = Row(self.jaxpr, length)
        self.stores: dict[Any, Any] = {}
        """The one store to each view."""
        self.levels: list[list[Any]] = []
        """What works along the rows, by how many of its kind it depends on."""
        self.parts: dict[Any, Parts] = {}
        """What is left of the result of each."""
        level: dict[Any, int] = {}
        for eqn in self.jaxpr.eqns:
            name, first = eqn.primitive.name, eqn.invars[0] if eqn.invars else None
            if "body" in eqn.params or (name == "tile_load" and first in self.views):
                raise NotPieces
            if name == "tile_store":
                if first not in self.views or first in self.stores:
                    raise NotPieces
                self.stores[first] = eqn
                continue
            before = max((level.get(v, 0) for v in variables(eqn.invars)), default=0)
            along = self.row.is_stream(first) and works_along(eqn, self.row.long(first))
            if along:
                self.levels += [[] for _ in range(before + 1 - len(self.levels))]
                self.levels[before].append(eqn)
                self.parts[eqn.outvars[0]] = Parts.of(nest.params["extents"], self._types(eqn)[0][0])
                self.row.scans.update(eqn.outvars if name == "tile_scan" else ())
            level.update(dict.fromkeys(eqn.outvars, before + along))

    def emit(self, *operands: Any) -> list[Any]:
        """The new versions of the nest's views."""
        totals: dict[Any, Any] = {}
        for level in self.levels:
            found = iter(self._left(level, totals, operands))
            for eqn in level:
                out = eqn.outvars[0]
                arrays = [next(found) for _ in self._types(eqn)]
                totals[out] = combined(eqn, arrays, self.parts[out].axis)
        results = dict(zip(self.views, operands[len(operands) - len(self.views) :], strict=True))
        for long in (True, False):
            views = [v for v, e in self.stores.items() if (self.row.long(e.invars[1]) is not None) == long]
            if views:
                results.update(zip(views, self._store(views, long, totals, operands), strict=True))
        return [results[v] for v in self.views]

    def _types(self, eqn: Any) -> list[tuple[tuple[int, ...], Any]]:
        return left(eqn, self.row.long(eqn.invars[0]) or 0)

    def _left(self, level: list[Any], totals: dict[Any, Any], operands: Sequence[Any]) -> list[Any]:
        """The arrays of what the pieces of all programs leave of each of some equations."""
        kinds = [(self.parts[e.outvars[0]], dtype) for e in level for _, dtype in self._types(e)]
        views = [p.empty(self.count, dtype) for p, dtype in kinds]

        def store(place: Sequence[Any], views: Sequence[Any], env: dict[Any, Any], piece: Any) -> list[Any]:
            found: list[Any] = []
            for eqn in level:
                found += parts(
                    eqn, [read(env, v) for v in eqn.invars], self.row.long(eqn.invars[0]) or 0, piece
                )
            each = zip(kinds, views, found, strict=True)
            return [p.put(view, x, place, self.loc) for (p, _), view, x in each]

        return self._launch([v for e in level for v in e.invars], totals, operands, views, True, store)

    def _store(
        self, views: list[Any], long: bool, totals: dict[Any, Any], operands: Sequence[Any]
    ) -> list[Any]:
        """The new versions of views that are stored in pieces, or at once."""
        eqns = [self.stores[v] for v in views]
        known = dict(zip(self.inputs, operands, strict=True))

        def store(place: Sequence[Any], views: Sequence[Any], env: dict[Any, Any], piece: Any) -> list[Any]:
            return [self._stored(e, v, env, piece) for e, v in zip(eqns, views, strict=True)]

        wanted = [v for e in eqns for v in e.invars[1:]]
        return self._launch(wanted, totals, operands, [known[v] for v in views], long, store)

    def _stored(self, eqn: Any, view: Any, env: dict[Any, Any], piece: Piece | None) -> Any:
        tile, *starts = (read(env, v) for v in eqn.invars[1:])
        params = dict(eqn.params)
        if piece is not None:
            d = self.row.long(eqn.invars[1]) or 0
            if self.length % self.width:
                if not self._reaches(eqn, d):
                    raise NotPieces  # what is beyond the row would be stored
                params["bounds"] = Bounds.ZERO
            starts[d] = lax.add(starts[d], piece.start)
        return eqn.primitive.bind(view, tile, *starts, **params)[0]

    def _reaches(self, store: Any, dim: int) -> bool:
        """Whether the rows of a store surely end where its view does, or beyond."""
        walk, indices = Walk(), self.jaxpr.invars[: self.axes]
        walk.extents.update(zip(indices, self.nest.params["extents"], strict=True))
        walk.walk(self.jaxpr, {v: Affine(0, {v: 1}) for v in indices}, {}, True)
        (found,) = (a for a in walk.accesses if a.eqn is store)
        low = found.starts[dim].bounds(walk.extents.__getitem__)[0] if found.affine else 0
        return found.affine and low + self.length >= found.shape[dim]

    def _launch(
        self,
        wanted: Sequence[Any],
        totals: dict[Any, Any],
        operands: Sequence[Any],
        views: Sequence[Any],
        long: bool,
        store: Callable[..., list[Any]],
    ) -> list[Any]:
        """The new versions of views by `store`, which finds what is wanted in an environment."""
        given = frozenset(totals) - self.row.scans
        eqns = needed(self.jaxpr.eqns, variables(wanted), given)
        asked = variables([*wanted, *(v for e in eqns for v in (*e.invars, *e.outvars))])
        known = {v: x for v, x in (*zip(self.inputs, operands, strict=True), *totals.items()) if v in asked}

        def program(*values: Any) -> list[Any]:
            place = values[: self.axes + long]
            indices, values = place[long:], values[self.axes + long :]
            env, before = dict(zip(self.jaxpr.invars, indices, strict=False)), {}
            for var, x in zip(known, values, strict=False):
                if var in self.row.scans:
                    before.update({var: self.parts[var].take(x, place, self.loc)} if long else {})
                else:
                    env[var] = self.parts[var].take(x, indices, self.loc) if var in totals else x
            piece = None
            if long:
                start = lax.mul(place[0], np.int32(self.width))
                piece = Piece(start, self.width, self.length, before)
            self.row.evaluate(wanted, env, piece)
            return store(place, values[len(known) :], env, piece)

        return nest_of(self.nest, program, list(known.values()), views, self.count if long else 0)
