"""The gradient of FlashAttention against `jnp` in float64, its edges, and that it never holds the scores."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import FLOATS, normal

import tilejax as tj
from tests.jnp_reference import attention as reference
from tests.test_gradients import check, kernels_of, vjp
from tilejax import kernels
from tilejax.kernels import attention

FEW: dict[str, Any] = {"block_q": 4, "block_kv": 8}
SIZES = [(1, 1, 1, 1, 1, 1, 1), (2, 2, 2, 7, 5, 4, 3), (1, 4, 2, 17, 33, 8, 8), (1, 3, 1, 19, 11, 5, 7)]
"""Batch, heads, heads of keys, queries, keys, channels, channels of values."""


def qkv(sizes: tuple[int, ...], dtype: Any = np.float32) -> list[np.ndarray]:
    batch, heads, kv_heads, queries, keys, channels, values = sizes
    return [
        normal(batch, heads, queries, channels, dtype=dtype),
        normal(batch, kv_heads, keys, channels, dtype=dtype, seed=1),
        normal(batch, kv_heads, keys, values, dtype=dtype, seed=2),
    ]


def cotangents(q: Any, k: Any, v: Any, **keywords: Any) -> Any:
    """Those of a result whose cotangent is 1."""
    ct = np.ones((*q.shape[:3], v.shape[3]), q.dtype)
    return vjp(lambda *args: kernels.flash_attention(*args, **keywords), [q, k, v], ct)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
class TestGradient:
    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    @pytest.mark.parametrize("blocks", [FEW, {"block_q": 8, "block_kv": 3}], ids=["wide", "tall"])
    def test_ragged_blocks(self, sizes, causal, blocks):
        check(
            lambda *args: kernels.flash_attention(*args, causal=causal, **blocks),
            lambda *args: reference(*args, causal=causal),
            qkv(sizes),
        )

    @pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
    def test_narrow_dtypes(self, dtype, causal):
        """The rounded result is read, weights and scores are rounded for the products: a few units."""
        check(
            lambda *args: kernels.flash_attention(*args, causal=causal),
            lambda *args: reference(*args, causal=causal),
            qkv((1, 2, 1, 37, 41, 8, 8), dtype),
            units=4,
        )

    def test_scale(self, causal):
        check(
            lambda *args: kernels.flash_attention(*args, scale=0.3, causal=causal, **FEW),
            lambda *args: reference(*args, scale=0.3, causal=causal),
            qkv((1, 1, 1, 9, 9, 4, 4)),
        )

    def test_a_traced_scale(self, causal):
        """Its own cotangent is the derivative of the program."""
        q, k, v = qkv((1, 2, 1, 5, 9, 4, 3))
        kernel = tj.jit(attention.flash_attention, static_argnames=("causal", "block_q", "block_kv"))
        check(
            lambda q, scale: kernel(q, k, v, scale=scale, causal=causal, **FEW),
            lambda q, scale: reference(q, k, v, scale=scale, causal=causal),
            [q, np.float32(0.4)],
        )

    def test_default_blocks(self, causal):
        check(
            lambda *args: kernels.flash_attention(*args, causal=causal),
            lambda *args: reference(*args, causal=causal),
            qkv((1, 1, 1, 600, 530, 4, 4)),
        )

    @pytest.mark.parametrize(
        "sizes", [(0, 2, 1, 3, 4, 2, 2), (1, 0, 0, 3, 4, 2, 2), (1, 2, 1, 3, 4, 0, 2)], ids=str
    )
    def test_empty(self, sizes, causal):
        q, k, v = qkv(sizes)
        for got, x in zip(cotangents(q, k, v, causal=causal), (q, k, v), strict=True):
            assert got.shape == x.shape

    @pytest.mark.parametrize(
        "sizes",
        [(1, 2, 1, 3, 0, 4, 5), (1, 2, 1, 0, 4, 2, 2), (1, 0, 1, 3, 4, 2, 2), (1, 2, 1, 3, 4, 2, 0)],
        ids=["no key", "no query", "no head", "no value channel"],
    )
    def test_where_nothing_is_seen_all_is_zero(self, sizes, causal):
        q, k, v = qkv(sizes)
        for got, x in zip(cotangents(q, k, v, causal=causal), (q, k, v), strict=True):
            np.testing.assert_array_equal(got, np.zeros_like(x))

    def test_rows_of_masked_keys_are_zero(self, causal):
        """A score of minus infinity is a masked key; here the first head sees nothing else."""
        q, k, v = qkv((1, 2, 1, 9, 12, 1, 2))
        k[...] = -np.inf
        q[:, 0], q[:, 1] = 1, 0.5
        _, _, dv = cotangents(q, k, v, causal=causal, **FEW)
        np.testing.assert_array_equal(dv, np.zeros_like(v))

    def test_queries_past_the_end_add_nothing(self, causal):
        """Those of a ragged block are 0; times an infinite key that would be NaN."""
        q, k, v = qkv((1, 1, 1, 5, 9, 1, 2))
        q, k[0, 0, 3] = np.abs(q), -np.inf
        _, _, dv = cotangents(q, k, v, causal=causal, **FEW)
        assert np.isfinite(dv).all()
        np.testing.assert_array_equal(dv[0, 0, 3], np.zeros(2))

    def test_runs_its_own_kernels(self, causal):
        found = kernels_of(lambda *args: kernels.flash_attention(*args, causal=causal), qkv(SIZES[2]))
        assert found == ["flash_attention_backward", "flash_attention_residuals"]

    @pytest.mark.usefixtures("on_cpu")
    def test_memory_grows_with_the_sequence_alone(self, causal):
        """Twice the sequence is at most twice the memory, and less than one matrix of scores."""
        used = [temporaries(length, causal) for length in (1024, 2048, 4096)]
        assert used[1] <= 2.1 * used[0]
        assert used[2] <= 2.1 * used[1]
        assert used[2] < HEADS * 4096 * 4096 * 4 / 3


HEADS = 2


def temporaries(length: int, causal: bool) -> int:
    """The bytes that the gradient of attention over `length` needs besides arguments and results."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (kernels.flash_attention(q, k, v, causal=causal) ** 2).sum()

    x = jax.ShapeDtypeStruct((1, HEADS, length, 32), jnp.float32)
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_causal_keys_that_no_query_sees_get_zero():
    q, k, v = qkv((1, 1, 1, 5, 11, 4, 3))
    _, dk, dv = cotangents(q, k, v, causal=True, **FEW)
    np.testing.assert_array_equal(dk[0, 0, 5:], np.zeros((6, 4)))
    np.testing.assert_array_equal(dv[0, 0, 5:], np.zeros((6, 3)))
    assert np.all(np.asarray(dv[0, 0, :5]) > 0)


