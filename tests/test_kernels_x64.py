"""Double precision is kept from end to end, and wide integers are not cut to an index that they are not."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from kernel_cases import CASES

from tilejax import kernels


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def normal(*shape):
    return np.random.default_rng(11).standard_normal(shape)


def close(got, want):
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(CASES))
def test_matrices(name):
    args = CASES[name].args((7, 19), np.float64)
    close(getattr(kernels, name)(*args, **CASES[name].blocks), CASES[name].want(*args))


def test_attention():
    q = normal(1, 2, 9, 4)
    close(kernels.flash_attention(q, q, q, block_q=4, block_kv=2), oracle.attention(q, q, q))


def test_images():
    x, w = normal(1, 5, 4, 2), normal(3, 3, 2, 3)
    close(kernels.conv2d(x, w, padding=1), oracle.conv2d(x, w, None, (1, 1), (1, 1)))
    for got, want in zip(kernels.sobel_median(x[0, ..., 0]), oracle.sobel_median(x[0, ..., 0]), strict=True):
        close(got, want)


def test_statistics():
    x, target, p = normal(3, 5), normal(3, 5) + 1, np.abs(normal(3, 5)) / 4
    got = kernels.row_statistics(x, target, p)
    assert got.argmax.dtype == np.int64
    for value, want in zip(got, oracle.row_statistics(x, target, p), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "ids",
    [np.array([0, 2, 2**32, 1 - 2**32, 1], np.int64), np.array([0, 2, 2**32, 2**63, 1], np.uint64)],
    ids=str,
)
def test_an_id_of_64_bits_is_compared_whole(ids):
    """2**32 is not segment 0 and not class 0, though its low bits are."""
    values = normal(5, 3)
    sums, counts = kernels.segment_sum(ids, values, 3)
    close(sums, oracle.segment_sum(ids, values, 3)[0])
    assert counts.dtype == np.int32
    assert counts.tolist() == [1, 1, 1]
    for got, want in zip(
        kernels.sparse_cross_entropy(values, ids), oracle.sparse_cross_entropy(values, ids), strict=True
    ):
        close(got, want)
