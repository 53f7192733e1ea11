"""Bodies without calls: a nested `jit` is its equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from .. import _compat
from ..ir.jaxprs import bind, called, literal


def inlined(closed: Any) -> Any:
    """The jaxpr of a body without calls of its own; nests in it keep theirs."""
    if not any(called(eqn) for eqn in closed.jaxpr.eqns):
        return closed.jaxpr
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]
    return _compat.trace_closed(lambda *values: _run(closed.jaxpr, values), avals).jaxpr


def _run(jaxpr: Any, values: Sequence[Any]) -> list[Any]:
    env = dict(zip(jaxpr.invars, values, strict=True))

    def read(var: Any) -> Any:
        return literal(var) if isinstance(var, Literal) else env[var]

    for eqn in jaxpr.eqns:
        body, operands = called(eqn), [read(v) for v in eqn.invars]
        out = bind(eqn, operands) if body is None else _run(body.jaxpr, operands)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]
