"""Loops that only accumulate: `carry = carry + f(step)` becomes one reduction over all steps.

The steps become atoms, which merge with the tile axes that they advance, and the loop disappears into one
contraction or reduction. A pipeline allows a float sum to be reassociated so. A serial loop does not: its
terms are computed at once, and added in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jax import lax

from ...transforms.accumulate import accumulations, is_float
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
    ordered = [not reassociate and is_float(v) for v in variables]
    finals = accumulations(jaxpr, len(carry), not reassociate)
    if finals is None:
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
