"""Bodies without calls: a nested `jit` is its equations, and so is a loop of one step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _compat
from ..ir.jaxprs import called
from .replace import Rules, results, typed


def inlined(closed: Any) -> Any:
    """The jaxpr of a body without calls of its own; nests in it keep theirs."""
    if not any(map(_inside, closed.jaxpr.eqns)):
        return closed.jaxpr
    avals = [typed(v.aval) for v in closed.jaxpr.invars]
    return _compat.trace_closed(functools.partial(_run, closed.jaxpr), avals).jaxpr


def _run(jaxpr: Any, *values: Any) -> list[Any]:
    rules: Rules = {id(eqn): inside for eqn in jaxpr.eqns if (inside := _inside(eqn)) is not None}
    return results(jaxpr, values, rules)


def _inside(eqn: Any) -> Callable[[list[Any]], list[Any]] | None:
    """What gives the results of a call, or of a loop of one step, from its operands."""
    if (body := called(eqn)) is not None:
        return lambda values: _run(body.jaxpr, *values)
    p = eqn.params
    if "num_carry" not in p or p["num_bounds"] or math.prod(p["extents"]) != 1:
        return None
    indices = [np.int32(0)] * len(p["extents"])
    return lambda values: _run(p["body"].jaxpr, *indices, *values)
