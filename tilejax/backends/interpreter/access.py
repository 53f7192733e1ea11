"""Loads and stores, and the checks on them: out of bounds, and races between the programs of a parallel nest.

Programs run one after another, so a race is an element with two different owners. Of each element a tracker
remembers the program that stored it and the first that read it. The first is enough: when a program stores
an element that it was itself the first to read, no other program has run since.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._errors import BoundsError, RaceError
from ...ir.types import Bounds
from .evaluate import Place, Point, View, plain, rule

_NOBODY = -1


class Tracker:
    """Who touched each element of one view within one run of one parallel nest.

    `current` is the program that runs now, as its row-major number in the domain."""

    def __init__(self, shape: tuple[int, ...], names: tuple[Any, ...], extents: tuple[int, ...]):
        self.names, self.extents = names, extents
        self.current = _NOBODY
        self._writer = np.full(shape, _NOBODY, np.int32)
        self._reader = np.full(shape, _NOBODY, np.int32)

    def load(self, region: tuple[slice, ...], name: str, loc: Any) -> None:
        self._refuse_others(self._writer, region, "reads", "was stored by", name, loc)
        reader = self._reader[region]
        reader[reader == _NOBODY] = self.current

    def store(self, region: tuple[slice, ...], name: str, loc: Any) -> None:
        self._refuse_others(self._writer, region, "stores", "was also stored by", name, loc)
        self._refuse_others(self._reader, region, "stores", "was read by", name, loc)
        self._writer[region] = self.current

    def _refuse_others(
        self, owner: np.ndarray, region: tuple[slice, ...], does: str, was: str, name: str, loc: Any
    ) -> None:
        others = (owner[region] != _NOBODY) & (owner[region] != self.current)
        if others.any():
            inside = np.argwhere(others)[0]
            element = tuple(int(i) + part.start for i, part in zip(inside, region, strict=True))
            raise RaceError(
                f"a race: {self._program(self.current)} {does} element {element} of {name}, which {was} "
                f"{self._program(int(owner[element]))}. The programs of a parallel nest must not touch the "
                "same element if one of them stores it: use serial for what depends on the order",
                loc=loc,
            )

    def _program(self, number: int) -> Point:
        return Point("program", self.names, tuple(int(i) for i in np.unravel_index(number, self.extents)))


def _overlap(
    view: np.ndarray, shape: tuple[int, ...], starts: list[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of the view that the tile covers, as a region of the view and as one of the tile."""
    region, part = [], []
    for extent, size, start in zip(view.shape, shape, starts, strict=True):
        low = min(max(start, 0), extent)
        high = max(min(start + size, extent), low)
        region.append(slice(low, high))
        part.append(slice(low - start, high - start) if high > low else slice(0, 0))
    return tuple(region), tuple(part)


def _check_bounds(
    verb: str, eqn: Any, place: Place, view: np.ndarray, shape: tuple[int, ...], starts: list[int]
) -> None:
    if eqn.params["bounds"] is not Bounds.ASSUME or 0 in shape:
        return
    for dim, (start, size, extent) in enumerate(zip(starts, shape, view.shape, strict=True)):
        if start < 0 or start + size > extent:
            element = list(starts)
            element[dim] = start if start < 0 else max(start, extent)
            raise BoundsError(
                f"{verb} of element {tuple(element)} of {eqn.params['name']}, which has shape {view.shape}, "
                f"by {place}. Bounds.ASSUME promises that an access stays inside: use Bounds.ZERO, or "
                "correct the origin",
                loc=eqn.params["loc"],
            )


@rule("tile_load", views=True)
def _load(eqn: Any, place: Place, view: np.ndarray | View, *starts_and_fallback: np.ndarray) -> np.ndarray:
    starts, fallback = list(map(int, starts_and_fallback[:-1])), starts_and_fallback[-1]
    array, shape = plain(view), eqn.params["shape"]
    _check_bounds("load", eqn, place, array, shape, starts)
    region, part = _overlap(array, shape, starts)
    for tracker in view.trackers if isinstance(view, View) else ():
        tracker.load(region, eqn.params["name"], eqn.params["loc"])
    tile = np.full(shape, fallback, array.dtype)
    tile[part] = array[region]
    return tile


@rule("tile_store", views=True)
def _store(
    eqn: Any, place: Place, view: np.ndarray | View, tile: np.ndarray, *origin: np.ndarray
) -> np.ndarray | View:
    array, starts = plain(view), list(map(int, origin))
    _check_bounds("store", eqn, place, array, tile.shape, starts)
    region, part = _overlap(array, tile.shape, starts)
    new = array.copy()
    new[region] = tile[part]
    if not isinstance(view, View):
        return new
    for tracker in view.trackers:
        tracker.store(region, eqn.params["name"], eqn.params["loc"])
    return View(new, view.trackers)
