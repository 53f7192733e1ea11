"""Memories: a state is a tile, but every store goes to the layout's addresses and comes back from there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..._errors import LayoutError
from ...ir.pointmap import PointMap, addresses
from .evaluate import Place, rule


@functools.lru_cache(maxsize=64)
def _places(layout: PointMap) -> tuple[np.ndarray, int]:
    """Which of the addresses that are used each element has, and how many these are."""
    distinct, places = np.unique(addresses(layout), return_inverse=True)
    return places.reshape(layout.extents), len(distinct)


@rule("tile_memory")
def _memory(eqn: Any, place: Place) -> np.ndarray:
    return np.zeros(eqn.params["layout"].extents, eqn.params["dtype"])


@rule("tile_memory_store")
def _store(eqn: Any, place: Place, state: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """The tile as it is read back: `LayoutError` where elements overwrite each other."""
    layout = eqn.params["layout"]
    places, count = _places(layout)
    if count < layout.size:
        raise LayoutError(
            f"store to {eqn.params['name']} by {place}: its layout {layout} gives elements one address",
            loc=eqn.params["loc"],
        )
    storage = np.zeros(count, tile.dtype)
    storage[places] = tile
    return storage[places]


@rule("tile_memory_load")
def _load(eqn: Any, place: Place, state: np.ndarray) -> np.ndarray:
    return state
