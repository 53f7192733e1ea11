"""How many warps run a program and how many steps of a loop are loaded ahead: what was fastest on an H200."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..._errors import UnsupportedError
from ...ir.jaxprs import equations
from ...transforms.accumulate import operations
from ...transforms.hazards import hazard
from ...transforms.parts import is_split
from . import merges
from .device import cores, room_for_loads, shared_bytes
from .lanes import is_short
from .sorting import searches
from .tiles import padded


def contracts(jaxpr: Any) -> bool:
    """Whether a body has products of tiles."""
    return any(eqn.primitive.name == "tile_mma" for eqn in equations(jaxpr.eqns))


def warps_of(jaxpr: Any) -> int:
    """Enough that a thread holds some tens of elements of the largest tile."""
    largest = {"tile_mma": 1, "tile_reduce": 1, "": 1}
    for eqn in equations(jaxpr.eqns):
        if "body" in eqn.params or eqn.primitive.name == "tile_store":
            continue
        results = max((math.prod(v.aval.shape) for v in eqn.outvars), default=1)
        operands = max((math.prod(v.aval.shape) for v in eqn.invars), default=1)
        largest[""] = max(largest[""], results)
        if eqn.primitive.name == "tile_mma":
            largest["tile_mma"] = max(largest["tile_mma"], results)
        elif eqn.primitive.name == "tile_reduce":
            largest["tile_reduce"] = max(largest["tile_reduce"], operands)
    sorts = [eqn for eqn in equations(jaxpr.eqns) if eqn.primitive.name in ("tile_sort", "tile_top_k")]
    if sorts:
        longest = max(padded(math.prod(e.invars[0].aval.shape)) for e in sorts)
        if all(_searched(e) for e in sorts):
            return min(max(longest // 512, 1), 8)
        return min(max(longest // 256, 1), 16)
    if largest["tile_mma"] > 1:
        return 4 if largest["tile_mma"] <= 8192 else 8
    reduces, size = largest["tile_reduce"] > 1, largest[""]
    if reduces and size <= 1024 and not any("num_carry" in e.params for e in equations(jaxpr.eqns)):
        return 1  # its threads reduce without waiting for others
    loaded = [v.aval for e in equations(jaxpr.eqns) for v in e.outvars if _is_load(e)]
    if reduces and 4096 < size <= 16384 and any(a.size == size and a.dtype.itemsize == 4 for a in loaded):
        return 16 if size <= 8192 else 32
    loads = sum(a.size for a in loaded)
    return 4 if size <= (2048 if reduces else 4096) else 8 if max(size, loads) <= 32768 else 16


def _searched(eqn: Any) -> bool:
    """Whether a sort or selection is a search."""
    p = eqn.params
    return "k" in p and searches(eqn.invars[0].aval.shape[p["axis"]], p["k"], False)


def _is_load(eqn: Any) -> bool:
    return eqn.primitive.name == "tile_load"


def stages_of(nest: Any, asked: int | None) -> int:
    """How many steps' loads a launch has under way: one where a load might so pass a store of what it reads,
    for which Triton does not look."""
    stages = asked or _fastest_stages(nest.params["body"].jaxpr)
    return stages if stages < 2 or hazard(nest, stages - 1) is None else 1


def _fastest_stages(jaxpr: Any) -> int:
    """Three, or four where a loop only adds one product of short numbers; fewer where their loads would not
    fit."""
    products = [eqn for eqn in equations(jaxpr.eqns) if eqn.primitive.name == "tile_mma"]
    alone = len(products) == 1 and products[0].invars[0].aval.dtype.itemsize <= 2
    return min(4 if alone else 3, max(1, room_for_loads() // max(stage_bytes(jaxpr), 1)))


def stage_bytes(jaxpr: Any) -> int:
    """The bytes that a step of its loops loads for products, which go through shared memory."""
    loops = [eqn for eqn in equations(jaxpr.eqns) if "num_carry" in eqn.params]
    steps = [e for loop in loops for e in loop.params["body"].jaxpr.eqns]
    if not any(e.primitive.name == "tile_mma" for e in steps):
        return 0
    loads = [v.aval for e in steps if e.primitive.name == "tile_load" for v in e.outvars]
    return sum(math.prod(map(padded, a.shape)) * a.dtype.itemsize for a in loads)


def check_size(eqn: Any, stages: int) -> None:
    """`UnsupportedError` for programs of a `tile_parallel` that hold more than Triton or the device can."""
    jaxpr, nest = eqn.params["body"].jaxpr, f"parallel({', '.join(eqn.params['names'])})"
    has = shared_bytes()
    if (needs := stages * stage_bytes(jaxpr)) > has:
        raise UnsupportedError(
            f"{nest}: one program needs {needs} bytes of shared memory for the loads of {stages} steps, but "
            f"the device has {has}: take smaller blocks, or fewer num_stages",
            loc=eqn.params["loc"],
        )
    for inner in equations(jaxpr.eqns):
        for v in tiles_of(inner):
            if (size := math.prod(map(padded, v.aval.shape))) > _LARGEST:
                raise UnsupportedError(
                    f"{nest}: a tile of shape {v.aval.shape} has {size} "
                    f"elements in registers, but backend triton takes {_LARGEST}: take smaller blocks",
                    loc=eqn.params["loc"],
                )


_LARGEST = 2**20


def lanes_of(eqn: Any) -> tuple[int, int] | None:
    """Along which axis of the grid of a `tile_parallel` programs are too small to stand alone, and how many
    run as one; None if they are large."""
    extents, jaxpr = eqn.params["extents"], eqn.params["body"].jaxpr
    stored = [e.invars[1].aval for e in equations(jaxpr.eqns) if e.primitive.name == "tile_store"]
    axes = [i for i, n in enumerate(extents) if n > 1 and not (is_split(eqn) and i == 0)]
    if not axes or not stored or max(math.prod(a.shape) for a in stored) > _SMALL:
        return None
    axis = axes[-1]
    tiles = [v.aval for e in equations(jaxpr.eqns) for v in tiles_of(e)]
    long = max((math.prod(padded(n) for n in a.shape if not is_short(n)) for a in tiles), default=1)
    loops = [e for e in equations(jaxpr.eqns) if "num_carry" in e.params]
    width = 128 if contracts(jaxpr) else (8192 if loops else 512) // long
    width = min(width, padded(extents[axis]))
    if long >= _WARP and loops and not any(map(operations, loops)):
        # Those with work for a warp or more in every step are quicker side by side than few at a time.
        while width >= 8 and math.prod(lane_extents(extents, (axis, width))) < cores():
            width //= 2
    return (axis, width) if width >= 8 else None


_WARP = 32
_SMALL = 256
"""Programs that store no more elements than this at once are small."""


def tiles_of(eqn: Any) -> list[Any]:
    """The variables of the tiles that an equation makes."""
    return [] if eqn.primitive.name == "tile_store" or "body" in eqn.params else eqn.outvars


def lane_extents(extents: Sequence[int], lanes: tuple[int, int]) -> list[int]:
    """The grid of the launches that run so many programs as one."""
    axis, width = lanes
    return [-(-n // width) if i == axis else n for i, n in enumerate(extents)]


def rows_of(eqn: Any) -> tuple[int, int] | None:
    """The extent of the rows of a `tile_parallel` that are too long to be held, and that of the pieces in
    which they are read; None if there are none."""
    return rows_of_body(eqn.params["body"].jaxpr)


def rows_of_body(jaxpr: Any) -> tuple[int, int] | None:
    """The same, of its body."""
    shapes = [v.aval.shape for e in equations(jaxpr.eqns) for v in tiles_of(e)]
    longest = max((n for shape in shapes for n in shape), default=0)
    names = {e.primitive.name for e in equations(jaxpr.eqns)}
    if "tile_sort" in names:
        return (longest, 4096) if longest > merges.BLOCK else None
    if "tile_top_k" in names:
        return (longest, 2048) if longest > 4096 else None
    return (longest, 4096) if longest > 32768 else None
