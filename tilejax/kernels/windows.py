"""Receptive fields: what each tap of a filter sees at each pixel of an output block."""

from __future__ import annotations

from typing import Any

import tilejax as tj

from .blocks import Size, block_size


def windows(
    view: tj.TensorView,
    origin: Any,
    pixels: tuple[tj.Axis, ...],
    taps: tuple[tj.Axis, ...],
    *,
    before: tuple[tj.Axis, ...] = (),
    after: tuple[tj.Axis, ...] = (),
    stride: tuple[int, int] = (1, 1),
    dilation: tuple[int, int] = (1, 1),
) -> tj.Tile:
    """The tile `(*before, *pixels, *taps, *after)`: one load of the field of `view` at `origin`, reindexed.

    The view's two spatial dimensions stand between `before` and `after`. A single pixel whose taps are
    neighbours sees just the field; the tile then lacks `pixels`, and a store broadcasts it there.
    """
    if dilation == (1, 1) and all(pixel.extent == 1 for pixel in pixels):
        return view[origin, tj.shape(*before, *taps, *after)]
    rows, columns = (
        tj.axis("field", (pixel.extent - 1) * step + (tap.extent - 1) * gap + 1)
        for pixel, tap, step, gap in zip(pixels, taps, stride, dilation, strict=True)
    )
    field = view[origin, tj.shape(*before, rows, columns, *after)]

    def source(element: Any) -> Any:
        seen = (
            element.index(pixel) * step + element.index(tap) * gap
            for pixel, tap, step, gap in zip(pixels, taps, stride, dilation, strict=True)
        )
        return tj.coord(*map(element.index, before), *seen, *map(element.index, after))

    return tj.reindex(field, tj.shape(*before, *pixels, *taps, *after), source)


def pixels(height: int, width: int, block_rows: Size, block_cols: Size) -> tuple[int, int]:
    """How many pixels a program makes: one, unless the caller says otherwise."""
    return block_size("block_rows", block_rows, 1, height), block_size("block_cols", block_cols, 1, width)
