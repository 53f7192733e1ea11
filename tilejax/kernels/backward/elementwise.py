"""Reverse mode of the bias, GELU and residual."""

from __future__ import annotations

import math
from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import elementwise
from ..blocks import Size
from ..checks import check_float
from .columns import Partials, rows_of, sum_blocks


def bias_gelu_residual(
    saved: None,
    dy: Any,
    x: Any,
    bias: Any,
    residual: Any,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: None = None,
) -> tuple[Any, Any, Any]:
    """The slope of GELU times `dy`, its sum over all but the last axis, and `dy`."""
    dx, dbias = _gelu(rows_of(x), bias, rows_of(dy), block_rows=block_rows, block_cols=block_cols)
    return dx.reshape(x.shape), dbias, dy.astype(residual.dtype)


def bias_gelu_backward(
    x: tj.TensorView,
    bias: tj.TensorView,
    dy: tj.TensorView,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
) -> tuple[tj.TensorView, tj.TensorView]:
    """The cotangents of `x` `(rows, columns)` and `bias`, one pass over the rows for both."""
    f32 = check_float("bias_gelu_backward", x=x, bias=bias, dy=dy)
    dx = tj.output_like(x)
    block = sum_blocks(x, block_rows, block_cols)
    partials = Partials(block, x, f32)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here, columns = block.at(nest), block[-1:].at(nest)
        value = x[here].astype(f32) + bias[columns].astype(f32)
        square = value * value
        factor = math.sqrt(2 / math.pi)
        t = tj.tanh(factor * value * (1.0 + 0.044715 * square))
        inner = factor * (1.0 + 3 * 0.044715 * square)
        slope = 0.5 * (1.0 + t) + 0.5 * value * (1.0 - t * t) * inner
        result = slope * dy[here].astype(f32)
        dx(*here).store(result.astype(dx.dtype))
        partials.store(nest, result)

    return dx, partials.total(bias.dtype)


with_gradient(backward=bias_gelu_residual)(elementwise.bias_gelu_residual)
_gelu = jit(bias_gelu_backward, static_argnames=("block_rows", "block_cols"))
