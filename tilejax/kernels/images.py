"""Classical image filters over 3x3 windows."""

from __future__ import annotations

import tilejax as tj

from .blocks import Size, cut
from .checks import check_float, check_rank
from .window import View
from .windows import pixels, windows


def sobel_median(
    image: tj.TensorView,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: tuple[View, View, View] | None = None,
) -> tuple[View, View, View]:
    """`(gx, gy, median)`: the Sobel derivatives of a 2-D image along columns and rows, and the median of its
    3x3 windows. Outside, the image is 0. The derivatives are computed in float32; NaN sorts last.
    """
    check_rank("sobel_median", 2, image=image)
    f32 = check_float("sobel_median", image=image)
    gx, gy, median = out or (tj.output_like(image), tj.output_like(image), tj.output_like(image))
    height, width = image.shape
    block = cut(image.shape, pixels(height, width, block_rows, block_cols))
    fy, fx, tap = tj.axis("filter_y", 3), tj.axis("filter_x", 3), tj.axis("tap", 9)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        y0, x0 = here[0]
        window = windows(image, tj.coord(y0 - 1, x0 - 1), block.axes, (fy, fx))
        dy, dx = tj.iota(fy) - 1, tj.iota(fx) - 1
        weight_x = (dx * tj.where(dy == 0, 2, 1)).astype(f32)
        weight_y = (dy * tj.where(dx == 0, 2, 1)).astype(f32)
        derivative_x = tj.sum(window.astype(f32) * weight_x, tj.shape(fy, fx))
        derivative_y = tj.sum(window.astype(f32) * weight_y, tj.shape(fy, fx))
        ordered, _ = tj.sort(tj.reshape(window, tj.shape(*window.axes[:-2], tap)), tap)
        gx(*here).store(derivative_x.astype(gx.dtype))
        gy(*here).store(derivative_y.astype(gy.dtype))
        median(*here).store(tj.gather(ordered, 4, tap))

    return gx, gy, median
