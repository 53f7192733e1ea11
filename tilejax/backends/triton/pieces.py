"""Which products are summed in pieces, so that a program does not hold their factors whole."""

from __future__ import annotations

import math
from typing import Any

from ...ir.jaxprs import contracted
from ...transforms.contractions import in_pieces
from .recut import matrices_of
from .schedule import lanes_of
from .tiles import padded

HELD = 96 * 1024
"""The bytes of two factors that a program may hold: they go through shared memory."""
BYTES = 128
"""Those of a row of a piece; it is a line of memory."""
IN_ORDER = 8
"""The elements of a piece whose terms are added one after another."""


def pieces(program: Any) -> Any:
    """The program with loops for those products."""
    return in_pieces(program, depth_of)


def depth_of(nest: Any, eqn: Any) -> int:
    """How much a piece of a `tile_mma` of a `tile_parallel` sums: all of it in nests that are cut anew."""
    total = summed(eqn)
    if lanes_of(nest) is not None or matrices_of(nest) is not None:
        return total
    if not eqn.params["allow_reassociation"]:
        return min(IN_ORDER, total)
    factors = [v.aval for v in eqn.invars[:2]]
    itemsize = max(a.dtype.itemsize for a in factors)
    held = itemsize * sum(math.prod(map(padded, a.shape)) for a in factors)
    return total if held <= HELD else min(BYTES // itemsize, total)


def summed(eqn: Any) -> int:
    """How many terms each element of a product has."""
    extents = dict(zip(eqn.params["a_labels"], eqn.invars[0].aval.shape, strict=True))
    return math.prod(extents[x] for x in contracted(eqn))
