"""Loads and stores of all programs at once.

Each dimension of the view is one of three kinds. *Fixed*: the start is the same for all programs, so the
tile is a slice. *Tiled*: the start is `constant + extent * index`, so the tiles of all programs laid side
by side are the view itself. *Indexed*: anything else is a gather or a scatter. Slices and tiles that may
leave the view are padded, or written through a mask.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.types import Bounds
from ...transforms.affine import INT32, Affine, wrap
from .bfloat16 import slice_at, update_at
from .value import Atom, Entry, Group, Plan, Val, dense, is_trimmable, regroup, split_entries, to_dense, unify
from .window import Tap, Window, strided_atoms


@dataclass(frozen=True)
class Span:
    """A fixed or tiled dimension: `length` elements from `const + base` on, which are the group's."""

    group: Group
    length: int
    start: Affine

    @property
    def const(self) -> int:
        return self.start.const


def as_affine(val: Val) -> Affine | None:
    """The affine form of a scalar, if it has one: symbolic, or data that is the same for all programs."""
    if val.affine is not None:
        return val.affine
    if val.array is not None and not val.groups:
        return Affine(0, {}, val.array, int(INT32.min), int(INT32.max))
    return None


def tiled_atoms(form: Affine, extent: int) -> tuple[Atom, ...] | None:
    """The atoms of a start, outermost first, if tiles of `extent` at that start lie side by side; else
    None."""
    if not form.coefs:
        return ()
    strided = strided_atoms(form.coefs)
    return strided[0] if strided is not None and strided[1] == extent else None


def spans(
    plan: Plan, starts: list[Val], shape: tuple[int, ...], view_shape: tuple[int, ...]
) -> list[Span | None]:
    """What each dimension is; None for an indexed one."""
    out: list[Span | None] = []
    taken: list[Entry] = [a for s in starts for a in s.atoms()]
    for i, (start, extent, size) in enumerate(zip(starts, shape, view_shape, strict=True)):
        form = as_affine(start)
        atoms = tiled_atoms(form, extent) if form is not None and extent else None
        if form is None or atoms is None or any(taken.count(a) > 1 for a in atoms):
            out.append(None)
            continue
        group: Group = (*atoms, i) if extent != 1 else atoms
        if is_trimmable(group):
            full = math.prod(a.extent for a in atoms) * extent
            plan.want(group, shape, full if form.base is not None else min(full, max(size - form.const, 1)))
        length = plan.length(group, shape) if group else 1
        out.append(Span(group, length, Affine(form.const, {}, form.base, form.lo, form.hi)))
    return out


def load(
    plan: Plan, view: Val, starts: list[Val], fallback: Val, *, shape: tuple[int, ...], bounds: Bounds
) -> Val:
    """`tile_load`."""
    array = to_dense(plan, view)
    if 0 in shape:
        groups = tuple((i,) for i, n in enumerate(shape) if n != 1)
        return Val(shape, view.dtype, jnp.zeros([shape[g[0]] for g in groups], view.dtype), groups)
    fill = to_scalar(fallback)
    if 0 in array.shape:
        return Val(shape, view.dtype, fill)
    kinds = spans(plan, starts, shape, array.shape)
    tail = set()
    for dim, span in enumerate(kinds):
        if span is not None:
            array = _read(plan, array, dim, span, fill, bounds)
            if is_trimmable(span.group) and span.start.base is None and _is_zero(fallback):
                tail.add(span.group)
    indexed = [d for d, span in enumerate(kinds) if span is None]
    if indexed:
        taps = _taps(plan, starts, shape, indexed)
        if taps is not None:
            for d, tap in taps.items():
                form = starts[d].affine
                if form is not None and form.base is not None:
                    # A start that moves with a loop: what all taps read together, then windows of that.
                    start = Affine(form.const, {}, form.base, form.lo, form.hi)
                    taps[d] = replace(tap, start=0)
                    array = _read(plan, array, d, Span((), taps[d].last + 1, start), fill, bounds)
            dims = tuple(taps[d] if span is None else span.group for d, span in enumerate(kinds))
            fill = np.zeros((), view.dtype)[()] if _is_zero(fallback) else fill
            return Val(shape, view.dtype, window=Window(array, dims, fill))
        return _read_indexed(plan, array, kinds, indexed, starts, shape, fill, view.dtype)
    keep = [(d, s.group) for d, s in enumerate(kinds) if s is not None and s.group]
    array = lax.reshape(array, [array.shape[d] for d, _ in keep]) if len(keep) < array.ndim else array
    return Val(shape, view.dtype, array, tuple(g for _, g in keep), zero_tail=frozenset(tail))


