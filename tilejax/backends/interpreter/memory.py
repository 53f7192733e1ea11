"""Memories: a state is a tile, but every store goes through the layout's addresses and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._errors import LayoutError
from ...ir.pointmap import addresses
from .evaluate import Place, rule


@rule("tile_memory")
def _memory(eqn: Any, place: Place) -> np.ndarray:
    return np.zeros(eqn.params["layout"].extents, eqn.params["dtype"])


@rule("tile_memory_store")
def _store(eqn: Any, place: Place, state: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """The tile as it is read back from storage: `LayoutError` if that is not the tile that was stored."""
    layout = eqn.params["layout"]
    where = addresses(layout)
    storage = np.zeros(layout.codomain_size, tile.dtype)
    owner = np.zeros(layout.codomain_size, np.int64)
    storage[where] = tile
    owner[where] = np.arange(tile.size).reshape(tile.shape)
    if not np.array_equal(owner[where].reshape(-1), np.arange(tile.size)):
        raise LayoutError(
            f"store to {eqn.params['name']} by {place}: its layout {layout} is not injective",
            loc=eqn.params["loc"],
        )
    return storage[where]


@rule("tile_memory_load")
def _load(eqn: Any, place: Place, state: np.ndarray) -> np.ndarray:
    return state
