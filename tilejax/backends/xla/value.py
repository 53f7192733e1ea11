"""Values of the grid vectoriser: one whole-array `lax` value for all programs of a nest.

A tile of a program becomes an array whose dimensions are ordered groups of entries. An entry is an `Atom`
(an axis of the grid that the value depends on) or a dimension of the tile, by position. The group `(g, 0)`
is a grid axis and a tile dimension merged back into one dimension of length `extent(g) * extent(0)`,
usually the view's own. An entry that is in no group is one that the value does not depend on: broadcasting
is free until somebody needs the data.

A merged dimension may be trimmed: cut to the part that some view has, when nobody looks at the rest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...transforms.affine import Affine, wrap

CACHE = 2**22
"""Bytes that stay in cache while a piece of a nest is run."""


@dataclass(frozen=True, eq=False)
class Atom:
    """One axis that all programs are evaluated along at once. `key` names it across restarts."""

    key: Any
    extent: int


Entry = Atom | int
Group = tuple[Entry, ...]


@dataclass(frozen=True)
class Val:
    """A value of tile shape `shape`: an array with `groups`, a symbolic affine form, or a constant."""

    shape: tuple[int, ...]
    dtype: np.dtype
    array: Any = None
    groups: tuple[Group, ...] = ()
    affine: Affine | None = None
    const: Any = None
    computed: bool = False
    """Whether arithmetic made the array, as opposed to a view that is there anyway."""
    bare: Any = None
    """The same array, narrowed by a cast that XLA may fold with a widening one after it."""
    zero_tail: frozenset[Group] = frozenset()
    """The groups beyond whose trimmed end the value is known to be 0."""
    stack: tuple[int, ...] = ()
    """Tile dimensions that are unrolled: the value is `parts`, one for each place along them, row-major."""
    parts: tuple[Val, ...] = ()
    window: Any = None
    """Where in a view the elements are (`window.Window`), if they have not been read, or read as a stack."""
    nan: Any = None
    """If it comes of a maximum that dropped NaN: a `nans.Kind` and the `nans.Mark` of the maximum."""
    onehot: Any = None
    """For a comparison of data with an index, and what is made of one: its parts (`onehot.OneHot`)."""

    def entries(self) -> list[Entry]:
        if self.affine is not None:
            return list(self.affine.coefs)
        if self.onehot is not None:
            return self.onehot.entries()
        if self.stack:
            return list(dict.fromkeys([*self.stack, *(e for p in self.parts for e in p.entries())]))
        if self.window is not None:
            return self.window.entries()
        return [e for g in self.groups for e in g]

    def atoms(self) -> list[Atom]:
        return [e for e in self.entries() if isinstance(e, Atom)]

    def merged(self) -> list[Group]:
        return [] if self.affine is not None else [g for g in self.groups if len(g) > 1]


def extent_of(entry: Entry, shape: tuple[int, ...]) -> int:
    return entry.extent if isinstance(entry, Atom) else shape[entry]


class Restart(Exception):
    """An optimistic choice failed; the plan now says better, and the program is evaluated again from the
    start."""


@dataclass
class Plan:
    """The choices of one evaluation, kept over restarts: each only ever moves towards the general form, so
    restarts end.
    """

    loops: dict[Any, int] = field(default_factory=dict)
    """By key, into how many pieces an axis is cut that are run one after another; the atom is one piece."""
    lengths: dict[Any, int] = field(default_factory=dict)
    """How long each trimmed merged dimension is."""
    guessed: set[Any] = field(default_factory=set)
    """Those whose length was used before a view said what it is."""
    budget: int = 2**25
    """The most bytes that a value made anew in each step of a loop should have."""
    differentiable: bool = False
    """Whether loops have static trip counts, steps out of range being masked, so that reverse mode can run
    them backwards.
    """
    depth: int = 0
    """How many loops are around what is being evaluated."""
    reduced: list[int] = field(default_factory=list)
    """The bytes of each computed array that the current nest reduces."""
    drops_nan: bool = True
    """Whether a large maximum does, on the platforms that are compiled for."""
    widens: bool = True
    """Whether XLA makes float32 of bfloat16 for all that it does, as on the CPU alone."""
    doubles_bytes: bool = False
    """Whether a product of int8 matrices does: on GPUs XLA gives those that it has no code of its own for to
    a library, which adds them up twice (seen with jax 0.11.2 on an H200, in `jnp.matmul` as well)."""
    folds: bool = False
    """Whether casts of all floats may be folded away, as on GPUs, and not only those to bfloat16."""
    exact: set[int] = field(default_factory=set)
    """The ids of the equations whose maximum somebody needs with its NaN."""
    bare: bool = False
    """Whether what is stored leaves the program, so that nothing in it widens it again."""
    temporary: int = 0
    """The bytes of views that the current nest pads, and of what its scans go through."""
    here: Any = None
    """The equation whose rule runs."""
    notes: dict[Any, Any] = field(default_factory=dict)
    """What became of nests, stores and contractions, by their first result; `explain` reads them."""

    def note(self, what: Any, eqn: Any = None) -> None:
        """Notes what became of `eqn`, or of the equation whose rule runs."""
        self.notes[(self.here if eqn is None else eqn).outvars[0]] = what

    def demote(self, atoms: Iterable[Atom]) -> Restart:
        """Makes loops of axes, each of which may be given more than once."""
        for atom in set(atoms):
            self._cut(atom, atom.extent)
        return Restart()

    def fit(self, groups: Iterable[Group], shape: tuple[int, ...], itemsize: int) -> None:
        """Inside a loop, a value of these groups should fit the budget: cuts the outermost axis of the grid
        that it has, if it does not.
        """
        groups = tuple(groups)
        size = itemsize * math.prod(self.length(g, shape) for g in groups)
        atoms = [e for g in groups for e in g if isinstance(e, Atom) and e.extent > 1]
        if self.depth and size > self.budget and atoms:
            pieces = next(
                n for n in range(2, atoms[0].extent + 1) if _enough(atoms[0].extent, n, size, self.budget)
            )
            self._cut(atoms[0], pieces)
            raise Restart

    def stream(self, atom: Atom, size: int) -> Restart | None:
        """Cuts an axis so that of `size` bytes of temporaries a piece stays in cache; None if it can't be."""
        least = -(-size // min(CACHE, self.budget))
        pieces = next((n for n in range(least, atom.extent + 1) if atom.extent % n == 0), 0)
        if not pieces or pieces > 8 * least:
            return None
        self._cut(atom, pieces)
        return Restart()

    def _cut(self, atom: Atom, pieces: int) -> None:
        self.loops[atom.key] = self.loops.get(atom.key, 1) * pieces
        # What was known of its merged dimensions was of the longer axis.
        self.lengths = {k: n for k, n in self.lengths.items() if atom.key not in k}
        self.guessed = {k for k in self.guessed if atom.key not in k}

    def length(self, group: Group, shape: tuple[int, ...]) -> int:
        """The physical length of a dimension."""
        full = math.prod(extent_of(e, shape) for e in group)
        if not is_trimmable(group):
            return full
        key = _key(group, shape)
        if key not in self.lengths:
            self.lengths[key] = full
            self.guessed.add(key)
        return self.lengths[key]

    def want(self, group: Group, shape: tuple[int, ...], length: int) -> None:
        """Somebody needs the first `length` elements of a merged dimension."""
        if not is_trimmable(group):
            return
        key = _key(group, shape)
        have = self.lengths.setdefault(key, length)
        if key in self.guessed:
            self.guessed.discard(key)
            if length < have:
                self.lengths[key] = length
                raise Restart
        elif length > have:
            self.lengths[key] = length
            raise Restart

    def full(self, group: Group, shape: tuple[int, ...]) -> None:
        """Somebody needs all of a merged dimension."""
        full = math.prod(extent_of(e, shape) for e in group)
        if is_trimmable(group) and self.length(group, shape) < full:
            self.lengths[_key(group, shape)] = full
            raise Restart


def _enough(extent: int, pieces: int, size: int, budget: int) -> bool:
    return extent % pieces == 0 and (size <= budget * pieces or pieces == extent)


def is_trimmable(group: Group) -> bool:
    return len(group) > 1 and isinstance(group[-1], int)


def _key(group: Group, shape: tuple[int, ...]) -> Any:
    return (*(e.key for e in group if isinstance(e, Atom)), extent_of(group[-1], shape))


def constant(value: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Val:
    """`value` everywhere. An int32 is an affine form."""
    if np.dtype(dtype) == np.int32:
        return Val(shape, np.dtype(dtype), affine=Affine(int(value)))
    return Val(shape, np.dtype(dtype), const=np.asarray(value, dtype)[()])


def dense(array: Any) -> Val:
    """An ordinary array, the same for every program."""
    shape = tuple(array.shape)
    kept = tuple(i for i, n in enumerate(shape) if n != 1)
    return Val(
        shape,
        np.dtype(array.dtype),
        lax.reshape(array, [shape[i] for i in kept]) if len(kept) < len(shape) else array,
        tuple((i,) for i in kept),
    )


def to_dense(plan: Plan, val: Val) -> Any:
    """The array of a value that depends on no atom."""
    array = regroup(plan, val, tuple((i,) for i in range(len(val.shape)) if val.shape[i] != 1))
    return array if array.shape == val.shape else lax.reshape(array, val.shape)


def unify(vals: Sequence[Val]) -> tuple[Group, ...]:
    """The groups in which values of one shape combine: merged where no value needs it split, in the order
    of the value with the most dimensions."""
    merged = {g for v in vals for g in v.merged()}
    split = {g for g in merged if any(h != g and set(h) & set(g) for h in merged)}
    split |= {g for g in merged - split if any(_has_part(v, g) for v in vals) and _is_whole(g, vals)}
    out: list[Group] = []
    seen: set[Entry] = set()
    home = {e: g for g in merged - split for e in g}
    for val in sorted(vals, key=lambda v: -len(v.entries())):
        for entry in val.entries():
            if entry not in seen:
                group = home.get(entry, (entry,))
                out.append(group)
                seen.update(group)
    return tuple(out)


def _has_part(val: Val, group: Group) -> bool:
    """Whether an array varies along some entries of a merged dimension only. Merging them into it would make
    XLA divide indices in every element; to split what is merged costs nothing."""
    alone = {g[0] for g in val.groups if len(g) == 1}
    return val.array is not None and 0 < len(alone & set(group)) < len(group)


def _is_whole(group: Group, vals: Sequence[Val]) -> bool:
    """Whether there is an array with a merged dimension that is not trimmed."""
    shape = vals[0].shape
    lengths = [v.array.shape[v.groups.index(group)] for v in vals if group in v.groups and np.ndim(v.array)]
    return math.prod(extent_of(e, shape) for e in group) in lengths


def regroup(plan: Plan, val: Val, target: tuple[Group, ...]) -> Any:
    """The array of `val` with exactly the dimensions `target`, which has all of its entries; missing ones
    are broadcast."""
    lengths = [plan.length(g, val.shape) for g in target]
    if val.affine is not None:
        return _materialise(plan, val, target, lengths)
    if val.const is not None:
        return lax.full(lengths, val.const, val.dtype)
    if val.groups == target:
        return val.array
    val = split(plan, val, [g for g in val.merged() if g not in target])
    where = {g: i for i, g in enumerate(val.groups)}
    order: list[int] = []
    places: list[int] = []
    inner: list[int] = []  # the lengths before entries are merged
    for group, length in zip(target, lengths, strict=True):
        if group in where:
            order.append(where[group])
            places.append(len(inner))
            inner.append(length)
        elif not any((e,) in where for e in group):
            inner.append(length)
        else:
            for e in group:
                if (e,) in where:
                    order.append(where[e,])
                    places.append(len(inner))
                inner.append(extent_of(e, val.shape))
    array = val.array if order == sorted(order) else lax.transpose(val.array, order)
    if array.shape != tuple(inner):
        array = lax.broadcast_in_dim(array, inner, places)
    if len(inner) == len(target):
        return array
    full, at = [], 0
    for group in target:
        whole = group in where or not any((e,) in where for e in group)
        count = 1 if whole else len(group)
        full.append(math.prod(inner[at : at + count]))
        at += count
    return _cut(lax.reshape(array, full), lengths)


def _cut(array: Any, lengths: Sequence[int]) -> Any:
    return array if tuple(array.shape) == tuple(lengths) else lax.slice(array, [0] * array.ndim, lengths)


def split(plan: Plan, val: Val, groups: Iterable[Group]) -> Val:
    """The value with each of `groups` split into a dimension an entry."""
    groups = [g for g in groups if g in val.groups]
    if not groups:
        return val
    out: list[Group] = []
    for g in val.groups:
        if g in groups:
            plan.full(g, val.shape)
            out.extend((e,) for e in g)
        else:
            out.append(g)
    shape = [plan.length(g, val.shape) for g in out]
    return Val(val.shape, val.dtype, lax.reshape(val.array, shape), tuple(out), zero_tail=val.zero_tail)


def split_entries(plan: Plan, val: Val, entries: Iterable[Entry]) -> Val:
    """The value as an array in which each of `entries` is a dimension of its own, broadcast if it was
    missing."""
    entries = list(entries)
    if val.array is None:
        groups = tuple((e,) for e in val.entries())
        val = Val(val.shape, val.dtype, regroup(plan, val, groups), groups)
    val = split(plan, val, [g for g in val.merged() if set(g) & set(entries)])
    missing = [e for e in entries if (e,) not in val.groups]
    if not missing:
        return val
    groups = (*val.groups, *((e,) for e in missing))
    return Val(val.shape, val.dtype, regroup(plan, val, groups), groups)


def _materialise(plan: Plan, val: Val, target: tuple[Group, ...], lengths: list[int]) -> Any:
    form = val.affine
    assert form is not None
    total: Any = None
    for dim, (group, length) in enumerate(zip(target, lengths, strict=True)):
        part = _along(group, length, form.coefs, val.shape)
        if part is not None:
            part = lax.broadcast_in_dim(part, lengths, (dim,))
            total = part if total is None else total + part
    scalar = np.int32(wrap(form.const)) if form.base is None else form.base + np.int32(wrap(form.const))
    if total is None:
        return lax.broadcast(jnp.asarray(scalar, np.int32), lengths)
    return total if form.base is None and form.const == 0 else total + scalar


def _along(group: Group, length: int, coefs: dict[Entry, int], shape: tuple[int, ...]) -> Any:
    """The part of an affine form that varies along one dimension."""
    inside = [(e, coefs.get(e, 0), extent_of(e, shape)) for e in group]
    if not any(c for _, c, _ in inside):
        return None
    index = lax.iota(np.int32, length)
    if all(a[1] == b[1] * b[2] for a, b in itertools.pairwise(inside)):
        return index * np.int32(wrap(inside[-1][1]))
    total: Any = None
    stride = math.prod(n for _, _, n in inside)
    for _, c, n in inside:
        stride //= n
        if c:
            part = lax.rem(lax.div(index, np.int32(stride)), np.int32(n)) * np.int32(wrap(c))
            total = part if total is None else total + part
    return total
