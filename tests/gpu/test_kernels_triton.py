"""The documented kernels on an NVIDIA GPU through Triton, against the float64 formulas."""

import functools

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import oracle
import pytest

import tilejax as tj
from tilejax import kernels

SHAPES = [(1, 1), (17, 65), (5, 1000), (130, 257)]


def triton(kernel):
    return tj.jit(kernel, backend="triton")


@pytest.mark.parametrize("dtype", kernel_cases.FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", sorted(kernel_cases.CASES))
def test_matrix_kernels(name, shape, dtype):
    case = kernel_cases.CASES[name]
    args = case.args(shape, dtype)
    kernel_cases.close(triton(case.body)(*args), case.want(*args), dtype, case.slack(*args))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sort_and_top_k(shape):
    x = kernel_cases.normal(*shape)
    x[0, 0] = np.nan
    order = np.argsort(x, -1, kind="stable")
    values, indices = triton(kernels.sort)(x)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    k = min(5, shape[1])
    best = jax.lax.top_k(jnp.asarray(x), k)
    got = triton(kernels.top_k)(x, k)
    np.testing.assert_array_equal(got[1], best[1])


def checked(got, x, order):
    np.testing.assert_array_equal(got[1], order)
    np.testing.assert_array_equal(got[0], np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize(("n", "k"), [(2048, 1), (5000, 100), (32000, 64), (40_001, 3000), (20_000, 7000)])
def test_selections_from_long_rows(n, k, largest):
    """Also of rows with ties, of one value, and of rows whose best are at places that are alike."""
    x = kernel_cases.normal(6, n)
    x[1], x[2], x[3, ::1024] = np.round(x[1]), 1, 9 + x[3, ::1024]
    x[4, ::4096], x[5, : n // 2] = -9 + x[4, ::4096], np.nan
    key = np.where(np.isnan(x), np.inf, x)
    order = np.argsort(-key if largest else key, -1, kind="stable")[:, :k]
    checked(triton(kernels.top_k)(x, k, largest=largest), x, order)


def spread(x, *, descending):
    """The sorted rows, less what is least in each, and their order."""
    y, index, n = tj.output_like(x), tj.output(x.shape, np.int32), tj.axis("n", x.shape[1])

    @tj.parallel(x.shape[0])
    def _(nest: tj.Nest):
        here = tj.coord(nest.index(), 0), tj.shape(1, n)
        ordered, places = tj.sort(x[here], n, descending=descending)
        y(*here).store(ordered - tj.min(ordered, n))
        index(*here).store(places)

    return y, index


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("n", [4097, 16384, 70_000])
def test_sorts_of_long_rows(n, descending):
    """Alone, and in a kernel that does more."""
    x = kernel_cases.normal(3, n)
    x[1], x[2, ::3] = np.round(x[1]), np.nan
    key = np.where(np.isnan(x), np.inf, x)
    order = np.argsort(-key if descending else key, -1, kind="stable")
    checked(triton(kernels.sort)(x, descending=descending), x, order)
    values, index = triton(functools.partial(spread, descending=descending))(x)
    checked((values, index), x - x.min(-1, keepdims=True), order)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (100, 37), (1, 130)])
def test_attention(queries, keys, causal):
    q, k, v = (
        kernel_cases.normal(2, h, n, d, seed=s)
        for s, (h, n, d) in enumerate([(4, queries, 32), (2, keys, 32), (2, keys, 16)])
    )
    got = triton(kernels.flash_attention)(q, k, v, causal=causal)
    np.testing.assert_allclose(got, oracle.attention(q, k, v, causal=causal), rtol=1e-4, atol=1e-5)


def test_images_segments_and_losses():
    image, filters = kernel_cases.normal(33, 30, 3), kernel_cases.normal(3, 3, 3, seed=1)
    ids, values = np.arange(3000, dtype=np.int32) % 13 - 1, kernel_cases.normal(3000)
    logits, labels = kernel_cases.normal(9, 1003), np.arange(9, dtype=np.int32) * 100
    pairs = [
        (triton(kernels.depthwise_conv_pool)(image, filters), oracle.depthwise_conv_pool(image, filters)),
        (triton(kernels.sobel_median)(image[..., 0]), oracle.sobel_median(image[..., 0])),
        (triton(kernels.segment_sum)(ids, values, 11), oracle.segment_sum(ids, values, 11)),
        (triton(kernels.sparse_cross_entropy)(logits, labels), oracle.sparse_cross_entropy(logits, labels)),
    ]
    for got, want in pairs:
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=2e-5, atol=2e-5)


def test_integer_products_are_exact():
    a, b = np.full((40, 70), 100, np.int8), np.full((70, 33), 100, np.int8)
    got = triton(kernels.gemm)(a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("depth", [37, 4096])
def test_products_of_eight_bit_floats_keep_their_sums(dtype, depth):
    """An accumulator of 14 bits, which the units have for some tens of terms, would lose the small ones."""
    numbers = np.random.default_rng(0).integers(1, 5, (150, depth)).astype(np.float32)
    a, b = numbers[:70].astype(dtype), numbers[70:].T.astype(dtype)
    want = a.astype(np.float64) @ b.astype(np.float64)
    for out in ("float32", "bfloat16", "float16"):
        got = triton(kernels.gemm)(a, b, out_dtype=out)
        np.testing.assert_array_equal(np.asarray(got, np.float64), want.astype(out).astype(np.float64))


def test_a_batch_is_one_launch():
    x = kernel_cases.normal(3, 5, 70)
    text = jax.jit(jax.vmap(triton(kernels.softmax))).lower(x).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 1
    np.testing.assert_allclose(jax.vmap(triton(kernels.softmax))(x), oracle.softmax(x), rtol=1e-5, atol=1e-6)


def test_long_rows():
    """Longer than a program holds: they go through it in pieces."""
    x, y = kernel_cases.normal(2, 100_003), kernel_cases.normal(2, 100_003, seed=1)
    np.testing.assert_allclose(triton(kernels.softmax)(x), oracle.softmax(x), rtol=1e-4, atol=1e-9)
    probability = np.abs(np.tanh(x))
    got = triton(kernels.row_statistics)(x, y, probability)
    for g, w in zip(got, oracle.row_statistics(x, y, probability), strict=True):
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=1e-4, atol=1e-3)
    order = np.argsort(-x, -1, kind="stable")[:, :64]
    values, indices = triton(kernels.top_k)(x, 64)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_small_programs_in_lanes():
    x, w = kernel_cases.normal(2, 9, 130, 20), kernel_cases.normal(3, 3, 20, 24, seed=1)
    got = triton(kernels.conv2d)(x, w, padding=1)
    np.testing.assert_allclose(got, oracle.conv2d(x, w, padding=(1, 1)), rtol=1e-4, atol=1e-4)


def test_gradients_run_here_too():
    x = jnp.asarray(kernel_cases.normal(17, 65))
    loss = jax.grad(lambda x: jnp.sum(triton(kernels.softmax)(x) ** 2))
    want = jax.grad(lambda x: jnp.sum(jax.nn.softmax(x, -1) ** 2))(x)
    np.testing.assert_allclose(loss(x), want, rtol=1e-4, atol=1e-6)
