"""Reverse mode of softmax and the normalisations: a row and its cotangent are loaded once.

What the forward kernel computed of a row is computed again in float32: that is exact where its rounded
result is not, and costs less than reading it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import norms
from ..blocks import Size, whole_rows
from ..checks import check_float


def softmax(saved: None, dy: Any, x: Any, *, block_rows: Size = None, out: None = None) -> tuple[Any]:
    """`y * (dy - sum(y * dy))`."""
    return (_softmax(x, dy, block_rows=block_rows),)


def layernorm(
    saved: None, dy: Any, x: Any, eps: Any = 1e-5, *, block_rows: Size = None, out: None = None
) -> tuple[Any]:
    """`(dy - mean(dy) - y * mean(y * dy)) / deviation`."""
    return _layernorm((x,), dy, eps, block_rows=block_rows)


def residual_layernorm(
    saved: None, dy: Any, x: Any, residual: Any, eps: Any = 1e-5, *, block_rows: Size = None, out: None = None
) -> tuple[Any, Any]:
    """The cotangent of the sum, for both terms."""
    return _layernorm((x, residual), dy, eps, block_rows=block_rows)


def rmsnorm(
    saved: None, dy: Any, x: Any, eps: Any = 1e-12, *, block_rows: Size = None, out: None = None
) -> tuple[Any]:
    """`(dy - y * mean(y * dy)) / rms`."""
    return (_rmsnorm(x, dy, eps, block_rows=block_rows),)


def softmax_backward(x: tj.TensorView, dy: tj.TensorView, *, block_rows: Size = None) -> tj.TensorView:
    """The cotangent of `x`."""

    def slope(row: tj.Tile, dy: tj.Tile, c: tj.Axis) -> tj.Tile:
        exponentials = tj.exp(row - tj.max(row, c))
        y = exponentials / tj.sum(exponentials, c)
        return y * (dy - tj.sum(y * dy, c))

    return _each_row(slope, (x,), dy, block_rows)[0]


def layernorm_backward(
    terms: tuple[tj.TensorView, ...], dy: tj.TensorView, eps: Any, *, block_rows: Size = None
) -> tuple[tj.TensorView, ...]:
    """The cotangent of the sum of `terms`, in the dtype of each."""

    def slope(row: tj.Tile, dy: tj.Tile, c: tj.Axis) -> tj.Tile:
        centered = row - tj.mean(row, c)
        scale = tj.rsqrt(tj.mean(centered * centered, c) + eps)
        y = centered * scale
        return scale * (dy - tj.mean(dy, c) - y * tj.mean(y * dy, c))

    return _each_row(slope, terms, dy, block_rows)


def rmsnorm_backward(
    x: tj.TensorView, dy: tj.TensorView, eps: Any, *, block_rows: Size = None
) -> tj.TensorView:
    """The cotangent of `x`."""

    def slope(row: tj.Tile, dy: tj.Tile, c: tj.Axis) -> tj.Tile:
        scale = tj.rsqrt(tj.mean(row * row, c) + eps)
        y = row * scale
        return scale * (dy - y * tj.mean(y * dy, c))

    return _each_row(slope, (x,), dy, block_rows)[0]


with_gradient(backward=softmax)(norms.softmax)
with_gradient(backward=layernorm)(norms.layernorm)
with_gradient(backward=rmsnorm)(norms.rmsnorm)
with_gradient(backward=residual_layernorm)(norms.residual_layernorm)
_softmax = jit(softmax_backward, static_argnames="block_rows")
_layernorm = jit(layernorm_backward, static_argnames="block_rows")
_rmsnorm = jit(rmsnorm_backward, static_argnames="block_rows")


def _each_row(
    slope: Callable[[tj.Tile, tj.Tile, tj.Axis], tj.Tile],
    terms: tuple[tj.TensorView, ...],
    dy: tj.TensorView,
    block_rows: Size,
) -> tuple[tj.TensorView, ...]:
    """`slope(row, its cotangent, its axis)` of the rows of the sum of `terms`, once for each dtype."""
    first, *others = terms
    f32 = check_float("a gradient", **{f"term{i}": term for i, term in enumerate(terms)})
    outputs = {term.dtype: tj.output(dy.shape, term.dtype) for term in terms}
    block = whole_rows(first, block_rows)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        row = sum((term[here].astype(f32) for term in others), first[here].astype(f32))
        result = slope(row, dy[here].astype(f32), block.axes[-1])
        for y in outputs.values():
            y(*here).store(result.astype(y.dtype))

    return tuple(outputs[term.dtype] for term in terms)
