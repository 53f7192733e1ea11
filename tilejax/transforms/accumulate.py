"""Loops that only accumulate: `carry = carry + f(step)`, `mma(a, b, carry)`, a maximum, and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

OPERATIONS = frozenset({"add", "max", "min", "and", "or"})
"""What may take in a step, beside a product that is added."""


def accumulations(jaxpr: Any, num_carry: int, in_order: bool) -> list[Any] | None:
    """The equation of a loop's body that makes each carry of itself, if all of them only accumulate. Where
    the steps stay `in_order` no float takes in a product, whose terms would be added up first."""
    variables = jaxpr.invars[len(jaxpr.invars) - num_carry :]
    results = jaxpr.outvars[len(jaxpr.outvars) - num_carry :]
    ordered = [in_order and is_float(v) for v in variables]
    finals = [_final(jaxpr, v, o, held) for v, o, held in zip(variables, results, ordered, strict=True)]
    if not finals or any(f is None for f in finals):
        return None
    for final in finals:  # of a pipeline that goes on, every result must be one of these
        if sum(f is final for f in finals) != len(final.outvars):
            return None
    return finals


def operations(loop: Any) -> list[str] | None:
    """What combines two partial results of each carry of a loop; None if its steps can't be split."""
    p, serial = loop.params, loop.primitive.name == "tile_serial"
    if p["num_views"] or 0 in p["extents"]:
        return None
    in_order = serial or p["interval"] > 1
    finals = accumulations(p["body"].jaxpr, p["num_carry"], in_order)
    if finals is None:
        return None
    found = []
    for var, final in zip(loop.outvars, finals, strict=True):
        name = final.primitive.name if final.primitive.name in OPERATIONS else "add"
        if name == "add" and in_order and is_float(var):
            return None
        if name in ("and", "or") and var.aval.dtype != np.bool_:
            return None
        found.append(name)
    return found


def is_float(var: Any) -> bool:
    return bool(jnp.issubdtype(var.aval.dtype, np.floating))


def _final(jaxpr: Any, var: Any, out: Any, ordered: bool) -> Any:
    """The equation that makes `out` of `var`, if it only accumulates and `var` is used nowhere else. It may
    be a pipeline that goes on accumulating."""
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
    return eqn if name in OPERATIONS else None


def _goes_on(eqn: Any, var: Any, out: Any) -> bool:
    """Whether a pipeline adds to all that it carries, and carries `var` to `out`."""
    params, body = eqn.params, eqn.params["body"].jaxpr
    count = params["num_carry"]
    carried: Sequence[Any] = eqn.invars[len(eqn.invars) - count :]
    if params["num_views"] or params["num_bounds"]:
        return False
    if not any(v is var and o is out for v, o in zip(carried, eqn.outvars, strict=True)):
        return False
    finals = accumulations(body, count, False)
    return finals is not None and all(
        f.primitive.name in ("add", "tile_mma", "tile_pipeline") for f in finals
    )