def _is_zero(val: Val) -> bool:
    return (val.const is not None and val.const == 0) or val.affine == Affine()


def to_scalar(val: Val) -> Any:
    """A value that is the same for all programs, as a rank-0 array."""
    if val.affine is not None:
        const = np.int32(wrap(val.affine.const))
        return const if val.affine.base is None else val.affine.base + const
    return val.const if val.const is not None else val.array


def _read(plan: Plan, array: Any, dim: int, span: Span, fill: Any, bounds: Bounds) -> Any:
    """`span.length` elements along `dim`, `fill` where they are outside."""
    size, n = array.shape[dim], span.length
    form = span.start
    if form.base is None:
        lo, hi = form.const, form.const + n
        first = min(max(lo, 0), size)
        inside = slice_dim(array, dim, first, max(min(hi, size), first))
        return _pad(inside, dim, min(max(-lo, 0), n), n, fill)
    start = to_scalar(Val((), np.dtype(np.int32), affine=form))
    least, most = form.const + form.lo, form.const + form.hi
    if bounds is Bounds.ASSUME or (least >= 0 and most + n <= size):
        return _dynamic(plan, array, start, n, dim) if n <= size else _pad(array, dim, 0, n, fill)
    if n > size:
        array = _pad(array, dim, 0, n, fill)
    # The window moves to where it fits; what it lacks is a shift by which the padded window is read again.
    clamped = lax.clamp(np.int32(0), start, np.int32(max(size, n) - n))
    shift = lax.clamp(np.int32(-n), start - clamped, np.int32(n))
    window = _dynamic(plan, array, clamped, n, dim)
    padded = _pad(_pad(window, dim, n, 2 * n, fill), dim, 0, 3 * n, fill)
    return _dynamic(plan, padded, shift + np.int32(n), n, dim)


def _dynamic(plan: Plan, array: Any, start: Any, length: int, dim: int) -> Any:
    """`length` elements from `start`, which is not negative, on."""
    starts: list[Any] = [np.int32(0)] * array.ndim
    starts[dim] = start
    return slice_at(plan, array, starts, [length if d == dim else n for d, n in enumerate(array.shape)])


def slice_dim(array: Any, dim: int, start: int, stop: int) -> Any:
    return array if (start, stop) == (0, array.shape[dim]) else lax.slice_in_dim(array, start, stop, axis=dim)


def _pad(array: Any, dim: int, low: int, total: int, fill: Any) -> Any:
    """The array with `low` elements before and as many after that `dim` has `total`."""
    high = total - low - array.shape[dim]
    if low == 0 and high == 0:
        return array
    config = [(0, 0, 0)] * array.ndim
    config[dim] = (low, high, 0)
    return lax.pad(array, jnp.asarray(fill, array.dtype), config)


def _index(plan: Plan, start: Val, dim: int, extent: int, shape: tuple[int, ...]) -> Val:
    """The view index of each element of a tile along `dim`, as an int32 value."""
    if start.affine is not None:
        coefs = {**start.affine.coefs, **({dim: 1} if extent != 1 else {})}
        return Val(shape, np.dtype(np.int32), affine=replace(start.affine, coefs=coefs))
    start = replace(start, shape=shape)
    if extent == 1:
        return start
    start = split_entries(plan, start, start.entries())
    groups = (*start.groups, (dim,))
    lengths = [plan.length(g, shape) for g in groups]
    base = regroup(plan, start, groups)
    return Val(
        shape, np.dtype(np.int32), base + lax.broadcasted_iota(np.int32, lengths, len(groups) - 1), groups
    )


