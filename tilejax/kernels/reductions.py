"""Reductions over rows: each program loads whole rows and leaves one value of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilejax as tj

from .blocks import Size, whole_rows
from .checks import check_rank, sum_type
from .window import View, destination


def row_sum(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """The sum over the last axis. Narrow integers widen as in `jnp.sum`; f16 and bf16 are summed in f32."""
    check_rank("row_sum", 2, more=True, x=x)
    return _reduce_rows(tj.sum, sum_type(x.dtype), x, out, block_rows)


def row_abssum(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """The sum of magnitudes over the last axis."""
    check_rank("row_abssum", 2, more=True, x=x)
    return _reduce_rows(lambda tile, c: tj.sum(tj.abs(tile), c), sum_type(x.dtype), x, out, block_rows)


def row_max(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """The maximum over the last axis; NaN if there is one. `ShapeError` if the rows are empty."""
    _check_extremum("row_max", x)
    return _reduce_rows(tj.max, x.dtype, x, out, block_rows)


def row_min(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """The minimum over the last axis; NaN if there is one. `ShapeError` if the rows are empty."""
    _check_extremum("row_min", x)
    return _reduce_rows(tj.min, x.dtype, x, out, block_rows)


def row_absmax(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """The greatest magnitude over the last axis; NaN if there is one. `ShapeError` if the rows are empty."""
    _check_extremum("row_absmax", x)
    return _reduce_rows(lambda tile, c: tj.max(tj.abs(tile), c), x.dtype, x, out, block_rows)


def _reduce_rows(
    reduce: Callable[..., tj.Tile], dtype: Any, x: tj.TensorView, out: View | None, block_rows: Size
) -> View:
    y = destination(out, x.shape[:-1], dtype)
    block = whole_rows(x, block_rows)
    column = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        y(*block[:-1].at(nest)).store(reduce(x[block.at(nest)], column).astype(y.dtype))

    return y


def _check_extremum(kernel: str, x: Any) -> None:
    check_rank(kernel, 2, more=True, x=x)
    if x.shape[-1] == 0:
        raise tj.ShapeError(f"{kernel}: the rows of x, of shape {x.shape}, are empty and have no extremum")
