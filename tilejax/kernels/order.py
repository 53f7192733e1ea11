"""Sorting and selecting within rows, any real dtype. NaN counts as the greatest value."""

from __future__ import annotations

import operator

import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, whole_rows
from .checks import check_rank
from .window import View


def sort(
    x: tj.TensorView,
    *,
    descending: bool = False,
    block_rows: Size = None,
    out: tuple[View, View] | None = None,
) -> tuple[View, View]:
    """`(values, indices)`: the last axis in order, and where each value was (int32). Stable."""
    check_rank("sort", 1, more=True, x=x)
    values, indices = out or (tj.output_like(x), tj.output(x.shape, jnp.int32))
    block = whole_rows(x, block_rows)
    c = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        ordered, places = tj.sort(x[here], c, descending=descending)
        values(*here).store(ordered)
        indices(*here).store(places)

    return values, indices


def top_k(
    x: tj.TensorView,
    k: int,
    *,
    largest: bool = True,
    block_rows: Size = None,
    out: tuple[View, View] | None = None,
) -> tuple[View, View]:
    """`(values, indices)` of the `k` largest (or smallest) of the last axis, the best first, ties by index.

    `ShapeError` unless `0 <= k <= x.shape[-1]`.
    """
    check_rank("top_k", 1, more=True, x=x)
    if not 0 <= operator.index(k) <= x.shape[-1]:
        raise tj.ShapeError(f"top_k: k={k} is not within the last axis of x, of shape {x.shape}")
    shape = (*x.shape[:-1], k)
    values, indices = out or (tj.output(shape, x.dtype), tj.output(shape, jnp.int32))
    block = whole_rows(x, block_rows)
    c, rank = block.axes[-1], tj.axis("rank", k)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        there = here[0], tj.shape(*block.axes[:-1], rank)
        best, places = tj.top_k(x[here], c, rank, largest=largest)
        values(*there).store(best)
        indices(*there).store(places)

    return values, indices
