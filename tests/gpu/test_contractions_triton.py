"""Products that are cut anew, and windows that share their loads, on an NVIDIA GPU."""

import functools

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from kernel_cases import normal
from test_triton_contractions import CONVOLUTIONS, product

import tilejax as tj
from tilejax import kernels

LARGE = {
    "a block and more": ((3, 17, 23, 130), (3, 3, 130, 257), {"padding": 1}),
    "strides": ((2, 33, 31, 64), (5, 3, 64, 96), {"stride": (2, 3), "padding": (2, 1), "dilation": (1, 2)}),
    "few channels": ((2, 45, 47, 3), (7, 7, 3, 64), {"stride": 2, "padding": 3}),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", {**CONVOLUTIONS, **LARGE})
def test_convolutions(name, dtype):
    image, filters, options = {**CONVOLUTIONS, **LARGE}[name]
    x, w, bias = normal(*image).astype(dtype), normal(*filters, seed=1).astype(dtype), normal(filters[-1])
    got = tj.jit(kernels.conv2d, backend="triton")(x, w, bias, **options)
    pairs = {k: (v, v) if type(v) is int else v for k, v in options.items() if "block" not in k}
    want = oracle.conv2d(*(np.asarray(v, np.float64) for v in (x, w, bias)), **pairs)
    tolerance = 1e-4 if dtype == jnp.float32 else 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(
        np.asarray(got, np.float64), want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max())
    )


@pytest.mark.parametrize("block", [(1, 1), (8, 16), (32, 64)])
@pytest.mark.parametrize("turn", [False, True])
def test_a_product_whose_k_is_one_load(block, turn):
    a, b = normal(21, 70), normal(70, 35, seed=1)
    kernel = tj.jit(functools.partial(product, block=block, turn=turn), backend="triton")
    np.testing.assert_allclose(kernel(a, b), oracle.gemm(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_order", [False, True])
def test_rows_that_are_normalized_are_summed_in_pieces(in_order):
    """K is a load of 1000 elements a row."""
    rows, columns, depth = 40, 48, 1000
    a, b = normal(rows, depth), normal(depth, columns, seed=1)

    def kernel(a, b):
        out = tj.output((rows, columns), jnp.float32)
        m, n, k, g = (tj.axis(s, e) for s, e in zip("mnkg", (16, columns, depth, 3), strict=True))

        @tj.parallel(g)
        def _(nest):
            i = nest.index() * 16
            left, right = a[tj.coord(i, 0), tj.shape(m, k)], b[tj.coord(0, 0), tj.shape(k, n)]
            value = tj.mma(left, right, tj.zeros(tj.shape(m, n)), allow_reassociation=not in_order)
            out(tj.coord(i, 0), tj.shape(m, n)).store(value - tj.max(value, n))

        return out

    want = oracle.gemm(a, b)
    got = tj.jit(kernel, backend="triton")(a, b)
    np.testing.assert_allclose(got, want - want.max(1, keepdims=True), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("blocks", [{}, {"block_rows": 8, "block_cols": 16}], ids=str)
@pytest.mark.parametrize("height", [1, 3, 6, 67])
def test_windows(height, blocks):
    image = normal(height, 1030)
    for g, w in zip(
        tj.jit(kernels.sobel_median, backend="triton")(image, **blocks),
        oracle.sobel_median(image),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=2e-5, atol=2e-5)
