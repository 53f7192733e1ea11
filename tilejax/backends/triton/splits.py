"""Which work of few programs more of them share: the steps of a loop that only accumulates, and the pieces of
long rows."""

from __future__ import annotations

import math
from typing import Any

from ...ir.jaxprs import equations
from ...transforms.pipeline import static_trips
from ...transforms.rows import spread_rows
from ...transforms.splits import split_loops
from .device import cores
from .schedule import contracts, lane_extents, lanes_of, rows_of, tiles_of
from .tiles import padded

RESIDENT = 8
"""The programs that a multiprocessor should have at once."""
PRODUCTS = 1
"""The same of programs with products, whose shared memory is full."""
LONG = 32
"""Fewer steps are done before two more launches are."""
LEAST = 4
"""The steps that are worth a program; so many times what it leaves must it load at least, too."""


PIECE = 4096
"""The elements of a row that are a program."""


def split(program: Any) -> Any:
    """The program with those rows in pieces and those loops split."""
    return split_loops(spread_rows(program, rows), pieces)


def rows(nest: Any) -> tuple[int, int] | None:
    """The extent of the rows of a nest that are too long for its few programs, or to be scanned in one, and
    that of a piece."""
    found, eqns = rows_of(nest), list(equations(nest.params["body"].jaxpr.eqns))
    few = math.prod(nest.params["extents"]) < 2 * cores()
    if found is None or not (few or any(e.primitive.name == "tile_scan" for e in eqns)):
        return None
    shapes = [v.aval.shape for e in eqns for v in tiles_of(e)]
    beside = max(math.prod(s) // found[0] for s in shapes if found[0] in s)
    return found[0], max(PIECE // padded(beside), 1)


def pieces(nest: Any, loop: Any) -> int:
    """How many programs each run a range of a loop's steps: as many as the device takes beside the others."""
    extents, products = nest.params["extents"], contracts(nest.params["body"].jaxpr)
    lanes = None if products else lanes_of(nest)
    programs = math.prod(lane_extents(extents, lanes) if lanes else extents)
    trips = static_trips(loop)
    steps = math.prod(loop.params["extents"]) if trips is None else len(trips)
    if steps < LONG:
        return 1
    left = sum(v.aval.size * v.aval.dtype.itemsize for v in loop.outvars)
    least = max(LEAST, -(-LEAST * left // max(_loaded(loop.params["body"].jaxpr), 1)))
    return min(cores() * (PRODUCTS if products else RESIDENT) // max(programs, 1), steps // least)


def _loaded(jaxpr: Any) -> int:
    """The bytes that a step loads."""
    total = 0
    for eqn in jaxpr.eqns:
        if "body" in eqn.params:
            total += math.prod(eqn.params["extents"]) * _loaded(eqn.params["body"].jaxpr)
        elif eqn.primitive.name == "tile_load":
            total += eqn.outvars[0].aval.size * eqn.outvars[0].aval.dtype.itemsize
    return total
