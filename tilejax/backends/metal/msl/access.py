"""Loads and stores of views. An element is inside where each index, as an unsigned number, is below the
extent: one comparison finds both ends, wherever the start is."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any

from ....ir.types import Bounds
from .block import Block
from .evaluate import Frame, derived, rule
from .kernel import Kernel
from .storage import Index, Stored, Tile
from .types import type_of


def _place(
    kernel: Kernel | None,
    block: Block,
    index: Index,
    starts: Sequence[Tile],
    extents: Sequence[int],
    view: Sequence[int],
    bounds: Bounds,
) -> tuple[Index, str]:
    """The indices in the view of an element of the tile, and the condition that it is inside, or ""."""
    where, tests = [], []
    for i, start, extent, size in zip(index, starts, extents, view, strict=True):
        first = f"uint({block.get(start, ())})"
        form = start.form
        if form is not None and form.is_constant:
            first = f"{form.const % 2**32}u"
        where.append(block.index(first if i == "0u" else i if first == "0u" else f"{first} + {i}"))
        low, high = (-math.inf, math.inf)
        if form is not None:
            low, high = form.bounds(kernel.extents.__getitem__ if kernel else lambda _: 0)
        if bounds is Bounds.ZERO and (low < 0 or high + extent > size):
            tests.append(f"{where[-1]} < {size}u")
    return tuple(where), " && ".join(tests)


def _owner(block: Block, index: Index, starts: Sequence[Tile], extents: Sequence[int]) -> Hashable:
    """Which thread touches an element of a view: always the same if tiles of these extents lie side by side
    and each thread takes the elements of its own number."""
    if not block.owns(index, extents):
        return None
    forms = [s.form for s in starts]
    residues = []
    for form, n in zip(forms, extents, strict=True):
        if form is None or form.base is not None or any(c % n for c in form.coefs.values()):
            return None
        residues.append(form.const % n)
    return ("side by side", tuple(extents), tuple(residues))


@rule("tile_load")
def _load(frame: Frame, eqn: Any, view: Tile, *starts_and_fallback: Tile) -> Tile:
    *starts, fallback = starts_and_fallback
    shape, bounds = tuple(eqn.params["shape"]), eqn.params["bounds"]

    def element(block: Block, index: Index) -> str:
        other = block.get(fallback, ())
        if not view.size or 0 in shape:
            return other
        where, inside = _place(frame.kernel, block, index, starts, shape, view.shape, bounds)
        if isinstance(view, Stored):
            owner = _owner(block, index, starts, shape)
            return block.read(view.storage, view.place(block, where), owner, inside, other)
        if not inside:
            return block.get(view, where)
        result = block.variable(type_of(view.dtype), other)
        with block.inner(f"if ({inside})") as there:
            there.add(f"{result} = {there.get(view, where)};")
        return result

    tile = derived(shape, view.dtype, element, [view, *starts, fallback])
    if frame.kernel and any(s.mutable for s in view.reads):
        return frame.store(tile)  # what is stored later must not be seen
    return tile


@rule("tile_store")
def _store(frame: Frame, eqn: Any, view: Stored, tile: Tile, *starts: Tile) -> Tile:
    kernel = frame.kernel
    assert kernel is not None
    if view.size and tile.size:
        with kernel.each(tile.shape) as (block, index):
            where, inside = _place(kernel, block, index, starts, tile.shape, view.shape, eqn.params["bounds"])
            owner = _owner(block, index, starts, tile.shape)
            with block.inner(f"if ({inside})") if inside else nullcontext(block) as there:
                value = there.get(tile, index)
                there.write(view.storage, view.place(there, where), value, owner)
    return view
