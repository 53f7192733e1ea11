"""Loops that only accumulate: `carry = carry + f(step)` becomes one reduction over all steps.

The steps become atoms, which merge with the tile axes that they advance, and the loop disappears into one
contraction or reduction. A pipeline allows a float sum to be reassociated so; a serial loop only what is
exact in any order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import contract
from .stack import unstack
from .tile_ops import reduce_entries
from .value import Atom, Val, regroup, unify

_COMBINE = {"add": lax.add, "max": lax.max, "min": lax.min, "and": lax.bitwise_and, "or": lax.bitwise_or}


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
    finals = [_final(jaxpr, var, out, reassociate) for var, out in zip(variables, jaxpr.outvars, strict=True)]
    if not carry or any(f is None for f in finals):
        return None
    if any(eqn.primitive.name == "tile_mma" and not any(eqn is f for f in finals) for eqn in jaxpr.eqns):
        return None  # a contraction inside would be in memory for all steps at once
    env: dict[Any, Val] = dict(zip(jaxpr.invars, [*indices, *consts], strict=False))
    for eqn in jaxpr.eqns:
        if not any(eqn is f for f in finals):
            ev.equation(eqn, env)
    return [
        _accumulate(ev, final, var, start, env, steps)
        for final, var, start in zip(finals, variables, carry, strict=True)
    ]


def _final(jaxpr: Any, var: Any, out: Any, reassociate: bool) -> Any:
    """The equation that makes `out` of `var`, if it only accumulates and `var` is used nowhere else."""
    uses = [eqn for eqn in jaxpr.eqns if any(v is var for v in eqn.invars)]
    if (
        len(uses) != 1
        or sum(v is var for v in uses[0].invars) != 1
        or sum(v is var for v in jaxpr.outvars)
        or sum(v is out for v in jaxpr.outvars) != 1
    ):
        return None
    (eqn,) = uses
    if (
        len(eqn.outvars) != 1
        or eqn.outvars[0] is not out
        or any(v is out for other in jaxpr.eqns for v in other.invars)
    ):
        return None
    inexact = jnp.issubdtype(var.aval.dtype, np.floating)
    name = eqn.primitive.name
    if name == "tile_mma":
        takes = eqn.invars[2] is var and eqn.params["allow_reassociation"] and (reassociate or not inexact)
    else:
        takes = name in _COMBINE and (reassociate or not inexact or name != "add")
    return eqn if takes else None


def _accumulate(ev: Any, eqn: Any, var: Any, start: Val, env: dict[Any, Val], steps: list[Atom]) -> Val:
    plan, start = ev.plan, unstack(ev.plan, start)
    if eqn.primitive.name == "tile_mma":
        a, b = (ev.read(env, v) for v in eqn.invars[:2])
        if any(s not in a.atoms() and s not in b.atoms() for s in steps):
            raise plan.demote(steps)
        p = eqn.params
        product = contract.contract(
            plan,
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
        return contract.add(plan, start, product)
    (value,) = (ev.read(env, v) for v in eqn.invars if v is not var)
    name = eqn.primitive.name
    if any(s not in value.atoms() for s in steps):
        raise plan.demote(steps)
    total = replace(reduce_entries(plan, value, name, steps), shape=start.shape)  # it may be rank 0
    if name == "add":
        return contract.add(plan, start, total)
    groups = unify([start, total])
    return Val(
        start.shape,
        start.dtype,
        _COMBINE[name](regroup(plan, start, groups), regroup(plan, total, groups)),
        groups,
    )
