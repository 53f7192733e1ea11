"""Software prefetch: a pipeline with a safe cut as prologue, steady state and epilogue.

The prologue runs the first step up to the cut. Each step of the steady state runs the next step up to the
cut, then the rest of its own; what crosses the cut has two versions there, the one that is used being a carry
and the one that is loaded becoming it. The epilogue is the rest of the last step. Where the number of steps
is not known, prologue and epilogue are loops of at most one step, so that nothing is loaded that no step asks
for. What only indices go into is computed on both sides of the cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from .. import _compat
from ..ir import primitives as ir
from ..ir.domains import unravel
from ..ir.jaxprs import bind, variables
from .pipeline import Cut, find_cuts, needed, static_trips
from .replace import read, typed


def prefetched(program: Any, wanted: Callable[[Any], bool] = lambda pipeline: True) -> Any:
    """The same function of arrays, its pipelines overlapped wherever that is safe, and `wanted`. None of the
    new loops is overlapped again."""
    found = find_cuts(program)
    cuts = {key: cut for key, (eqn, cut) in found.items() if cut.overlapped and wanted(eqn)}
    return _rewrite(program, cuts) if cuts else program


def _rewrite(closed: Any, cuts: dict[int, Cut]) -> Any:
    jaxpr = closed.jaxpr
    return _compat.trace_closed(lambda *v: _run(jaxpr, v, cuts), [typed(v.aval) for v in jaxpr.invars])


def _run(jaxpr: Any, values: Sequence[Any], cuts: dict[int, Cut]) -> list[Any]:
    env = dict(zip(jaxpr.invars, values, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(env, v) for v in eqn.invars]
        if id(eqn) in cuts:
            out = _Overlap(eqn, cuts[id(eqn)], cuts).emit(operands)
        elif "body" in eqn.params:
            params = {**eqn.params, "body": _rewrite(eqn.params["body"], cuts)}
            out = eqn.primitive.bind(*operands, **params)
        else:
            out = bind(eqn, operands)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(env, v) for v in jaxpr.outvars]


class _Overlap:
    """One pipeline's body in two parts: `ahead(indices, fixed) -> crossing`, and `rest(indices, fixed, carry,
    crossing) -> views, carry`, where `fixed` are the consts and the views."""

    def __init__(self, eqn: Any, cut: Cut, cuts: dict[int, Cut]):
        self.eqn, self.params = eqn, eqn.params
        self.extents = eqn.params["extents"]
        self.count = math.prod(self.extents)
        self.trips = static_trips(eqn)
        jaxpr, axes = eqn.params["body"].jaxpr, len(self.extents)
        state = len(jaxpr.invars) - self.params["num_carry"]
        before = {id(e) for e in cut.ahead}
        after = [e for e in jaxpr.eqns if id(e) not in before]
        loaded = _loaded(cut.ahead)
        outs = variables(jaxpr.outvars)
        read = outs | variables(v for e in after for v in e.invars)
        crossing = [v for e in cut.ahead for v in e.outvars if v in loaded and v in read]
        rest = needed(jaxpr.eqns, outs, frozenset(crossing))
        self.crossing = [v.aval for v in crossing]
        self.num_fixed = state - axes
        self.ahead = _part(jaxpr.invars[:state], crossing, needed(cut.ahead, set(crossing)), jaxpr, cuts)
        self.rest = _part([*jaxpr.invars, *crossing], jaxpr.outvars, rest, jaxpr, cuts)

    def emit(self, operands: Sequence[Any]) -> list[Any]:
        p, one = self.params, np.int32(1)
        bounds, operands = operands[: p["num_bounds"]], list(operands[p["num_bounds"] :])
        fixed, carry = operands[: self.num_fixed], operands[self.num_fixed :]
        num_consts = self.num_fixed - p["num_views"]
        if self.trips is not None:
            first, last = np.int32(self.trips[0]), np.int32(self.trips[-1])
            limits = [first, last] if p["num_bounds"] else []
            crossing = self.ahead(*self._indices(first), *fixed)
            views, carry, crossing = self._steady(limits, fixed, carry, crossing)
            return self.rest(*self._indices(last), *fixed[:num_consts], *views, *carry, *crossing)
        first = lax.max(bounds[0], np.int32(0))
        stop = lax.clamp(np.int32(0), bounds[1], np.int32(self.count))
        last = lax.sub(stop, one)
        crossing = self._first_if_any([first, lax.min(lax.add(first, one), stop)], fixed)
        views, carry, crossing = self._steady([first, last], fixed, carry, crossing)
        return self._last_if_any([lax.max(first, last), stop], [*fixed[:num_consts], *views], carry, crossing)

    def _indices(self, position: Any) -> list[Any]:
        """The indices of a step, from its row-major number."""
        return [position] if len(self.extents) == 1 else unravel(position, self.extents)

    def _steady(
        self, bounds: list[Any], fixed: list[Any], carry: list[Any], crossing: list[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Every step but the last, each with the next one's part before the cut."""

        def body(position: Any, *values: Any) -> list[Any]:
            new = self.ahead(*self._indices(lax.add(position, np.int32(1))), *values[: self.num_fixed])
            return [*self.rest(*self._indices(position), *values), *new]

        state = len(carry) + len(crossing)
        out = self._loop(
            body, self.count - 1, bounds, [*fixed, *carry, *crossing], self.params["num_views"], state
        )
        views, state = out[: self.params["num_views"]], out[self.params["num_views"] :]
        return views, state[: len(carry)], state[len(carry) :]

    def _first_if_any(self, bounds: list[Any], fixed: list[Any]) -> list[Any]:
        def body(position: Any, *values: Any) -> list[Any]:
            return self.ahead(*self._indices(position), *values[: self.num_fixed])

        nothing = [lax.full(a.shape, 0, a.dtype) for a in self.crossing]
        return self._loop(body, self.count, bounds, [*fixed, *nothing], 0, len(nothing))

    def _last_if_any(
        self, bounds: list[Any], fixed: list[Any], carry: list[Any], crossing: list[Any]
    ) -> list[Any]:
        def body(position: Any, *values: Any) -> list[Any]:
            return self.rest(*self._indices(position), *values[len(crossing) :], *values[: len(crossing)])

        operands = [*crossing, *fixed, *carry]  # what crosses the cut is only read now
        return self._loop(body, self.count, bounds, operands, self.params["num_views"], len(carry))

    def _loop(
        self,
        body: Callable[..., list[Any]],
        count: int,
        bounds: list[Any],
        operands: list[Any],
        num_views: int,
        num_carry: int,
    ) -> list[Any]:
        """A pipeline over row-major numbers of steps that is not overlapped again."""
        index = jax.ShapeDtypeStruct((), np.int32)
        avals = [jax.ShapeDtypeStruct(np.shape(v), v.dtype) for v in operands]
        return ir.pipeline_p.bind(
            *bounds,
            *operands,
            names=(" * ".join(self.params["names"]),),
            extents=(count,),
            num_bounds=len(bounds),
            num_views=num_views,
            num_carry=num_carry,
            window=1,
            interval=1,
            stages=(),
            body=_compat.trace_closed(body, [index, *avals]),
            loc=self.params["loc"],
        )


def _loaded(eqns: Sequence[Any]) -> set[Any]:
    """The results that some load goes into: the others are made of indices and constants alone."""
    found: set[Any] = set()
    for eqn in eqns:
        loads = eqn.primitive.name == "tile_load" or "body" in eqn.params
        if loads or any(v in found for v in eqn.invars if not isinstance(v, Literal)):
            found.update(eqn.outvars)
    return found


def _part(
    inputs: Sequence[Any], outputs: Sequence[Any], eqns: Sequence[Any], jaxpr: Any, cuts: dict[int, Cut]
) -> Callable[..., list[Any]]:
    part = _compat.rebuild(jaxpr, inputs, outputs, eqns).jaxpr
    return lambda *values: _run(part, values, cuts)
