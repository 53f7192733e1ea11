"""A program for a compiler that places values itself: memories become values, and what nobody reads goes.

A state that every step stores before it loads it, and that nobody loads after the loop, is no carry then: the
loop around a product through memories is the loop of the plain product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Literal

from .. import _compat

_LOOPS = ("tile_serial", "tile_pipeline")


def simplify(program: Any) -> Any:
    """The same function of arrays, without stores to and loads from memories, dead equations and carries."""
    jaxpr = _values(program.jaxpr)
    eqns, _ = _live(jaxpr, [True] * len(jaxpr.outvars))
    return _compat.rebuild(jaxpr, jaxpr.invars, jaxpr.outvars, eqns)


def _values(jaxpr: Any) -> Any:
    """The jaxpr with the tile in place of each memory's state."""
    same: dict[Any, Any] = {}

    def read(var: Any) -> Any:
        return var if isinstance(var, Literal) else same.get(var, var)

    eqns = []
    for eqn in jaxpr.eqns:
        operands = [read(v) for v in eqn.invars]
        if eqn.primitive.name in ("tile_memory_store", "tile_memory_load"):
            same[eqn.outvars[0]] = operands[-1]
            continue
        params = dict(eqn.params)
        if "body" in params:
            body = _values(params["body"].jaxpr)
            params["body"] = _compat.rebuild(body, body.invars, body.outvars, body.eqns)
        eqns.append(eqn.replace(invars=operands, params=params))
    return _compat.rebuild(jaxpr, jaxpr.invars, [read(v) for v in jaxpr.outvars], eqns).jaxpr


def _live(jaxpr: Any, wanted: Sequence[bool]) -> tuple[list[Any], set[Any]]:
    """The equations that the wanted results need, and the variables that these read."""
    live = {v for v, w in zip(jaxpr.outvars, wanted, strict=True) if w and not isinstance(v, Literal)}
    eqns: list[Any] = []
    for eqn in reversed(jaxpr.eqns):
        if not any(v in live for v in eqn.outvars) and not _stays(eqn):
            continue
        if eqn.primitive.name in _LOOPS:
            eqn = _loop(eqn, live)
        elif "body" in eqn.params:
            body = eqn.params["body"].jaxpr
            inner, _ = _live(body, [True] * len(body.outvars))
            closed = _compat.rebuild(body, body.invars, body.outvars, inner)
            eqn = eqn.replace(params={**eqn.params, "body": closed})
        live.update(v for v in eqn.invars if not isinstance(v, Literal))
        eqns.append(eqn)
    return eqns[::-1], live


def _stays(eqn: Any) -> bool:
    """Whether an equation matters though nobody reads its results: the marks between stages do."""
    return bool(eqn.effects) or eqn.primitive.name == "tile_stage"


def _loop(eqn: Any, live: set[Any]) -> Any:
    """The loop without the carries that nobody reads."""
    body, count = eqn.params["body"].jaxpr, eqn.params["num_carry"]
    views = len(eqn.outvars) - count
    wanted = [True] * views + [v in live for v in eqn.outvars[views:]]
    carried = body.invars[len(body.invars) - count :]
    while True:
        eqns, read = _live(body, wanted)
        more = wanted[:views] + [w or v in read for w, v in zip(wanted[views:], carried, strict=True)]
        if more == wanted:
            break
        wanted = more

    def keep(items: Sequence[Any]) -> list[Any]:
        fixed = len(items) - count
        kept = [x for x, w in zip(items[fixed:], wanted[views:], strict=True) if w]
        return [*items[:fixed], *kept]

    closed = _compat.rebuild(body, keep(body.invars), keep(body.outvars), eqns)
    return eqn.replace(
        invars=keep(eqn.invars),
        outvars=keep(eqn.outvars),
        params={**eqn.params, "num_carry": sum(wanted[views:]), "body": closed},
    )
