"""A program on an NVIDIA GPU: each parallel nest is one launch, what is outside of nests is `lax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
from jax.extend.core import Literal

from ... import _compat
from ...ir.jaxprs import bind, literal
from ...transforms.simplify import simplify
from ..registry import DEFAULTS
from ..xla.evaluate import compile_program
from .launch import launch
from .prefetch import overlapped
from .splits import split


def run(
    program: Any,
    operands: Sequence[Any],
    *,
    num_warps: int | None,
    num_stages: int | None,
    platforms: tuple[str, ...] = ("cuda",),
    interpret: bool = False,
) -> list[Any]:
    """The results of a program. `interpret` runs the kernels in Pallas's interpreter, on any platform."""
    cuda = platforms == ("cuda",) and not interpret
    jaxpr = overlapped(split(simplify(program))).jaxpr  # Triton places values itself, memories among them
    env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))

    def read(var: Any) -> Any:
        return literal(var) if isinstance(var, Literal) else env[var]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "tile_parallel":
            out = launch(eqn, values, num_warps, num_stages, cuda, interpret)
        elif eqn.primitive.name.startswith("tile_"):
            out = _whole(jaxpr, eqn, values, interpret)
        else:
            out = bind(eqn, values)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _whole(jaxpr: Any, eqn: Any, values: Sequence[Any], cpu: bool) -> list[Any]:
    """The results of a tile operation that stands outside of nests, on whole arrays: `lax` has it."""
    given = [(v, x) for v, x in zip(eqn.invars, values, strict=True) if not isinstance(v, Literal)]
    variables = list(dict.fromkeys(v for v, _ in given))
    program = _compat.rebuild(jaxpr, variables, eqn.outvars, [eqn])
    closed = compile_program(program, DEFAULTS["temporary_bytes"], cpu=cpu)
    known = dict(given)
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *(known[v] for v in variables))
