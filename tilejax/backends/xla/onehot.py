"""Comparisons of data with an index, `ids == index`, whose sum is a scatter.

`sum(where(ids == segment, value, 0))` for all segments at once would look at every item once a segment. Such
a comparison stays symbolic, as does a select of zeros by it, until it is summed: then each value is added in
the one place that its id names. Whatever else meets it gets it as one array.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...transforms.affine import Affine, range_of
from .rename import rename
from .value import Atom, Entry, Plan, Val, constant, extent_of, regroup, split, unify

MIN_PLACES = 4
"""With fewer places than this, comparing each item with each of them is quicker."""


@dataclass(frozen=True)
class OneHot:
    """`value` where `ids == place` and all `masks` hold, else 0; then the sum of that over `summed`."""

    ids: Val
    place: Affine
    """Its indices make up one range: the innermost has coefficient 1, the next its extent, and so on."""
    masks: tuple[Val, ...]
    value: Val
    summed: tuple[Entry, ...] = ()
    places: dict[int, int] | None = None
    """Where the tile dimensions that are left after a sum are now."""

    def entries(self) -> list[Entry]:
        operands = (self.ids, *self.masks, self.value)
        every = dict.fromkeys([*self.place.coefs, *(e for v in operands for e in v.entries())])
        left = [e for e in every if e not in self.summed]
        return [self.places[e] if self.places is not None and isinstance(e, int) else e for e in left]

    def renamed(self, places: dict[int, int], rename: Callable[[Val], Val]) -> OneHot:
        if self.places is not None:
            return replace(self, places={d: places[to] for d, to in self.places.items() if to in places})
        place = rename(Val(self.ids.shape, self.ids.dtype, affine=self.place)).affine
        assert place is not None
        return OneHot(rename(self.ids), place, tuple(map(rename, self.masks)), rename(self.value))


def elementwise(name: str, vals: Sequence[Val], dtype: Any, convert: Callable[[Val], Val]) -> Val | None:
    """The result of an elementwise operation that keeps the form: the comparison itself, one more mask, a
    select of zeros, a cast. None for any other.
    """
    if name == "eq":
        return _compared(vals)
    chosen = [v for v in vals if v.onehot is not None and not v.onehot.summed]
    if len(chosen) != 1 or any(v.stack for v in vals):
        return None
    hot: OneHot = chosen[0].onehot
    others = [v for v in vals if v is not chosen[0]]
    if any(v.onehot is not None or set(v.entries()) & set(hot.place.coefs) for v in others):
        return None
    if name == "and" and dtype == np.bool_ and chosen[0].dtype == np.bool_:
        hot = replace(hot, masks=(*hot.masks, *others))
    elif name == "select_n" and vals[0] is chosen[0] and len(vals) == 3 and _is_zero(vals[1]):
        # A value that was chosen by the comparison before is one more condition now.
        masks = hot.masks if _is_true(hot.value) else (*hot.masks, hot.value)
        hot = replace(hot, masks=masks, value=vals[2])
    elif name == "convert_element_type":
        hot = replace(hot, value=convert(hot.value))
    else:
        return None
    return Val(hot.ids.shape, np.dtype(dtype), onehot=hot)


def _compared(vals: Sequence[Val]) -> Val | None:
    shape = vals[0].shape
    for ids, index in (vals, vals[::-1]):
        form = index.affine
        if ids.array is None or ids.dtype != np.int32 or form is None or form.base is not None:
            continue
        apart = ids.entries() and not set(form.coefs) & set(ids.entries())
        places = range_of(form.coefs, lambda entry: extent_of(entry, shape))
        if apart and places is not None and places[1] == 1 and places[2] >= MIN_PLACES:
            hot = OneHot(ids, form, (), constant(True, np.bool_, shape))
            return Val(shape, np.dtype(np.bool_), onehot=hot)
    return None


def _is_zero(val: Val) -> bool:
    if val.affine is not None:
        return val.affine == Affine()
    return val.const is not None and not val.const and not np.signbit(np.float64(val.const))


def _is_true(val: Val) -> bool:
    return val.dtype == np.bool_ and val.const is not None and bool(val.const)


def total(val: Val, entries: Sequence[Entry]) -> Val | None:
    """The sum over `entries`, still symbolic; None if that is not one over ids."""
    hot: OneHot = val.onehot
    back = {to: d for d, to in hot.places.items()} if hot.places is not None else {}
    own = [back.get(e, e) if isinstance(e, int) else e for e in entries]
    if val.dtype == np.bool_ or not own or not set(own) <= set(hot.ids.entries()):
        return None
    places = hot.places if hot.places is not None else {d: d for d in range(len(val.shape))}
    left = {d: to for d, to in places.items() if d not in own}
    return replace(val, onehot=replace(hot, summed=(*hot.summed, *own), places=left))


def materialise(plan: Plan, val: Val) -> Val:
    """The value as one array: compared if nothing has been summed, else scattered."""
    hot: OneHot = val.onehot
    if hot.summed:
        return rename(_scattered(plan, hot, val.dtype), val.shape, hot.places or {})
    shape = hot.ids.shape
    place = Val(shape, hot.ids.dtype, affine=hot.place)
    groups = unify([hot.ids, place, *hot.masks, hot.value])
    here = lax.eq(*(regroup(plan, v, groups) for v in (hot.ids, place)))
    here = functools.reduce(lax.bitwise_and, (regroup(plan, m, groups) for m in hot.masks), here)
    if _is_true(hot.value):
        return Val(shape, val.dtype, here, groups)
    value = regroup(plan, hot.value, groups)
    return Val(shape, val.dtype, lax.select(here, value, jnp.zeros_like(value)), groups)


def _scattered(plan: Plan, hot: OneHot, dtype: Any) -> Val:
    """One scatter that adds: an item is in the place that its id names, or nowhere."""
    shape, gone = hot.ids.shape, set(hot.summed)
    operands = [_apart(plan, v, gone) for v in (hot.ids, *hot.masks, hot.value)]
    *core, value = operands
    for g in unify(operands):
        if set(g) <= gone and g not in value.zero_tail:
            plan.full(g, shape)
    within = unify(core)
    items = tuple(g for g in within if set(g) <= gone)
    batch = tuple(g for g in within if not set(g) <= gone)
    features = tuple(g for g in unify([*core, value]) if g not in within)
    ids, *masks = (regroup(plan, v, (*batch, *items)) for v in core)
    indices = sorted(hot.place.coefs, key=lambda e: -hot.place.coefs[e])
    merged = all(isinstance(e, Atom) for e in indices[:-1])
    target = (tuple(indices),) if merged else tuple((e,) for e in indices)
    lengths = [plan.length(g, shape) for g in target]
    count = math.prod(lengths)
    # What is outside of the range, on either side, a scatter drops.
    ids = ids - np.int32(hot.place.const) if hot.place.const else ids
    if masks:
        ids = lax.select(functools.reduce(lax.bitwise_and, masks), ids, lax.full(ids.shape, count, np.int32))
    updates = regroup(plan, value, (*batch, *items, *features))
    outer, inner = ids.shape[: len(batch)], updates.shape[ids.ndim :]
    where = jnp.stack([*(lax.broadcasted_iota(np.int32, ids.shape, d) for d in range(len(batch))), ids], -1)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(ids.ndim, updates.ndim)),
        inserted_window_dims=tuple(range(len(batch) + 1)),
        scatter_dims_to_operand_dims=tuple(range(len(batch) + 1)),
    )
    mode = lax.GatherScatterMode.FILL_OR_DROP
    array = lax.scatter_add(jnp.zeros((*outer, count, *inner), dtype), where, updates, numbers, mode=mode)
    sizes = [*outer, *lengths, *inner]
    return Val(shape, np.dtype(dtype), lax.reshape(array, sizes), (*batch, *target, *features))


def _apart(plan: Plan, val: Val, gone: set[Entry]) -> Val:
    """The value with no dimension in which some entries are summed and others are not."""
    return split(plan, val, [g for g in val.merged() if set(g) & gone and not set(g) <= gone])
