"""FlashAttention and cross entropy against float64 formulas."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import oracle
import pytest
from kernel_cases import FLOATS, close, f32, i32, normal

import tilejax as tj
from tilejax import kernels
from tilejax.kernels import Window, attention, cross_entropy

FEW: dict[str, Any] = {"block_q": 4, "block_kv": 8}


def qkv(batch, heads, kv_heads, queries, keys, channels, values, dtype=np.float32):
    return (
        normal(batch, heads, queries, channels, dtype=dtype),
        normal(batch, kv_heads, keys, channels, dtype=dtype, seed=1),
        normal(batch, kv_heads, keys, values, dtype=dtype, seed=2),
    )


def check_attention(call, q, k, v, *, scale=None, causal=False, **blocks):
    """Scores are off by the roundings of the products; weights by their dtype and by what exp makes of it."""
    got = call(q, k, v, scale=scale, causal=causal, **blocks)
    d = q.shape[3]
    factor = d**-0.5 if scale is None else scale
    magnitude = np.abs(oracle.f64(q)).max(initial=0) * np.abs(oracle.f64(k)).max(initial=0) * d * abs(factor)
    weights = float(ml_dtypes.finfo(v.dtype).eps) / np.finfo(np.float32).eps
    slack = (2 * k.shape[2] + 16 + 2 * d * magnitude + weights) * np.abs(oracle.f64(v)).max(initial=0)
    close(got, oracle.attention(q, k, v, scale, causal), q.dtype, slack)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
class TestAttention:
    @pytest.mark.parametrize(
        "sizes",
        [(1, 1, 1, 1, 1, 1, 1), (2, 2, 2, 7, 5, 4, 3), (1, 4, 2, 17, 33, 8, 8), (1, 3, 1, 19, 11, 5, 7)],
        ids=str,
    )
    @pytest.mark.parametrize("blocks", [FEW, {"block_q": 8, "block_kv": 3}], ids=["wide", "tall"])
    def test_ragged_blocks(self, sizes, causal, blocks):
        check_attention(kernels.flash_attention, *qkv(*sizes), causal=causal, **blocks)

    def test_interpreted(self, causal):
        check_attention(
            tj.interpret(kernels.flash_attention), *qkv(1, 2, 1, 7, 9, 3, 2), causal=causal, **FEW
        )

    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    def test_default_blocks(self, dtype, causal):
        check_attention(kernels.flash_attention, *qkv(1, 2, 1, 37, 41, 8, 8, dtype), causal=causal)

    def test_longer_than_a_block(self, causal):
        check_attention(kernels.flash_attention, *qkv(1, 1, 1, 600, 530, 4, 4), causal=causal)

    def test_scale(self, causal):
        check_attention(kernels.flash_attention, *qkv(1, 1, 1, 9, 9, 4, 4), scale=0.3, causal=causal, **FEW)

    @pytest.mark.parametrize(
        "sizes", [(0, 2, 1, 3, 4, 2, 2), (1, 2, 1, 0, 4, 2, 2), (1, 2, 1, 3, 4, 2, 0)], ids=str
    )
    def test_an_empty_result(self, sizes, causal):
        q, k, v = qkv(*sizes)
        assert kernels.flash_attention(q, k, v, causal=causal).shape == (*q.shape[:3], v.shape[3])

    def test_without_keys_it_is_zero(self, causal):
        got = kernels.flash_attention(*qkv(1, 2, 1, 3, 0, 4, 5), causal=causal)
        np.testing.assert_array_equal(got, np.zeros((1, 2, 3, 5), np.float32))

    def test_scores_of_minus_infinity_are_masked_keys(self, causal):
        """A row of nothing but them is 0; one of some of them is what the others give."""
        q, k, v = np.ones((1, 1, 9, 1), np.float32), normal(1, 1, 12, 1), normal(1, 1, 12, 2)
        k[..., :6, :] = -np.inf
        check_masked(q, k, v, causal)
        k[...] = -np.inf
        got = kernels.flash_attention(q, k, v, causal=causal, **FEW)
        np.testing.assert_array_equal(got, np.zeros_like(got))

    def test_nan_goes_where_it_is_seen(self, causal):
        q, k, v = qkv(1, 1, 1, 9, 9, 4, 2)
        k[0, 0, 5] = np.nan
        got = kernels.flash_attention(q, k, v, causal=causal, **FEW)
        np.testing.assert_array_equal(
            np.isnan(got), np.broadcast_to(np.isnan(oracle.attention(q, k, v, None, causal)), got.shape)
        )
        assert np.isnan(got).any()

    def test_large_scores_do_not_overflow(self, causal):
        q, k, v = qkv(1, 1, 1, 9, 9, 4, 2)
        check_attention(kernels.flash_attention, q * 100, k * 100, v, causal=causal, **FEW)


def check_masked(q, k, v, causal):
    with np.errstate(all="ignore"):
        want = oracle.attention(q, k, v, None, causal)
    close(kernels.flash_attention(q, k, v, causal=causal, **FEW), want, np.float32, 64 * np.abs(v).max())


def test_causal_visits_no_later_block():
    """NaN values would come in by 0 * NaN if a block of later keys were multiplied at all."""
    q, k, v = qkv(1, 1, 1, 16, 16, 4, 2)
    v[0, 0, 8:] = np.nan
    got = np.asarray(kernels.flash_attention(q, k, v, causal=True, block_q=4, block_kv=4))
    v[0, 0, 8:] = 0
    close(got[..., :8, :], oracle.attention(q, k, v, None, True)[..., :8, :], np.float32, 256)
    assert np.isnan(got[..., 8:, :]).all()


@pytest.mark.parametrize("run", [tj.jit, tj.interpret], ids=["jit", "interpret"])
def test_attention_into_a_window(run):
    q, k, v = qkv(1, 2, 1, 5, 7, 3, 2)

    def kernel(around, q, k, v):
        y = tj.update(around)
        attention.flash_attention(q, k, v, out=Window(y, (0, 1, 2, 1), (1, 2, 5, 2)), **FEW)
        return y

    canary = np.full((1, 4, 9, 5), -12345.0, np.float32)
    got = np.array(run(kernel)(canary, q, k, v))
    close(got[:, 1:3, 2:7, 1:3], oracle.attention(q, k, v), np.float32, 256)
    got[:, 1:3, 2:7, 1:3] = -12345.0
    np.testing.assert_array_equal(got, canary)


def check_cross_entropy(call, logits, labels, **blocks):
    losses, gradient = call(logits, labels, **blocks)
    want_losses, want_gradient = oracle.sparse_cross_entropy(logits, labels)
    n = logits.shape[1]
    with np.errstate(invalid="ignore"):
        largest = np.nan_to_num(np.abs(oracle.f64(logits)), nan=0, posinf=0).max(1)
        slack = n + 16 + 4 * largest
    close(losses, want_losses, logits.dtype, slack)
    close(gradient, want_gradient, logits.dtype, slack[:, None])


class TestCrossEntropy:
    @pytest.mark.parametrize("shape", [(1, 1), (17, 65), (7, 2), (0, 5)], ids=str)
    def test_shapes(self, shape):
        labels = np.random.default_rng(4).integers(0, shape[1], shape[0]).astype(np.int32)
        check_cross_entropy(kernels.sparse_cross_entropy, normal(*shape), labels)

    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    def test_dtypes_in_ragged_blocks(self, dtype):
        labels = np.random.default_rng(4).integers(0, 33, 13).astype(np.int32)
        check_cross_entropy(
            kernels.sparse_cross_entropy, 4 * normal(13, 33, dtype=dtype), labels, block_rows=4
        )

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32], ids=lambda d: np.dtype(d).name)
    def test_a_label_outside_does_not_count(self, dtype):
        """Also with more classes than an int8 label can name."""
        labels = np.array([0, 127, 3, np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        for classes in (3, 300):
            check_cross_entropy(kernels.sparse_cross_entropy, normal(5, classes), labels)

    def test_interpreted(self):
        labels = i32([0, 6, 3, -1, 7])
        check_cross_entropy(tj.interpret(kernels.sparse_cross_entropy), normal(5, 7), labels, block_rows=2)

    def test_infinite_logits(self):
        logits = f32([[-np.inf, 1, 2], [-np.inf, 1, 2], [np.inf, 1, 2], [np.nan, 1, 2], [-np.inf] * 3])
        check_cross_entropy(kernels.sparse_cross_entropy, logits, i32([1, 0, 0, 1, 1]))

    def test_the_gradient_is_that_of_the_loss(self):
        logits, labels = normal(6, 9), i32([0, 8, 4, 2, 2, 1])
        by_jax = jax.grad(lambda z: kernels.sparse_cross_entropy(z, labels)[0].sum())(logits)
        close(by_jax, oracle.sparse_cross_entropy(logits, labels)[1], np.float32, 64)

    def test_into_windows(self):
        logits, labels = normal(5, 7), i32([0, 6, 3, -1, 7])

        def kernel(around_losses, around_gradient, logits, labels):
            losses, gradient = tj.update(around_losses), tj.update(around_gradient)
            out = Window(losses, (2,), (5,)), Window(gradient, (1, 1), (5, 7))
            cross_entropy.sparse_cross_entropy(logits, labels, out=out, block_rows=3)
            return losses, gradient

        losses, gradient = tj.jit(kernel)(np.ones(9, np.float32), np.ones((9, 9), np.float32), logits, labels)
        want_losses, want_gradient = oracle.sparse_cross_entropy(logits, labels)
        close(losses, np.pad(want_losses, 2, constant_values=1), np.float32, 64)
        close(gradient, np.pad(want_gradient, ((1, 3), (1, 1)), constant_values=1), np.float32, 64)
