"""Evaluates a body for many programs at once; `lanes` says how values look."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Literal

from ...ir.domains import unravel
from ...ir.jaxprs import called, variables
from ...ir.types import Bounds
from ..xla.extremum import in_pairs
from ..xla.order import network
from . import elementwise, gathers, instructions, lane_products, tile_ops
from .cuts import Facts
from .kernel import introduce, trips
from .lanes import (
    Lanes,
    NotLanes,
    as_grid,
    as_tile,
    each,
    grid,
    is_short,
    move,
    regroup,
    same_width,
    split_axis,
    spread,
    unmove,
)
from .neighbours import Shared
from .tiles import View, as_index, full, padded, padded_shape, read, scalar
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
            return [self._load(eqn, values) if name == "tile_load" else self._store(eqn, values)]
        if (body := called(eqn)) is not None:
            out = self.run(body, values, [facts.form(v) for v in eqn.invars])
            facts.know(eqn.outvars, [facts.form(v) for v in body.jaxpr.outvars])
            return out
        if name == "tile_gather":
            eqn, values = gathers.simplify(facts, eqn, values)
        this = call(eqn)
        if name.startswith("tile_"):
            rule = getattr(self, f"_{name.removeprefix('tile_')}", None)
            if rule is None:
                raise NotLanes
            return rule(this, values, wanted)
        if facts.holds(facts.compared(eqn)):
            return [spread(jnp.bool_(True), this.targets[0])]
        facts.learn(eqn)
        return [self._elementwise(this, values)]

    def _elementwise(self, this: Call, values: list[Any]) -> Any:
        name, (target,) = this.name, this.targets
        if name == "iota":
            return self._iota(this, target)
        if not any(isinstance(v, Lanes) for v in values) and not target:
            return elementwise.apply(this, values)[0]
        tiles = [
            v if isinstance(v, Lanes) and v.shape == s else spread(v, s)
            for v, s in zip(values, this.shapes, strict=True)
        ]
        if name == "broadcast_in_dim":
            return self._broadcast(tiles[0], target, this.params["broadcast_dimensions"])
        if name in ("reshape", "squeeze", "expand_dims"):
            return regroup(tiles[0], target)
        if name == "transpose":
            return self._transpose(tiles[0], target, this.params["permutation"])
        long = tuple(n for n in target if not is_short(n))
        inner = Call(name, this.primitive, this.params, (long,) * len(tiles), (long,), this.dtypes)
        tiles = [t if t.shape == target else spread(t, target) for t in tiles]  # a literal scalar among tiles
        return Lanes(
            target, each(lambda *xs: elementwise.apply(inner, list(xs))[0], *(t.cells for t in tiles))
        )

    def _iota(self, this: Call, target: tuple[int, ...]) -> Lanes:
        d, (dtype,) = this.params["dimension"], this.dtypes
        extents = (1, *padded_shape([n for n in target if not is_short(n)]))
        if d is None:
            return Lanes(target, grid(target, lambda _: full(extents, 0, dtype)))
        short, k = split_axis(target, d)
        if short:
            return Lanes(target, grid(target, lambda place: full(extents, place[k], dtype)))
        index = lax.broadcasted_iota(np.int32, extents, k + 1).astype(dtype)
        return Lanes(target, grid(target, lambda _: index))

    def _broadcast(self, tile: Lanes, target: tuple[int, ...], dims: Sequence[int]) -> Lanes:
        short = [split_axis(target, d)[1] for d in dims if is_short(target[d])]
        long = [0, *(split_axis(target, d)[1] + 1 for d in dims if not is_short(target[d]))]
        extents = padded_shape([n for n in target if not is_short(n)])
        wide = tile.map(lambda x: lax.broadcast_in_dim(x, (x.shape[0], *extents), long))
        return Lanes(target, grid(target, lambda place: wide.cells[tuple(place[k] for k in short)]))

    def _transpose(self, tile: Lanes, target: tuple[int, ...], order: Sequence[int]) -> Lanes:
        kinds = [split_axis(tile.shape, d) for d in order]
        cells = np.transpose(tile.cells, [k for short, k in kinds if short])
        dims = [0, *(k + 1 for short, k in kinds if not short)]
        plain = dims == list(range(len(dims)))
        return Lanes(target, cells if plain else each(lambda x: lax.transpose(x, dims), cells))

    def _reduce(self, this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
        p, (shape,) = this.params, this.shapes
        tile = as_tile(values[0], shape)
        exact = p["op"] in ("max", "min", "and", "or") or jnp.issubdtype(tile.dtype, np.integer)
        if not exact and p["order"].name != "UNORDERED_TREE":
            raise NotLanes
        combine, shape = tile_ops.COMBINE[p["op"]], tile.shape
        for axis in sorted((a for a in p["axes"] if is_short(shape[a])), reverse=True):
            parts = map(as_grid, move(tile, axis))
            cells = in_pairs(functools.partial(each, combine), list(parts))
            tile = Lanes((*tile.shape[:axis], *tile.shape[axis + 1 :]), cells)
        long = [n for n in shape if not is_short(n)]
        axes = tuple(split_axis(shape, a)[1] + 1 for a in p["axes"] if not is_short(shape[a]))
        if axes:
            params = {**p, "axes": axes}
            tile = Lanes(
                this.targets[0], each(lambda x: tile_ops.reduce(x, (x.shape[0], *long), **params), tile.cells)
            )
        return [tile]

    def _sort(self, this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
        """A network on cells. Where nobody asks for the indices it exchanges values alone: the lesser is the
        one that is a number, the greater NaN if either is."""
        axis, (shape,) = this.params["axis"], this.shapes
        if (
            not isinstance(values[0], Lanes)
            or shape != values[0].shape
            or not is_short(shape[axis])
            or wanted[1]
        ):
            raise NotLanes
        parts = [as_grid(p) for p in move(values[0], axis)]
        for i, j in network(len(parts)):
            parts[i], parts[j] = each(_lesser, parts[i], parts[j]), each(_greater, parts[i], parts[j])
        if this.params["descending"]:
            parts.reverse()
        return [unmove(parts, shape, axis), None]

    def _gather(self, this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
        """From short dimensions: a select among cells; one of constants is none."""
        p, shape, (target,) = this.params, this.shapes[0], this.targets
        sources = [i for i, d in enumerate(p["dims"]) if d is None]
        if any(not is_short(shape[i]) for i in sources):
            raise NotLanes
        tile = as_tile(values[0], squeezed(shape))
        cells = tile.cells.reshape([n for n in shape if is_short(n)])
        matched = [
            (split_axis(shape, i)[1], split_axis(target, d)[1])
            for i, d in enumerate(p["dims"])
            if d is not None and is_short(shape[i])
        ]
        long = [
            0,
            *(
                split_axis(target, d)[1] + 1
                for i, d in enumerate(p["dims"])
                if d is not None and not is_short(shape[i])
            ),
        ]
        extents = padded_shape([n for n in target if not is_short(n)])
        fallback = spread(values[-1], target)
        coords = [
            self._broadcast(as_tile(v, squeezed(s)), target, dims)
            for v, s, dims in zip(values[1:-1], this.shapes[1:-1], p["coord_dims"], strict=True)
        ]

        def picked(place: tuple[int, ...]) -> Any:
            at: list[Any] = [slice(None)] * cells.ndim
            for k, to in matched:
                at[k] = place[to]
            rest = as_grid(cells[tuple(at)])
            rest = each(lambda x: lax.broadcast_in_dim(x, (x.shape[0], *extents), long), rest)
            if not coords:  # every dimension is one of the result's
                return rest[()]
            found = fallback.cells[place]
            for inner in np.ndindex(rest.shape):
                here = [c.cells[place] == np.int32(n) for c, n in zip(coords, inner, strict=True)]
                test = here[0]
                for other in here[1:]:
                    test = jnp.logical_and(*same_width([test, other]))
                found = jnp.where(*same_width([test, rest[inner], found]))
            return found

        return [Lanes(target, grid(target, picked))]

    def _mma(self, this: Call, values: list[Any], wanted: list[bool]) -> list[Any]:
        a, b, acc = map(as_tile, values, this.shapes)
        return [lane_products.mma(a, b, acc, this.params)]

    def _load(self, eqn: Any, values: list[Any]) -> Lanes:
        view, *starts, fallback = values
        if isinstance(fallback, Lanes):
            raise NotLanes
        shape = eqn.params["shape"]

        def one(offsets: Any, mask: Any) -> Any:
            if 0 in view.shape:
                return lax.broadcast(fallback, offsets.shape)
            other = None if mask is None else lax.broadcast(fallback, offsets.shape)
            return plgpu.load(view.ref.at[offsets], mask=mask, other=other)

        if view.barrier:
            plgpu.debug_barrier()
        at = self._places(eqn, view, starts, shape)
        if self.shared is None:
            return Lanes(squeezed(shape), grid(squeezed(shape), lambda place: one(*at(place))))
        once, key = self.shared.once, self._key(eqn)
        cells = grid(squeezed(shape), lambda place: once(key(place), lambda: one(*at(place))))
        return Lanes(squeezed(shape), cells)

    def _key(self, eqn: Any) -> Callable[[tuple[int, ...]], Any]:
        """What tells apart the cells of all loads: affine places in a view. None if they are not known."""
        view, *starts, fallback = eqn.invars
        found = [self.facts.form(v) for v in starts]
        forms, shape = [f for f in found if f is not None], eqn.params["shape"]
        if len(forms) < len(found) or not isinstance(fallback, Literal):
            return lambda place: None

        def of(place: tuple[int, ...]) -> Any:
            steps, there = iter(place), []
            for form, n in zip(forms, shape, strict=True):
                step = next(steps) if n != 1 and is_short(n) else 0
                there.append((form.const + step, frozenset(form.coefs.items()), 1 if is_short(n) else n))
            return (view, eqn.params["bounds"], str(fallback), *there)

        return of

    def _store(self, eqn: Any, values: list[Any]) -> View:
        view, tile, *starts = values
        shape = tuple(eqn.invars[1].aval.shape)
        if 0 in view.shape or 0 in shape:
            return view
        tile = as_tile(tile, squeezed(shape))
        if view.barrier:
            plgpu.debug_barrier()
        at = self._places(eqn, view, starts, shape)

        def one(place: tuple[int, ...]) -> None:
            offsets, mask = at(place)
            value = jnp.broadcast_to(tile.cells[place], offsets.shape)
            plgpu.store(view.ref.at[offsets], value, mask=mask)

        def stores() -> None:
            grid(squeezed(shape), one)

        self.shared.stores.append(stores) if self.shared is not None else stores()
        return view

    def _places(
        self, eqn: Any, view: View, starts: Sequence[Any], shape: Sequence[int]
    ) -> Callable[..., Any]:
        """The offsets and the mask of a cell of a tile in a view."""
        whole = squeezed(shape)
        long = [n for n in whole if not is_short(n)]
        extents, rank = padded_shape(long), len(long)
        index_type = view.index_type
        edges = list(self.facts.edges(eqn, view))
        starts = [s.cells[()] if isinstance(s, Lanes) else lax.broadcast(s, (1,)) for s in starts]
        stores = eqn.primitive.name == "tile_store"

        def at(place: tuple[int, ...]) -> Any:
            offsets: Any = full((1,) * (rank + 1), 0, index_type)
            tests, stride = [], math.prod(view.room)
            short = long_dim = 0
            if self.inside is not None and (stores or any(s.shape[0] > 1 for s in starts)):
                tests.append(lax.reshape(self.inside, (self.inside.shape[0], *(1,) * rank)))
            for d, (start, n, size) in enumerate(zip(starts, shape, view.shape, strict=True)):
                stride //= view.room[d]
                index = lax.reshape(start, (start.shape[0], *(1,) * rank))
                low, high = edges[d]
                if n != 1 and is_short(n):
                    step = place[short]
                    short += 1
                    index = index + np.int32(step)
                elif n != 1:
                    along = [1] * (rank + 1)
                    along[long_dim + 1] = extents[long_dim]
                    spot = lax.broadcasted_iota(np.int32, along, long_dim + 1)
                    long_dim += 1
                    index = index + spot
                    if n != padded(n):
                        tests.append(spot < np.int32(n))
                if eqn.params["bounds"] is Bounds.ZERO:
                    if not self.facts.holds(low):
                        tests.append(index >= 0)
                    if not self.facts.holds(high):
                        tests.append(index < np.int32(size))
                offsets = offsets + as_index(index, index_type) * scalar(stride, index_type)
            width = max(x.shape[0] for x in (offsets, *tests))
            width = max(width, self.inside.shape[0]) if stores and self.inside is not None else width
            offsets = jnp.broadcast_to(offsets, (width, *extents))
            mask: Any = None
            for test in tests:
                test = jnp.broadcast_to(test, offsets.shape)
                mask = test if mask is None else mask & test
            return offsets, mask

        return at

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


def _lesser(a: Any, b: Any) -> Any:
    return _ordered(lax.min, a, b, instructions.lesser_number)


def _greater(a: Any, b: Any) -> Any:
    return _ordered(lax.max, a, b, instructions.maximum)


def _ordered(op: Any, a: Any, b: Any, floating: Any) -> Any:
    a, b = same_width([a, b])
    if a.dtype == np.bool_:
        return lax.bitwise_and(a, b) if op is lax.min else lax.bitwise_or(a, b)
    return floating(a, b) if jnp.issubdtype(a.dtype, np.floating) else op(a, b)
