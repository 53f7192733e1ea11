"""Reverse mode of the cross entropy, of its losses and of the gradient that it also gives."""

from __future__ import annotations

from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import cross_entropy
from ..blocks import Size, whole_rows
from ..checks import check_float, int32_ids


def sparse_cross_entropy(
    saved: None, cotangents: Any, logits: Any, labels: Any, *, block_rows: Size = None, out: None = None
) -> tuple[Any, None]:
    """`softmax(logits) - one_hot(labels)` times the cotangent of the loss, and what comes through that
    gradient."""
    return _backward(logits, labels, *cotangents, block_rows=block_rows), None


def sparse_cross_entropy_backward(
    logits: tj.TensorView,
    labels: tj.TensorView,
    dlosses: tj.TensorView | None,
    dgradient: tj.TensorView | None,
    *,
    block_rows: Size = None,
) -> tj.TensorView:
    """The cotangent of the logits."""
    f32 = check_float("sparse_cross_entropy_backward", logits=logits)
    result = tj.output_like(logits)
    block = whole_rows(logits, block_rows)
    c = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here, rows = block.at(nest), block[:-1].at(nest)
        value, label = logits[here].astype(f32), int32_ids(labels[rows], logits.shape[-1])
        exponentials = tj.exp(value - tj.max(value, c))
        p = exponentials / tj.sum(exponentials, c)
        slope = tj.zeros(here[1], f32)
        if dlosses is not None:
            one_hot = tj.where(tj.iota(c) == label, 1.0, 0.0)
            slope = slope + dlosses[rows].astype(f32) * (p - one_hot)
        if dgradient is not None:
            moved = dgradient[here].astype(f32)
            slope = slope + p * (moved - tj.sum(p * moved, c))
        result(*here).store(tj.where(label >= 0, slope, 0.0).astype(result.dtype))

    return result


with_gradient(backward=sparse_cross_entropy)(cross_entropy.sparse_cross_entropy)
_backward = jit(sparse_cross_entropy_backward, static_argnames="block_rows")
