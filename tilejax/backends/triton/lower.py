"""A program on an NVIDIA GPU: each parallel nest is one Pallas launch, what is outside of nests is `lax`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Literal

from ..._errors import UnsupportedError
from ...transforms.accesses import covers
from ...transforms.simplify import simplify
from .kernel import Kernel, unravel
from .tiles import View


def run(
    program: Any,
    operands: Sequence[Any],
    *,
    num_warps: int | None,
    num_stages: int | None,
    interpret: bool = False,
) -> list[Any]:
    """The results of a program. `interpret` runs the kernels in Pallas's interpreter, on any platform."""
    jaxpr = simplify(program).jaxpr  # Triton places values itself, memories among them
    env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))

    def read(var: Any) -> Any:
        if not isinstance(var, Literal):
            return env[var]
        aval: Any = var.aval
        return np.asarray(var.val, aval.dtype)

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        if eqn.primitive.name == "tile_parallel":
            out = _launch(eqn, values, num_warps, num_stages, interpret)
        elif eqn.primitive.name.startswith("tile_"):
            raise UnsupportedError(
                f"{eqn.primitive.name} outside a nest is not built yet for backend triton",
                loc=eqn.params["loc"],
            )
        else:
            out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            out = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _launch(
    eqn: Any, values: list[Any], num_warps: int | None, num_stages: int | None, interpret: bool
) -> list[Any]:
    params = eqn.params
    extents, body, count = params["extents"], params["body"], params["num_views"]
    split = len(values) - count
    avals = [v.aval for v in eqn.invars]
    if 0 in extents or not count:
        return values[split:]
    # Arrays go in flat; empty ones and scalars as one element. A view that is stored whole need not go in.
    flat = [jnp.reshape(v, (-1,)) if v.size else jnp.zeros((1,), v.dtype) for v in map(jnp.asarray, values)]
    results = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in flat[split:]]
    fresh = {i for i in range(split, len(values)) if covers(eqn, i)}
    taken = [i for i in range(len(values)) if i not in fresh]
    places = {i: at for at, i in enumerate(taken)}

    def kernel(*refs: Any) -> None:
        inputs, outputs = refs[: len(taken)], refs[len(taken) :]
        evaluator = Kernel()
        indices, forms = unravel(evaluator, body, pl.program_id(0), extents)
        given = []
        for i, aval in enumerate(avals):
            written = i >= split
            if not aval.shape:
                given.append(plgpu.load(inputs[places[i]].at[np.int32(0)]))
                continue
            ref = outputs[i - split] if written else inputs[places[i]]
            barrier = written and not interpret and _loads(body, body.jaxpr.invars[len(extents) + i])
            given.append(View(ref, tuple(aval.shape), aval.dtype, barrier))
        evaluator.run(body, [*indices, *given], [*forms, *(None for _ in given)])

    out = pl.pallas_call(
        kernel,
        out_shape=results,
        grid=(math.prod(extents),),
        input_output_aliases={places[i]: i - split for i in range(split, len(values)) if i not in fresh},
        compiler_params=plgpu.CompilerParams(num_warps=num_warps or _warps(body), num_stages=num_stages or 3),
        interpret=interpret,
        name="_".join(("tilejax", *params["names"])),
    )(*(flat[i] for i in taken))
    return [
        jnp.reshape(o, a.shape) if math.prod(a.shape) else v
        for o, a, v in zip(out, avals[split:], values[split:], strict=True)
    ]


def _loads(body: Any, view: Any) -> bool:
    """Whether a body loads from a view or a later version of it."""
    versions = {view}
    for eqn in body.jaxpr.eqns:
        mine = [i for i, v in enumerate(eqn.invars) if not isinstance(v, Literal) and v in versions]
        if eqn.primitive.name == "tile_load" and mine:
            return True
        if eqn.primitive.name == "tile_store" and mine:
            versions.update(eqn.outvars)
        if "body" in eqn.params and mine:
            p = eqn.params
            inner = p["body"].jaxpr.invars[len(p["extents"]) :]
            skipped = p.get("num_bounds", 0)
            if any(_loads(p["body"], inner[i - skipped]) for i in mine if i >= skipped):
                return True
            versions.update(eqn.outvars[: p["num_views"]])
    return False


def _warps(body: Any) -> int:
    """How many warps a program gets: enough that each thread holds some tens of elements of the largest
    tile."""
    largest = max(_sizes(body), default=1)
    return 4 if largest <= 4096 else 8 if largest <= 32768 else 16


def _sizes(body: Any) -> list[int]:
    """The sizes of the tiles that a body makes."""
    sizes = []
    for eqn in body.jaxpr.eqns:
        if "body" in eqn.params:
            sizes += _sizes(eqn.params["body"])
        elif eqn.primitive.name != "tile_store":
            sizes += [math.prod(v.aval.shape) for v in eqn.outvars]
    return sizes
