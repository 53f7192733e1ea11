"""A program on an NVIDIA GPU: each parallel nest is one launch, what is outside of nests is `lax`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from ...ir.jaxprs import bind
from ...transforms.replace import read, typed
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

    for eqn in jaxpr.eqns:
        values = [read(env, v) for v in eqn.invars]
        if eqn.primitive.name == "tile_parallel":
            out = launch(eqn, values, num_warps, num_stages, cuda, interpret)
        elif eqn.primitive.name.startswith("tile_"):
            _, evaluate = whole(eqn, around)
            out = evaluate(values)
        else:
            out = bind(eqn, values)
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(env, v) for v in jaxpr.outvars]


def traced(program: Any, num_warps: int | None, num_stages: int | None) -> Any:
    """The closed jaxpr of `run` on `cuda`; `UnsupportedError` for a program that Triton does not take."""
    fn = functools.partial(run, program, num_warps=num_warps, num_stages=num_stages)
    return jax.make_jaxpr(lambda *operands: fn(operands))(*(typed(v.aval) for v in program.jaxpr.invars))
