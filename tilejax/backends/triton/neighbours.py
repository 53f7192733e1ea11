"""Small programs that read much of the same: where windows overlap along an axis of the grid, a few of its
neighbours run in one, which loads an element for all of them and keeps it in a register."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...transforms.accesses import Walk
from ...transforms.affine import Affine
from .cuts import Facts
from .lanes import is_short
from .tiles import padded

COUNT = 4
"""How many neighbours run in one."""
ELEMENTS = 4
"""How many elements of a cell a thread has then."""


@dataclass
class Shared:
    """What neighbours have in common while they are traced."""

    loaded: dict[Any, Any] = field(default_factory=dict)
    """What was loaded, by its affine place in a view."""
    stores: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done after all loads: a compiler moves none over a store."""

    def once(self, key: Any, load: Callable[[], Any]) -> Any:
        if key is None:
            return load()
        if key not in self.loaded:
            self.loaded[key] = load()
        return self.loaded[key]

    def store(self) -> None:
        for store in self.stores:
            store()


@dataclass(frozen=True)
class Neighbours:
    """So many programs along an axis of a grid that run in one."""

    axis: int
    count: int
    extent: int
    """Of the axis."""
    warps: int

    def grid(self, extents: Sequence[int]) -> list[int]:
        return [-(-n // self.count) if i == self.axis else n for i, n in enumerate(extents)]

    def at(
        self, facts: Facts, indices: Sequence[Any], forms: Sequence[Affine], number: int
    ) -> tuple[list[Any], list[Affine]]:
        """The indices of one of them, and their forms. The last ones of a ragged grid run twice."""
        last = self.extent - self.count
        first = jnp.minimum(indices[self.axis] * np.int32(self.count), np.int32(last))
        facts.extents[self], facts.indices[self] = last + 1, first
        here, there = list(indices), list(forms)
        here[self.axis] = first + np.int32(number)
        there[self.axis] = Affine(number, {self: 1} if last else {})
        return here, there


def neighbours(eqn: Any, lanes: tuple[int, int]) -> Neighbours | None:
    """Those of a `tile_parallel` whose loads overlap, along another axis than the lanes. None if there are
    none, or a program has loops, contracts, or loads what it stores."""
    extents, body = eqn.params["extents"], eqn.params["body"].jaxpr
    names = {e.primitive.name for e in body.eqns}
    if names & {"tile_serial", "tile_pipeline", "tile_parallel", "tile_mma"}:
        return None
    walk = Walk()
    indices = walk.enter(eqn, eqn.invars, {}, {}, True)
    loads = [a for a in walk.accesses if not a.stores]
    stored = {a.root for a in walk.accesses if a.stores}
    if not all(a.affine for a in walk.accesses) or any(a.root in stored for a in loads):
        return None
    tiles = [v.aval.shape for e in body.eqns if e.primitive.name != "tile_store" for v in e.outvars]
    long = max(math.prod(padded(n) for n in shape if not is_short(n)) for shape in tiles)
    warps = min(max(lanes[1] * long // (32 * ELEMENTS), 1), 8)
    for axis, index in enumerate(indices):
        steps = [(s.coefs.get(index, 0), n) for a in loads for s, n in zip(a.starts, a.extents, strict=True)]
        if axis != lanes[0] and any(0 < abs(step) < n for step, n in steps):
            return Neighbours(axis, min(COUNT, extents[axis]), extents[axis], warps)
    return None
