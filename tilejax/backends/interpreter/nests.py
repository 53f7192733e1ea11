"""Nests: the points of a domain one after another, row-major."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from .access import Tracker
from .evaluate import Place, Point, View, evaluate, plain, rule


def _domain(extents: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    return itertools.product(*map(range, extents))


@rule("tile_parallel", views=True)
def _parallel(eqn: Any, place: Place, *operands: Any) -> list[Any]:
    """Runs the programs in order, handing each the views as the one before left them. It cannot tell the
    difference from seeing them as the nest found them: an element that another program stored is a race."""
    names, extents = eqn.params["names"], eqn.params["extents"]
    split = len(operands) - eqn.params["num_views"]
    consts, given = operands[:split], operands[split:]
    trackers = [Tracker(plain(view).shape, names, extents) for view in given]
    views = [_watched(view, tracker) for view, tracker in zip(given, trackers, strict=True)]
    for number, indices in enumerate(_domain(extents)):
        for tracker in trackers:
            tracker.current = number
        here = place.enter(Point("program", names, indices))
        views = evaluate(eqn.params["body"], [*map(np.int32, indices), *consts, *views], here)
    return [_unwatched(view) for view in views]


def _watched(view: np.ndarray | View, tracker: Tracker) -> View:
    outer = view.trackers if isinstance(view, View) else ()
    return View(plain(view), (*outer, tracker))


def _unwatched(view: View) -> np.ndarray | View:
    outer = view.trackers[:-1]
    return View(view.array, outer) if outer else view.array


@rule("tile_serial", "tile_pipeline", views=True)
def _loop(eqn: Any, place: Place, *operands: Any) -> list[Any]:
    params = eqn.params
    names, extents, num_bounds = params["names"], params["extents"], params["num_bounds"]
    split = len(operands) - params["num_views"] - params["num_carry"]
    consts, state = operands[num_bounds:split], list(operands[split:])
    points = _domain(extents)
    if num_bounds:
        start, stop = map(int, operands[:num_bounds])
        points = ((i,) for i in range(max(start, 0), min(stop, *extents)))
    for indices in points:
        here = place.enter(Point("step", names, indices))
        state = evaluate(params["body"], [*map(np.int32, indices), *consts, *state], here)
    return state


@rule("tile_stage")
def _stage(eqn: Any, place: Place) -> list[Any]:
    """Cuts a pipeline; nothing to compute."""
    return []
