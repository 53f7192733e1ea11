"""Long accumulations of few programs, split: `carry + f(step)` for ranges of the steps at once.

A parallel nest whose programs accumulate over many steps becomes two. The programs of the first are those of
the nest times the splits: each runs what the loop needs and a range of its steps from the identity, and
stores what it has in an array of its own. These are reduced over the splits, all at once, outside of nests.
The programs of the second are the nest's, with that in place of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from .. import _compat
from ..ir import primitives as ir
from ..ir.jaxprs import variables
from ..ir.monoids import COMBINE, identity
from ..ir.types import Order
from .accumulate import operations
from .parts import INDEX, Parts, is_split, nest_of
from .pipeline import needed, static_trips
from .replace import Rules, evaluate, read, replaced, results, typed

Pieces = Callable[[Any, Any], int]
"""Into how many ranges to split a loop, from its nest and itself."""


def split_loops(program: Any, pieces: Pieces) -> Any:
    """The same function of arrays, up to the order of sums that a pipeline leaves open, without the loops
    for which `pieces` is more than one."""
    rules: Rules = {}
    for eqn in program.jaxpr.eqns:
        if found := chosen(eqn, pieces):
            rules[id(eqn)] = _Split(eqn, *found).emit
    return split_loops(replaced(program, rules), pieces) if rules else program


def chosen(eqn: Any, pieces: Pieces) -> tuple[Any, int] | None:
    """The first loop of a parallel nest that is to be split, and into how many ranges."""
    if eqn.primitive.name != "tile_parallel" or is_split(eqn):
        return None
    eqns = eqn.params["body"].jaxpr.eqns
    for loop in eqns:
        if "num_carry" not in loop.params or not operations(loop):
            continue
        before = needed(eqns, variables(loop.invars))
        if any(e.primitive.name == "tile_store" or e.params.get("num_views") for e in before):
            continue  # what the loop reads must be there before anything is stored
        if any(_steps(e) >= _steps(loop) for e in before if "num_carry" in e.params):
            continue  # all programs would run that loop
        count = pieces(eqn, loop)
        if len(loop.params["extents"]) > 1:  # ranges of its outermost axis, of one length
            count = math.gcd(count, loop.params["extents"][0])
        if count > 1:
            return loop, count
    return None


def _steps(loop: Any) -> int:
    return math.prod(loop.params["extents"])


class _Split:
    """A parallel nest and the loop of it whose steps `count` programs share."""

    def __init__(self, nest: Any, loop: Any, count: int):
        self.nest, self.loop, self.count = nest, loop, count
        self.grid, self.body = nest.params["extents"], nest.params["body"].jaxpr
        self.carries = [v.aval for v in loop.outvars]
        self.parts = [Parts.of(self.grid, c.shape) for c in self.carries]
        self.operations = operations(loop) or []
        self.starts = loop.invars[len(loop.invars) - len(self.carries) :]
        self.loc = loop.params["loc"]

    def emit(self, operands: Sequence[Any]) -> list[Any]:
        """The new versions of the nest's views."""
        totals = [
            ir.reduce_p.bind(array, op=op, axes=(p.axis,), order=Order.UNORDERED_TREE, loc=self.loc)[0]
            for array, op, p in zip(self._partials(operands), self.operations, self.parts, strict=True)
        ]
        return self._rest(operands, totals)

    def _partials(self, operands: Sequence[Any]) -> list[Any]:
        """For each carry the array, over splits and programs, of what a range of steps accumulates."""
        eqns = needed(self.body.eqns, variables(self.loop.invars))
        asked = {v for e in (*eqns, self.loop) for v in variables(e.invars)}
        kept = self._kept(asked, len(operands))
        views = [p.empty(self.count, c.dtype) for p, c in zip(self.parts, self.carries, strict=True)]

        def program(split: Any, *values: Any) -> list[Any]:
            indices, values = values[: len(self.grid)], values[len(self.grid) :]
            env = self._env(indices, kept, values)
            evaluate(eqns, env)
            found = self._range(split, [read(env, v) for v in self.loop.invars])
            each = zip(self.parts, values[len(kept) :], found, strict=True)
            return [p.put(view, x, [split, *indices], self.loc) for p, view, x in each]

        return nest_of(self.nest, program, [operands[i] for i in kept], views, self.count)

    def _range(self, split: Any, values: list[Any]) -> list[Any]:
        """What range number `split` of the loop's steps accumulates."""
        p, count = self.loop.params, self.count
        bounds, consts = values[: p["num_bounds"]], values[p["num_bounds"] : len(values) - len(self.carries)]
        none = [
            lax.full(c.shape, identity(op, c.dtype), c.dtype)
            for c, op in zip(self.carries, self.operations, strict=True)
        ]
        trips = static_trips(self.loop) if len(p["extents"]) == 1 else range(p["extents"][0])
        if trips is None:
            limit = np.int32(p["extents"][0])
            start, stop = (lax.clamp(np.int32(0), b, limit) for b in bounds)
            length = lax.div(lax.add(lax.sub(stop, start), np.int32(count - 1)), np.int32(count))
        else:
            start, stop, length = map(np.int32, (trips.start, trips.stop, -(-len(trips) // count)))
        first = lax.add(start, lax.mul(split, length))
        if trips is None or len(trips) % count:
            last = lax.min(lax.add(first, length), stop)
            return self.loop.primitive.bind(first, last, *consts, *none, **{**p, "num_bounds": 2})
        return self._shifted(first, len(trips) // count, [*consts, *none])

    def _shifted(self, first: Any, length: int, values: list[Any]) -> list[Any]:
        """The loop over `length` steps from `first` on, which needs no bounds."""
        p, inner = self.loop.params, self.loop.params["body"].jaxpr
        extents = (length, *p["extents"][1:])

        def step(*values: Any) -> list[Any]:
            indices, first, rest = values[: len(extents)], values[len(extents)], values[len(extents) + 1 :]
            here = [lax.add(first, indices[0]), *indices[1:]]
            return results(inner, [*here, *rest])

        body = _compat.trace_closed(step, [INDEX] * len(extents) + [typed(x) for x in (first, *values)])
        params = {**p, "extents": extents, "num_bounds": 0, "body": body}
        return self.loop.primitive.bind(first, *values, **params)

    def _rest(self, operands: Sequence[Any], totals: list[Any]) -> list[Any]:
        """The nest with the totals in place of the loop."""
        results = variables([*self.body.outvars, *self.starts])
        live = {id(e) for e in needed(self.body.eqns, results, frozenset(self.loop.outvars))}
        eqns = [e for e in self.body.eqns if id(e) in live]
        fixed = len(operands) - self.nest.params["num_views"]
        kept = self._kept(results | {v for e in eqns for v in variables(e.invars)}, fixed)
        places = [*kept, *range(fixed, len(operands))]

        def program(*values: Any) -> list[Any]:
            indices, values = values[: len(self.grid)], values[len(self.grid) :]
            own, sums = values[: len(kept)], values[len(kept) : len(kept) + len(totals)]
            env = self._env(indices, places, [*own, *values[len(kept) + len(totals) :]])
            for eqn in self.body.eqns:
                if eqn is self.loop:
                    found = [p.take(x, indices, self.loc) for p, x in zip(self.parts, sums, strict=True)]
                    starts = [read(env, v) for v in self.starts]
                    both = zip(eqn.outvars, self.operations, starts, found, strict=True)
                    env.update((v, COMBINE[op](a, b)) for v, op, a, b in both)
                elif id(eqn) in live:
                    evaluate([eqn], env)
            return [read(env, v) for v in self.body.outvars]

        return nest_of(self.nest, program, [*(operands[i] for i in kept), *totals], operands[fixed:])

    def _kept(self, asked: set[Any], count: int) -> list[int]:
        """Which of the nest's first `count` operands are read."""
        inputs = self.body.invars[len(self.grid) :]
        return [i for i in range(count) if inputs[i] in asked]

    def _env(self, indices: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> dict[Any, Any]:
        axes = len(self.grid)
        env = dict(zip(self.body.invars, indices, strict=False))
        env.update((self.body.invars[axes + i], x) for i, x in zip(places, values, strict=False))
        return env
