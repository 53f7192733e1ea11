"""Loops that only accumulate: `carry = carry + f(step)` becomes one reduction over all steps.

The steps become atoms, which merge with the tile axes that they advance, and the loop disappears into one
contraction or reduction. A pipeline allows a float sum to be reassociated so. A serial loop does not: its
terms are computed at once, and added in order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import contract
from .nans import exactly
from .stack import unstack
from .tile_ops import reduce_entries
from .value import Atom, Plan, Val, constant, regroup, split_entries, unify

_COMBINE = {"add": lax.add, "max": lax.max, "min": lax.min, "and": lax.bitwise_and, "or": lax.bitwise_or}


MAX_ORDERED = 64
"""The most steps whose sum in order is written out."""


def fold_steps(
    ev: Any,
    body: Any,
    indices: list[Val],
    consts: list[Val],
    carry: list[Val],
    steps: list[Atom],
    reassociate: bool,
) -> list[Val] | None:
    """The final carry, or None if the body is not of that kind."""
    jaxpr = body.jaxpr
    variables = jaxpr.invars[len(jaxpr.invars) - len(carry) :]
    ordered = [not reassociate and jnp.issubdtype(v.aval.dtype, np.floating) for v in variables]
    finals = list(map(functools.partial(_final, jaxpr), variables, jaxpr.outvars, ordered))
    if not carry or any(f is None for f in finals):
        return None
    for final in finals:  # of a pipeline that goes on, every result must be one of these
        if sum(f is final for f in finals) != len(final.outvars):
            return None
    if any(eqn.primitive.name == "tile_mma" and not any(eqn is f for f in finals) for eqn in jaxpr.eqns):
        return None  # a contraction inside would be in memory for all steps at once
    env: dict[Any, Val] = dict(zip(jaxpr.invars, [*indices, *consts], strict=False))
    for eqn in jaxpr.eqns:
        if not any(eqn is f for f in finals):
            ev.equation(eqn, env)
    exactly(ev.plan, [ev.read(env, v) for f in finals for v in f.invars if v not in variables])
    nested = _nested(ev, finals, variables, env)
    out = []
    for i, (final, result) in enumerate(zip(finals, jaxpr.outvars, strict=True)):
        start = unstack(ev.plan, carry[i])
        name = final.primitive.name
        if name == "tile_mma":
            out.append(_contracted(ev, final, start, env, steps))
            continue
        value = nested[result] if name == "tile_pipeline" else _operand(ev, final, variables[i], env)
        if any(s not in value.atoms() for s in steps):
            raise ev.plan.demote(steps)
        if ordered[i] and name in ("add", "tile_pipeline"):
            out.append(_in_order(ev.plan, start, value, steps))
        else:
            out.append(_combined(ev.plan, start, value, "add" if name == "tile_pipeline" else name, steps))
    return out


def _final(jaxpr: Any, var: Any, out: Any, ordered: bool) -> Any:
    """The equation that makes `out` of `var`, if it only accumulates and `var` is used nowhere else. It may
    be a pipeline that goes on accumulating. `ordered` forbids what adds up the terms of a step one by one.
    """
    uses = [eqn for eqn in jaxpr.eqns if any(v is var for v in eqn.invars)]
    if (
        len(uses) != 1
        or sum(v is var for v in uses[0].invars) != 1
        or any(v is var for v in jaxpr.outvars)
        or sum(v is out for v in jaxpr.outvars) != 1
        or any(v is out for eqn in jaxpr.eqns for v in eqn.invars)
    ):
        return None
    (eqn,) = uses
    name, params = eqn.primitive.name, eqn.params
    if name == "tile_pipeline":
        return eqn if _goes_on(eqn, var, out) else None
    if len(eqn.outvars) != 1 or eqn.outvars[0] is not out:
        return None
    if name == "tile_mma":
        return eqn if eqn.invars[2] is var and params["allow_reassociation"] and not ordered else None
    return eqn if name in _COMBINE else None


def _goes_on(eqn: Any, var: Any, out: Any) -> bool:
    """Whether a pipeline adds to all that it carries, and carries `var` to `out`."""
    params, body = eqn.params, eqn.params["body"].jaxpr
    count = params["num_carry"]
    carried = eqn.invars[len(eqn.invars) - count :]
    inner = body.invars[len(body.invars) - count :]
    if params["num_views"] or params["num_bounds"]:
        return False
    if not any(v is var and o is out for v, o in zip(carried, eqn.outvars, strict=True)):
        return False
    finals = [_final(body, v, o, False) for v, o in zip(inner, body.outvars, strict=True)]
    return all(f is not None and f.primitive.name in ("add", "tile_mma", "tile_pipeline") for f in finals)


def _nested(ev: Any, finals: list[Any], variables: Sequence[Any], env: dict[Any, Val]) -> dict[Any, Val]:
    """What each result of the pipelines that go on accumulating adds to its carry."""
    out: dict[Any, Val] = {}
    for eqn in finals:
        if eqn.primitive.name == "tile_pipeline" and eqn.outvars[0] not in out:
            vals = [
                constant(0, v.aval.dtype, tuple(v.aval.shape)) if v in variables else ev.read(env, v)
                for v in eqn.invars
            ]
            out.update(zip(eqn.outvars, ev.apply(eqn, vals), strict=True))
    return out


def _operand(ev: Any, eqn: Any, var: Any, env: dict[Any, Val]) -> Val:
    (value,) = (ev.read(env, v) for v in eqn.invars if v is not var)
    return value


def _contracted(ev: Any, eqn: Any, start: Val, env: dict[Any, Val], steps: list[Atom]) -> Val:
    a, b = (ev.read(env, v) for v in eqn.invars[:2])
    if any(s not in a.atoms() and s not in b.atoms() for s in steps):
        raise ev.plan.demote(steps)
    p = eqn.params
    ev.plan.here = eqn
    product = contract.contract(
        ev.plan,
        a,
        b,
        start.shape,
        start.dtype,
        p["a_labels"],
        p["b_labels"],
        p["acc_labels"],
        p["precision"],
        steps,
    )
    return contract.add(ev.plan, start, product)


def _combined(plan: Plan, start: Val, value: Val, name: str, steps: list[Atom]) -> Val:
    """All steps at once."""
    total = unstack(plan, reduce_entries(plan, value, name, steps))
    total = replace(total, shape=start.shape)  # it may be rank 0
    if name == "add":
        return contract.add(plan, start, total)
    groups = unify([start, total])
    combined = _COMBINE[name](regroup(plan, start, groups), regroup(plan, total, groups))
    return Val(start.shape, start.dtype, combined, groups)


def _in_order(plan: Plan, start: Val, value: Val, steps: list[Atom]) -> Val:
    """One step after another, of values that are all there; if that is too much, a loop after all."""
    value = unstack(plan, value)
    count = math.prod(s.extent for s in steps)
    size = value.dtype.itemsize * math.prod(plan.length(g, value.shape) for g in value.groups)
    if count > MAX_ORDERED or size > plan.budget:
        raise plan.demote(steps)
    value = split_entries(plan, value, steps)
    rest = tuple(g for g in value.groups if g[0] not in steps)
    terms = regroup(plan, value, (*((s,) for s in steps), *rest))
    terms = lax.reshape(terms, [count, *terms.shape[len(steps) :]])
    groups = unify([start, Val(start.shape, value.dtype, None, rest)])
    total = regroup(plan, start, groups)
    for i in range(count):
        term = Val(start.shape, value.dtype, lax.index_in_dim(terms, i, 0, keepdims=False), rest)
        total = total + regroup(plan, term, groups)
    return Val(start.shape, start.dtype, total, groups)
