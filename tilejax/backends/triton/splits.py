"""How many programs share the steps of a loop that only accumulates, where programs are few."""

from __future__ import annotations

import math
from typing import Any

from ...transforms.pipeline import static_trips
from ...transforms.splits import split_loops
from .device import cores
from .schedule import contracts, lane_extents, lanes_of

RESIDENT = 4
"""The programs that a multiprocessor should have at once."""
PRODUCTS = 1
"""The same of programs with products."""
LONG = 32
"""Fewer steps are done before two more launches are."""
LEAST = 4
"""The steps that are worth a program."""


def split(program: Any) -> Any:
    """The program with those loops split."""
    return split_loops(program, pieces)


def pieces(nest: Any, loop: Any) -> int:
    """How many programs each run a range of a loop's steps: as many as the device takes beside the others."""
    extents, products = nest.params["extents"], contracts(nest.params["body"].jaxpr)
    lanes = None if products else lanes_of(nest)
    programs = math.prod(lane_extents(extents, lanes) if lanes else extents)
    trips = static_trips(loop)
    steps = math.prod(loop.params["extents"]) if trips is None else len(trips)
    if steps < LONG:
        return 1
    return min(cores() * (PRODUCTS if products else RESIDENT) // max(programs, 1), steps // LEAST)
