"""Elementwise kernels: load the tiles at one place, compute, store there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, tiles
from .checks import check_float, check_rank, check_shape
from .window import View, destination


def copy(
    x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None, out: View | None = None
) -> View:
    """`x`, of any dtype."""
    check_rank("copy", 1, more=True, x=x)
    return _each(lambda x: x, x.dtype, (x,), out, block_rows, block_cols)


def exp(
    x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None, out: View | None = None
) -> View:
    """`exp(x)`."""
    check_rank("exp", 1, more=True, x=x)
    f32 = check_float("exp", x=x)
    return _each(lambda x: tj.exp(x.astype(f32)), x.dtype, (x,), out, block_rows, block_cols)


def clamp(
    x: tj.TensorView,
    lo: float = -0.5,
    hi: float = 0.5,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: View | None = None,
) -> View:
    """`x` limited to `lo..hi`; NaN stays. Integers need integer limits that their dtype holds."""
    check_rank("clamp", 1, more=True, x=x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        info = jnp.iinfo(x.dtype)
        for name, limit in (("lo", lo), ("hi", hi)):
            if not float(limit).is_integer() or not info.min <= limit <= info.max:
                raise tj.DtypeError(f"clamp: {name}={limit} is not a value of x, which is {x.dtype}")
        lo, hi = int(lo), int(hi)
    return _each(lambda x: tj.clip(x, lo, hi), x.dtype, (x,), out, block_rows, block_cols)


def add(
    x: tj.TensorView,
    y: tj.TensorView,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: View | None = None,
) -> View:
    """`x + y`, in the dtype that JAX promotes the two to."""
    check_rank("add", 1, more=True, x=x)
    check_shape("add", x.shape, "x", y=y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return _each(lambda x, y: x.astype(dtype) + y.astype(dtype), dtype, (x, y), out, block_rows, block_cols)


def saxpy(
    x: tj.TensorView,
    y: tj.TensorView,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: View | None = None,
) -> View:
    """`x / 0.4 + y`, in the dtype that JAX promotes the two to, rounded once."""
    check_rank("saxpy", 1, more=True, x=x)
    check_shape("saxpy", x.shape, "x", y=y)
    f32 = check_float("saxpy", x=x, y=y)
    dtype = jnp.promote_types(x.dtype, y.dtype)
    return _each(lambda x, y: x.astype(f32) / 0.4 + y.astype(f32), dtype, (x, y), out, block_rows, block_cols)


def _each(
    function: Callable[..., tj.Tile],
    dtype: Any,
    xs: tuple[tj.TensorView, ...],
    out: View | None,
    block_rows: Size,
    block_cols: Size,
) -> View:
    y = destination(out, xs[0].shape, dtype)
    block = tiles(xs[0], block_rows, block_cols)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        y(*here).store(function(*(x[here] for x in xs)).astype(y.dtype))

    return y


def bias_gelu_residual(
    x: tj.TensorView,
    bias: tj.TensorView,
    residual: tj.TensorView,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: View | None = None,
) -> View:
    """`gelu(x + bias) + residual` with the tanh form of GELU; `bias` is along the last axis of `x`.

    Computed in float32 and rounded once to the dtype of `x`.
    """
    check_rank("bias_gelu_residual", 1, more=True, x=x)
    check_shape("bias_gelu_residual", x.shape[-1:], "the last axis of x", bias=bias)
    check_shape("bias_gelu_residual", x.shape, "x", residual=residual)
    f32 = check_float("bias_gelu_residual", x=x, bias=bias, residual=residual)
    y = destination(out, x.shape, x.dtype)
    block = tiles(x, block_rows, block_cols)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here, columns = block.at(nest), block[-1:].at(nest)
        value = x[here].astype(f32) + bias[columns].astype(f32)  # the bias broadcasts by its column axis
        cubic = value * value * value
        gelu = value * (0.5 * (1.0 + tj.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * cubic))))
        y(*here).store((gelu + residual[here].astype(f32)).astype(y.dtype))

    return y
