"""Convolutions: load a receptive field, contract it with the filter."""

from __future__ import annotations

import tilejax as tj

from .blocks import Size, cut
from .checks import check_float, check_rank, check_shape
from .window import View, destination
from .windows import pixels, windows

Pair = int | tuple[int, int]
"""One value for both spatial dimensions, or one for each."""


def conv2d(
    x: tj.TensorView,
    w: tj.TensorView,
    bias: tj.TensorView | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    relu: bool = False,
    block_rows: Size = None,
    block_cols: Size = None,
    out: View | None = None,
) -> View:
    """The convolution of `x` `(N, H, W, C)` with `w` `(FH, FW, C, O)`: `(N, OH, OW, O)`, the dtype of `x`.

    `stride`, `padding` (zeros on both sides) and `dilation` are an int, or one for each of H and W. `bias` is
    `(O,)`; `relu` cuts the result at 0. Accumulates in float32.
    """
    check_rank("conv2d", 4, x=x, w=w)
    f32 = check_float("conv2d", x=x, w=w)
    if x.dtype != w.dtype:
        raise tj.DtypeError(f"conv2d: x is {x.dtype} and w is {w.dtype}; they must agree")
    if x.shape[3] != w.shape[2]:
        raise tj.ShapeError(
            f"conv2d: x has shape {x.shape} and w {w.shape}; the channels of x must be those of w"
        )
    if bias is not None:
        check_float("conv2d", bias=bias)
        check_shape("conv2d", w.shape[3:], "the last axis of w", bias=bias)
    stride, padding = pair("stride", stride, 1), pair("padding", padding, 0)
    dilation = pair("dilation", dilation, 1)
    height, width = (
        output_extent("conv2d", *sizes)
        for sizes in zip(x.shape[1:3], w.shape[:2], stride, padding, dilation, strict=True)
    )
    places = (x.shape[0], height, width)
    y = destination(out, (*places, w.shape[3]), x.dtype)
    block = cut(places, (1, *pixels(height, width, block_rows, block_cols)))
    b, oy, ox = block.axes
    fy, fx = tj.axis("filter_y", w.shape[0]), tj.axis("filter_x", w.shape[1])
    ic, oc = tj.axis("input_channel", x.shape[3]), tj.axis("output_channel", w.shape[3])

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        n0, y0, x0 = block.at(nest)[0]
        field = tj.coord(n0, y0 * stride[0] - padding[0], x0 * stride[1] - padding[1], 0)
        taps = windows(
            x, field, (oy, ox), (fy, fx), before=(b,), after=(ic,), stride=stride, dilation=dilation
        )
        filters = w[tj.coord(0, 0, 0, 0), tj.shape(fy, fx, ic, oc)]
        value = tj.mma(taps, filters, tj.zeros(tj.shape(b, oy, ox, oc), f32))
        if bias is not None:
            value = value + bias[tj.coord(0), tj.shape(oc)].astype(f32)
        if relu:
            value = tj.where(value <= 0.0, 0.0, value)  # NaN stays, and the slope at 0 is 0
        y(tj.coord(n0, y0, x0, 0), tj.shape(b, oy, ox, oc)).store(value.astype(y.dtype))

    return y


def depthwise_conv_pool(
    x: tj.TensorView,
    w: tj.TensorView,
    padding: Pair = 1,
    *,
    block_rows: Size = None,
    block_cols: Size = None,
    out: tuple[View, View] | None = None,
) -> tuple[View, View]:
    """`(convolution, pool)` of `x` `(H, W, C)`: each channel with its own filter of `w` `(FH, FW, C)`, and
    the maximum under the filter, both over `x` with `padding` zeros on each side. Sums in float32.
    """
    check_rank("depthwise_conv_pool", 3, x=x, w=w)
    f32 = check_float("depthwise_conv_pool", x=x, w=w)
    if x.shape[2] != w.shape[2]:
        raise tj.ShapeError(
            f"depthwise_conv_pool: x has shape {x.shape} and w {w.shape}; their channels must agree"
        )
    padding = pair("padding", padding, 0)
    height, width = (
        output_extent("depthwise_conv_pool", *sizes, 1)
        for sizes in zip(x.shape[:2], w.shape[:2], (1, 1), padding, strict=True)
    )
    shape = (height, width, x.shape[2])
    convolution, pool = out or (tj.output(shape, x.dtype), tj.output(shape, x.dtype))
    block = cut(shape, (*pixels(height, width, block_rows, block_cols), None))
    oy, ox, c = block.axes
    fy, fx = tj.axis("filter_y", w.shape[0]), tj.axis("filter_x", w.shape[1])

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        y0, x0, _ = here[0]
        taps = windows(x, tj.coord(y0 - padding[0], x0 - padding[1], 0), (oy, ox), (fy, fx), after=(c,))
        filters = w[tj.coord(0, 0, 0), tj.shape(fy, fx, c)]
        value = tj.sum(taps.astype(f32) * filters.astype(f32), tj.shape(fy, fx))
        convolution(*here).store(value.astype(convolution.dtype))
        pool(*here).store(tj.max(taps, tj.shape(fy, fx)))

    return convolution, pool


def output_extent(kernel: str, extent: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """How many places a filter has: 0 if it does not fit."""
    if taps == 0:
        raise tj.ShapeError(f"{kernel}: the filter w is empty")
    return max(0, (extent + 2 * padding - (taps - 1) * dilation - 1) // stride + 1)


def pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    """`value` for both spatial dimensions; `ShapeError` if it is less than `least`."""
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2 or not all(isinstance(v, int) and v >= least for v in both):
        raise tj.ShapeError(f"{name} must be an int, or two, of at least {least}; got {value}")
    return both
