"""Loads and stores: pointers from origins, masks at the edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plgpu

from ...ir.types import Bounds
from .cuts import Facts
from .tiles import View, as_index, padded_shape, scalar
from .units import squeezed


def load(facts: Facts, eqn: Any, view: View, starts: Sequence[Any], fallback: Any, piece: Any = None) -> Any:
    """`tile_load`; of a `piece` of its last dimension, if there is one."""
    shape = eqn.params["shape"]
    extents = _extents(shape, piece)
    if 0 in view.shape:
        return lax.broadcast(fallback, extents)
    offsets, mask = _place(facts, eqn, view, starts, shape, piece)
    if view.barrier:
        plgpu.debug_barrier()  # other threads of this program may have stored what these load
    other = None if mask is None else lax.broadcast(fallback, extents)
    return plgpu.load(view.ref.at[offsets], mask=mask, other=other)


def store(facts: Facts, eqn: Any, view: View, tile: Any, starts: Sequence[Any], piece: Any = None) -> None:
    """`tile_store`; of a `piece`."""
    shape = eqn.invars[1].aval.shape
    if 0 in view.shape or 0 in shape:
        return
    offsets, mask = _place(facts, eqn, view, starts, shape, piece)
    if view.barrier:
        plgpu.debug_barrier()  # threads may still be loading what these overwrite
    plgpu.store(view.ref.at[offsets], tile, mask=mask)


def _extents(shape: Sequence[int], piece: Any) -> tuple[int, ...]:
    extents = padded_shape(squeezed(shape))
    return extents if piece is None else (*extents[:-1], piece.width)


def _place(
    facts: Facts, eqn: Any, view: View, starts: Sequence[Any], shape: Sequence[int], piece: Any
) -> tuple[Any, Any]:
    """The flat offset of each element of the tile, and which of them are in the tile and in the view."""
    extents = _extents(shape, piece)
    index_type = view.index_type
    offsets: Any = scalar(0, index_type)
    mask: Any = None
    stride, dim = math.prod(view.room), 0
    edges = facts.edges(eqn, view)
    for start, extent, size, room, (low, high) in zip(
        starts, shape, view.shape, view.room, edges, strict=True
    ):
        stride //= room
        tests = []
        if extent == 1:
            index = start
        else:
            place, width = lax.broadcasted_iota(np.int32, extents, dim), extents[dim]
            dim += 1
            if piece is not None and dim == len(extents):
                place = place + piece.start
            index = place + start
            if extent % width:
                tests.append(place < np.int32(extent))
        offsets = offsets + as_index(index, index_type) * scalar(stride, index_type)
        if eqn.params["bounds"] is Bounds.ZERO:
            if not facts.holds(low):
                tests.append(index >= 0)
            if not facts.holds(high):
                tests.append(index < np.int32(size))
        for test in tests:
            mask = test if mask is None else mask & test
    return jnp.broadcast_to(offsets, extents), None if mask is None else jnp.broadcast_to(mask, extents)
