"""Loads and stores of the tiles of many programs, a cell at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Literal

from ...ir.types import Bounds
from .cuts import Facts
from .lanes import Lanes, NotLanes, as_tile, grid, is_short
from .neighbours import Shared
from .tiles import View, as_index, full, padded, padded_shape, scalar
from .units import squeezed


def load(facts: Facts, inside: Any, shared: Shared | None, eqn: Any, values: list[Any]) -> Lanes:
    """`tile_load` in the lanes that are `inside`; what is `shared` with neighbours is loaded once."""
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
    at = _places(facts, inside, eqn, view, starts, shape)
    if shared is None:
        return Lanes(squeezed(shape), grid(squeezed(shape), lambda place: one(*at(place))))
    once, key = shared.once, _key(facts, eqn)
    cells = grid(squeezed(shape), lambda place: once(key(place), lambda: one(*at(place))))
    return Lanes(squeezed(shape), cells)


def _key(facts: Facts, eqn: Any) -> Callable[[tuple[int, ...]], Any]:
    """What tells apart the cells of all loads: affine places in a view. None if they are not known."""
    view, *starts, fallback = eqn.invars
    found = [facts.form(v) for v in starts]
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


def store(facts: Facts, inside: Any, shared: Shared | None, eqn: Any, values: list[Any]) -> View:
    """`tile_store`; neighbours store once all of them have loaded."""
    view, tile, *starts = values
    shape = tuple(eqn.invars[1].aval.shape)
    if 0 in view.shape or 0 in shape:
        return view
    tile = as_tile(tile, squeezed(shape))
    if view.barrier:
        plgpu.debug_barrier()
    at = _places(facts, inside, eqn, view, starts, shape)

    def one(place: tuple[int, ...]) -> None:
        offsets, mask = at(place)
        value = jnp.broadcast_to(tile.cells[place], offsets.shape)
        plgpu.store(view.ref.at[offsets], value, mask=mask)

    def stores() -> None:
        grid(squeezed(shape), one)

    shared.stores.append(stores) if shared is not None else stores()
    return view


def _places(
    facts: Facts, inside: Any, eqn: Any, view: View, starts: Sequence[Any], shape: Sequence[int]
) -> Callable[..., Any]:
    """The offsets and the mask of a cell of a tile in a view."""
    whole = squeezed(shape)
    long = [n for n in whole if not is_short(n)]
    extents, rank = padded_shape(long), len(long)
    index_type = view.index_type
    edges = list(facts.edges(eqn, view))
    starts = [s.cells[()] if isinstance(s, Lanes) else lax.broadcast(s, (1,)) for s in starts]
    stores = eqn.primitive.name == "tile_store"

    def at(place: tuple[int, ...]) -> Any:
        offsets: Any = full((1,) * (rank + 1), 0, index_type)
        tests, stride = [], math.prod(view.room)
        short = long_dim = 0
        if inside is not None and (stores or any(s.shape[0] > 1 for s in starts)):
            tests.append(lax.reshape(inside, (inside.shape[0], *(1,) * rank)))
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
                if not facts.holds(low):
                    tests.append(index >= 0)
                if not facts.holds(high):
                    tests.append(index < np.int32(size))
            offsets = offsets + as_index(index, index_type) * scalar(stride, index_type)
        width = max(x.shape[0] for x in (offsets, *tests))
        width = max(width, inside.shape[0]) if stores and inside is not None else width
        offsets = jnp.broadcast_to(offsets, (width, *extents))
        mask: Any = None
        for test in tests:
            test = jnp.broadcast_to(test, offsets.shape)
            mask = test if mask is None else mask & test
        return offsets, mask

    return at
