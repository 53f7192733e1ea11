"""How many warps run a program and how many steps of a loop are loaded ahead: what was fastest on an H200."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a body, those of its nests included."""
    for eqn in jaxpr.eqns:
        yield eqn
        if "body" in eqn.params:
            yield from equations(eqn.params["body"].jaxpr)


def contracts(jaxpr: Any) -> bool:
    """Whether a body has products of tiles."""
    return any(eqn.primitive.name == "tile_mma" for eqn in equations(jaxpr))


def warps_of(jaxpr: Any) -> int:
    """Enough that a thread holds some tens of elements of the largest tile."""
    largest = {"tile_mma": 1, "tile_reduce": 1, "": 1}
    for eqn in equations(jaxpr):
        if "body" in eqn.params or eqn.primitive.name == "tile_store":
            continue
        results = max((math.prod(v.aval.shape) for v in eqn.outvars), default=1)
        operands = max((math.prod(v.aval.shape) for v in eqn.invars), default=1)
        largest[""] = max(largest[""], results)
        if eqn.primitive.name == "tile_mma":
            largest["tile_mma"] = max(largest["tile_mma"], results)
        elif eqn.primitive.name == "tile_reduce":
            largest["tile_reduce"] = max(largest["tile_reduce"], operands)
    if largest["tile_mma"] > 1:
        return 4 if largest["tile_mma"] <= 8192 else 8
    few = 2048 if largest["tile_reduce"] > 1 else 4096
    return 4 if largest[""] <= few else 8 if largest[""] <= 16384 else 16


def stages_of(jaxpr: Any) -> int:
    """Three, or four where a loop only adds one product; fewer where their loads would not fit."""
    products = [eqn for eqn in equations(jaxpr) if eqn.primitive.name == "tile_mma"]
    loops = [eqn for eqn in equations(jaxpr) if "num_carry" in eqn.params]
    loads = [v.aval for loop in loops for e in loop.params["body"].jaxpr.eqns for v in _loaded(e)]
    size = sum(math.prod(a.shape) * a.dtype.itemsize for a in loads)
    return min(4 if len(products) == 1 else 3, max(1, _SHARED // max(size, 1)))


_SHARED = 200 * 1024
"""Bytes of shared memory that loads may take."""


def _loaded(eqn: Any) -> list[Any]:
    return eqn.outvars if eqn.primitive.name == "tile_load" else []
