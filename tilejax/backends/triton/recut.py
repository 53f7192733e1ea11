"""Nests that are products of matrices, however their user cut them: a convolution of single pixels, a product
whose whole K is one load. Each element that they store is made of sums of products and of what is at hand
there. The dimensions of the stored view along which one factor alone varies are the rows, those of the other
the columns, and both are cut into blocks that suit the matrix units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .blocks import Blocks, blocks_for
from .elements import Elements, elements_of
from .points import Frame, NotPoints, Places, Point, key
from .pointwise import Pointwise
from .sums import Sum, sum_of


@dataclass(frozen=True)
class Matrices:
    """A nest as products of matrices."""

    nest: Elements
    outer: tuple[Any, ...]
    """The dimensions of the view along which both factors vary, or neither: each index is a program of its
    own."""
    rows: tuple[Any, ...]
    columns: tuple[Any, ...]
    turned: frozenset[Any]
    """The products whose first factor has the columns, by their result and the point of an element."""
    sums: dict[Any, Sum]
    blocks: Blocks
    itemsize: int

    def count(self, wholes: Sequence[Any]) -> int:
        return math.prod(self.nest.places.extents[w] for w in wholes)

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many programs there are, by what they are for."""
        rows, columns = self.count(self.rows), self.count(self.columns)
        return self.count(self.outer), -(-rows // self.blocks.rows), -(-columns // self.blocks.columns)

    @property
    def stages(self) -> int:
        return self.blocks.stages(self.itemsize)


def matrices_of(eqn: Any) -> Matrices | None:
    """A `tile_parallel` as products of matrices, if it is that."""
    body = eqn.params["body"].jaxpr
    shapes = [v.aval.shape for e in body.eqns for v in (*e.invars, *e.outvars)]
    if not any(e.primitive.name == "tile_mma" for e in body.eqns) or any(0 in s for s in shapes):
        return None
    try:
        return _Reader(eqn).read()
    except NotPoints:
        return None


@dataclass
class _Reader:
    eqn: Any
    places: Places = field(default_factory=Places)
    sums: dict[Any, Sum] = field(default_factory=dict)
    factors: list[tuple[Any, frozenset[Any], frozenset[Any]]] = field(default_factory=list)
    """Of each product the wholes along which its factors vary."""

    def read(self) -> Matrices:
        nest = elements_of(self.eqn, self._contract)
        self.places = nest.places
        for store in nest.stores:
            nest.evaluator.array(store.invars[1], nest.tile, Frame(nest.places, used=set()))
        if not self.sums:
            raise NotPoints
        count = nest.places.extents.__getitem__
        outer, rows, columns, turned = self._roles([d for d in range(len(nest.tile)) if count(d) > 1])
        makers = nest.evaluator.makers
        itemsizes = [makers[out].invars[0].aval.dtype.itemsize for out in self.sums]
        m, n = math.prod(map(count, rows)), math.prod(map(count, columns))
        if max(m, n) > _MOST or (outer and m * n < _LEAST):
            raise NotPoints
        depth = max(count(s.depth) for s in self.sums.values())
        blocks = blocks_for(m, n, depth, math.prod(map(count, outer)), itemsizes)
        return Matrices(nest, outer, rows, columns, turned, self.sums, blocks, max(itemsizes))

    def _contract(self, evaluator: Pointwise, eqn: Any, point: Point, frame: Frame) -> None:
        """Notes what the factors of a product vary along."""
        out = eqn.outvars[0]
        if out not in self.sums:
            self.sums[out] = sum_of(eqn, self.places)
        used = []
        for var, at in self.sums[out].factors(eqn, point):
            inner = Frame(self.places, inner=True, used=set())
            evaluator.array(var, at, inner)
            used.append(frozenset(map(self.places.owner, inner.used or ())))
        self.factors.append(((out, key(point)), *used))
        evaluator.array(eqn.invars[2], point, frame)

    def _roles(self, dims: Sequence[int]) -> tuple[Any, Any, Any, frozenset[Any]]:
        """The outer dimensions, the rows, the columns, among which is the last one, and what is turned."""
        turned, left, right = set(), [], []
        for this, a, b in self.factors:
            if dims and dims[-1] in a and dims[-1] not in b:
                turned.add(this)
                a, b = b, a
            left.append(a)
            right.append(b)
        both = {d for d in dims if any(d in a for a in left) and any(d in b for b in right)}
        columns = tuple(d for d in dims if d not in both and any(d in b for b in right))
        rows = tuple(d for d in dims if d not in both and d not in columns)
        return tuple(d for d in dims if d in both), rows, columns, frozenset(turned)


_LEAST = 256
"""A product of fewer elements is none for the matrix units, if there are many."""
_MOST = 2**31 - 2**16
"""So many rows or columns are counted in 32 bits."""
