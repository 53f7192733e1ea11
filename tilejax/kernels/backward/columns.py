"""Sums over the rows of a matrix: blocks of rows add up on their own, then one program a block of columns
adds what they left."""

from __future__ import annotations

import math
from typing import Any

import tilejax as tj

from ..._jit import jit
from ..blocks import Blocks, Size, cut, tiles
from ..checks import accumulator


def rows_of(x: Any) -> Any:
    """The array as a matrix of its rows, all axes but the last being one."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def column_sum(
    x: tj.TensorView, dtype: Any, *, block_rows: Size = None, block_cols: Size = None
) -> tj.TensorView:
    """The sum of the rows of `x` `(rows, columns)`, in `dtype`; adds up in float32."""
    block = sum_blocks(x, block_rows, block_cols)
    partials = Partials(block, x, accumulator(x.dtype))

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        partials.store(nest, x[block.at(nest)].astype(partials.view.dtype))

    return partials.total(dtype)


def sum_blocks(x: tj.TensorView, block_rows: Size, block_cols: Size) -> Blocks:
    """Blocks of a matrix that are tall, so that few sums are left."""
    return tiles(x, block_rows, block_cols, columns=128)


class Partials:
    """The sums of the columns of each block of a matrix like `x`."""

    def __init__(self, block: Blocks, x: tj.TensorView, dtype: Any):
        self._block, self._rest = block, Blocks((tj.axis("block", 1), block.axes[1]), block.cuts)
        self.view = tj.output((block.grid[0].extent, x.shape[1]), dtype)

    def store(self, nest: tj.Nest, tile: tj.Tile) -> None:
        """Adds up the columns of the tile of the block that `nest` is at."""
        self.view(*self._rest.at(nest)).store(tj.sum(tile, self._block.axes[0]))

    def total(self, dtype: Any) -> tj.TensorView:
        """The sum of all blocks, by a nest of its own."""
        sums = tj.output(self.view.shape[1:], dtype)
        block = cut(self.view.shape, tuple(axis.extent for axis in self._block.axes))
        rows, columns = block.grid

        @tj.parallel(columns)
        def _(nest: tj.Nest):
            @nest.pipeline(rows, carry=tj.zeros(tj.shape(block.axes[1]), self.view.dtype))
            def total(step, total):
                return total + tj.sum(self.view[block.at(step)], block.axes[0])

            sums(*block[1:].at(nest)).store(total.astype(dtype))

        return sums


summed = jit(column_sum, static_argnums=1, static_argnames=("block_rows", "block_cols"))
