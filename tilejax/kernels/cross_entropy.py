"""Cross entropy of one class a row, with its gradient, in one pass over the logits."""

from __future__ import annotations

import tilejax as tj

from .blocks import Size, whole_rows
from .checks import check_float, check_integer, check_rank, check_shape, int32_ids
from .window import View


def sparse_cross_entropy(
    logits: tj.TensorView,
    labels: tj.TensorView,
    *,
    block_rows: Size = None,
    out: tuple[View, View] | None = None,
) -> tuple[View, View]:
    """`(losses, gradient)` of `logsumexp(logits) - logits[label]` in each row.

    `logits` is `(rows, classes)`, `labels` `(rows,)` integers. Both results have the dtype of the logits and
    are computed in float32. A label outside `0 .. classes - 1` marks a row that does not count: its loss and
    its gradient are 0.
    """
    check_rank("sparse_cross_entropy", 2, more=True, logits=logits)
    check_shape("sparse_cross_entropy", logits.shape[:-1], "logits without its last axis", labels=labels)
    check_integer("sparse_cross_entropy", labels=labels)
    f32 = check_float("sparse_cross_entropy", logits=logits)
    losses, gradient = out or (tj.output(logits.shape[:-1], logits.dtype), tj.output_like(logits))
    classes = logits.shape[-1]
    block = whole_rows(logits, block_rows)
    c = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here, rows = block.at(nest), block[:-1].at(nest)
        value, label = logits[here].astype(f32), int32_ids(labels[rows], classes)
        peak = tj.max(value, c)
        exponentials = tj.exp(value - peak)
        total = tj.sum(exponentials, c)
        loss = tj.log(total) + peak - tj.gather(value, label, c)
        one_hot = tj.where(label == tj.iota(c), 1.0, 0.0)
        counts = label >= 0
        slope = tj.where(counts, exponentials * (1.0 / total) - one_hot, 0.0)
        losses(*rows).store(tj.where(counts, loss, 0.0).astype(losses.dtype))
        gradient(*here).store(slope.astype(gradient.dtype))

    return losses, gradient