def test_causal_visits_no_earlier_query():
    """NaN queries would come in by 0 * NaN if a block of them were multiplied with later keys at all."""
    q, k, v = qkv((1, 1, 1, 16, 16, 4, 2))
    q[0, 0, :8] = np.nan
    _, dk, dv = cotangents(q, k, v, causal=True, block_q=4, block_kv=4)
    for got in (dk, dv):
        assert np.isfinite(got[0, 0, 8:]).all()
        assert np.isnan(got[0, 0, :8]).all()


def test_large_scores_do_not_overflow():
    q, k, v = qkv((1, 1, 1, 9, 9, 4, 2))
    check(
        lambda *args: kernels.flash_attention(*args, **FEW),
        reference,
        [q * 30, k * 30, v],
        slack=2**20,
    )


def test_the_log_sum_exp_is_that_of_the_scores():
    q, k, v = qkv((1, 2, 1, 9, 7, 4, 2))
    y, lse = tj.jit(attention.flash_attention_residuals)(q, k, v)
    np.testing.assert_allclose(y, reference(q, k, v), rtol=1e-5, atol=1e-5)
    scores = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, 1)) / 2
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-5, atol=1e-5)
    _, nothing = tj.jit(attention.flash_attention_residuals)(q, k[:, :, :0], v[:, :, :0])
    np.testing.assert_array_equal(nothing, np.zeros((1, 2, 9)))
