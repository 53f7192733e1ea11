"""Looking into a jaxpr, whatever a version of JAX wraps around calls."""

from typing import Any

import jax


def count(jaxpr: Any, primitive: str, **params: Any) -> int:
    """How many equations, also of the functions inside, have this primitive and these parameters."""
    total = 0
    for eqn in jaxpr.eqns:
        wanted = all(eqn.params.get(name) == value for name, value in params.items())
        total += eqn.primitive.name == primitive and wanted
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(inner, "eqns"):
                total += count(inner, primitive, **params)
    return total
