"""Reverse mode of the convolution: two more convolutions.

The image gets the cotangent of the result convolved with the filters turned around, after what a stride
skipped is filled with zeros. The filters get the image convolved with that cotangent: its places are the
taps then, so stride and dilation change roles.
"""

from __future__ import annotations

from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import convolution
from ..blocks import Size, block_size, cut, on_gpu, tiles
from ..checks import check_float
from ..convolution import Pair, pair
from ..windows import pixels, windows
from .columns import rows_of, summed

_SIZES = ("block_rows", "block_cols")


def conv2d_forward(x: Any, w: Any, bias: Any = None, *, out: None = None, **keywords: Any) -> Any:
    """The result, which tells what `relu` cut."""
    y = _forward(x, w, bias, **keywords)
    return y, y if keywords.get("relu") else None


def conv2d(
    saved: Any,
    dy: Any,
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    relu: bool = False,
    block_rows: Size = None,
    block_cols: Size = None,
    out: None = None,
) -> tuple[Any, Any, Any]:
    """`(dx, dw, dbias)`."""
    sizes = {"block_rows": block_rows, "block_cols": block_cols}
    if relu:
        dy = _uncut(rows_of(saved), rows_of(dy)).reshape(dy.shape)
    geometry = pair("stride", stride, 1), pair("padding", padding, 0), pair("dilation", dilation, 1)
    dx = _image(dy, w, x.shape, x.dtype, *geometry, **sizes)
    dw = _filters(x, dy, w.shape, w.dtype, *geometry, **sizes)
    dbias = None if bias is None else summed(rows_of(dy), bias.dtype)
    return dx, dw, dbias


def relu_backward(y: tj.TensorView, dy: tj.TensorView) -> tj.TensorView:
    """`dy`, 0 where the result `y` of a ReLU is 0."""
    result = tj.output_like(dy)
    block = tiles(dy, None, None)

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        result(*here).store(tj.where(y[here] <= 0.0, 0.0, dy[here]))

    return result


def conv2d_image_backward(
    dy: tj.TensorView,
    w: tj.TensorView,
    shape: tuple[int, int, int, int],
    dtype: Any,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    *,
    block_rows: Size = None,
    block_cols: Size = None,
) -> tj.TensorView:
    """The cotangent of the image, of the given `shape` and `dtype`."""
    f32 = check_float("conv2d", dy=dy, w=w)
    dx = tj.output(shape, dtype)
    spaced = dy if stride == (1, 1) else _spaced(dy, stride)
    block = cut(shape[:3], (1, *pixels(*shape[1:3], block_rows, block_cols)))
    b, iy, ix = block.axes
    fy, fx = tj.axis("filter_y", w.shape[0]), tj.axis("filter_x", w.shape[1])
    ic, oc = tj.axis("input_channel", shape[3]), tj.axis("output_channel", w.shape[3])
    before = [p - (n - 1) * gap for p, n, gap in zip(padding, w.shape, dilation, strict=False)]

    def turned(element: Any) -> Any:
        last = fy.extent - 1 - element.index(fy), fx.extent - 1 - element.index(fx)
        return tj.coord(*last, element.index(ic), element.index(oc))

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        n0, y0, x0 = block.at(nest)[0]
        field = tj.coord(n0, y0 + before[0], x0 + before[1], 0)
        taps = windows(spaced, field, (iy, ix), (fy, fx), before=(b,), after=(oc,), dilation=dilation)
        filters = tj.reindex(w[tj.coord(0, 0, 0, 0), tj.shape(*w.shape)], tj.shape(fy, fx, ic, oc), turned)
        value = tj.mma(taps, filters, tj.zeros(tj.shape(b, iy, ix, ic), f32))
        dx(tj.coord(n0, y0, x0, 0), tj.shape(b, iy, ix, ic)).store(value.astype(dx.dtype))

    return dx


def _spaced(dy: tj.TensorView, stride: tuple[int, int]) -> tj.TensorView:
    """`dy` with `stride - 1` zeros between its places."""
    places = dy.shape[:3]
    height, width = ((n - 1) * step + 1 for n, step in zip(places[1:], stride, strict=True))
    result = tj.output((places[0], max(height, 0), max(width, 0), dy.shape[3]), dy.dtype)
    block = cut(places, (1, 1, 1))
    shape = tj.shape(*block.axes, tj.axis("output_channel", dy.shape[3]))

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        n0, y0, x0 = block.at(nest)[0]
        result(tj.coord(n0, y0 * stride[0], x0 * stride[1], 0), shape).store(
            dy[tj.coord(n0, y0, x0, 0), shape]
        )

    return result


def conv2d_filters_backward(
    x: tj.TensorView,
    dy: tj.TensorView,
    shape: tuple[int, int, int, int],
    dtype: Any,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    *,
    block_rows: Size = None,
    block_cols: Size = None,
) -> tj.TensorView:
    """The cotangent of the filters, of the given `shape` and `dtype`: a pipeline over blocks of the result's
    places, each program for one tap on a GPU, for all of them elsewhere."""
    f32 = check_float("conv2d", x=x, dy=dy)
    dw = tj.output(shape, dtype)
    places = dy.shape[:3]
    height, width = places[1:]
    rows = block_size("block_rows", block_rows, 4 if on_gpu() else 1, height)
    columns = block_size("block_cols", block_cols, 16 if on_gpu() else 1, width)
    block = cut(places, (1, rows, columns))
    n, oy, ox = block.axes
    most = (1, 1, 64, 64) if on_gpu() else shape
    filters = cut(shape, tuple(max(1, min(*sizes)) for sizes in zip(shape, most, strict=True)))
    fy, fx, ic, oc = filters.axes

    @tj.parallel(*filters.grid)
    def _(nest: tj.Nest):
        here = filters.at(nest)
        ty, tx, c0, o0 = here[0]

        @nest.pipeline(*block.grid, carry=tj.zeros(here[1], f32))
        def result(step, acc):
            n0, y0, x0 = block.at(step)[0]
            top = ty * dilation[0] + y0 * stride[0] - padding[0]
            left = tx * dilation[1] + x0 * stride[1] - padding[1]
            step.stage("load")
            field = tj.coord(n0, top, left, c0)
            seen = windows(
                x, field, (oy, ox), (fy, fx), before=(n,), after=(ic,), stride=stride, dilation=dilation
            )
            slope = dy[tj.coord(n0, y0, x0, o0), tj.shape(n, oy, ox, oc)]
            step.stage("compute")
            return tj.mma(tj.broadcast_to(seen, tj.shape(n, oy, ox, fy, fx, ic)), slope, acc)

        dw(*here).store(result.astype(dw.dtype))

    return dw


with_gradient(backward=conv2d, forward=conv2d_forward)(convolution.conv2d)
_forward = jit(convolution.conv2d, static_argnames=("stride", "padding", "dilation", "relu", *_SIZES))
_uncut = jit(relu_backward)
_image = jit(conv2d_image_backward, static_argnums=(2, 3, 4, 5, 6), static_argnames=_SIZES)
_filters = jit(conv2d_filters_backward, static_argnums=(2, 3, 4, 5, 6), static_argnames=_SIZES)
