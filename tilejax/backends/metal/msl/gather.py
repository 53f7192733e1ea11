"""Gathers: an element is one of the tile at a computed index, if that is inside."""

from __future__ import annotations

from typing import Any

from .block import Block
from .evaluate import Frame, derived, rule
from .storage import Index, Tile
from .types import type_of


@rule("tile_gather")
def _gather(frame: Frame, eqn: Any, tile: Tile, *coords_and_fallback: Tile) -> Tile:
    *coords, fallback = coords_and_fallback
    shape, dims, coord_dims = (eqn.params[key] for key in ("shape", "dims", "coord_dims"))
    out = eqn.outvars[0].aval
    if out.size > tile.size and frame.kernel:
        tile = frame.often(tile)

    def element(block: Block, index: Index) -> str:
        other = block.get(fallback, ())
        if not tile.size:
            return other
        where, tests, given = [], [], iter(zip(coords, coord_dims, strict=True))
        for matched, n in zip(dims, tile.shape, strict=True):
            if matched is not None:
                where.append("0u" if n == 1 else index[matched])
                continue
            coord, placed = next(given)
            at = tuple("0u" if m == 1 else index[d] for d, m in zip(placed, coord.shape, strict=True))
            position = block.index(f"uint({block.get(coord, at)})")
            where.append("0u" if n == 1 else position)
            tests.append(f"{position} < {n}u")
        if not tests:
            return block.get(tile, tuple(where))
        result = block.variable(type_of(tile.dtype), other)
        with block.inner(f"if ({' && '.join(tests)})") as inside:
            inside.add(f"{result} = {inside.get(tile, tuple(where))};")
        return result

    return derived(tuple(shape), tile.dtype, element, [tile, *coords, fallback], 2)
