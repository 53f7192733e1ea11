"""Which values several steps need: a load, or something dear, is then stored and not done again."""

from __future__ import annotations

from typing import Any

from jax.extend.core import Literal

from .elementwise import RULES as ELEMENTWISE

_LAZY = {"jit", "pjit", "custom_jvp_call", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"}
_LAZY |= {"transpose", "rev", "slice", "concatenate", "tile_gather"}


def users(jaxpr: Any) -> dict[Any, int]:
    """How many equations that do not wait compute from each variable, through those that do."""
    found: dict[Any, set[int]] = {v: {-1} for v in jaxpr.outvars if not isinstance(v, Literal)}
    for number, eqn in reversed(list(enumerate(jaxpr.eqns))):
        waits = eqn.primitive.name in _LAZY or eqn.primitive.name in ELEMENTWISE
        mine = set[int]().union(*(found.get(v, set()) for v in eqn.outvars)) if waits else {number}
        for var in eqn.invars:
            if not isinstance(var, Literal):
                found.setdefault(var, set()).update(mine)
    return {var: len(numbers) for var, numbers in found.items()}
