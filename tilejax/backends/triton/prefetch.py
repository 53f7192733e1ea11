"""Which pipelines load a step ahead into registers.

Triton itself copies to shared memory, several steps ahead, what its dots multiply, and would not know a load
again that was moved by hand. Where steps only store, the machine has many of them under way anyway. Left are
the steps that carry a value: where it was tried on an H200 they were faster so, until the memory was busy.
"""

from __future__ import annotations

import math
from typing import Any

from ...ir.jaxprs import equations
from ...transforms.prefetch import prefetched
from .schedule import contracts, lanes_of

MOST = 8192
"""The elements that a step may load for this to pay: there are two versions of them in registers."""


def overlapped(program: Any) -> Any:
    """The program with those pipelines overlapped."""
    nests = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "tile_parallel" and lanes_of(eqn)]
    small = {id(eqn) for nest in nests for eqn in equations(nest.params["body"].jaxpr.eqns)}
    return prefetched(program, lambda eqn: id(eqn) not in small and pays(eqn))


def pays(pipeline: Any) -> bool:
    """Whether the steps of a pipeline carry a value, and neither store nor contract nor load too much; a
    window of two or more asks for it at any size."""
    p, body = pipeline.params, pipeline.params["body"].jaxpr
    if len(p["extents"]) > 1 or p["num_views"] or not p["num_carry"] or contracts(body):
        return False
    loads = [eqn.outvars[0].aval for eqn in body.eqns if eqn.primitive.name == "tile_load"]
    return p["window"] > 1 or sum(math.prod(a.shape) for a in loads) <= MOST
