"""A program as text that reads like the kernel, each tile operation with the user's line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import Literal

from .primitives import PRIMITIVES

_COUNTS = {"num_views", "num_carry", "num_bounds"}
_HIDDEN = {*_COUNTS, "loc", "body", "names", "extents", "name", "stages", "fn", "dtype"}


def pretty(program: Any) -> str:
    """The text of a program made by `tilejax.make_jaxpr`."""
    names = _Names()
    jaxpr = program.jaxpr
    lines = [f"program({', '.join(names.typed(v) for v in jaxpr.invars)}):", *_block(jaxpr, names, 1)]
    return "\n".join([*lines, f"    return {', '.join(map(names, jaxpr.outvars))}"])


class _Names:
    def __init__(self) -> None:
        self.known: dict[Any, str] = {}

    def __call__(self, var: Any) -> str:
        if isinstance(var, Literal):
            return str(var.val)
        return self.known.setdefault(var, f"%{len(self.known)}")

    def typed(self, var: Any) -> str:
        return f"{self(var)}: {var.aval.str_short(short_dtypes=True)}"


def _block(jaxpr: Any, names: _Names, depth: int) -> Iterator[str]:
    pad = "    " * depth
    for eqn in jaxpr.eqns:
        line = pad + _equation(eqn, names)
        loc = eqn.params.get("loc") if eqn.primitive.name in PRIMITIVES else None
        yield f"{line}  # {loc}" if loc else line
        if "body" in eqn.params:
            yield from _body(eqn, names, depth + 1)


def _equation(eqn: Any, names: _Names) -> str:
    params, name = eqn.params, eqn.primitive.name
    results = ", ".join(names.typed(v) for v in eqn.outvars)
    operands = list(map(names, eqn.invars))
    hidden = _HIDDEN | {"layout"} if operands else _HIDDEN  # a memory's layout is said where it is made
    shown = [f"{k}={v}" for k, v in params.items() if name in PRIMITIVES and k not in hidden]
    if "extents" in params:
        domain = [f"{n}:{e}" for n, e in zip(params["names"], params["extents"], strict=True)]
        bounds = operands[: params.get("num_bounds", 0)]
        shown = (
            [*domain, *(f"from {lo} to {hi}" for lo, hi in [bounds] if bounds), *shown]
            if bounds
            else [*domain, *shown]
        )
        operands = operands[len(bounds) :]
    elif "name" in params and name in PRIMITIVES:
        shown.insert(0, repr(params["name"]))
    text = f"{name}[{', '.join(shown)}]({', '.join(operands)})" if shown else f"{name}({', '.join(operands)})"
    return f"{results} = {text}" if results else text


def _body(eqn: Any, names: _Names, depth: int) -> Iterator[str]:
    """The body, its inputs renamed to the operands that they stand for."""
    body, params = eqn.params["body"].jaxpr, eqn.params
    count = len(params["extents"])
    operands = eqn.invars[params.get("num_bounds", 0) :]
    fixed = len(operands) - params["num_views"] - params.get("num_carry", 0)
    for var, operand in zip(body.invars[count : count + fixed], operands, strict=False):
        names.known[var] = names(operand)
    pad = "    " * depth
    indices = ", ".join(f"{names(v)}={n}" for v, n in zip(body.invars, params["names"], strict=False))
    state = ", ".join(map(names, body.invars[count + fixed :]))
    yield f"{pad}for {indices}{f' with {state}' if state else ''}:"
    yield from _block(body, names, depth + 1)
    if body.outvars:
        yield f"{pad}    next {', '.join(map(names, body.outvars))}"