def _safe_index(index: Any, size: int) -> Any:
    """Negative indices moved past the end, where gathers and scatters drop them; JAX would wrap them."""
    return jnp.where(index < 0, np.int32(size), index)


def _read_indexed(plan, array, kinds, indexed, starts, shape, fill, dtype) -> Val:
    """Gathers along the indexed dimensions; the others have been read."""
    indices = [_index(plan, starts[d], d, shape[d], shape) for d in indexed]
    entries: tuple[Group, ...] = tuple(
        (e,) for g in unify([split_entries(plan, i, i.entries()) for i in indices]) for e in g
    )
    lengths = [plan.length(g, shape) for g in entries]
    spanned = [d for d in range(array.ndim) if d not in indexed]
    # The indexed dimensions go first, so that the gathered ones do.
    array = lax.transpose(array, [*indexed, *spanned])
    where = tuple(_safe_index(regroup(plan, i, entries), array.shape[k]) for k, i in enumerate(indices))
    array = (
        array.at[where].get(mode="fill", fill_value=0) if _is_static_zero(fill) else _take(array, where, fill)
    )
    groups = list(entries)
    sizes = list(lengths)
    for k, d in enumerate(spanned):
        if kinds[d].group:
            groups.append(kinds[d].group)
            sizes.append(array.shape[len(lengths) + k])
    return Val(shape, dtype, lax.reshape(array, sizes), tuple(groups))


def _taps(plan: Plan, starts: list[Val], shape: tuple[int, ...], indexed: list[int]) -> dict[int, Tap] | None:
    """The indexed dimensions as windows, if all are."""
    taps: dict[int, Tap] = {}
    used: list[Atom] = [a for i, s in enumerate(starts) if i not in indexed for a in s.atoms()]
    for d in indexed:
        form = starts[d].affine
        strided = strided_atoms(form.coefs) if form is not None else None
        if form is None or strided is None or set(used) & set(strided[0]):
            return None
        atoms, stride = strided
        used.extend(atoms)
        taps[d] = Tap(d, shape[d], atoms, plan.length(atoms, shape), form.const, stride)
    return taps


def _is_static_zero(fill: Any) -> bool:
    return isinstance(fill, np.generic) and not fill.any()


def _take(array: Any, where: tuple[Any, ...], fill: Any) -> Any:
    """Elements at `where` (along the leading dimensions), `fill` outside."""
    inside = functools.reduce(
        lax.bitwise_and, [i < np.int32(n) for i, n in zip(where, array.shape, strict=False)]
    )
    taken = array.at[where].get(mode="clip")
    mask = lax.broadcast_in_dim(inside, taken.shape, tuple(range(inside.ndim)))
    return lax.select(mask, taken, lax.full(taken.shape, fill, array.dtype))


def store(plan: Plan, view: Val, tile: Val, starts: list[Val], active: list[Atom], *, bounds: Bounds) -> Val:
    """`tile_store`: the view after the programs along `active` have stored their tiles."""
    shape = tile.shape
    array = to_dense(plan, view)
    if 0 in shape or 0 in array.shape:
        return view
    if plan.bare and tile.bare is not None:
        tile = replace(tile, array=tile.bare)
    reached = {a for s in starts for a in s.atoms()}
    if stray := [a for a in active if a not in reached]:
        raise plan.demote(stray)  # every program along these stores to the same place
    kinds = spans(plan, starts, shape, array.shape)
    groups = [s.group if s is not None else None for s in kinds]
    if None in groups:
        plan.note("scatter")
        return _write_indexed(plan, array, tile, kinds, starts, shape)
    plan.note("whole" if all(map(_covers, kinds, array.shape)) else "update")
    target = tuple(s.group for s in kinds if s is not None and s.group)
    block = regroup(plan, tile, _check_target(plan, tile, target))
    block = lax.reshape(block, [s.length for s in kinds if s is not None])
    return dense(_write(plan, array, block, [s for s in kinds if s is not None], bounds))


def _covers(span: Span | None, size: int) -> bool:
    """Whether the elements that are stored reach over a dimension of the view."""
    if span is None or span.start.base is not None:
        return False
    return span.const <= 0 and span.const + span.length >= size


