"""Small windows, unrolled: a tile dimension of a few taps as a list of whole arrays.

A stencil, a filter tap or a pooling window reads overlapping tiles, `origin = stride * index + constant`.
Each tap of all programs at once is a strided slice of the view. Elementwise work maps over the list, a
reduction over it is a tree, a sort over it a network. Whatever else meets a stack gets it as one array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax.numpy as jnp
from jax import lax

from . import onehot
from .value import Plan, Val, regroup, split_entries, unify
from .window import MAX_TAPS, Tap, padded, taken


def positions(stack: Sequence[int], shape: tuple[int, ...]) -> Iterator[dict[int, int]]:
    """The places along the unrolled dimensions, row-major, as a dict from dimension to index."""
    for index in itertools.product(*(range(shape[d]) for d in stack)):
        yield dict(zip(stack, index, strict=True))


def pick(plan: Plan, val: Val, place: dict[int, int]) -> Val:
    """The value at one place along some tile dimensions."""
    if val.stack:
        inner = 0
        for d in val.stack:
            inner = inner * val.shape[d] + place[d]
        val = val.parts[inner]
    dims = [d for d in place if d in val.entries()]
    if not dims:
        return val
    if val.affine is not None:
        form = val.affine
        const = form.const + sum(form.coefs[d] * place[d] for d in dims)
        rest = {e: c for e, c in form.coefs.items() if e not in dims}
        return replace(val, affine=replace(form, const=const, coefs=rest))
    val = split_entries(plan, val, dims)
    array, groups = val.array, list(val.groups)
    for d in dims:
        at = groups.index((d,))
        array = lax.index_in_dim(array, place[d], at, keepdims=False)
        groups.pop(at)
    return Val(val.shape, val.dtype, array, tuple(groups))


def mapped(plan: Plan, vals: Sequence[Val], fn: Callable[[list[Val]], Val]) -> Val | None:
    """`fn`, an elementwise function of values of one shape, part by part; None if that is too many."""
    shape = vals[0].shape
    stack = tuple(dict.fromkeys(d for v in vals for d in v.stack))
    if math.prod(shape[d] for d in stack) > MAX_TAPS:
        return None
    parts = tuple(fn([pick(plan, v, place) for v in vals]) for place in positions(stack, shape))
    return Val(parts[0].shape, parts[0].dtype, stack=stack, parts=parts)


def unstack(plan: Plan, val: Val) -> Val:
    """The value as one array."""
    if val.onehot is not None:
        return onehot.materialise(plan, val)
    val = opened(plan, val)
    if not val.stack:
        return val
    groups = unify(val.parts)
    lead = tuple((d,) for d in val.stack)
    arrays = [regroup(plan, part, groups) for part in val.parts]
    stacked = jnp.stack(arrays).reshape(*(val.shape[d] for d in val.stack), *arrays[0].shape)
    return Val(val.shape, val.dtype, stacked, (*lead, *groups))


def opened(plan: Plan, val: Val) -> Val:
    """The value of a window: a stack of strided slices, a part for each place in it, if they are few."""
    window = val.window
    if window is None or val.stack:
        return val
    taps = window.taps
    if math.prod(t.count for t in taps.values()) > MAX_TAPS:
        return taken(plan, window, val.shape)
    array, zero = padded(plan, window)
    groups = [d.group if isinstance(d, Tap) else d for d in window.dims]
    kept = [i for i, g in enumerate(groups) if g]
    stack = tuple(t.dim for t in taps.values() if t.dim is not None and t.count != 1)
    parts = []
    for place in positions(stack, val.shape):
        starts, limits, strides = [0] * array.ndim, list(array.shape), [1] * array.ndim
        for i, tap in taps.items():
            starts[i] = zero[i] + tap.start + place.get(tap.dim, 0) * tap.dilation
            limits[i] = starts[i] + (tap.length - 1) * tap.stride + 1
            strides[i] = tap.stride
        part = lax.slice(array, starts, limits, strides)
        part = lax.reshape(part, [part.shape[i] for i in kept]) if len(kept) < part.ndim else part
        parts.append(Val(val.shape, val.dtype, part, tuple(groups[i] for i in kept)))
    return replace(val, stack=stack, parts=tuple(parts)) if stack else parts[0]
