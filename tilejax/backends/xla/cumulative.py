"""Scans of arrays by blocks of their last dimension, which are several times as fast as XLA's on the CPU.

A float sum is a product with a triangle of ones, after which each block gets the sum of those before it.
What is the same in any order (extrema, sums and products of integers) goes through the places of all blocks
at once, each block starting with what is before it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

WIDTH = 32
"""How many elements a block has."""
_FEWEST = 2**13
"""With fewer elements a loop and a branch cost more than they save."""
_OPS = {
    "add": (lax.add, lax.cumsum),
    "mul": (lax.mul, lax.cumprod),
    "max": (lax.max, lax.cummax),
    "min": (lax.min, lax.cummin),
}


def cumulative(array: Any, op: str, unit: Any, dim: int, reverse: bool, differentiable: bool) -> Any:
    """The inclusive scan of `array` along `dim` with `op`, whose neutral element is `unit`. To be
    `differentiable` it is XLA's own."""

    def plain(array: Any) -> Any:
        return _OPS[op][1](array, axis=dim, reverse=reverse)

    if differentiable or dim != array.ndim - 1 or array.size < _FEWEST:
        return plain(array)
    n = array.shape[dim]
    rows = lax.reshape(array, (array.size // n, n))
    if op == "add" and array.dtype == np.float32:
        sums = lax.reshape(_sums(rows, reverse), array.shape)
        # A zero of the triangle times an infinite element is NaN. Such an element, and a sum that overflows,
        # is also in the sum of its whole row.
        totals = lax.index_in_dim(sums, 0 if reverse else n - 1, dim)
        return lax.cond(lax.is_finite(totals).all(), lambda _, sums: sums, lambda x, _: plain(x), array, sums)
    exact = op in ("max", "min") or jnp.issubdtype(array.dtype, np.integer)
    if exact:
        # Shorter floats, which are compared as float32 anyway, are converted once and not in each step.
        short = jnp.issubdtype(array.dtype, np.floating) and jnp.finfo(array.dtype).bits < 32
        work = np.float32 if short else array.dtype
        out = _running(lax.convert_element_type(rows, work), op, unit, reverse)
        return lax.reshape(lax.convert_element_type(out, array.dtype), array.shape)
    return plain(array)


def _sums(rows: Any, reverse: bool, exclusive: bool = False) -> Any:
    """The running sums of each row, with each element or before it."""
    n = rows.shape[1]
    width = min(n, WIDTH)
    blocks, count = _blocks(rows, width, np.zeros((), rows.dtype))
    triangle = np.tri(width, width, -int(exclusive), np.float32)
    triangle = triangle if reverse else triangle.T
    sums = lax.dot(blocks, triangle, precision=lax.Precision.HIGHEST)
    if count > 1:
        last = 0 if reverse else width - 1
        totals = sums[:, last] + blocks[:, last] if exclusive else sums[:, last]
        before = _sums(lax.reshape(totals, (rows.shape[0], count)), reverse, exclusive=True)
        sums = sums + lax.reshape(before, (blocks.shape[0], 1))
    return lax.reshape(sums, (rows.shape[0], count * width))[:, :n]


def _running(rows: Any, op: str, unit: Any, reverse: bool) -> Any:
    """The running `op` of each row."""
    combine, scan = _OPS[op]
    n = rows.shape[1]
    width = min(n, WIDTH)
    blocks, count = _blocks(rows, width, unit)
    places = blocks.T
    before = lax.full((rows.shape[0], 1), unit, rows.dtype)
    if count > 1:
        # Not a reduction, of which XLA on the CPU may make one that drops NaN.
        each = [lax.index_in_dim(places, i, keepdims=False) for i in range(width)]
        totals = lax.reshape(functools.reduce(combine, each), (rows.shape[0], count))
        # There are few, so that XLA's own scan is as quick, and a smaller program than a loop.
        sums = scan(totals[:, 1:] if reverse else totals[:, :-1], axis=1, reverse=reverse)
        before = lax.concatenate([sums, before] if reverse else [before, sums], 1)

    def step(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        before, places = state
        place = np.int32(width - 1) - i if reverse else i
        after = combine(before, lax.dynamic_index_in_dim(places, place, keepdims=False))
        return after, lax.dynamic_update_index_in_dim(places, after, place, 0)

    start = (lax.reshape(before, (blocks.shape[0],)), places)
    _, places = lax.fori_loop(np.int32(0), np.int32(width), step, start)
    return lax.reshape(places.T, (rows.shape[0], count * width))[:, :n]


def _blocks(rows: Any, width: int, unit: Any) -> tuple[Any, int]:
    """All blocks of all rows, a row each, and how many there are in a row; the last is filled with `unit`."""
    count = -(-rows.shape[1] // width)
    short = count * width - rows.shape[1]
    rows = lax.pad(rows, jnp.asarray(unit, rows.dtype), ((0, 0, 0), (0, short, 0))) if short else rows
    return lax.reshape(rows, (rows.shape[0] * count, width)), count
