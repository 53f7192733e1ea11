"""Reverse mode of the running sum: the running sum from the end, whose reverse mode is the one from the
start."""

from __future__ import annotations

from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import scans
from ..blocks import Size, tiles
from ..checks import accumulator


def cumsum(
    saved: None, dy: Any, x: Any, *, block_rows: Size = None, block_cols: Size = None, out: None = None
) -> tuple[Any]:
    """What adds to an output is its input and all before it."""
    return (_reverse_cumsum(dy, block_rows=block_rows, block_cols=block_cols),)


def reverse_cumsum(x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None) -> tj.TensorView:
    """The sum of each element of `x` and all after it along the last axis; f16 and bf16 carry float32."""
    y = tj.output_like(x)
    block = tiles(x, block_rows, block_cols, columns=scans.width(x.shape))
    rows, column, dtype = block[:-1], block.axes[-1], accumulator(x.dtype)
    (columns,) = block[-1:].grid

    @tj.parallel(*rows.grid)
    def _(nest: tj.Nest):
        @nest.serial(columns, carry=tj.zeros(tj.shape(*rows.axes), dtype))
        def _(step, carry):
            first = (columns.extent - 1 - step.index()) * column.extent
            here = tj.coord(*rows.at(nest)[0], first), tj.shape(*rows.axes, column)
            scanned = tj.cumsum(x[here].astype(dtype), column, reverse=True) + carry
            y(*here).store(scanned.astype(y.dtype))
            return tj.gather(scanned, 0, column)

    return y


def _reverse_cumsum_backward(saved: None, dy: Any, x: Any, **blocks: Size) -> tuple[Any]:
    return (_cumsum(dy, **blocks),)


with_gradient(backward=cumsum)(scans.cumsum)
with_gradient(backward=_reverse_cumsum_backward)(reverse_cumsum)
_cumsum = jit(scans.cumsum, static_argnames=("block_rows", "block_cols"))
_reverse_cumsum = jit(reverse_cumsum, static_argnames=("block_rows", "block_cols"))
