"""The product through explicit memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from kernel_cases import close, normal

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import lower as triton
from tilejax.kernels import manual


@pytest.mark.parametrize("shape", [(1, 1, 1), (65, 33, 130), (64, 32, 64), (5, 0, 7), (0, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_values(shape, dtype):
    m, k, n = shape
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    slack = k * oracle.gemm(np.abs(a), np.abs(b))
    close(kernels.manual_gemm(a, b), oracle.gemm(a, b), dtype, slack)


def test_interpreted_in_ragged_blocks():
    a, b = normal(19, 13), normal(13, 21, seed=1)
    got = tj.interpret(kernels.manual_gemm)(a, b, block_m=8, block_n=5, block_k=4, window=2)
    close(got, oracle.gemm(a, b), np.float32, 13 * oracle.gemm(np.abs(a), np.abs(b)))


def test_transformations():
    a, b, blocks = normal(3, 9, 7), normal(7, 5, seed=1), {"block_m": 4, "block_n": 4, "block_k": 3}

    def product(a, b):
        return kernels.manual_gemm(a, b, **blocks)

    mapped = jax.vmap(product, (0, None))(a, b)
    np.testing.assert_allclose(mapped, np.asarray(a, np.float64) @ b, rtol=1e-5, atol=1e-5)
    for rule in (product, tj.jit(lambda a, b: manual.manual_gemm(a, b, **blocks))):
        got = jax.grad(lambda a, b, f=rule: (f(a, b) ** 2).sum(), (0, 1))(a[0], b)
        want = 2 * (a[0] @ b) @ b.T, 2 * a[0].T @ (a[0] @ b)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
        tangents = jax.jvp(rule, (a[0], b), (a[1], 2 * b))[1]
        np.testing.assert_allclose(tangents, a[1] @ b + 2 * a[0] @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("on_cpu")
def test_it_is_compiled_as_the_plain_product_is():
    """No memory is left, and no loop: the steps are one contraction."""
    a, b = normal(65, 70), normal(70, 66)
    text = jax.jit(kernels.manual_gemm).lower(a, b).as_text()
    assert "stablehlo.while" not in text
    assert text.count("dot_general") == 1


def test_triton_takes_it():
    a, b = normal(32, 48), normal(48, 32, seed=1)
    program = tj.make_jaxpr(kernels.manual_gemm)(a, b, block_m=16, block_n=16, block_k=16)
    (got,) = triton.run(program, (a, b), num_warps=None, num_stages=None, interpret=True)
    close(got, oracle.gemm(a, b), np.float32, 48 * oracle.gemm(np.abs(a), np.abs(b)))


def test_shapes_that_do_not_fit():
    with pytest.raises(tj.ShapeError, match="manual_gemm: a has shape"):
        kernels.manual_gemm(normal(3, 4), normal(3, 4))
