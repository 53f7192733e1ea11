"""Matrix transposition: a tile is stored by the identity of its axes, so no tile is transposed by hand."""

from __future__ import annotations

import tilejax as tj

from .blocks import Size, tiles
from .checks import check_rank
from .window import View, destination


def transpose(
    x: tj.TensorView, *, block_rows: Size = None, block_cols: Size = None, out: View | None = None
) -> View:
    """`x` of shape `(rows, columns)` as `(columns, rows)`, any dtype."""
    check_rank("transpose", 2, x=x)
    y = destination(out, x.shape[::-1], x.dtype)
    block = tiles(x, block_rows, block_cols, columns=64)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        y(*block[::-1].at(nest)).store(x[block.at(nest)])

    return y
