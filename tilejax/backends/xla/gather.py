"""`tile_gather` of all programs at once: slices where the coordinates are constants and strides, else one
gather."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...transforms.affine import Affine
from .access import slice_dim, to_scalar
from .rename import rename
from .stack import opened, positions, unstack
from .value import Group, Plan, Val, regroup, split_entries
from .window import as_window, picked


def gather(plan: Plan, tile: Val, *coords_and_fallback: Val, shape, dims, coord_dims, **_: Any) -> Val:
    """`tile_gather`."""
    *coords, fallback = coords_and_fallback
    shape = tuple(shape)
    placed = iter(
        rename(unstack(plan, c), shape, dict(enumerate(where)))
        for c, where in zip(coords, coord_dims, strict=True)
    )
    where: list[Val | int] = [d if d is not None else next(placed) for d in dims]
    if 0 in shape:
        kept = tuple((i,) for i, n in enumerate(shape) if n != 1)
        return Val(shape, tile.dtype, jnp.zeros([shape[i] for (i,) in kept], tile.dtype), kept)
    if 0 in tile.shape:
        return (
            Val(shape, tile.dtype, jnp.asarray(to_scalar(fallback)))
            if not fallback.entries()
            else replace(fallback, shape=shape)
        )
    where = _matched(where, tile.shape, shape)
    strides = _strides(where, shape)
    indexed = [d for d, w in enumerate(where) if not isinstance(w, int)]
    if (tile.window is not None and not tile.stack) or (strides is None and tile.array is not None):
        inside = as_window(plan, tile, indexed) if all(_is_index(where[d]) for d in indexed) else None
        inside = inside and picked(plan, inside, where, shape)
        if inside is not None:
            return Val(shape, tile.dtype, window=inside)
    tile = opened(plan, tile)
    if tile.stack and strides is not None and set(strides) <= set(tile.stack) and not fallback.entries():
        return _picked(plan, tile, where, strides, shape, to_scalar(fallback))
    tile = unstack(plan, tile)
    if strides is not None and fallback.array is None:
        return _sliced(plan, tile, where, strides, shape, to_scalar(fallback))
    return _gathered(plan, tile, where, shape, fallback)


def _matched(where: list[Val | int], given: tuple[int, ...], shape: tuple[int, ...]) -> list[Val | int]:
    """`where`, with the result's dimension in place of a coordinate that is just its index."""
    used = [w for w in where if isinstance(w, int)]
    out: list[Val | int] = []
    for w, extent in zip(where, given, strict=True):
        form = w.affine if isinstance(w, Val) and _is_index(w) else None
        if form is not None and form.const == 0 and list(form.coefs.values()) == [1]:
            (entry,) = form.coefs
            if shape[entry] == extent and entry not in used:
                used.append(entry)
                w = entry
        out.append(w)
    return out


def _is_index(where: Val | int) -> bool:
    """Whether a coordinate is an affine form of the result's dimensions."""
    form = where.affine if isinstance(where, Val) else None
    return form is not None and form.base is None and all(isinstance(e, int) for e in form.coefs)


def _strides(where: list[Val | int], shape: tuple[int, ...]) -> dict[int, tuple[int, int, int | None]] | None:
    """For each indexed dimension `(start, stride, result dimension)`, if all are such."""
    out: dict[int, tuple[int, int, int | None]] = {}
    used = [w for w in where if isinstance(w, int)]
    for d, w in enumerate(where):
        if isinstance(w, int):
            continue
        form = w.affine
        if form is None or form.base is not None or len(form.coefs) > 1:
            return None
        if not form.coefs:
            out[d] = (form.const, 1, None)
            continue
        ((entry, stride),) = form.coefs.items()
        if not isinstance(entry, int) or entry in used or stride < 1:
            return None
        used.append(entry)
        out[d] = (form.const, stride, entry)
    return out


