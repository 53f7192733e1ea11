"""Equations of tiles on whole arrays, through XLA: operations outside of nests, nests that only sort long
rows, and sums of what `ids == index` selects, where there are too many places for each to look at every item.
Such a nest the vectoriser writes as a scatter: an item is added in the one place that its id names.

XLA's scatter adds floats in no fixed order, so the programs that compare stay where they are nearly as quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax.core
import numpy as np
from jax.extend.core import Literal

from ... import _compat
from ...ir.jaxprs import called, equations
from ...transforms.replace import replaced
from ..xla.evaluate import TEMPORARY_BYTES, compile_program

WORTH = 3e8
"""The elements that programs look at in about a tenth of a millisecond."""
RATIO = 350
"""How many of them are looked at in half the time in which one is added by its address."""
LONG = 8192
"""Rows of more XLA sorts faster: 256 of 16384 in 0.44 ms on an H200."""
ROOM = 4
"""How much larger than what goes in and comes out an array on the way may be."""


def whole(eqn: Any, platforms: tuple[str, ...]) -> tuple[Any, Callable[[list[Any]], list[Any]]]:
    """An equation as `lax` on whole arrays of the platforms: the jaxpr, and its results from the operands."""
    variables = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, Literal)))
    program = _compat.closed(variables, eqn.outvars, [eqn])
    closed = compile_program(program, TEMPORARY_BYTES, platforms=platforms)

    def run(operands: list[Any]) -> list[Any]:
        known = {v: x for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(v, Literal)}
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *(known[v] for v in variables))

    return closed, run


def scattered(program: Any, platforms: tuple[str, ...]) -> Any:
    """The program with `lax` in place of the nests that only sort, or had better add by address."""
    eqns = program.jaxpr.eqns
    found = {id(eqn): only_sorts(eqn, platforms) or by_address(eqn, platforms) for eqn in eqns}
    return replaced(program, {key: rule for key, rule in found.items() if rule is not None})


def by_address(eqn: Any, platforms: tuple[str, ...]) -> Callable[[list[Any]], list[Any]] | None:
    """The results of a parallel nest from its operands, if it had better be a scatter; else None."""
    if eqn.primitive.name != "tile_parallel" or not _compares(eqn):
        return None
    looked = math.prod(eqn.params["extents"]) * _largest(eqn.params["body"].jaxpr)
    if looked < WORTH:
        return None
    if (found := _plain(eqn, platforms)) is None:
        return None
    eqns, run = found
    added = sum(e.invars[2].aval.size for e in eqns if e.primitive.name == "scatter-add")
    return run if added and looked > RATIO * added else None


def only_sorts(eqn: Any, platforms: tuple[str, ...]) -> Callable[[list[Any]], list[Any]] | None:
    """The results of a parallel nest from its operands, if all that it does is sort long rows; else None."""
    if eqn.primitive.name != "tile_parallel":
        return None
    tiles = [e for e in equations(eqn.params["body"].jaxpr.eqns) if e.primitive.name.startswith("tile_")]
    if {e.primitive.name for e in tiles} != {"tile_load", "tile_sort", "tile_store"}:
        return None
    sorts = [e for e in tiles if e.primitive.name == "tile_sort"]
    if any(e.invars[0].aval.shape[e.params["axis"]] <= LONG for e in sorts):
        return None
    found = _plain(eqn, platforms)
    return None if found is None else found[1]


def _plain(eqn: Any, platforms: tuple[str, ...]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]] | None:
    """The equations that the vectoriser writes for a nest, and what runs them, if there are no loops and no
    large arrays among them."""
    closed, run = whole(eqn, platforms)
    eqns = list(_all(closed.jaxpr))
    room = ROOM * max(v.aval.size for v in (*eqn.invars, *eqn.outvars))
    if closed.consts or any(e.primitive.name in ("while", "scan") for e in eqns):
        return None
    return (eqns, run) if all(v.aval.size <= room for e in eqns for v in e.outvars) else None


def _compares(nest: Any) -> bool:
    """Whether a nest compares tiles of integers and sums."""
    eqns = list(equations([nest]))
    return any(e.primitive.name == "tile_reduce" and e.params["op"] == "add" for e in eqns) and any(
        e.primitive.name == "eq" and e.outvars[0].aval.shape and e.invars[0].aval.dtype == np.int32
        for e in eqns
    )


def _largest(jaxpr: Any) -> int:
    """About how many elements a program looks at: the largest tile of each step."""
    total, own = 0, 0
    for eqn in jaxpr.eqns:
        if "body" in eqn.params:
            total += math.prod(eqn.params["extents"]) * _largest(eqn.params["body"].jaxpr)
        elif eqn.primitive.name != "tile_store":
            own = max(own, *(v.aval.size for v in eqn.outvars), 0)
    return total + own


def _all(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        if (body := called(eqn)) is not None:
            yield from _all(body.jaxpr)
