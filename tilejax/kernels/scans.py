"""Inclusive scans of rows of any length: scan a block, combine it with the carry, carry the last column."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import tilejax as tj

from .blocks import Size, on_gpu, tiles
from .checks import accumulator, check_rank
from .window import View, destination


def cumsum(
    x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None, out: View | None = None
) -> View:
    """The running sum along the last axis.

    f16 and bf16 carry f32 and round each output; bool counts in int32; integers keep their dtype.
    """
    check_rank("cumsum", 1, more=True, x=x)
    dtype = jnp.dtype(jnp.int32) if x.dtype == jnp.bool_ else x.dtype
    y = destination(out, x.shape, dtype)
    _scan(tj.cumsum, tj.add, 0, accumulator(dtype), y, x, block_rows, block_cols)
    return y


def cummax(
    x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None, out: View | None = None
) -> View:
    """The running maximum along the last axis; NaN from the first NaN on."""
    check_rank("cummax", 1, more=True, x=x)
    y = destination(out, x.shape, x.dtype)
    _scan(tj.cummax, tj.maximum, _least(x.dtype), x.dtype, y, x, block_rows, block_cols)
    return y


def _least(dtype: np.dtype) -> float:
    if dtype == jnp.bool_:
        return False
    if not jnp.issubdtype(dtype, jnp.floating):
        return int(jnp.iinfo(dtype).min)
    infinite = not np.isnan(np.array(np.inf, dtype))  # some floats of eight bits have no infinity
    return -np.inf if infinite else float(jnp.finfo(dtype).min)


def width(shape: tuple[int, ...]) -> int:
    """How wide a block of rows of that shape is by default: as a row, but on a GPU at most 4096.

    The blocks of a longer row are even, so that the last is not a rest. A few long rows are one block each,
    which the compiler takes apart for programs at once.
    """
    *rows, length = shape
    if not on_gpu() or (length > 2**15 and math.prod(rows) <= _FEW):
        return max(length, 1)
    return tj.cdiv(max(length, 1), tj.cdiv(max(length, 1), 4096))


_FEW = 64
"""Fewer programs of one row after another leave most of a GPU idle."""


def _scan(
    scan: Callable[..., tj.Tile],
    combine: Callable[..., tj.Tile],
    identity: float,
    dtype: Any,
    y: View,
    x: tj.TensorView,
    block_rows: Size,
    block_cols: Size,
) -> None:
    block = tiles(x, block_rows, block_cols, columns=width(x.shape))
    rows, columns, column = block[:-1], block[-1:], block.axes[-1]

    @tj.parallel(*rows.grid)
    def _(nest: tj.Nest):
        @nest.serial(*columns.grid, carry=tj.full(tj.shape(*rows.axes), identity, dtype))
        def _(step, carry):
            here = block.at(step)
            scanned = combine(scan(x[here].astype(dtype), column), carry)
            y(*here).store(scanned.astype(y.dtype))
            return tj.gather(scanned, column.extent - 1, column)
