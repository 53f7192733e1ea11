"""Kernels in control flow, and JAX's modes around them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tilejax as tj
from tests.helpers import normal
from tests.jaxprs import count
from tilejax import kernels

NAN = float("nan")


def f64(x):
    return np.asarray(x, np.float64)


@tj.jit
def halved(x):
    y = tj.output_like(x)
    n = tj.axis("n", x.shape[0])

    @tj.parallel(1)
    def _(nest):
        y(tj.coord(0), tj.shape(n)).store(x[tj.coord(0), tj.shape(n)] * 0.5)

    return y


def test_scan_with_its_gradient_and_batch():
    weights, x = normal(3, 4, 4), normal(2, 4, seed=1)

    def chain(gemm):
        def run(weights, x):
            out, each = lax.scan(lambda x, w: (gemm(x, w), x.sum()), x, weights)
            return (out**2).sum() + each.sum()

        return run

    ours, plain = chain(kernels.gemm), chain(jnp.matmul)
    np.testing.assert_allclose(ours(weights, x), plain(weights, x), rtol=1e-5)
    got = jax.jit(jax.grad(ours, argnums=(0, 1)))(weights, x)
    want = jax.grad(plain, argnums=(0, 1))(weights, x)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
    xs = np.stack([x, -2 * x])
    got = jax.vmap(jax.grad(ours), in_axes=(None, 0))(weights, xs)
    want = jax.vmap(jax.grad(plain), in_axes=(None, 0))(weights, xs)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_cond_and_switch():
    x = normal(2, 3)

    def either(flag, x):
        return lax.cond(flag, kernels.softmax, kernels.exp, x)

    e = np.exp(f64(x))
    for flag, want in ((True, e / e.sum(-1, keepdims=True)), (False, e)):
        np.testing.assert_allclose(jax.jit(either)(flag, x), want, rtol=1e-5)
    both = jax.vmap(either, in_axes=(0, None))(np.array([True, False]), x)
    np.testing.assert_allclose(both, np.stack([e / e.sum(-1, keepdims=True), e]), rtol=1e-5)
    gradient = jax.grad(lambda x: either(False, x).sum())(x)
    np.testing.assert_allclose(gradient, e, rtol=1e-5)
    chosen = lax.switch(2, [kernels.copy, kernels.exp, kernels.transpose], normal(3, 3))
    np.testing.assert_array_equal(chosen, normal(3, 3).T)


def test_while_loop_and_fori_loop():
    x = np.float32([8, 3, 1])
    out = jax.jit(lambda x: lax.while_loop(lambda x: x.max() > 1, halved, x))(x)
    np.testing.assert_array_equal(out, x / 8)
    moved = jax.jvp(lambda x: lax.while_loop(lambda x: x.max() > 1, halved, x), (x,), (x,))[1]
    np.testing.assert_array_equal(moved, x / 8)
    each = jax.vmap(lambda x: lax.while_loop(lambda x: x.max() > 1, halved, x))(np.stack([x, x / 4, x / 8]))
    np.testing.assert_array_equal(each, np.stack([x / 8] * 3))
    gradient = jax.grad(lambda x: lax.fori_loop(0, 3, lambda _, x: halved(x), x).sum())(x)
    np.testing.assert_array_equal(gradient, [0.125] * 3)


def test_map_and_associative_scan():
    x = normal(4, 2, 3)
    np.testing.assert_array_equal(lax.map(kernels.transpose, x), x.swapaxes(1, 2))
    np.testing.assert_array_equal(lax.map(kernels.transpose, x, batch_size=3), x.swapaxes(1, 2))
    squares = normal(4, 3, 3)
    products = lax.associative_scan(jax.vmap(kernels.gemm), squares)
    want = f64(squares[0])
    for i in range(1, 4):
        want = want @ squares[i]
        np.testing.assert_allclose(products[i], want, rtol=1e-4, atol=1e-5)


def test_debug_nans_names_what_made_them_and_passes_what_has_none():
    with jax.debug_nans(True):
        masked = np.float32([[-np.inf, 0], [1, 2]])
        assert np.isfinite(kernels.softmax(masked)).all()  # inf inside is no NaN outside
        for f in (kernels.softmax, jax.vmap(kernels.softmax), jax.grad(lambda x: kernels.softmax(x).sum())):
            with pytest.raises(FloatingPointError, match=r"\(nan\) in a result of kernel softmax"):
                f(np.float32([[[np.inf, 0]]]))
        with pytest.raises(FloatingPointError, match="nan"):
            jax.jit(kernels.exp)(np.float32([[NAN]]))
        with pytest.raises(FloatingPointError, match="nan"):
            jax.jit(jax.grad(lambda x: kernels.row_max(x).sum()))(np.float32([[NAN, 1]]))
        np.testing.assert_array_equal(kernels.copy(np.int32([[1, 2]])), [[1, 2]])
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match=r"\(inf\) in a result of kernel exp"):
        kernels.exp(np.float32([[1000]]))


def test_x64():
    with jax.enable_x64(True):
        x = normal(3, 5).astype(np.float64)
        got = kernels.softmax(x)
        assert got.dtype == np.float64
        np.testing.assert_allclose(got, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-14)
        gradient = jax.vmap(jax.grad(lambda x: halved(x).sum()))(x)
        assert gradient.dtype == np.float64
        assert kernels.softmax(x.astype(np.float32)).dtype == np.float32
        assert kernels.row_sum(np.ones((2, 3), np.int32)).dtype == np.int64
    assert kernels.row_sum(np.ones((2, 3), np.int32)).dtype == np.int32


def test_strict_promotion():
    """The derivatives and the batching of a kernel promote nothing by themselves."""
    x, y, labels = normal(4, 5), normal(4, 5, seed=1), np.int32([1, 0, 4, 2])
    q = normal(1, 2, 5, 4)

    def run(x, y, q):
        parts = [
            kernels.saxpy(x, y),
            kernels.layernorm(x),
            kernels.cumsum(x),
            kernels.gemm(x, kernels.transpose(y)),
            kernels.sparse_cross_entropy(x, labels)[0],
            kernels.flash_attention(q, q, q, causal=True, block_q=2, block_kv=2),
        ]
        return sum((part * part).sum() for part in parts)

    both = jax.value_and_grad(run, argnums=(0, 1, 2))
    want = jax.jit(both)(x, y, q)
    with jax.numpy_dtype_promotion("strict"):
        got = jax.jit(both)(x, y, q)
        batched = jax.jit(jax.vmap(jax.grad(run)))(x[None], y[None], q[None])
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(batched[0], want[1][0], rtol=1e-4, atol=1e-5)


def test_strict_promotion_refuses_mixed_dtypes_in_a_kernel():
    @tj.jit
    def mixed(x, y):
        z = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(2)
            z(*at).store(x[at] + y[at])

        return z

    x, y = np.ones(2, np.float32), np.ones(2, np.float16)
    np.testing.assert_array_equal(mixed(x, y), [2, 2])
    with jax.numpy_dtype_promotion("strict"), pytest.raises(tj.DtypeError, match="promotion"):
        mixed(x, y)


def test_weak_types():
    """A Python scalar does not widen; an array of rank 0 does; results are never weak."""

    @tj.jit
    def scaled(x, s):
        y = tj.output(x.shape, jnp.result_type(x.dtype, s))

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(2)
            value = x[at] * s
            assert value.dtype == y.dtype
            y(*at).store(value)

        return y

    half = np.ones(2, np.float16)
    for scalar, dtype in (
        (2.0, np.float16),
        (np.float32(2), np.float32),
        (jnp.float32(2), np.float32),
        (2, np.float16),
    ):
        out = scaled(half, scalar)
        assert out.dtype == dtype
        assert not out.weak_type
        moved = jax.jvp(lambda x, s=scalar: scaled(x, s), (half,), (half,))[1]
        assert moved.dtype == dtype
    assert scaled(jnp.ones(2, np.float16), jnp.asarray(2.0)).dtype == np.float16  # a weak array of rank 0
    gradient = jax.grad(lambda s: scaled(half, s).astype(np.float32).sum())(2.0)
    assert gradient == 2
    weak = jax.grad(lambda s: scaled(np.ones(2, np.float32), s).sum())(3.0)
    assert weak.dtype == np.float32


def test_weak_arrays_are_read_as_arrays():
    weak = jnp.full((2,), 3.0)  # asarray of Python numbers is weak
    out = jax.vmap(lambda s: halved(jnp.stack([s, s])))(weak)
    np.testing.assert_array_equal(out, np.full((2, 2), 1.5))


def test_eval_shape_and_avals():
    out = jax.eval_shape(kernels.top_k, jax.ShapeDtypeStruct((3, 8), jnp.bfloat16), k=2)
    assert [(x.shape, str(x.dtype)) for x in out] == [((3, 2), "bfloat16"), ((3, 2), "int32")]
    out = kernels.row_sum.eval_shape(jax.ShapeDtypeStruct((3, 8), jnp.int8))
    assert (out.shape, str(out.dtype)) == ((3,), "int32")
    out = jax.eval_shape(
        jax.vmap(jax.grad(lambda x: kernels.exp(x).sum())), jax.ShapeDtypeStruct((2, 3, 4), jnp.float16)
    )
    assert (out.shape, str(out.dtype)) == ((2, 3, 4), "float16")


@pytest.mark.usefixtures("on_cpu")
def test_lower_trace_and_compile():
    x = normal(3, 5)
    lowered = kernels.row_sum.lower(x)
    np.testing.assert_allclose(lowered.compile()(x), f64(x).sum(-1), rtol=1e-5)
    assert "stablehlo.reduce" in lowered.as_text()
    assert kernels.row_sum.trace(x).jaxpr.out_avals[0].shape == (3,)


def test_named_scope_reaches_the_compiled_module():
    def run(x):
        with jax.named_scope("the_outer_part"):
            return kernels.softmax(x)

    text = jax.jit(jax.grad(lambda x: run(x)[0, 0])).lower(normal(3, 5)).compile().as_text()
    assert "the_outer_part" in str(text)


def test_disable_jit():
    with jax.disable_jit():
        x = np.ones((2, 2), np.float32)
        np.testing.assert_allclose(kernels.exp(x), np.full((2, 2), np.e), rtol=1e-6)
        np.testing.assert_allclose(
            jax.grad(lambda x: kernels.exp(x).sum())(x), np.full((2, 2), np.e), rtol=1e-6
        )
        np.testing.assert_allclose(jax.vmap(kernels.row_sum)(x[None]), [[2, 2]])


def test_checkpointed_scan():
    weights, x = normal(4, 3, 3), normal(2, 3, seed=1)

    def run(weights):
        body = jax.checkpoint(lambda x, w: (kernels.softmax(kernels.gemm(x, w)), None))
        return (lax.scan(body, x, weights)[0] ** 2).sum()

    def plain(weights):
        return (lax.scan(lambda x, w: (jax.nn.softmax(x @ w), None), x, weights)[0] ** 2).sum()

    np.testing.assert_allclose(jax.grad(run)(weights), jax.grad(plain)(weights), rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("on_cpu")
def test_calls_are_inline():
    """In one compiled function: nothing is called from the module's `main`."""
    run = jax.jit(lambda x: kernels.exp(kernels.exp(x)))
    assert count(run.trace(normal(2, 3)).jaxpr, "tile_kernel") == 2
    assert "call @" not in run.lower(normal(2, 3)).as_text()
