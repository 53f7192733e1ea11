"""Where operands are worth a copy with zeros at their ends: a product reads each element many times, and rows
that do not start on 16 bytes, or need a mask, are read slowly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...transforms.accesses import Access, Walk
from .schedule import contracts

_REUSE = 8
"""How often each element must be read, at least."""


def room_of(eqn: Any) -> list[tuple[int, ...]]:
    """The shape in memory of each operand of a `tile_parallel`: its own, or more if it is only read."""
    params = eqn.params
    shapes = [tuple(v.aval.shape) for v in eqn.invars]
    if not contracts(params["body"].jaxpr):
        return shapes
    walk = Walk()
    indices = walk.enter(eqn, eqn.invars, {}, {}, True)
    roots = params["body"].jaxpr.invars[len(indices) :]
    rooms = []
    for i, (root, shape) in enumerate(zip(roots, shapes, strict=True)):
        mine = [a for a in walk.accesses if a.root is root]
        read_only = mine and i < len(shapes) - params["num_views"] and all(a.affine for a in mine)
        reused = read_only and all(_reuse(a, indices, walk.extents) >= _REUSE for a in mine)
        rooms.append(_room(shape, root.aval.dtype.itemsize, mine, walk.extents) if reused else shape)
    return rooms


def _reuse(access: Access, indices: Sequence[Any], extents: dict[Any, int]) -> int:
    """How many programs read the same."""
    used = {i for start in access.starts for i in start.coefs}
    return math.prod(extents[i] for i in indices if i not in used)


def _room(
    shape: tuple[int, ...], itemsize: int, accesses: Sequence[Access], extents: dict[Any, int]
) -> tuple[int, ...]:
    reach = list(shape)
    for access in accesses:
        for d, (start, n) in enumerate(zip(access.starts, access.extents, strict=True)):
            reach[d] = max(reach[d], start.bounds(extents.__getitem__)[1] + n)
    line = max(16 // itemsize, 1)
    reach[-1] = -(-reach[-1] // line) * line
    worth = 0 not in shape and math.prod(reach) <= 2 * math.prod(shape)
    return tuple(reach) if worth else shape
