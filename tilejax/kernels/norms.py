"""Softmax and normalisations over the last axis: a row is loaded once and stays on the chip.

All take arrays of any rank, compute in float32 (float64 for float64) and round once.
"""

from __future__ import annotations

from collections.abc import Callable

import tilejax as tj

from .blocks import Size, whole_rows
from .checks import check_float, check_rank, check_shape
from .window import View, destination


def softmax(x: tj.TensorView, *, block_rows: Size = None, out: View | None = None) -> View:
    """`exp(x - max(x)) / sum(exp(x - max(x)))` over the last axis."""
    return _each_row("softmax", _softmax, {"x": x}, block_rows, out)


def layernorm(
    x: tj.TensorView, eps: float = 1e-5, *, block_rows: Size = None, out: View | None = None
) -> View:
    """`(x - mean) / sqrt(variance + eps)` over the last axis, without a weight."""
    return _each_row("layernorm", lambda row, c: _layernorm(row, c, eps), {"x": x}, block_rows, out)


def rmsnorm(
    x: tj.TensorView, eps: float = 1e-12, *, block_rows: Size = None, out: View | None = None
) -> View:
    """`x / sqrt(mean(x**2) + eps)` over the last axis, without a weight."""
    return _each_row("rmsnorm", lambda row, c: _rmsnorm(row, c, eps), {"x": x}, block_rows, out)


def residual_layernorm(
    x: tj.TensorView,
    residual: tj.TensorView,
    eps: float = 1e-5,
    *,
    block_rows: Size = None,
    out: View | None = None,
) -> View:
    """`layernorm(x + residual)`; their sum is never in memory."""
    terms = {"x": x, "residual": residual}
    return _each_row("residual_layernorm", lambda row, c: _layernorm(row, c, eps), terms, block_rows, out)


def softmax_norms(
    x: tj.TensorView,
    eps: float = 1e-5,
    *,
    block_rows: Size = None,
    out: tuple[View, View, View] | None = None,
) -> tuple[View, View, View]:
    """`(softmax(x), layernorm(x, eps), rmsnorm(x, eps))`, all from one load of the rows."""
    check_rank("softmax_norms", 1, more=True, x=x)
    f32 = check_float("softmax_norms", x=x)
    softmax, layernorm, rmsnorm = out or (tj.output_like(x), tj.output_like(x), tj.output_like(x))
    block = whole_rows(x, block_rows)
    c = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        row = x[here].astype(f32)
        softmax(*here).store(_softmax(row, c).astype(softmax.dtype))
        layernorm(*here).store(_layernorm(row, c, eps).astype(layernorm.dtype))
        rmsnorm(*here).store(_rmsnorm(row, c, eps).astype(rmsnorm.dtype))

    return softmax, layernorm, rmsnorm


def _softmax(row: tj.Tile, c: tj.Axis) -> tj.Tile:
    exponentials = tj.exp(row - tj.max(row, c))
    return exponentials / tj.sum(exponentials, c)


def _layernorm(row: tj.Tile, c: tj.Axis, eps: float) -> tj.Tile:
    # mean(x**2) - mean(x)**2 would cancel where the mean is large; a second pass over a tile costs little.
    centered = row - tj.mean(row, c)
    return centered * tj.rsqrt(tj.mean(centered * centered, c) + eps)


def _rmsnorm(row: tj.Tile, c: tj.Axis, eps: float) -> tj.Tile:
    return row * tj.rsqrt(tj.mean(row * row, c) + eps)


def _each_row(
    kernel: str,
    function: Callable[[tj.Tile, tj.Axis], tj.Tile],
    terms: dict[str, tj.TensorView],
    block_rows: Size,
    out: View | None,
) -> View:
    """Stores `function(row, its axis)` of each row of the sum of `terms`."""
    x = terms["x"]
    check_rank(kernel, 1, more=True, x=x)
    check_shape(kernel, x.shape, "x", **terms)
    f32 = check_float(kernel, **terms)
    y = destination(out, x.shape, x.dtype)
    block = whole_rows(x, block_rows)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        first, *others = (term[here].astype(f32) for term in terms.values())
        row = sum(others, first)
        y(*here).store(function(row, block.axes[-1]).astype(y.dtype))

    return y
