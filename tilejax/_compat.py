"""The only file that knows JAX versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex

Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr


def trace(fn: Callable, avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The open jaxpr of `fn` at `avals` and the values that it captured, one a constvar."""
    closed = jax.make_jaxpr(fn)(*avals)
    return closed.jaxpr, list(closed.consts)


def close(jaxpr: Any, num_first: int, order: Sequence[Any]) -> Any:
    """The closed jaxpr without consts whose inputs are the first `num_first` inputs of `jaxpr`, the
    variables of `order` (constvars of `jaxpr`), then its other inputs."""
    invars = [*jaxpr.invars[:num_first], *order, *jaxpr.invars[num_first:]]
    info = jex.DebugInfo("tilejax", "body", ("",) * len(invars), ("",) * len(jaxpr.outvars))
    return jex.ClosedJaxpr(jex.Jaxpr((), invars, jaxpr.outvars, jaxpr.eqns, jaxpr.effects, info), ())


def trace_closed(fn: Callable, avals: Sequence[Any]) -> Any:
    """`fn` at `avals` as a closed jaxpr without consts: it captures nothing."""
    jaxpr, consts = trace(fn, avals)
    if consts:
        raise AssertionError(f"a transform captured {consts}")
    return close(jaxpr, 0, ())
