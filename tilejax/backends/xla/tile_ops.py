"""Reductions and scans of all programs at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.monoids import COMBINE, identity, is_exact
from ...ir.types import Order
from . import bfloat16, onehot
from .cumulative import cumulative
from .extremum import SAFE, exact, extremum, in_pairs, least_or_greatest
from .nans import Kind, Mark
from .rename import rename
from .stack import positions, unstack
from .value import Atom, Entry, Group, Plan, Val, constant, regroup, split, split_entries, unify

Evaluate = Callable[[Any, list[Val]], list[Val]]

_REDUCE = {
    "add": lax.reduce_sum,
    "mul": lax.reduce_prod,
    "max": lax.reduce_max,
    "min": lax.reduce_min,
    "and": lax.reduce_and,
    "or": lax.reduce_or,
}


def drop_dims(val: Val, shape: tuple[int, ...], gone: Sequence[int]) -> Val:
    """The value without tile dimensions on which it does not depend."""
    kept = [i for i in range(len(shape)) if i not in gone]
    return rename(val, tuple(shape[i] for i in kept), {p: i for i, p in enumerate(kept)})


def reduce_entries(plan: Plan, val: Val, op: str, entries: Sequence[Entry], *, quick: bool = False) -> Val:
    """The value reduced over `entries`: dimensions of the tile, or atoms. A dimension of which all is
    reduced stays whole, trimmed or not, where what was trimmed is the identity of `op`. A `quick` maximum
    that may lose NaN is marked."""
    gone = set(entries)
    if val.onehot is not None and op == "add" and (sums := onehot.total(val, entries)) is not None:
        return sums
    val = unstack(plan, val)
    if val.computed and val.groups:
        plan.reduced.append(val.array.nbytes)
    computed = val.computed
    if val.array is None:
        val = split_entries(plan, val, entries)
    whole = [g for g in val.groups if set(g) <= gone]
    for g in whole:
        if op != "add" or g not in val.zero_tail:
            plan.full(g, val.shape)
    mixed = [g for g in val.groups if set(g) & gone and g not in whole]
    val = split(plan, val, mixed)
    have = {e for g in val.groups for e in g}
    val = split_entries(plan, val, [e for e in entries if e not in have])
    dims = [i for i, g in enumerate(val.groups) if set(g) <= gone]
    groups = tuple(g for g in val.groups if not set(g) <= gone)
    if not dims:
        return val
    if op in ("max", "min") and jnp.issubdtype(val.dtype, np.floating):
        quick = quick and not plan.differentiable and plan.drops_nan and val.array.size >= SAFE
        if plan.differentiable:
            array = extremum(val.array, op, tuple(dims))
        elif quick or not plan.drops_nan:
            array = least_or_greatest(val.array, op, tuple(dims))
        else:
            array = exact(val.array, op, tuple(dims), computed)
    else:
        array, quick = _REDUCE[op](val.array, dims), False
    tails = val.zero_tail & set(groups) if op == "add" else frozenset()
    nan = (Kind.LOST, None) if quick else None
    return Val(val.shape, val.dtype, array, groups, zero_tail=tails, nan=nan)


def reduce(plan: Plan, val: Val, *, op: str, axes: tuple[int, ...], order: Order, **_: Any) -> Val:
    """`tile_reduce`."""
    if order is Order.UNORDERED_TREE or is_exact(op, val.dtype):
        needed = [i for i in axes if val.shape[i] != 1]
        if val.stack:
            return drop_dims(_reduce_stack(plan, val, op, needed), val.shape, axes)
        quick = op in ("max", "min") and id(plan.here) not in plan.exact
        out = reduce_entries(plan, val, op, needed, quick=quick)
        if out.nan is not None:
            mark = Mark(plan.here, val.array, val.groups, frozenset(needed), out.groups)
            out = replace(out, nan=(Kind.LOST, mark))
        return drop_dims(out, val.shape, axes)
    val = unstack(plan, val)
    return _ordered(plan, val, identity(op, val.dtype), axes, order, lambda groups: COMBINE[op])


def _reduce_stack(plan: Plan, val: Val, op: str, dims: Sequence[int]) -> Val:
    """A reduction of an unrolled value: each part over its own dimensions, then a tree over the parts."""
    inner = [d for d in dims if d not in val.stack]
    kept = tuple(d for d in val.stack if d not in dims)
    terms: dict[tuple[int, ...], list[Val]] = {}
    for place, part in zip(positions(val.stack, val.shape), val.parts, strict=True):
        key = tuple(place[d] for d in kept)
        terms.setdefault(key, []).append(reduce_entries(plan, part, op, inner))
    parts = tuple(_tree(plan, vals, op) for vals in terms.values())
    return replace(val, stack=kept, parts=parts, window=None) if kept else parts[0]


def _tree(plan: Plan, vals: list[Val], op: str) -> Val:
    groups, dtype = unify(vals), vals[0].dtype
    arrays = [regroup(plan, v, groups) for v in vals]
    arrays = bfloat16.compared(plan, arrays) if op in ("max", "min") else arrays
    out = lax.convert_element_type(in_pairs(COMBINE[op], arrays), dtype)
    return Val(vals[0].shape, dtype, out, groups)


def fold(
    plan: Plan, evaluate: Evaluate, val: Val, start: Val, *consts: Val, axes, order: Order, fn, **_: Any
) -> Val:
    """`tile_fold`: `fn` is evaluated on all remaining elements at once, each dimension of which becomes an
    atom."""

    def combiner(groups: tuple[Group, ...]) -> Callable[[Any, Any], Any]:
        def combine(a: Any, b: Any) -> Any:
            lead = ((Atom("fold", a.shape[0]),),) if a.ndim > len(groups) else ()
            operands = [Val((), val.dtype, x, (*lead, *groups)) for x in (a, b)]
            (out,) = evaluate(fn, [*consts, *operands])
            return regroup(plan, out, (*lead, *groups))

        return combine

    order = Order.ORDERED_TREE if order is Order.UNORDERED_TREE else order
    extra = [a for v in (start, *consts) for a in v.atoms()]
    return _ordered(plan, val, start, axes, order, combiner, extra)


def _ordered(
    plan: Plan,
    val: Val,
    start: Any,
    axes: tuple[int, ...],
    order: Order,
    combiner: Any,
    extra: Sequence[Atom] = (),
) -> Val:
    """A reduction whose order is fixed: a loop over the elements, or a tree of whole halves."""
    shape = val.shape
    gone = [i for i in axes if shape[i] != 1]
    val = split_entries(plan, val, [*gone, *extra, *val.entries()])
    rest = tuple(g for g in val.groups if g[0] not in gone)
    array = regroup(plan, val, (*((i,) for i in gone), *rest))
    count = math.prod(shape[i] for i in gone)
    array = lax.reshape(array, [count, *array.shape[len(gone) :]])
    opened = tuple((Atom(("dim", g[0]), shape[g[0]]),) if isinstance(g[0], int) else g for g in rest)
    combine = combiner(opened)
    if isinstance(start, Val):
        unit = regroup(plan, start, opened)
    else:
        unit = lax.full(array.shape[1:], start, val.dtype)
    out = _RUN[order](array, unit, combine)
    return drop_dims(Val(shape, val.dtype, out, rest), shape, axes)


def _fold_left(array: Any, unit: Any, combine: Any) -> Any:
    return (
        lax.fori_loop(np.int32(0), np.int32(array.shape[0]), lambda i, acc: combine(acc, _at(array, i)), unit)
        if array.shape[0]
        else unit
    )


def _fold_right(array: Any, unit: Any, combine: Any) -> Any:
    n = array.shape[0]
    return (
        lax.fori_loop(
            np.int32(0), np.int32(n), lambda i, acc: combine(_at(array, np.int32(n - 1) - i), acc), unit
        )
        if n
        else unit
    )


def _ordered_tree(array: Any, unit: Any, combine: Any) -> Any:
    if not array.shape[0]:
        return unit
    array = jnp.concatenate([combine(unit, array[0])[None], array[1:]])
    while (n := array.shape[0]) > 1:
        pairs = combine(array[0 : n - n % 2 : 2], array[1::2])
        array = pairs if n % 2 == 0 else jnp.concatenate([pairs, array[n - 1 :]])
    return array[0]


def _at(array: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(array, i, 0, keepdims=False)


_RUN = {Order.FOLD_LEFT: _fold_left, Order.FOLD_RIGHT: _fold_right, Order.ORDERED_TREE: _ordered_tree}


def argreduce(plan: Plan, val: Val, *, op: str, axis: int, index_dtype: Any, **_: Any) -> Val:
    """`tile_argreduce`."""
    if val.shape[axis] == 1:
        shape = tuple(n for i, n in enumerate(val.shape) if i != axis)
        return constant(0, index_dtype, shape)
    whole = split_entries(plan, val, [axis])
    dim = whole.groups.index((axis,))
    array = (lax.argmax if op == "max" else lax.argmin)(whole.array, dim, index_dtype)
    groups = tuple(g for g in whole.groups if g != (axis,))
    return drop_dims(Val(val.shape, np.dtype(index_dtype), array, groups), val.shape, (axis,))


def scan(plan: Plan, val: Val, *, op: str, axis: int, reverse: bool, **_: Any) -> Val:
    """`tile_scan`."""
    if val.shape[axis] == 1:
        return val
    whole = split_entries(plan, val, [axis])
    # XLA's scans do not take bools; as bytes their order is the same.
    array = lax.convert_element_type(whole.array, np.uint8) if val.dtype == np.bool_ else whole.array
    dim = whole.groups.index((axis,))
    # A float sum has one array beside its result; an extremum one more, and so has what is made first.
    plan.temporary += ((op != "add") + val.computed) * array.nbytes
    array = cumulative(array, op, identity(op, array.dtype), dim, reverse, plan.differentiable)
    return Val(val.shape, val.dtype, lax.convert_element_type(array, val.dtype), whole.groups)


def associative_scan(
    plan: Plan, evaluate: Evaluate, *vals: Val, num_consts: int, axis: int, reverse: bool, fn, **_: Any
) -> list[Val]:
    """`tile_associative_scan`: the operator is evaluated on all places along the axis at once."""
    consts, tiles = vals[:num_consts], vals[num_consts:]
    if tiles[0].shape[axis] in (0, 1):
        return list(tiles)
    atoms = tuple((a,) for a in dict.fromkeys(a for v in vals for a in v.atoms()))
    arrays, elements = [], []
    for tile in tiles:
        rest = [i for i, n in enumerate(tile.shape) if n != 1 and i != axis]
        whole = split_entries(plan, tile, [axis, *rest, *(a for (a,) in atoms)])
        arrays.append(regroup(plan, whole, ((axis,), *atoms, *((i,) for i in rest))))
        shape = tuple(n for i, n in enumerate(tile.shape) if i != axis)
        elements.append((shape, tile.dtype, (*atoms, *((i - (i > axis),) for i in rest))))

    def combine(earlier: list[Any], later: list[Any]) -> list[Any]:
        lead = ((Atom("scan", earlier[0].shape[0]),),)
        operands = [
            Val(shape, dtype, x, (*lead, *groups))
            for side in (earlier, later)
            for x, (shape, dtype, groups) in zip(side, elements, strict=True)
        ]
        out = evaluate(fn, [*consts, *operands])
        return [regroup(plan, v, (*lead, *groups)) for v, (_, _, groups) in zip(out, elements, strict=True)]

    scanned = lax.associative_scan(combine, arrays, reverse=reverse)
    out = []
    for array, tile in zip(scanned, tiles, strict=True):
        rest = [i for i, n in enumerate(tile.shape) if n != 1 and i != axis]
        out.append(Val(tile.shape, tile.dtype, array, ((axis,), *atoms, *((i,) for i in rest))))
    return out
