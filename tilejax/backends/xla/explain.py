"""What the evaluator made of a program: it evaluates it, and reads the plan's notes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ...ir.jaxprs import equations
from ...transforms.pipeline import Cut, find_cuts
from ...transforms.simplify import simplify
from ..decisions import Decisions, Nests, decided, label
from .evaluate import compile_program

MEMORY = "an array of its own values, whatever its layout"
"""Where the memories of a program live."""

_STORES = {
    None: "nothing is stored",
    "whole": "disjoint, covers the view: what is stored becomes the view",
    "update": "disjoint, one update of a part of the view",
    "scatter": "not known to lie side by side: one scatter",
}


def decisions(program: Any, budget: int) -> Decisions:
    """The pipelines, contractions and stores of a program, in its order."""
    notes: dict[Any, Any] = {}
    compile_program(program, budget, notes=notes)
    simple = simplify(program)  # as it was evaluated: with the same results, by which notes go
    cuts = find_cuts(simple)

    def what(eqn: Any) -> Any:
        return notes.get(eqn.outvars[0])

    def pipeline(eqn: Any, nests: Nests) -> tuple[bool, str]:
        return what(eqn) == "folded", _pipeline(eqn, what(eqn), cuts[id(eqn)][1])

    def store(eqn: Any, nests: Nests) -> str:
        order = _order(nests, notes) if what(eqn) else ""
        return order + _STORES[what(eqn)]

    return decided(simple.jaxpr, pipeline, lambda eqn, _: _mma(eqn, what(eqn)), store)


def _pipeline(eqn: Any, what: str | None, cut: Cut) -> str:
    if what is None:
        return "it has no steps"
    if what == "one step":
        return "it has one step, and no loop is left"
    body = eqn.params["body"].jaxpr
    if what == "folded":
        contracts = any(e.primitive.name == "tile_mma" for e in body.eqns)
        return f"all steps at once, in one {'contraction' if contracts else 'reduction'}"
    stores = (e for e in equations(body.eqns) if e.primitive.name == "tile_store")
    views = list(dict.fromkeys(e.params["name"] for e in stores))
    if views:
        why = f"its steps store to {', '.join(views)}"
    elif eqn.params["num_bounds"]:
        why = "start and stop restrict it"
    elif what == "cut":
        why = "what it adds up is too large at once, or the same in every step"
    else:
        why = "its carry does more than add up"
    ahead = f"{cut.reason} could run ahead, but gain nothing here" if cut.overlapped else cut.reason
    return f"one loop with the grid inside, because {why}; {ahead}"


def _mma(eqn: Any, what: str | None) -> str:
    (dtype, other), precision = (v.aval.dtype for v in eqn.invars[:2]), eqn.params["precision"]
    if what is None:
        return "never runs"
    if what == "ordered":
        return "multiply and add, in a loop over the contracted index"
    kind = "convolution" if what == "convolution" else "dot_general"
    if jnp.issubdtype(dtype, np.integer):
        if dtype.itemsize == 4:
            return kind
        return f"{kind} of {dtype.name if dtype == other else 'int32'}"  # mixed bytes are widened
    operands = "float32" if dtype.itemsize == 1 else dtype.name
    if precision is None and operands == "float32" and dtype.itemsize > 1:
        precision = "HIGHEST"
    return f"{kind} of {operands}{f', precision {precision}' if precision is not None else ''}"


def _order(nests: Nests, notes: dict[Any, Any]) -> str:
    """The loops that a store stays in."""
    loops = []
    for nest in nests:
        what = notes.get(nest.outvars[0])
        if nest.primitive.name == "tile_parallel":
            pieces = zip(nest.params["names"], what or (), strict=False)
            loops += [f"a loop over {name}" for name, count in pieces if count > 1]
        elif what in ("loop", "cut"):
            loops.append(label(nest))
    return f"sequential, in {' in '.join(reversed(loops))}: " if loops else ""
