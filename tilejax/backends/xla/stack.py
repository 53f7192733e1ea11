"""Small windows, unrolled: a tile dimension of a few taps as a list of whole arrays.

A stencil, a filter tap or a pooling window reads overlapping tiles, `origin = stride * index + constant`.
Each tap of all programs at once is a strided slice of the view. Elementwise work maps over the list, a
reduction over it is a tree, a sort over it a network. Whatever else meets a stack gets it as one array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from . import onehot
from .value import Atom, Group, Plan, Val, regroup, split_entries, unify

MAX_TAPS = 64
"""More parts than this are better one array."""


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
    if not val.stack:
        return val
    groups = unify(val.parts)
    lead = tuple((d,) for d in val.stack)
    arrays = [regroup(plan, part, groups) for part in val.parts]
    stacked = jnp.stack(arrays).reshape(*(val.shape[d] for d in val.stack), *arrays[0].shape)
    return Val(val.shape, val.dtype, stacked, (*lead, *groups))


@dataclass(frozen=True)
class Tap:
    """A view dimension that is read through a window: tile dimension `dim` of `count` taps at `start +
    stride * index`."""

    dim: int
    count: int
    group: Group
    length: int
    start: int
    stride: int
    dilation: int = 1


@dataclass(frozen=True)
class Window:
    """Where a stack came from: the view's array, and what each of its dimensions is: a group of entries, or
    a `Tap`."""

    array: Any
    dims: tuple[Group | Tap, ...]

    def renamed(self, places: dict[int, int]) -> Window:
        """With tile dimension `i` become `places[i]`."""

        def group(g: Group) -> Group:
            return tuple(places[e] if isinstance(e, int) else e for e in g)

        return Window(
            self.array,
            tuple(
                replace(d, dim=places.get(d.dim, d.dim), group=group(d.group))
                if isinstance(d, Tap)
                else group(d)
                for d in self.dims
            ),
        )

    def strided(
        self, strides: dict[int, tuple[int, int, int | None]], places: dict[int, int], shape: tuple[int, ...]
    ) -> Window | None:
        """The window of a gather `(start, stride, result dimension)` along some taps; None if it is not
        one."""
        dims: list[Group | Tap] = []
        for d in self.dims:
            if isinstance(d, Tap) and d.dim in strides:
                start, stride, target = strides[d.dim]
                last = start + stride * (shape[target] - 1) if target is not None else -1
                if target is None or start < 0 or last >= d.count or d.dilation != 1:
                    return None
                d = replace(d, dim=target, count=shape[target], start=d.start + start, dilation=stride)
            elif isinstance(d, Tap):
                d = replace(d, dim=places[d.dim])
            else:
                d = tuple(places[e] if isinstance(e, int) else e for e in d)
            dims.append(d)
        return Window(self.array, tuple(dims))


def read_taps(array: Any, taps: dict[int, Tap], fill: Any) -> Callable[[dict[int, int]], Any]:
    """A function from the index of each tap's tile dimension to a strided slice of the view, padded once
    for all."""
    config = [(0, 0, 0)] * array.ndim
    for dim, tap in taps.items():
        last = tap.start + (tap.length - 1) * tap.stride + tap.count - 1
        config[dim] = (max(-tap.start, 0), max(last + 1 - array.shape[dim], 0), 0)
    if any(low or high for low, high, _ in config):
        # Without the barrier XLA recomputes the padding in every tap.
        array = lax.optimization_barrier(lax.pad(array, jnp.asarray(fill, array.dtype), config))

    def read(place: dict[int, int]) -> Any:
        starts, limits, strides = [0] * array.ndim, list(array.shape), [1] * array.ndim
        for dim, tap in taps.items():
            starts[dim] = tap.start + config[dim][0] + place.get(tap.dim, 0)
            limits[dim] = starts[dim] + (tap.length - 1) * tap.stride + 1
            strides[dim] = tap.stride
        return lax.slice(array, starts, limits, strides)

    return read


def strided_atoms(coefs: dict[Any, int]) -> tuple[tuple[Atom, ...], int] | None:
    """The atoms of a start, outermost first, and its stride, if it is that stride times the index of one
    merged axis."""
    atoms = sorted(coefs, key=lambda a: -coefs[a])
    if not atoms or not all(isinstance(a, Atom) for a in atoms):
        return None
    step = stride = coefs[atoms[-1]]
    if stride < 1:
        return None
    for atom in reversed(atoms):
        if coefs[atom] != step:
            return None
        step *= atom.extent
    return tuple(atoms), stride