def _picked(plan: Plan, tile: Val, where, strides, shape: tuple[int, ...], fill: Any) -> Val:
    """A gather from an unrolled tile at static places: the parts are picked, nothing moves."""
    places = {d: w for d, w in enumerate(where) if isinstance(w, int)}
    rest = {d: places[d] for d in places if d not in tile.stack}
    target = [places[d] if d in places else strides[d][2] for d in tile.stack]
    stack = tuple(d for d in target if d is not None and shape[d] != 1)
    parts = []
    for place in positions(stack, shape):
        at, inside = 0, True
        for d, t in zip(tile.stack, target, strict=True):
            start, stride, _ = strides.get(d, (0, 1, None))
            source = start + stride * place.get(t, 0)
            at, inside = at * tile.shape[d] + source, inside and 0 <= source < tile.shape[d]
        if inside:
            parts.append(rename(tile.parts[at], shape, rest))
        else:
            parts.append(Val(shape, tile.dtype, jnp.asarray(fill, tile.dtype)))
    return Val(shape, tile.dtype, stack=stack, parts=tuple(parts)) if stack else parts[0]


def _sliced(plan: Plan, tile: Val, where, strides, shape: tuple[int, ...], fill: Any) -> Val:
    tile = split_entries(plan, tile, [d for d in strides if tile.shape[d] != 1])
    places = {d: w for d, w in enumerate(where) if isinstance(w, int)}
    array, groups = tile.array, list(tile.groups)
    for d, (start, stride, target) in strides.items():
        count = 1 if target is None else shape[target]
        if (d,) not in groups:  # a dimension of extent 1
            array, groups = lax.expand_dims(array, (0,)), [(d,), *groups]
        dim = groups.index((d,))
        size, last = array.shape[dim], start + (count - 1) * stride
        low, high = max(-start, 0), max(last + 1 - size, 0)
        if low or high:
            config = [(0, 0, 0)] * array.ndim
            config[dim] = (low, high, 0)
            array = lax.pad(array, jnp.asarray(fill, array.dtype), config)
        if stride == 1:
            array = slice_dim(array, dim, start + low, last + low + 1)
        else:
            array = lax.slice_in_dim(array, start + low, last + low + 1, stride, dim)
        if target is None or count == 1:
            array = lax.squeeze(array, (dim,))
            groups.pop(dim)
        else:
            places[d] = target
    return rename(Val(tile.shape, tile.dtype, array, tuple(groups)), shape, places)


def _gathered(plan: Plan, tile: Val, where, shape: tuple[int, ...], fallback: Val) -> Val:
    indexed = [d for d, w in enumerate(where) if not isinstance(w, int)]
    coords = {d: split_entries(plan, where[d], where[d].entries()) for d in indexed}
    involved = list(dict.fromkeys([e for c in coords.values() for e in c.entries()] + fallback.atoms()))
    # Dimensions of the tile that a coordinate varies along are indexed too, by their own place.
    tile = split_entries(plan, tile, [*tile.entries(), *(d for d in indexed if tile.shape[d] != 1)])
    result_entry: list[Any] = [
        where[g[0]] if isinstance(g[0], int) and g[0] not in indexed else g[0] for g in tile.groups
    ]
    lead: list[int] = []
    rest: list[int] = []
    for dim, (g, e) in enumerate(zip(tile.groups, result_entry, strict=True)):
        (lead if g[0] in indexed or e in involved else rest).append(dim)
    groups: tuple[Group, ...] = tuple((e,) for e in involved)
    lengths = [plan.length(g, shape) for g in groups]
    index, inside = [], None
    for dim in lead:
        entry: Any = tile.groups[dim][0]
        if entry in indexed:
            index.append(regroup(plan, coords[entry], groups))
        else:
            own = Val(shape, np.dtype(np.int32), affine=Affine(0, {result_entry[dim]: 1}))
            index.append(regroup(plan, own, groups))
    for d in indexed:
        i = regroup(plan, coords[d], groups)
        ok = (i >= 0) & (i < np.int32(tile.shape[d]))
        inside = ok if inside is None else inside & ok
    array = lax.transpose(tile.array, [*lead, *rest])
    taken = array.at[tuple(index)].get(mode="clip") if index else lax.broadcast(array, lengths)
    fill = regroup(plan, replace(fallback, shape=shape), groups)
    if inside is not None:
        spread = tuple(range(len(lengths)))
        mask = lax.broadcast_in_dim(inside, taken.shape, spread)
        taken = lax.select(mask, taken, lax.broadcast_in_dim(fill, taken.shape, spread))
    return Val(shape, tile.dtype, taken, (*groups, *((result_entry[d],) for d in rest)))
