"""The body of a parallel nest as a Pallas kernel: equation by equation, one program."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...ir.domains import unravel
from ...ir.jaxprs import called
from ...transforms.affine import Affine
from ...transforms.together import together
from . import access, contract, elementwise, extrema, gathers, moves, sorting, tile_ops
from .cuts import Facts
from .scratch import Scratch
from .tiles import View, computed, full, padded, padded_shape, read
from .units import Call, call, squeezed


@dataclass
class Kernel:
    """Evaluates the equations of one program. Values are padded arrays, scalars or `View`s."""

    products: bool = False
    """Whether it contracts tiles: what is between two products has to be short."""
    facts: Facts = field(default_factory=Facts)
    loads: dict[Any, gathers.Load] = field(default_factory=dict)
    """The tiles that are as they were loaded, but for casts, and still are so in memory."""
    scratch: dict[Any, Scratch] = field(default_factory=dict)
    """The scratch memory of some equations, by their first result."""

    def run(self, closed: Any, values: Sequence[Any], forms: Sequence[Affine | None] = ()) -> list[Any]:
        """The results of a body at `values`; its views are written in place."""
        jaxpr = closed.jaxpr
        env = dict(zip(jaxpr.invars, values, strict=True))
        self.facts.know(jaxpr.invars[: len(forms)], forms)
        for eqn in jaxpr.eqns:
            out = self.apply(eqn, [read(env, v) for v in eqn.invars])
            env.update(zip(eqn.outvars, out, strict=True))
        return [read(env, v) for v in jaxpr.outvars]

    def apply(self, eqn: Any, values: list[Any]) -> list[Any]:
        name, facts = eqn.primitive.name, self.facts
        if name in _NESTS:
            return _NESTS[name](self, eqn, values)
        if name == "tile_stage":
            return []
        if name == "tile_memory":  # one that a loop stores before anything loads it
            return [full(padded_shape(squeezed(v.aval.shape)), 0, v.aval.dtype) for v in eqn.outvars]
        if name == "tile_load":
            view, *starts, fallback = values
            if not view.stored and 0 not in view.shape:
                self.loads[eqn.outvars[0]] = gathers.Load(eqn, view, starts, fallback)
            return [access.load(facts, eqn, view, starts, fallback)]
        if name == "tile_store":
            view, tile, *starts = values
            access.store(facts, eqn, view, tile, starts)
            return [view]
        if (body := called(eqn)) is not None:
            out = self.run(body, values, [facts.form(v) for v in eqn.invars])
            facts.know(eqn.outvars, [facts.form(v) for v in body.jaxpr.outvars])
            return out
        if name == "tile_gather":
            eqn, values = gathers.simplify(facts, eqn, values)
            if (load := self._loaded(eqn)) is not None and gathers.is_less(eqn):
                return [gathers.pick(load, eqn, values[1:])]
        if name == "convert_element_type" and (load := self._loaded(eqn)) is not None:
            self.loads[eqn.outvars[0]] = load.cast(eqn.params["new_dtype"])
        if name.startswith("tile_"):
            return self._tile(self.call(eqn), values)
        if facts.holds(facts.compared(eqn)):
            return [full(padded_shape(squeezed(eqn.outvars[0].aval.shape)), True, np.bool_)]
        facts.learn(eqn)
        if name == "exp" and self.products:
            return [elementwise.exp_near(*values)]
        return elementwise.apply(call(eqn), values)

    def _loaded(self, eqn: Any) -> gathers.Load | None:
        """What the first operand was loaded from."""
        first = eqn.invars[0]
        return None if isinstance(first, Literal) else self.loads.get(first)

    def call(self, eqn: Any) -> Call:
        """The equation as rules see it, with its scratch memory."""
        this = call(eqn)
        if eqn.outvars[0] in self.scratch:
            this.params["scratch"] = self.scratch[eqn.outvars[0]]
        return this

    def _tile(self, this: Call, values: list[Any]) -> list[Any]:
        values = [lax.reshape(v, padded_shape(s)) for v, s in zip(values, this.shapes, strict=True)]
        name, shapes, params = this.name, [*this.shapes], this.params
        if name in _TILES:
            out = _TILES[name](values[0], shapes[0], **params)
        elif name == "tile_mma":
            out = contract.mma(values[0], values[1], values[2], shapes, **params)
        elif name == "tile_gather":
            out = moves.gather(values, shapes, **params)
        elif name == "tile_fold":
            out = self._fold(values, shapes, params)
        else:
            out = self._scan(values, shapes, params)
        out = out if isinstance(out, list) else [out]
        return [lax.reshape(x, padded_shape(squeezed(s))) for x, s in zip(out, this.targets, strict=True)]

    def _fold(self, values: list[Any], shapes: list[Any], params: dict[str, Any]) -> Any:
        tile, start, *consts = values
        order, axes, fn = params["order"], params["axes"], params["fn"]

        def combine_one(a: Any, b: Any) -> Any:
            return self.run(fn, [*consts, a, b])[0]

        return tile_ops.fold(tile, shapes[0], start, axes, order, combine_one)

    def _scan(self, values: list[Any], shapes: list[Any], params: dict[str, Any]) -> list[Any]:
        count, axis, fn = params["num_consts"], params["axis"], params["fn"]
        consts, tiles = values[:count], values[count:]
        length = shapes[-1][axis]
        if length < 2:
            return tiles
        pairs = padded(length) // 2
        combine = together(fn, (*[False] * count, *[True] * 2 * len(tiles)), pairs)
        elements = [padded_shape(squeezed((pairs, *v.aval.shape))) for v in fn.jaxpr.outvars]

        def combine_all(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
            """The pairs of one level: their two dimensions, the last ones, are one, the first."""
            first = [lax.transpose(x, [x.ndim - 2, x.ndim - 1, *range(x.ndim - 2)]) for x in (*a, *b)]
            given = [lax.reshape(x, shape) for x, shape in zip(first, elements * 2, strict=True)]
            out = zip(self.run(combine, [*consts, *given]), first, strict=False)
            back = [lax.reshape(x, like.shape) for x, like in out]
            return [lax.transpose(x, [*range(2, x.ndim), 0, 1]) for x in back]

        return tile_ops.scan_with(tiles, axis, length, params["reverse"], combine_all)


def _parallel(kernel: Kernel, eqn: Any, values: list[Any]) -> list[Any]:
    """Sub-programs of a program, one after another."""
    params = eqn.params
    views = values[len(values) - params["num_views"] :]
    if 0 in params["extents"]:
        return views
    forms = [kernel.facts.form(v) for v in eqn.invars]

    def step(position: Any, carry: Any) -> Any:
        indices = unravel(position, params["extents"])
        kernel.facts.indices.update(zip(variables, indices, strict=True))
        kernel.run(params["body"], [*indices, *values], [*own, *forms])
        kernel.facts.indices.update(dict.fromkeys(variables))
        return carry

    own = introduce(kernel.facts, params["body"], params["extents"])
    variables = params["body"].jaxpr.invars[: len(own)]
    lax.fori_loop(np.int32(0), np.int32(math.prod(params["extents"])), step, np.int32(0))
    return views


def introduce(facts: Facts, body: Any, extents: Sequence[int]) -> list[Affine]:
    """Makes the indices of a nest known, whose values are not; their forms."""
    forms = []
    for var, n in zip(body.jaxpr.invars, extents, strict=False):
        facts.extents[var], facts.indices[var] = n, None
        forms.append(Affine(0, {var: 1} if n > 1 else {}))
    facts.know(body.jaxpr.invars[: len(extents)], forms)
    return forms


def _loop(kernel: Kernel, eqn: Any, values: list[Any]) -> list[Any]:
    params, facts = eqn.params, kernel.facts
    extents, body = params["extents"], params["body"]
    operands = values[params["num_bounds"] :]
    held = len(operands) - params["num_carry"]
    fixed, carry = operands[:held], operands[held:]
    views = fixed[held - params["num_views"] :]
    count = math.prod(extents)
    if count == 0:
        return [*views, *carry]
    forms = [facts.form(v) for v in eqn.invars[params["num_bounds"] :]][:held]
    shapes = [padded_shape(squeezed(v.aval.shape)) for v in eqn.outvars[params["num_views"] :]]
    variables = body.jaxpr.invars[: len(extents)]

    def step(position: Any, state: list[Any]) -> list[Any]:
        indices = unravel(position, extents)
        facts.indices.update(zip(variables, indices, strict=True))
        out = kernel.run(body, [*indices, *fixed, *state], [*own, *forms])
        facts.indices.update(dict.fromkeys(variables))
        new = zip(out[params["num_views"] :], shapes, strict=True)
        return [computed(jnp.broadcast_to(x, s)) for x, s in new]

    first, last = trips(eqn, values)
    state = [jnp.broadcast_to(x, s) for x, s in zip(carry, shapes, strict=True)]
    own = introduce(facts, body, extents)
    if len(extents) == 1 and count > 1:
        facts.know(body.jaxpr.invars[1 : held + 1], forms)
        inner = zip(body.jaxpr.invars[1:], fixed, strict=False)
        tests = facts.cuts(body, variables[0], {v: x for v, x in inner if isinstance(x, View)})
        if tests:
            free = functools.reduce(least, [facts.untested(f, variables[0]) for f in tests])
            middle = greatest(first, least(free, last))
            facts.assumed.extend(tests)
            # A function of its own: JAX keeps what it traced for one.
            state = lax.fori_loop(first, middle, lambda i, s: step(i, s), state)
            del facts.assumed[-len(tests) :]
            first = middle
    return [*views, *lax.fori_loop(first, last, step, state)]


def least(a: Any, b: Any) -> Any:
    """The lesser one; an int where both are: Triton takes no constant arrays."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else jnp.minimum(a, b)


def greatest(a: Any, b: Any) -> Any:
    """The greater one; an int where both are."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else jnp.maximum(a, b)


def trips(eqn: Any, values: Sequence[Any]) -> tuple[Any, Any]:
    """The first step of a loop and the one after its last, within its domain: ints where they are known."""
    count = math.prod(eqn.params["extents"])
    if not eqn.params["num_bounds"]:
        return 0, count
    bounds = zip(eqn.invars[:2], values, strict=False)
    known = (int(v.val) if isinstance(v, Literal) else x for v, x in bounds)
    first, last = (least(greatest(x, 0), count) for x in known)
    return first, last


_NESTS = {"tile_parallel": _parallel, "tile_serial": _loop, "tile_pipeline": _loop}
_TILES = {
    "tile_reduce": tile_ops.reduce,
    "tile_argreduce": extrema.argreduce,
    "tile_scan": tile_ops.scan,
    "tile_sort": sorting.sort,
    "tile_top_k": sorting.top_k,
}
