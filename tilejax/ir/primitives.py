"""The tile primitives: what a program is made of, beside JAX's elementwise primitives.

`docs/design.md` says what each means. Here each has its name and its abstract evaluation (shapes and dtypes
of results from those of operands); what it computes is a rule in each backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive

PRIMITIVES: dict[str, Primitive] = {}
"""Every tile primitive by name; each backend must have a rule, or a stated refusal, for each."""


def _primitive(name: str) -> Callable[[Callable[..., list[ShapedArray]]], Primitive]:
    """The decorated function is the primitive's abstract evaluation."""

    def define(abstract_eval: Callable[..., list[ShapedArray]]) -> Primitive:
        primitive = Primitive(name)
        primitive.multiple_results = True
        primitive.def_abstract_eval(abstract_eval)
        primitive.def_impl(_outside)
        PRIMITIVES[name] = primitive
        return primitive

    def _outside(*_: Any, **__: Any) -> Any:
        from .._errors import ScopeError

        raise ScopeError(
            f"{name} outside a kernel: tile operations run inside a function given to tilejax.jit"
        )

    return define


def _like(aval: Any) -> ShapedArray:
    """The same shape and dtype, never weak."""
    return ShapedArray(aval.shape, aval.dtype)


def _results(body: Any) -> list[ShapedArray]:
    """A carry that stays weak in the body leaves the loop weak."""
    return [ShapedArray(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in body.jaxpr.outvars]


@_primitive("tile_parallel")
def parallel_p(*args, names, extents, scope, num_views, body, loc):
    return _results(body)


@_primitive("tile_serial")
def serial_p(*args, names, extents, num_bounds, num_views, num_carry, body, loc):
    return _results(body)


@_primitive("tile_pipeline")
def pipeline_p(*args, names, extents, num_bounds, num_views, num_carry, window, interval, stages, body, loc):
    return _results(body)


@_primitive("tile_stage")
def stage_p(*, name, loc):
    return []


@_primitive("tile_load")
def load_p(view, *starts_and_fallback, shape, bounds, name, loc):
    return [ShapedArray(shape, view.dtype)]


@_primitive("tile_store")
def store_p(view, tile, *starts, bounds, name, loc):
    return [_like(view)]


@_primitive("tile_memory")
def memory_p(*, dtype, layout, resource, name, loc):
    return [ShapedArray(layout.extents, dtype)]


@_primitive("tile_memory_store")
def memory_store_p(state, tile, *, layout, name, loc):
    return [_like(state)]


@_primitive("tile_memory_load")
def memory_load_p(state, *, layout, name, loc):
    return [_like(state)]


@_primitive("tile_mma")
def mma_p(a, b, acc, *, a_labels, b_labels, acc_labels, allow_reassociation, precision, loc):
    return [_like(acc)]


def _without(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in axes)


@_primitive("tile_reduce")
def reduce_p(tile, *, op, axes, order, loc):
    return [ShapedArray(_without(tile.shape, axes), tile.dtype)]


@_primitive("tile_fold")
def fold_p(tile, identity, *consts, axes, order, fn, loc):
    return [ShapedArray(_without(tile.shape, axes), tile.dtype)]


@_primitive("tile_argreduce")
def argreduce_p(tile, *, op, axis, index_dtype, loc):
    return [ShapedArray(_without(tile.shape, (axis,)), index_dtype)]


@_primitive("tile_scan")
def scan_p(tile, *, op, axis, reverse, loc):
    return [_like(tile)]


@_primitive("tile_associative_scan")
def associative_scan_p(*args, num_consts, axis, reverse, fn, loc):
    return [_like(tile) for tile in args[num_consts:]]


@_primitive("tile_gather")
def gather_p(tile, *coords_and_fallback, shape, dims, coord_dims, loc):
    return [ShapedArray(shape, tile.dtype)]


@_primitive("tile_sort")
def sort_p(tile, *, axis, descending, loc):
    return [_like(tile), ShapedArray(tile.shape, np.dtype(np.int32))]


@_primitive("tile_top_k")
def top_k_p(tile, *, axis, k, largest, loc):
    shape = (*tile.shape[:axis], k, *tile.shape[axis + 1 :])
    return [ShapedArray(shape, tile.dtype), ShapedArray(shape, np.dtype(np.int32))]
