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
from ...transforms.affine import Affine
from .tiles import View, padded, padded_shape, place


def load(
    view: View,
    starts: Sequence[Any],
    forms: Sequence[Affine | None],
    fallback: Any,
    shape: tuple[int, ...],
    bounds: Bounds,
    ranges: Any,
) -> Any:
    """`tile_load`."""
    extents = padded_shape(shape)
    if 0 in view.shape:
        return lax.broadcast(fallback, extents)
    offsets, mask = _place(view, starts, forms, shape, bounds, ranges)
    if view.barrier:
        plgpu.debug_barrier()  # other threads of this program may have stored what these load
    other = None if mask is None else lax.broadcast(fallback, extents)
    return plgpu.load(view.ref.at[offsets], mask=mask, other=other)


def store(
    view: View,
    tile: Any,
    starts: Sequence[Any],
    forms: Sequence[Affine | None],
    shape: tuple[int, ...],
    bounds: Bounds,
    ranges: Any,
) -> None:
    """`tile_store`."""
    if 0 in view.shape or 0 in shape:
        return
    offsets, mask = _place(view, starts, forms, shape, bounds, ranges)
    if view.barrier:
        plgpu.debug_barrier()  # threads may still be loading what these overwrite
    plgpu.store(view.ref.at[offsets], tile, mask=mask)


def _place(view: View, starts, forms, shape, bounds: Bounds, ranges) -> tuple[Any, Any]:
    """The flat offset of each element of the tile, and which of them are in the tile and in the view."""
    extents = padded_shape(shape)
    index_type = np.int64 if math.prod(view.shape) > 2**31 - 1 else np.int32
    offsets: Any = jnp.zeros((), index_type)
    mask: Any = None
    stride = math.prod(view.shape)
    for d, (start, form, extent, size) in enumerate(zip(starts, forms, shape, view.shape, strict=True)):
        stride //= size
        index = place(shape, d) + start
        offsets = offsets + index.astype(index_type) * np.asarray(stride, index_type)
        low, high = form.bounds(ranges) if form is not None else (-math.inf, math.inf)
        tests = []
        if extent != padded(extent):
            tests.append(place(shape, d) < np.int32(extent))
        if bounds is Bounds.ZERO and low < 0:
            tests.append(index >= 0)
        if bounds is Bounds.ZERO and high + extent > size:
            tests.append(index < np.int32(size))
        for test in tests:
            mask = test if mask is None else mask & test
    if not shape:
        raise AssertionError("a view has a dimension")
    return jnp.broadcast_to(offsets, extents), mask
