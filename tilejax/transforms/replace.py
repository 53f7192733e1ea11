"""A program with other equations in place of some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from .. import _compat
from ..ir.jaxprs import bind, literal

Rules = dict[int, Callable[[list[Any]], Sequence[Any]]]
"""By the `id` of an equation what gives its results from its operands."""


def replaced(program: Any, rules: Rules) -> Any:
    """The program with what the rules trace, outside of its nests."""
    if not rules:
        return program
    jaxpr = program.jaxpr
    avals = [typed(v.aval) for v in jaxpr.invars]
    return _compat.trace_closed(lambda *values: results(jaxpr, values, rules), avals)


def results(jaxpr: Any, values: Sequence[Any], rules: Rules | None = None) -> list[Any]:
    """What a jaxpr gives at some values, traced."""
    env = dict(zip(jaxpr.invars, values, strict=True))
    evaluate(jaxpr.eqns, env, rules)
    return [read(env, v) for v in jaxpr.outvars]


def evaluate(eqns: Sequence[Any], env: dict[Any, Any], rules: Rules | None = None) -> None:
    """Binds equations at the values of an environment, to which their results are added."""
    for eqn in eqns:
        operands = [read(env, v) for v in eqn.invars]
        rule = (rules or {}).get(id(eqn))
        env.update(zip(eqn.outvars, bind(eqn, operands) if rule is None else rule(operands), strict=True))


def read(env: dict[Any, Any], var: Any) -> Any:
    return literal(var) if isinstance(var, Literal) else env[var]


def typed(x: Any) -> Any:
    """The type of a value or an aval, to trace at."""
    return jax.ShapeDtypeStruct(np.shape(x), x.dtype, weak_type=getattr(x, "weak_type", False))
