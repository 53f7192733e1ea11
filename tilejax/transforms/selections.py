"""Selections of few programs, shared: the first `k` of a row are among the first of each of its parts.

A parallel nest whose programs select from long tiles becomes two. The programs of the first are those of the
nest times the parts: each selects from its part of the tile, and stores what it finds, which is in order, in
arrays of its own. Those of the second are the nest's, and select from that: equal values still go by index.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..ir import primitives as ir
from ..ir.jaxprs import variables
from ..ir.types import Bounds
from .inline import inlined
from .parts import nest_of
from .pipeline import needed
from .replace import Rules, evaluate, read, replaced
from .slices import NotSliced, Slices

Parts = Callable[[Any, Any], int]
"""Into how many parts of one length to cut what a `tile_top_k` selects from, from its nest and itself."""


def share_selections(program: Any, parts: Parts) -> Any:
    """The same function of arrays, without the selections for which `parts` is more than one: the first of
    each nest."""
    rules: Rules = {}
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name == "tile_parallel" and (found := _chosen(eqn, parts)):
            rules[id(eqn)] = functools.partial(_emit, found)
    return replaced(program, rules)


class _Shared:
    """A selection of a nest, in parts that can be computed alone."""

    def __init__(self, nest: Any, jaxpr: Any, eqn: Any, slices: Slices, count: int):
        self.nest, self.jaxpr, self.eqn, self.slices, self.count = nest, jaxpr, eqn, slices, count
        self.grid, self.axis = nest.params["extents"], eqn.params["axis"]
        self.tile = eqn.invars[0]
        self.width = self.tile.aval.shape[self.axis] // count
        asked = set(slices.inputs(self.tile, self.cut(np.int32(0))))
        self.before = needed(jaxpr.eqns, asked)
        self.asked = asked | {v for e in self.before for v in variables(e.invars)}

    def cut(self, start: Any) -> dict[int, tuple[Any, int]]:
        return {self.axis: (start, self.width)}

    def alone(self) -> bool:
        """Whether a part needs no stores, and no tiles as large as it is."""
        results = [v.aval for e in self.before for v in e.outvars]
        stores = any(e.primitive.name == "tile_store" or e.params.get("num_views") for e in self.before)
        return not stores and all(a.size < self.width for a in results)


def _chosen(nest: Any, parts: Parts) -> _Shared | None:
    """The first selection of a parallel nest that is to be shared."""
    if not any(e.primitive.name == "tile_top_k" for e in nest.params["body"].jaxpr.eqns):
        return None
    jaxpr = inlined(nest.params["body"])
    constant = jaxpr.invars[: len(jaxpr.invars) - nest.params["num_views"]]
    slices = Slices({v: e for e in jaxpr.eqns for v in e.outvars}, frozenset(constant))
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "tile_top_k" and (count := parts(nest, eqn)) > 1:
            try:
                found = _Shared(nest, jaxpr, eqn, slices, count)
            except NotSliced:
                continue
            if found.alone():
                return found
    return None


def _emit(this: _Shared, operands: Sequence[Any]) -> list[Any]:
    """The new versions of the nest's views."""
    return _rest(this, operands, _candidates(this, operands))


def _candidates(this: _Shared, operands: Sequence[Any]) -> list[Any]:
    """The arrays, over the programs, of what the parts select, one after another: values and indices."""
    grid, jaxpr, eqn, width = this.grid, this.jaxpr, this.eqn, this.width
    k, axes = eqn.params["k"], len(grid)
    kept = [i for i, v in enumerate(jaxpr.invars[axes:]) if v in this.asked]
    views = [jnp.zeros((*grid, *_extents(this)), v.aval.dtype) for v in eqn.outvars]

    def program(part: Any, *values: Any) -> list[Any]:
        indices, values = values[:axes], values[axes:]
        env = dict(zip(jaxpr.invars, indices, strict=False))
        env.update((jaxpr.invars[axes + i], x) for i, x in zip(kept, values, strict=False))
        evaluate(this.before, env)
        start = lax.mul(part, np.int32(width))
        tile = this.slices.value(this.tile, this.cut(start), lambda v: read(env, v))
        best, places = ir.top_k_p.bind(tile, **eqn.params)
        found = best, lax.add(places, start)
        at = [np.int32(0)] * best.ndim
        at[this.axis] = lax.mul(part, np.int32(k))
        return [
            ir.store_p.bind(
                view,
                lax.reshape(x, (1,) * axes + x.shape),
                *indices,
                *at,
                **_access(this),
                bounds=Bounds.ASSUME,
            )[0]
            for view, x in zip(values[len(kept) :], found, strict=True)
        ]

    return nest_of(this.nest, program, [operands[i] for i in kept], views, this.count)


def _rest(this: _Shared, operands: Sequence[Any], candidates: list[Any]) -> list[Any]:
    """The nest, which selects from those."""
    jaxpr, eqn, axes = this.jaxpr, this.eqn, len(this.grid)
    live = needed(jaxpr.eqns, variables(jaxpr.outvars), frozenset(eqn.outvars))
    asked = variables(jaxpr.outvars) | {v for e in live for v in variables(e.invars)}
    fixed = len(operands) - this.nest.params["num_views"]
    kept = [i for i in range(fixed) if jaxpr.invars[axes + i] in asked]
    places = [*kept, *range(fixed, len(operands))]

    def program(*values: Any) -> list[Any]:
        indices, own, found = values[:axes], values[axes:][: len(kept)], values[axes + len(kept) :][:2]
        env = dict(zip(jaxpr.invars, indices, strict=False))
        views = values[axes + len(kept) + 2 :]
        env.update((jaxpr.invars[axes + i], x) for i, x in zip(places, (*own, *views), strict=True))
        ids = {id(e) for e in live}
        for e in jaxpr.eqns:
            if e is eqn:
                env.update(zip(eqn.outvars, _selected(this, found, indices), strict=True))
            elif id(e) in ids:
                evaluate([e], env)
        return [read(env, v) for v in jaxpr.outvars]

    consts = [*(operands[i] for i in kept), *candidates]
    return nest_of(this.nest, program, consts, operands[fixed:])


def _selected(this: _Shared, found: Sequence[Any], indices: Sequence[Any]) -> list[Any]:
    """What a program selects from the candidates of its parts."""
    shape, p, ones = _extents(this), this.eqn.params, (1,) * len(indices)
    values, originals = (
        ir.load_p.bind(
            view,
            *indices,
            *[np.int32(0)] * len(shape),
            np.zeros((), view.dtype)[()],
            shape=ones + shape,
            bounds=Bounds.ASSUME,
            **_access(this),
        )[0]
        for view in found
    )
    best, places = ir.top_k_p.bind(lax.reshape(values, shape), **p)
    # What was loaded is not reshaped: so few of it are loaded again rather than looked for.
    every = tuple(range(len(ones) + best.ndim))
    (index,) = ir.gather_p.bind(
        originals,
        lax.reshape(places, ones + places.shape),
        np.int32(0),
        shape=ones + best.shape,
        dims=tuple(None if d == len(ones) + this.axis else d for d in every),
        coord_dims=(every,),
        loc=p["loc"],
    )
    return [best, lax.reshape(index, best.shape)]


def _extents(this: _Shared) -> tuple[int, ...]:
    """Those of the candidates of a program."""
    shape, axis = this.eqn.outvars[0].aval.shape, this.axis
    return (*shape[:axis], this.count * shape[axis], *shape[axis + 1 :])


def _access(this: _Shared) -> dict[str, Any]:
    return {"name": "what parts select", "loc": this.eqn.params["loc"]}
