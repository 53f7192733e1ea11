"""Evaluates a body for many programs at once; `lanes` says how values look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...ir.domains import unravel
from ...ir.jaxprs import called, variables
from . import elementwise, gathers, lane_access, lane_ops
from .cuts import Facts
from .kernel import introduce, trips
from .lanes import (
    Lanes,
    NotLanes,
    as_tile,
    each,
    grid,
    is_short,
    regroup,
    spread,
)
from .neighbours import Shared
from .tiles import read, scalar
from .units import Call, call, squeezed


@dataclass
class LaneKernel:
    """Evaluates the equations of `width` programs. Values are scalars for all, `Lanes` or `View`s."""

    width: int
    inside: Any
    """The mask of the lanes that are programs of the grid; None if all are."""
    facts: Facts = field(default_factory=Facts)
    shared: Shared | None = None
    """What it has in common with neighbours that are run in the same program."""

    def run(self, closed: Any, values: Sequence[Any], forms: Sequence[Any] = ()) -> list[Any]:
        """The results of a body at `values`: scalars, `Lanes` and views, which are written in place."""
        jaxpr = closed.jaxpr
        env = dict(zip(jaxpr.invars, values, strict=True))
        self.facts.know(jaxpr.invars[: len(forms)], forms)
        asked = variables([*(v for eqn in jaxpr.eqns for v in eqn.invars), *jaxpr.outvars])
        for eqn in jaxpr.eqns:
            wanted = [v in asked for v in eqn.outvars]
            out = self.apply(eqn, [read(env, v) for v in eqn.invars], wanted)
            env.update(zip(eqn.outvars, out, strict=True))
        return [read(env, v) for v in jaxpr.outvars]

    def apply(self, eqn: Any, values: list[Any], wanted: list[bool]) -> list[Any]:
        name, facts = eqn.primitive.name, self.facts
        if name in ("tile_serial", "tile_pipeline"):
            return self._loop(eqn, values)
        if name == "tile_parallel":
            raise NotLanes
        if name == "tile_stage":
            return []
        if name == "tile_memory":  # one that a loop stores before anything loads it
            return [spread(scalar(0, v.aval.dtype), squeezed(v.aval.shape)) for v in eqn.outvars]
        if name in ("tile_load", "tile_store"):
            access = lane_access.load if name == "tile_load" else lane_access.store
            return [access(facts, self.inside, self.shared, eqn, values)]
        if (body := called(eqn)) is not None:
            out = self.run(body, values, [facts.form(v) for v in eqn.invars])
            facts.know(eqn.outvars, [facts.form(v) for v in body.jaxpr.outvars])
            return out
        if name == "tile_gather":
            eqn, values = gathers.simplify(facts, eqn, values)
        this = call(eqn)
        if name.startswith("tile_"):
            if name not in lane_ops.RULES:
                raise NotLanes
            return lane_ops.RULES[name](this, values, wanted)
        if facts.holds(facts.compared(eqn)):
            return [spread(jnp.bool_(True), this.targets[0])]
        facts.learn(eqn)
        return [self._elementwise(this, values)]

    def _elementwise(self, this: Call, values: list[Any]) -> Any:
        name, (target,) = this.name, this.targets
        if name == "iota":
            return lane_ops.iota(this, target)
        if not any(isinstance(v, Lanes) for v in values) and not target:
            return elementwise.apply(this, values)[0]
        tiles = [
            v if isinstance(v, Lanes) and v.shape == s else spread(v, s)
            for v, s in zip(values, this.shapes, strict=True)
        ]
        if name == "broadcast_in_dim":
            return lane_ops.broadcast(tiles[0], target, this.params["broadcast_dimensions"])
        if name in ("reshape", "squeeze", "expand_dims"):
            return regroup(tiles[0], target)
        if name == "transpose":
            return lane_ops.transpose(tiles[0], target, this.params["permutation"])
        long = tuple(n for n in target if not is_short(n))
        inner = Call(name, this.primitive, this.params, (long,) * len(tiles), (long,), this.dtypes)
        tiles = [t if t.shape == target else spread(t, target) for t in tiles]  # a literal scalar among tiles
        return Lanes(
            target, each(lambda *xs: elementwise.apply(inner, list(xs))[0], *(t.cells for t in tiles))
        )

    def _loop(self, eqn: Any, values: list[Any]) -> list[Any]:
        params, facts = eqn.params, self.facts
        extents, body, views = params["extents"], params["body"], params["num_views"]
        bounds, operands = values[: params["num_bounds"]], values[params["num_bounds"] :]
        held = len(operands) - params["num_carry"]
        fixed, carry = operands[:held], operands[held:]
        count = math.prod(extents)
        if any(isinstance(b, Lanes) for b in bounds):
            raise NotLanes
        if count == 0:
            return [*fixed[held - views :], *carry]
        shapes = [squeezed(v.aval.shape) for v in eqn.outvars[views:]]
        forms = [facts.form(v) for v in eqn.invars[params["num_bounds"] :]][:held]
        variables, own = body.jaxpr.invars[: len(extents)], introduce(facts, body, extents)

        def flat(state: Sequence[Any]) -> list[Any]:
            tiles = [as_tile(v, s) for v, s in zip(state, shapes, strict=True)]
            return [jnp.broadcast_to(x, (self.width, *x.shape[1:])) for t in tiles for x in t.cells.flat]

        def tiles(arrays: Sequence[Any]) -> list[Lanes]:
            rest = iter(arrays)
            return [Lanes(s, grid(s, lambda _: next(rest))) for s in shapes]

        def step(position: Any, arrays: list[Any]) -> list[Any]:
            indices = unravel(position, extents)
            facts.indices.update(zip(variables, indices, strict=True))
            out = self.run(body, [*indices, *fixed, *tiles(arrays)], [*own, *forms])
            facts.indices.update(dict.fromkeys(variables))
            return flat(out[views:])

        return [*fixed[held - views :], *tiles(lax.fori_loop(*trips(eqn, values), step, flat(carry)))]
