"""A program on an NVIDIA GPU: each parallel nest is one launch, what is outside of nests is `lax`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import Literal

from ...ir.jaxprs import bind, literal
from ...transforms.selections import share_selections
from ...transforms.simplify import simplify
from .launch import launch
from .pieces import pieces
from .pixels import single_pixels
from .prefetch import overlapped
from .sorting import shares
from .splits import split
from .whole import scattered, whole


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
    around = ("cpu",) if interpret else platforms  # of what XLA runs between the launches
    plain = simplify(program)  # Triton places values itself, memories among them
    shared = share_selections(scattered(plain, around), shares)
    jaxpr = overlapped(split(pieces(single_pixels(shared)))).jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))

    def read(var: Any) -> Any:
        return literal(var) if isinstance(var, Literal) else env[var]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "tile_parallel":
            out = launch(eqn, values, num_warps, num_stages, cuda, interpret)
        elif eqn.primitive.name.startswith("tile_"):
            _, evaluate = whole(eqn, around)
            out = evaluate(values)
        else:
            out = bind(eqn, values)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def check(program: Any, num_warps: int | None, num_stages: int | None) -> None:
    """`UnsupportedError` for a program that this backend does not take."""
    avals = [v.aval for v in program.jaxpr.invars]
    jax.eval_shape(functools.partial(run, program, num_warps=num_warps, num_stages=num_stages), avals)
