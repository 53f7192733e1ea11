"""Which part of a pipeline's step may run one step ahead: a dependence analysis that finds the one safe cut.

The loads of step i+1 may overlap the rest of step i only if nothing that the rest writes can be read by
them: no carry, no memory that outlasts the step, no view that the body stores to, unless the tiles are
provably apart. A view that the body does not store to is a const of the pipeline, the same in every step;
that holds of the argument of an `update` too, because the updated copy is a view of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.core import Literal

from ..ir.jaxprs import equations
from .accesses import Access, Walk
from .hazards import apart


@dataclass(frozen=True)
class Cut:
    """What was found of one pipeline."""

    overlapped: bool
    reason: str
    """Why not, naming the view or memory and the line; of an overlapped one, what is loaded ahead."""
    ahead: tuple[Any, ...] = ()
    """The equations of the body before the cut, which run one step ahead, in order."""


def find_cuts(program: Any) -> dict[int, tuple[Any, Cut]]:
    """The cut of every `tile_pipeline` of a program, with its equation, by the equation's `id`."""
    walk = Walk()
    walk.walk(program.jaxpr, {}, {}, True)
    return {
        id(eqn): (eqn, _cut(_Step(eqn, indices, accesses, walk.extents)))
        for eqn, indices, accesses in walk.loops
        if eqn.primitive.name == "tile_pipeline"
    }


def _cut(step: _Step) -> Cut:
    p, trips = step.eqn.params, static_trips(step.eqn)
    most = math.prod(p["extents"]) if trips is None else len(trips)
    if p["window"] == 1:
        return Cut(False, "window=1 asks for no overlap")
    if p["interval"] > 1:
        return Cut(False, f"interval={p['interval']} keeps the steps apart, and so in order")
    if most < 2:
        return Cut(False, "it has no second step")
    return _at_stage(step) if p["stages"] else _leading_loads(step)


def static_trips(eqn: Any) -> range | None:
    """The row-major numbers of a loop's steps, if they are known."""
    count = math.prod(eqn.params["extents"])
    bounds = eqn.invars[: eqn.params["num_bounds"]]
    if not bounds or not count:
        return range(count)
    if not all(isinstance(b, Literal) for b in bounds):
        return None
    start, stop = (int(b.val) for b in bounds)
    return range(max(start, 0), max(min(stop, count), max(start, 0)))


def _at_stage(step: _Step) -> Cut:
    """The last end of a stage that loads, such that all before it may run ahead."""
    eqns = step.jaxpr.eqns
    marks = [i for i, eqn in enumerate(eqns) if eqn.primitive.name == "tile_stage"]
    best, why, begin, held = None, "nothing is loaded before the last stage", 0, None
    for end in marks:
        section = eqns[begin:end]
        held = held or next((w for eqn in section if (w := step.held(eqn))), None)
        if any(map(_loads, section)):
            if held:
                why = held
                break
            best = end
        begin = end
    if best is None:
        return Cut(False, why)
    name = eqns[best].params["name"]
    return _overlapped(eqns[:best], f"all before stage {name}")


def _leading_loads(step: _Step) -> Cut:
    """Every load that may run ahead, with what its place is computed from."""
    loads = [eqn for eqn in step.jaxpr.eqns if eqn.primitive.name == "tile_load"]
    free = [eqn for eqn in loads if not step.held(eqn)]
    if not loads:
        return Cut(False, "its steps load nothing themselves")
    if not free:
        return Cut(False, step.held(loads[0]) or "")
    wanted = {v for eqn in free for v in eqn.outvars}
    return _overlapped(needed(step.jaxpr.eqns, wanted), "")


def _overlapped(ahead: Sequence[Any], what: str) -> Cut:
    names = list(dict.fromkeys(f"{e.params['name']} ({e.params['loc']})" for e in _all_loads(ahead)))
    loads = f"loads of {', '.join(names)}"
    return Cut(True, f"{what}, with the {loads}," if what else f"the {loads}", tuple(ahead))


def needed(eqns: Iterable[Any], wanted: set[Any], given: frozenset[Any] = frozenset()) -> list[Any]:
    """The equations that make the variables `wanted`, in order; those of `given` are there already."""
    wanted, kept = {v for v in wanted if v not in given}, []
    for eqn in reversed(list(eqns)):
        if any(v in wanted for v in eqn.outvars):
            kept.append(eqn)
            wanted |= {v for v in eqn.invars if not isinstance(v, Literal) and v not in given}
    return kept[::-1]


def _all_loads(eqns: Iterable[Any]) -> list[Any]:
    return [eqn for eqn in equations(eqns) if eqn.primitive.name == "tile_load"]


def _loads(eqn: Any) -> bool:
    return bool(_all_loads([eqn]))


class _Step:
    """The body of a pipeline, and of each of its equations whether something holds it back."""

    def __init__(self, eqn: Any, indices: list[Any], accesses: list[Access], extents: dict[Any, int]):
        self.eqn, self.indices, self.extents = eqn, indices, extents
        self.jaxpr = eqn.params["body"].jaxpr
        self.loads = {id(a.eqn): a for a in accesses if not a.stores}
        self.stores = [a for a in accesses if a.stores]
        p = eqn.params
        inputs = self.jaxpr.invars
        fixed = len(inputs) - p["num_views"] - p["num_carry"]
        self.views = frozenset(inputs[fixed : fixed + p["num_views"]])
        carried = inputs[fixed + p["num_views"] :]
        self.why: dict[Any, str] = dict.fromkeys(self.views, "a view that its steps store to")
        self.why.update(dict.fromkeys(carried, "what the step before returns"))
        self._holds: dict[int, str | None] = {}
        for inner in self.jaxpr.eqns:
            held = self._holds[id(inner)] = self._held(inner)
            if held:
                self.why.update(dict.fromkeys(inner.outvars, held))

    def held(self, eqn: Any) -> str | None:
        """Why an equation of the body can't run one step ahead; None if it can."""
        return self._holds[id(eqn)]

    def _held(self, eqn: Any) -> str | None:
        name, p = eqn.primitive.name, eqn.params
        reads = [v for v in eqn.invars if not isinstance(v, Literal)]
        if name == "tile_load":
            view, *rest = eqn.invars
            if view in self.why and (hazard := self._hazard(eqn)):
                return hazard
            reads = [v for v in rest if not isinstance(v, Literal)]
        blocked = next((v for v in reads if v in self.why), None)
        if blocked is None:
            return None
        why = self.why[blocked]
        if name == "tile_load":
            return f"the load of {p['name']} ({p['loc']}) depends on {why}"
        if name in ("tile_memory_store", "tile_memory_load") and blocked is eqn.invars[0]:
            return f"memory {p['name']} ({p['loc']}) is declared outside of the steps, which store to it"
        if name == "tile_store":
            return f"{p['name']} is stored to ({p['loc']})"
        if blocked in self.views:
            return f"a nest inside ({p.get('loc')}) uses {why}"
        return why

    def _hazard(self, load: Any) -> str | None:
        """Why a load from a view that the body stores to can't run ahead."""
        mine = self.loads[id(load)]
        p = load.params
        here = f"the load of {p['name']} ({p['loc']})"
        for store in self.stores:
            if store.root is mine.root and not apart(mine, store, self.indices, 1, self.extents):
                return f"{here} may read what the store ({store.loc}) of the step before wrote"
        if load.invars[0] not in self.views:
            return f"{here} comes after a store to the same view"
        return None
