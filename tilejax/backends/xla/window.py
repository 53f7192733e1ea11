"""Windows: tiles of neighbouring programs that overlap, and what is picked from them at strides.

A stencil, a filter tap or a pooling window reads at `stride * index + constant` fewer or more elements than
the stride, and may pick from what it read at strides again. Such a tile stays a description of where each
element is in the view until somebody needs it. Then a few taps are one strided slice each, many are rows
gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...transforms.affine import Affine, range_of
from .value import Atom, Entry, Group, Plan, Val, split_entries

MAX_TAPS = 64
"""More taps than this are better one array."""


@dataclass(frozen=True)
class Tap:
    """A view dimension at `start + stride * place + dilation * index`: `place` is that in the merged axis
    `group`, of which the first `length` are read, `index` that in tile dimension `dim`."""

    dim: int | None
    count: int
    group: Group
    length: int
    start: int
    stride: int
    dilation: int = 1

    @property
    def last(self) -> int:
        return self.start + (self.length - 1) * self.stride + (self.count - 1) * self.dilation


@dataclass(frozen=True)
class Window:
    """The view's array, and what each of its dimensions is: a group of entries, or a `Tap`. Outside of the
    view are `fill`."""

    array: Any
    dims: tuple[Group | Tap, ...]
    fill: Any

    @property
    def taps(self) -> dict[int, Tap]:
        return {i: d for i, d in enumerate(self.dims) if isinstance(d, Tap)}

    @property
    def is_zero_outside(self) -> bool:
        return isinstance(self.fill, np.generic) and not self.fill.any()

    def entries(self) -> list[Entry]:
        out: list[Entry] = []
        for d in self.dims:
            out.extend(d.group if isinstance(d, Tap) else d)
            if isinstance(d, Tap) and d.dim is not None and d.count != 1:
                out.append(d.dim)
        return out

    def renamed(self, places: dict[int, int]) -> Window:
        """With tile dimension `i` become `places[i]`."""

        def group(g: Group) -> Group:
            return tuple(places[e] if isinstance(e, int) else e for e in g)

        def renamed(d: Group | Tap) -> Group | Tap:
            if not isinstance(d, Tap):
                return group(d)
            return replace(d, dim=None if d.dim is None else places.get(d.dim), group=group(d.group))

        return replace(self, dims=tuple(map(renamed, self.dims)))


def strided_atoms(coefs: dict[Any, int]) -> tuple[tuple[Atom, ...], int] | None:
    """The atoms of a start, outermost first, and its stride, if it is that stride times the index of one
    merged axis."""
    if not all(isinstance(a, Atom) for a in coefs):
        return None
    found = range_of(coefs, lambda atom: atom.extent)
    return None if found is None else (tuple(found[0]), found[1])


def as_window(plan: Plan, tile: Val, dims: Sequence[int]) -> Window:
    """A tile that is there, to be picked from along `dims`."""
    if tile.window is not None:
        return tile.window
    tile = split_entries(plan, tile, dims)
    every: list[Group | Tap] = []
    for group in tile.groups:
        dim = group[0]
        if isinstance(dim, int) and dim in dims:
            every.append(Tap(dim, tile.shape[dim], (), 1, 0, 1))
        else:
            every.append(group)
    return Window(tile.array, tuple(every), np.zeros((), tile.dtype)[()])


def picked(plan: Plan, window: Window, where: Sequence[Val | int], shape: tuple[int, ...]) -> Window | None:
    """The window of a gather inside of a window: `where` has for each of its tile dimensions that of the
    result, or the index. None if that is no window."""
    used: list[Entry] = []
    dims: list[Group | Tap] = []
    tapped = {tap.dim for tap in window.taps.values()}
    for dim, index in enumerate(where):  # one that is no tap has extent 1
        if dim not in tapped and isinstance(index, Val) and index.affine != Affine():
            return None
    for d in window.dims:
        if isinstance(d, Tap) and d.dim is not None and not isinstance(where[d.dim], int):
            index = where[d.dim]
            assert isinstance(index, Val)
            through = _through(plan, d, index.affine, shape)
            if through is None:
                return None
            dims.append(through)
            used.extend([*through.group, *(() if through.dim is None else (through.dim,))])
            continue
        places = {e: to for e in _ints(d) if isinstance(to := where[e], int)}
        if len(places) < len(_ints(d)):
            return None
        used.extend(places.values())
        dims.extend(Window(None, (d,), None).renamed(places).dims)
    ints = [e for e in used if isinstance(e, int)]
    return replace(window, dims=tuple(dims)) if len(set(ints)) == len(ints) else None


def _ints(d: Group | Tap) -> list[int]:
    entries = (*d.group, *(() if d.dim is None else (d.dim,))) if isinstance(d, Tap) else d
    return [e for e in entries if isinstance(e, int)]


def _through(plan: Plan, tap: Tap, form: Affine | None, shape: tuple[int, ...]) -> Tap | None:
    """A tap dimension picked from at `form`, an index that advances along at most two of the result's
    dimensions: one that goes on where the programs do, and one of taps."""
    if form is None or form.base is not None or len(form.coefs) > 2:
        return None
    if not all(isinstance(e, int) and c > 0 for e, c in form.coefs.items()):
        return None
    lo, hi = form.bounds(lambda e: shape[e])
    if lo < 0 or hi >= tap.count:
        return None
    step = {e: c * tap.dilation for e, c in form.coefs.items()}
    goes_on = [e for e in step if not tap.group or step[e] * shape[e] == tap.stride]
    place = max(goes_on, key=lambda e: (shape[e], -e), default=None)
    rest = [e for e in step if e != place]
    if len(rest) > 1:
        return None
    dim = rest[0] if rest else None
    group = tap.group if place is None else (*tap.group, place)
    return Tap(
        dim,
        shape[dim] if dim is not None else 1,
        group,
        plan.length(group, shape) if group else 1,
        tap.start + form.const * tap.dilation,
        tap.stride if place is None else step[place],
        1 if dim is None else step[dim],
    )


def padded(plan: Plan, window: Window) -> tuple[Any, dict[int, int]]:
    """The array with all that the taps read, and where in each of their dimensions index 0 is now."""
    array, config = window.array, [(0, 0, 0)] * window.array.ndim
    for i, tap in window.taps.items():
        config[i] = (max(-tap.start, 0), max(tap.last + 1 - array.shape[i], 0), 0)
    if any(low or high for low, high, _ in config):
        # Without the barrier XLA recomputes the padding in every tap.
        array = lax.optimization_barrier(lax.pad(array, jnp.asarray(window.fill, array.dtype), config))
        plan.temporary += array.nbytes
    return array, {i: config[i][0] for i in window.taps}


def taken(plan: Plan, window: Window, shape: tuple[int, ...]) -> Val:
    """All of a window as one array, whose rows are gathered along each dimension of taps."""
    array, zero = padded(plan, window)
    sizes: list[int] = []
    groups: list[Group] = []
    for i, d in enumerate(window.dims):
        if not isinstance(d, Tap):
            groups.extend([d] * bool(d))
            sizes.extend([array.shape[i]] * bool(d))
            continue
        places = np.arange(d.length)[:, None] * d.stride + np.arange(d.count) * d.dilation + d.start + zero[i]
        array = jnp.take(array, jnp.asarray(places.ravel(), np.int32), axis=i, mode="clip")
        groups.extend([d.group] * bool(d.group))
        sizes.extend([d.length] * bool(d.group))
        if d.dim is not None and d.count != 1:
            groups.append((d.dim,))
            sizes.append(d.count)
    return Val(shape, array.dtype, lax.reshape(array, sizes), tuple(groups))
