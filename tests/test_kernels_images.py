"""Convolutions and image filters against tap-by-tap float64 formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import oracle
import pytest
from kernel_cases import FLOATS, close, normal

import tilejax as tj
from tilejax import kernels
from tilejax.kernels import Window, convolution, images

BLOCKS: dict[str, Any] = {"block_rows": 2, "block_cols": 3}


def pair(value):
    return (value, value) if isinstance(value, int) else value


def check_conv(call, x, w, bias=None, *, stride=1, padding=0, dilation=1, relu=False, **blocks):
    got = call(x, w, bias, stride=stride, padding=padding, dilation=dilation, relu=relu, **blocks)
    sizes = pair(stride), pair(padding), pair(dilation)
    magnitude = oracle.conv2d(np.abs(x), np.abs(w), None if bias is None else np.abs(bias), *sizes)
    close(got, oracle.conv2d(x, w, bias, *sizes, relu), x.dtype, (math.prod(w.shape[:3]) + 4) * magnitude)


@pytest.mark.parametrize("blocks", [{}, BLOCKS], ids=["default", "blocks"])
@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 1, 1, 1), (1, 1, 1, 1), {}),
        ((1, 5, 6, 2), (3, 3, 2, 3), {"stride": 2, "padding": 1, "relu": True}),
        ((2, 7, 5, 3), (3, 2, 3, 4), {"padding": (1, 0), "stride": (1, 2)}),
        ((1, 9, 11, 1), (2, 3, 1, 2), {"dilation": (2, 3), "padding": 2}),
        ((1, 4, 4, 2), (1, 1, 2, 5), {"stride": 3}),
    ],
    ids=str,
)
def test_conv2d(x, w, options, blocks):
    check_conv(kernels.conv2d, normal(*x), normal(*w, seed=1), normal(w[3], seed=2), **options, **blocks)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_conv2d_dtypes(dtype):
    check_conv(
        kernels.conv2d, normal(1, 5, 4, 3, dtype=dtype), normal(3, 3, 3, 2, dtype=dtype, seed=1), padding=1
    )


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((0, 4, 4, 2), (3, 3, 2, 2)),
        ((1, 2, 2, 2), (3, 3, 2, 2)),
        ((1, 4, 4, 0), (3, 3, 0, 2)),
        ((1, 4, 4, 2), (3, 3, 2, 0)),
    ],
    ids=["batch", "too small", "channels in", "channels out"],
)
def test_conv2d_of_nothing(x, w):
    check_conv(kernels.conv2d, normal(*x), normal(*w))


@pytest.mark.parametrize("blocks", [{}, BLOCKS], ids=["default", "blocks"])
def test_conv2d_interpreted(blocks):
    options = {"stride": 2, "padding": 1, "dilation": (1, 2)}
    check_conv(tj.interpret(kernels.conv2d), normal(1, 4, 5, 2), normal(2, 2, 2, 3), **options, **blocks)


def test_conv2d_passes_nan_through_relu():
    x = normal(1, 3, 3, 1)
    x[0, 0, 0, 0] = np.nan
    got = np.asarray(kernels.conv2d(x, np.ones((2, 2, 1, 1), np.float32), relu=True))
    np.testing.assert_array_equal(np.isnan(got)[0, ..., 0], [[True, False], [False, False]])


def check_depthwise(call, x, w, padding=1, **blocks):
    convolution, pool = call(x, w, padding, **blocks)
    want, want_pool = oracle.depthwise_conv_pool(x, w, padding)
    slack = (w[..., 0].size + 4) * oracle.depthwise_conv_pool(np.abs(x), np.abs(w), padding)[0]
    close(convolution, want, x.dtype, slack)
    close(pool, want_pool, x.dtype)


@pytest.mark.parametrize("blocks", [{}, BLOCKS], ids=["default", "blocks"])
@pytest.mark.parametrize(
    ("shape", "taps", "padding"),
    [((1, 1, 1), (3, 3), 1), ((5, 6, 3), (3, 3), 1), ((7, 5, 2), (2, 4), 2), ((4, 5, 1), (1, 1), 0)],
    ids=str,
)
def test_depthwise(shape, taps, padding, blocks):
    check_depthwise(
        kernels.depthwise_conv_pool, normal(*shape), normal(*taps, shape[2], seed=1), padding, **blocks
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_depthwise_dtypes(dtype):
    check_depthwise(
        kernels.depthwise_conv_pool, normal(5, 4, 3, dtype=dtype), normal(3, 3, 3, dtype=dtype, seed=1)
    )


def test_depthwise_interpreted():
    check_depthwise(tj.interpret(kernels.depthwise_conv_pool), normal(4, 5, 2), normal(3, 3, 2, seed=1))


def test_the_pool_is_zero_padded():
    """Of negative values it is 0 at the border, and not inside."""
    _, pool = kernels.depthwise_conv_pool(-np.ones((5, 5, 1), np.float32), np.ones((3, 3, 1), np.float32))
    want = np.zeros((5, 5))
    want[1:4, 1:4] = -1
    np.testing.assert_array_equal(pool[..., 0], want)


def check_sobel(call, image, **blocks):
    gx, gy, median = call(image, **blocks)
    want_x, want_y, want_median = oracle.sobel_median(image)
    slack = 16 * np.abs(oracle.f64(image)).max(initial=0) * 8
    close(gx, want_x, image.dtype, slack)
    close(gy, want_y, image.dtype, slack)
    close(median, want_median, image.dtype)


@pytest.mark.parametrize("blocks", [{}, BLOCKS], ids=["default", "blocks"])
@pytest.mark.parametrize("shape", [(1, 1), (6, 7), (2, 9), (0, 4), (13, 1)], ids=str)
def test_sobel_median(shape, blocks):
    check_sobel(kernels.sobel_median, normal(*shape), **blocks)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_sobel_median_dtypes(dtype):
    check_sobel(kernels.sobel_median, normal(5, 6, dtype=dtype))


def test_sobel_median_interpreted():
    check_sobel(tj.interpret(kernels.sobel_median), normal(4, 5))


@pytest.mark.parametrize("blocks", [{}, BLOCKS], ids=["default", "blocks"])
def test_nan_is_the_greatest_in_a_median(blocks):
    image = normal(5, 6)
    image[2, 2:5] = np.nan
    got = np.asarray(kernels.sobel_median(image, **blocks)[2])
    np.testing.assert_array_equal(got, oracle.sobel_median(image)[2].astype(np.float32))


@pytest.mark.parametrize("run", [tj.jit, tj.interpret], ids=["jit", "interpret"])
def test_into_windows(run):
    """Blocks that reach past the results leave what is there."""
    x, w, image = normal(1, 5, 5, 2), normal(3, 3, 2, 2, seed=1), normal(5, 5, seed=2)

    def kernel(around, around_images, x, w, image):
        y = tj.update(around)
        convolution.conv2d(x, w, padding=1, out=Window(y, (0, 1, 1, 1), (1, 5, 5, 2)), **BLOCKS)
        gx, gy, median = (tj.update(around_images) for _ in range(3))
        here = (1, 2), (5, 5)
        images.sobel_median(
            image, out=(Window(gx, *here), Window(gy, *here), Window(median, *here)), **BLOCKS
        )
        return y, (gx, gy, median)

    y, filtered = run(kernel)(np.ones((1, 8, 8, 4), np.float32), np.ones((8, 8), np.float32), x, w, image)
    padding = ((0, 0), (1, 2), (1, 2), (1, 1))
    want = np.pad(oracle.conv2d(x, w, None, (1, 1), (1, 1)), padding, constant_values=1)
    close(y, want, np.float32, 256)
    for got, plain in zip(filtered, oracle.sobel_median(image), strict=True):
        close(got, np.pad(plain, ((1, 2), (2, 1)), constant_values=1), np.float32, 256)
