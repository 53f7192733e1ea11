"""Explicit memories: arrays whose elements lie where their layout says."""

from __future__ import annotations

from typing import Any

from ....ir.pointmap import PointMap
from ....ir.types import Scope
from ...placement import size_of
from .block import Block
from .evaluate import Frame, rule
from .kernel import aligned
from .storage import Index, Memory, Tile, stored


def bytes_of(jaxpr: Any) -> int:
    """The threadgroup memory that the memories of a body take."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "tile_memory":
            total += aligned(size_of(eqn))
        elif "body" in eqn.params and eqn.params.get("scope") is not Scope.WORKER:
            total += bytes_of(eqn.params["body"].jaxpr)
    return total


@rule("tile_memory")
def _memory(frame: Frame, eqn: Any) -> Memory:
    kernel, layout = frame.kernel, eqn.params["layout"]
    assert kernel is not None
    storage = kernel.allocate(eqn.params["dtype"], layout.codomain_size, memory=True)
    return Memory(stored(storage, layout.extents, lambda block, index: _address(block, layout, index)))


@rule("tile_memory_store")
def _store(frame: Frame, eqn: Any, memory: Memory, tile: Tile) -> Memory:
    kernel, target = frame.kernel, memory.stored
    assert kernel is not None
    if target.storage in tile.reads:
        tile = frame.copy(tile)
    frame.protect(target.storage)
    with kernel.each(target.shape) as (block, index):
        block.write(target.storage, target.place(block, index), block.get(tile, index), "flat")
    return memory


@rule("tile_memory_load")
def _load(frame: Frame, eqn: Any, memory: Memory) -> Tile:
    return memory.stored


_FUNCTIONS = {"//": "tj_floor_div", "%": "tj_floor_mod"}


def _address(block: Block, layout: PointMap, index: Index) -> str:
    """The row-major position of an element in the codomain: the layout's arithmetic, in 64 bits as it is
    defined."""
    values: list[str] = []
    for kind, left, right in layout.ops:
        if kind == "const":
            values.append(f"{left}l" if left >= 0 else f"({left}l)")
        elif kind == "index":
            values.append(f"long({index[left]})")
        elif kind in _FUNCTIONS:
            values.append(block.define("long", f"{_FUNCTIONS[kind]}({values[left]}, {values[right]})"))
        else:
            values.append(block.define("long", f"({values[left]} {kind} {values[right]})"))
    flat = ""
    for i, extent in zip(layout.outputs, layout.codomain, strict=True):
        flat = f"({flat} * {extent}l + {values[i]})" if flat else values[i]
    return block.define("uint", f"uint({flat})")
