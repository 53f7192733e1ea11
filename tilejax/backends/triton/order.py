"""Which point of its grid a program is at. Programs run about in the order of their numbers, so neighbours
should read the same, and the longest go first."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...ir.domains import unravel
from ...transforms.accesses import Walk

_GROUP = 8
"""How many rows of programs share the columns that they read while these are in the L2 cache."""


def indices_of(eqn: Any, position: Any) -> list[Any]:
    """The indices of program number `position` of a `tile_parallel`."""
    extents, body = eqn.params["extents"], eqn.params["body"].jaxpr
    if _is_product(eqn):
        rows, columns = extents[-2:]
        plane = rows * columns
        outer = unravel(lax.div(position, np.int32(plane)), extents[:-2]) if len(extents) > 2 else []
        return [*outer, *grouped(lax.rem(position, np.int32(plane)), rows, columns)]
    indices = unravel(position, extents)
    if extents and extents[-1] > 1 and _lengthens(body, body.invars[len(extents) - 1]):
        indices[-1] = np.int32(extents[-1] - 1) - indices[-1]
    return indices


def grouped(position: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """The row and the column of block number `position` of a product: a group of rows goes through the
    columns together."""
    group = lax.div(position, np.int32(_GROUP * columns))
    height = jnp.minimum(np.int32(rows) - group * np.int32(_GROUP), np.int32(_GROUP))
    inner = lax.rem(position, np.int32(_GROUP * columns))
    return group * np.int32(_GROUP) + lax.rem(inner, height), lax.div(inner, height)


def _is_product(eqn: Any) -> bool:
    """Whether programs along each of the last two axes read what those along the other share."""
    extents = eqn.params["extents"]
    if len(extents) < 2 or min(extents[-2:]) < 2 or math.prod(extents[-2:]) <= 2 * _GROUP:
        return False
    walk = Walk()
    row, column = walk.enter(eqn, eqn.invars, {}, {}, True)[-2:]
    uses = [
        {i for start in a.starts for i in start.coefs} for a in walk.accesses if not a.stores and a.affine
    ]
    return any(row in u and column not in u for u in uses) and any(column in u and row not in u for u in uses)


def _lengthens(jaxpr: Any, index: Any) -> bool:
    """Whether a loop's `stop` depends on an index, and its `start` does not: causal masks are such."""
    depends = {index}
    for eqn in jaxpr.eqns:
        bounds = [v for v in eqn.invars[: eqn.params.get("num_bounds", 0)] if not isinstance(v, Literal)]
        if bounds and bounds[-1] in depends and bounds[0] not in depends:
            return True
        scalar = not any(v.aval.shape for v in eqn.outvars)
        if scalar and any(v in depends for v in eqn.invars if not isinstance(v, Literal)):
            depends.update(eqn.outvars)
    return False
