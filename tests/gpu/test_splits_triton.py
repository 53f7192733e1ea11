"""Few programs with long sums, which share their steps and pieces with others, on the device itself."""

import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import tilejax as tj
from tilejax import kernels


def triton(kernel):
    return tj.jit(kernel, backend="triton")


@pytest.mark.parametrize("depth", [16384, 16001])
def test_products_of_few_blocks(depth):
    a, b = (np.random.default_rng(i).integers(-2, 3, s) for i, s in enumerate([(96, depth), (depth, 130)]))
    got = triton(kernels.gemm)(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), out_dtype=np.float32)
    np.testing.assert_array_equal(got, (a @ b).astype(np.float32))


@pytest.mark.parametrize("segments", [7, 1000])
def test_segments_and_the_same_every_time(segments):
    random = np.random.default_rng(2)
    ids = random.integers(-1, segments + 1, 200_003).astype(np.int32)
    values = random.normal(size=200_003).astype(np.float32)
    values[11], values[13] = np.nan, np.inf
    run = triton(kernels.segment_sum)
    sums, counts = run(ids, values, segments)
    want, members = oracle.segment_sum(ids, values, segments)
    np.testing.assert_allclose(sums, want, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(counts, members)
    for _ in range(3):
        np.testing.assert_array_equal(run(ids, values, segments)[0], sums)


@pytest.mark.parametrize("length", [200_000, 131_072, 99_991])
def test_few_long_rows(length):
    x = np.random.default_rng(3).normal(size=(3, length)).astype(np.float32)
    np.testing.assert_allclose(triton(kernels.row_sum)(x), oracle.row_sum(x), rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(triton(kernels.softmax)(x), oracle.softmax(x), rtol=1e-4)
    np.testing.assert_allclose(triton(kernels.layernorm)(x), oracle.layernorm(x), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(triton(kernels.cumsum)(x), oracle.cumsum(x), rtol=1e-3, atol=1e-1)
    labels = np.array([0, length - 1, -1], np.int32)
    losses, gradient = triton(kernels.sparse_cross_entropy)(x, labels)
    want = oracle.sparse_cross_entropy(x, labels)
    np.testing.assert_allclose(losses, want[0], rtol=1e-4)
    np.testing.assert_allclose(gradient, want[1], rtol=1e-3, atol=1e-7)
    x[1, 70_000], x[1, 80_000], x[2] = np.nan, np.nan, -np.inf
    np.testing.assert_array_equal(triton(kernels.row_max)(x), x.max(-1))
    found = triton(kernels.row_statistics)(x, x, abs(np.tanh(np.nan_to_num(x)))).argmax
    np.testing.assert_array_equal(found, x.argmax(-1))
    np.testing.assert_array_equal(triton(kernels.cummax)(x), np.maximum.accumulate(x, -1))