def _check_target(plan: Plan, tile: Val, target: tuple[Group, ...]) -> tuple[Group, ...]:
    """`target`, if it has all atoms that the tile depends on: a program may not store what depends on an
    axis that its place does not."""
    have = {e for g in target for e in g}
    if stray := [a for a in tile.atoms() if a not in have]:
        raise plan.demote(stray)
    return target


def _write(plan: Plan, array: Any, block: Any, kinds: list[Span], bounds: Bounds) -> Any:
    """`block` written at the spans' starts, what is outside dropped."""
    starts: list[Any] = []
    masks: list[Any] = []
    for dim, span in enumerate(kinds):
        form, size, n = span.start, array.shape[dim], span.length
        if form.base is None:
            lo, hi = max(form.const, 0), min(form.const + n, size)
            if hi <= lo:
                return array
            block = slice_dim(block, dim, lo - form.const, hi - form.const)
            starts.append(np.int32(lo))
            continue
        start = to_scalar(Val((), np.dtype(np.int32), affine=form))
        if bounds is Bounds.ASSUME or (form.const + form.lo >= 0 and form.const + form.hi + n <= size):
            starts.append(start)
            continue
        width = min(n, size)
        clamped = lax.clamp(np.int32(0), start, np.int32(size - width))
        shift = lax.clamp(np.int32(-n), clamped - start, np.int32(n))
        zero = jnp.zeros((), block.dtype)
        padded = _pad(_pad(block, dim, n, 2 * n, zero), dim, 0, 3 * n, zero)
        block = _dynamic(plan, padded, shift + np.int32(n), width, dim)
        place = lax.iota(np.int32, width) + shift
        masks.append((dim, (place >= 0) & (place < n) & (start < np.int32(size)) & (start > np.int32(-n))))
        starts.append(clamped)
    if block.shape == array.shape and not masks and all(isinstance(s, np.integer) for s in starts):
        return block
    if masks:
        old = slice_at(plan, array, starts, block.shape)
        mask = functools.reduce(
            lax.bitwise_and, [lax.broadcast_in_dim(m, block.shape, (dim,)) for dim, m in masks]
        )
        block = lax.select(mask, block, old)
    return update_at(plan, array, block, starts)


def _write_indexed(
    plan: Plan, array: Any, tile: Val, kinds: list[Span | None], starts: list[Val], shape: tuple[int, ...]
) -> Val:
    """One scatter, of slices along the dimensions that are spanned; programs do not overlap, so its order is
    free."""
    still = {d: s for d, s in enumerate(kinds) if s is not None and s.start.base is None}
    moving = [d for d in range(array.ndim) if d not in still]
    indices = [_index(plan, starts[d], d, shape[d], shape) for d in moving]
    have = {e for i in indices for e in i.entries()} | {e for s in still.values() for e in s.group}
    if stray := [a for a in tile.atoms() if a not in have]:
        raise plan.demote(stray)
    indices = [split_entries(plan, i, i.entries()) for i in indices]
    entries: tuple[Group, ...] = tuple((e,) for g in unify(indices) for e in g)
    updates = regroup(plan, tile, (*entries, *(s.group for s in still.values() if s.group)))
    lengths = updates.shape[: len(entries)]
    updates = lax.reshape(updates, [*lengths, *(s.length for s in still.values())])
    where = [regroup(plan, i, entries) for i in indices]
    for at, (dim, span) in enumerate(still.items(), len(entries)):
        lo, hi = max(span.const, 0), min(span.const + span.length, array.shape[dim])
        if hi <= lo:
            return dense(array)
        updates = slice_dim(updates, at, lo - span.const, hi - span.const)
        where.append(lax.full(lengths, lo, np.int32))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(range(len(entries), updates.ndim)),
        inserted_window_dims=tuple(moving),
        scatter_dims_to_operand_dims=(*moving, *still),
    )
    # What starts outside, on either side, a scatter drops.
    mode = lax.GatherScatterMode.FILL_OR_DROP
    return dense(lax.scatter(array, jnp.stack(where, -1), updates, numbers, unique_indices=True, mode=mode))
