"""The body of a parallel nest as a Pallas kernel: equation by equation, one program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ..._errors import UnsupportedError
from ...transforms.affine import Affine, combine
from . import access, elementwise, tile_ops
from .tiles import padded_shape, scalar


@dataclass
class Kernel:
    """Evaluates the equations of one program. Values are padded arrays, scalars or `View`s; int32 scalars
    have affine forms beside."""

    extents: dict[Any, int] = field(default_factory=dict)
    forms: dict[Any, Affine] = field(default_factory=dict)

    def run(self, closed: Any, values: Sequence[Any], forms: Sequence[Affine | None]) -> list[Any]:
        """The results of a body at `values`; its views are written in place."""
        jaxpr = closed.jaxpr
        env = dict(zip(jaxpr.invars, values, strict=True))
        self.forms.update({v: f for v, f in zip(jaxpr.invars, forms, strict=True) if f is not None})
        for eqn in jaxpr.eqns:
            out = self.apply(eqn, [self.read(env, v) for v in eqn.invars])
            env.update(zip(eqn.outvars, out, strict=True))
        return [self.read(env, v) for v in jaxpr.outvars]

    def read(self, env: dict[Any, Any], var: Any) -> Any:
        if not isinstance(var, Literal):
            return env[var]
        aval: Any = var.aval
        return scalar(var.val, aval.dtype)

    def form(self, var: Any) -> Affine | None:
        if not isinstance(var, Literal):
            return self.forms.get(var)
        aval: Any = var.aval
        return Affine(int(var.val)) if aval.dtype == np.int32 and not aval.shape else None

    def apply(self, eqn: Any, values: list[Any]) -> list[Any]:
        name, params = eqn.primitive.name, eqn.params
        shapes = [tuple(v.aval.shape) for v in eqn.invars]
        if name in _NESTS:
            return _NESTS[name](self, eqn, values)
        if name in _TILES:
            out = _TILES[name](values[0], shapes[0], **params)
            return out if isinstance(out, list) else [out]
        if name == "tile_stage":
            return []
        if name == "tile_load":
            view, *starts, fallback = values
            forms = [self.form(v) for v in eqn.invars[1:-1]]
            shape, bounds = params["shape"], params["bounds"]
            return [access.load(view, starts, forms, fallback, shape, bounds, self.extents.__getitem__)]
        if name == "tile_store":
            view, tile, *starts = values
            forms = [self.form(v) for v in eqn.invars[2:]]
            access.store(view, tile, starts, forms, shapes[1], params["bounds"], self.extents.__getitem__)
            return [view]
        if name == "tile_mma":
            a, b, acc = values
            return [tile_ops.mma(a, b, acc, shapes, **params)]
        if name == "tile_gather":
            return [elementwise.gather(values, shapes, **params)]
        if name == "tile_fold":
            return [self._fold(values, shapes, params)]
        if name == "tile_associative_scan":
            return self._scan(values, shapes, params)
        if name in ("jit", "pjit", "custom_jvp_call"):
            body = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            out = self.run(body, values, [self.form(v) for v in eqn.invars])
            self._keep(eqn.outvars, [self.form(v) for v in body.jaxpr.outvars])
            return out
        if len(eqn.outvars) == 1 and eqn.outvars[0].aval.dtype == np.int32 and not eqn.outvars[0].aval.shape:
            self._keep(
                eqn.outvars, [combine(name, [self.form(v) for v in eqn.invars], self.extents.__getitem__)]
            )
        return elementwise.apply(eqn, values, shapes)

    def _keep(self, variables: Sequence[Any], forms: Sequence[Affine | None]) -> None:
        self.forms.update({v: f for v, f in zip(variables, forms, strict=True) if f is not None})

    def _fold(self, values: list[Any], shapes: list[Any], params: dict[str, Any]) -> Any:
        tile, start, *consts = values
        order, axes, fn = params["order"], params["axes"], params["fn"]

        def combine_one(a: Any, b: Any) -> Any:
            return self.run(fn, [*consts, a, b], [None] * (len(consts) + 2))[0]

        return tile_ops.fold(tile, shapes[0], start, axes, order, combine_one)

    def _scan(self, values: list[Any], shapes: list[Any], params: dict[str, Any]) -> list[Any]:
        count, fn = params["num_consts"], params["fn"]
        count_along = shapes[-1][params["axis"]]
        consts, tiles = values[:count], values[count:]
        # The scan's own dimensions go before those of an element, where elementwise work broadcasts.
        if any(e.primitive.name.startswith("tile_") for e in fn.jaxpr.eqns):
            raise UnsupportedError(
                "tile_associative_scan with a tile operation in its operator: backend triton has no rule",
                loc=params["loc"],
            )

        def combine_all(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
            first = [
                x if x.ndim == 2 else lax.transpose(x, [x.ndim - 2, x.ndim - 1, *range(x.ndim - 2)])
                for x in (*a, *b)
            ]
            out = self.run(fn, [*consts, *first], [None] * (count + 2 * len(tiles)))
            return [x if x.ndim == 2 else lax.transpose(x, [*range(2, x.ndim), 0, 1]) for x in out]

        return tile_ops.scan_with(tiles, params["axis"], count_along, params["reverse"], combine_all)


def _parallel(kernel: Kernel, eqn: Any, values: list[Any]) -> list[Any]:
    """Sub-programs of a program, one after another."""
    params = eqn.params
    views = values[len(values) - params["num_views"] :]
    if 0 in params["extents"]:
        return views
    forms = [kernel.form(v) for v in eqn.invars]

    def step(position: Any, carry: Any) -> Any:
        indices, own = unravel(kernel, params["body"], position, params["extents"])
        kernel.run(params["body"], [*indices, *values], [*own, *forms])
        return carry

    lax.fori_loop(np.int32(0), np.int32(math.prod(params["extents"])), step, np.int32(0))
    return views


def unravel(
    kernel: Kernel, body: Any, position: Any, extents: Sequence[int]
) -> tuple[list[Any], list[Affine]]:
    """The indices of a point of a row-major domain, and their affine forms."""
    indices, forms, stride = [], [], math.prod(extents)
    position = lax.convert_element_type(position, np.int32)  # loops count in int64 under x64
    for var, n in zip(body.jaxpr.invars, extents, strict=False):
        stride //= n
        index = (
            lax.rem(lax.div(position, np.int32(stride)), np.int32(n))
            if stride > 1 or n < math.prod(extents)
            else position
        )
        kernel.extents[var] = n
        indices.append(index if n > 1 else jnp.int32(0))
        forms.append(Affine(0, {var: 1} if n > 1 else {}))
    return indices, forms


def _loop(kernel: Kernel, eqn: Any, values: list[Any]) -> list[Any]:
    params = eqn.params
    extents, body = params["extents"], params["body"]
    bounds, operands = values[: params["num_bounds"]], values[params["num_bounds"] :]
    held = len(operands) - params["num_carry"]
    fixed, carry = operands[:held], operands[held:]
    views = fixed[held - params["num_views"] :]
    count = math.prod(extents)
    if count == 0:
        return [*views, *carry]
    forms = [kernel.form(v) for v in eqn.invars[params["num_bounds"] :]][:held]
    shapes = [padded_shape(v.aval.shape) for v in eqn.outvars[params["num_views"] :]]

    def step(position: Any, state: list[Any]) -> list[Any]:
        indices, own = unravel(kernel, body, position, extents)
        out = kernel.run(body, [*indices, *fixed, *state], [*own, *forms, *(None for _ in state)])
        return [jnp.broadcast_to(x, s) for x, s in zip(out[params["num_views"] :], shapes, strict=True)]

    first, last = 0, count
    if bounds:
        first, last = (_clip(v, x, count) for v, x in zip(eqn.invars, bounds, strict=False))
    start = [jnp.broadcast_to(x, s) for x, s in zip(carry, shapes, strict=True)]
    return [*views, *lax.fori_loop(first, last, step, start)]


def _clip(var: Any, bound: Any, count: int) -> Any:
    """A loop's bound within its domain, as an int where it is one: Triton takes no constant arrays."""
    if isinstance(var, Literal):
        return min(max(int(var.val), 0), count)
    return jnp.minimum(jnp.maximum(bound, 0), count)


_NESTS = {"tile_parallel": _parallel, "tile_serial": _loop, "tile_pipeline": _loop}
_TILES = {
    "tile_reduce": tile_ops.reduce,
    "tile_argreduce": tile_ops.argreduce,
    "tile_scan": tile_ops.scan,
    "tile_sort": tile_ops.sort,
    "tile_top_k": tile_ops.top_k,
}
