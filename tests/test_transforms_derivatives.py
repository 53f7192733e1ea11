"""Derivatives of the documented kernels, by difference quotients and by hand."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.helpers import normal
from tests.jaxprs import count
from tests.jnp_reference import REFERENCES, sparse_cross_entropy
from tests.test_transforms_matrix import QUICK
from tilejax import kernels

NAN = float("nan")
SMOOTH = ["exp", "saxpy", "softmax_norms", "structured_sum"]
"""Kernels whose gradients are not kernels; for the others `test_gradients_composed.py` has the same test."""


@pytest.mark.parametrize("name", SMOOTH)
def test_difference_quotients_to_the_second_order(name):
    reference = REFERENCES[name]
    with jax.enable_x64(True):
        smooth = [i for i, x in enumerate(reference.args) if x.dtype.kind == "f"]

        def part(*floats):
            full = list(reference.args)
            for i, x in zip(smooth, floats, strict=True):
                full[i] = x
            out = reference.kernel(*full)
            return [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.floating)]

        floats = [reference.args[i].astype(np.float64) for i in smooth]
        check_grads(jax.jit(part), floats, order=2, atol=1e-6, rtol=1e-6, eps=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_first_derivatives_in_single_and_half_precision(name):
    """vjp in float32 and bfloat16, against that of `jnp` in float64."""
    reference = REFERENCES[name]
    smooth = [i for i, x in enumerate(reference.args) if x.dtype.kind == "f"]

    def gradients(f, dtype):
        args = [jnp.asarray(x, jnp.bfloat16) if i in smooth else x for i, x in enumerate(reference.args)]

        @partial(jax.jit, compiler_options=QUICK)
        def run(*floats):
            def part(*floats):
                full = list(args)
                for i, x in zip(smooth, floats, strict=True):
                    full[i] = x
                return [x for x in jax.tree.leaves(f(*full)) if jnp.issubdtype(x.dtype, jnp.floating)]

            out, pull = jax.vjp(part, *floats)
            return pull([jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype) for x in out])

        return run(*(args[i].astype(dtype) for i in smooth))

    with jax.enable_x64(True):
        want = gradients(reference.jnp, jnp.float64)
    for dtype in (jnp.float32, jnp.bfloat16):
        tolerance = 64 * float(jnp.finfo(dtype).eps)
        for got, exact in zip(gradients(reference.kernel, dtype), want, strict=True):
            assert got.dtype == dtype
            scale = np.abs(exact).max()
            np.testing.assert_allclose(np.asarray(got, np.float64), exact, rtol=0, atol=tolerance * scale)


def loss(x):
    return (kernels.softmax(x) ** 2).sum()


def hand_gradient(x):
    p = np.exp(x.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    return 2 * p * (p - (p * p).sum(-1, keepdims=True))


def test_checkpoint():
    """What is recomputed has the same gradient."""
    x = normal(3, 5)
    for policy in (None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.dots_saveable):
        got = jax.grad(jax.checkpoint(lambda x: loss(kernels.rmsnorm(x)), policy=policy))(x)
        np.testing.assert_allclose(got, jax.grad(lambda x: loss(kernels.rmsnorm(x)))(x), atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(jax.checkpoint(loss)))(x), hand_gradient(x), atol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(jax.checkpoint(loss)))(np.stack([x, 2 * x])),
        np.stack([hand_gradient(x), hand_gradient(2 * x)]),
        atol=1e-6,
    )


def test_checkpoint_recomputes_the_kernel():
    program = jax.make_jaxpr(jax.grad(jax.checkpoint(lambda x: loss(kernels.exp(x)))))(normal(3, 5))
    assert count(program, "tile_kernel", name="exp") == 2
    program = jax.make_jaxpr(jax.grad(lambda x: loss(kernels.exp(x))))(normal(3, 5))
    assert count(program, "tile_kernel", name="exp") == 1


@pytest.mark.usefixtures("on_cpu")  # elsewhere two programs that compute the same may round it differently
def test_linearize_runs_the_kernel_once():
    x, t = normal(3, 5), normal(3, 5, seed=1)
    y, push = jax.linearize(kernels.softmax, x)
    want, moved = jax.jvp(kernels.softmax, (x,), (t,))
    np.testing.assert_array_equal(y, want)
    np.testing.assert_allclose(push(t), moved, atol=1e-6)
    np.testing.assert_allclose(push(2 * t), 2 * moved, atol=1e-6)
    (transposed,) = jax.linear_transpose(push, x)(t)
    np.testing.assert_allclose(transposed, jax.vjp(kernels.softmax, x)[1](t)[0], atol=1e-6)


def test_hessian_of_cross_entropy():
    """diag(p) - p p^T."""
    x, labels = normal(1, 4), np.int32([2])
    p = np.exp(x[0].astype(np.float64))
    p /= p.sum()
    want = np.diag(p) - np.outer(p, p)
    for outer, inner in ((jax.jacfwd, jax.jacrev), (jax.jacrev, jax.jacfwd), (jax.jacrev, jax.jacrev)):
        got = outer(inner(lambda x: kernels.sparse_cross_entropy(x[None], labels)[0][0]))(x[0])
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_jacobians_of_a_linear_kernel():
    x = normal(2, 3)
    want = np.einsum("ab,ji->aibj", np.eye(2), np.tril(np.ones((3, 3))).T)
    np.testing.assert_array_equal(jax.jacfwd(kernels.cumsum)(x), want)
    np.testing.assert_array_equal(jax.jacrev(kernels.cumsum)(x), want)


def test_custom_vjp_overrides():
    """A straight-through gradient for a kernel that clips."""

    @jax.custom_vjp
    def straight(x):
        return kernels.clamp(x)

    straight.defvjp(lambda x: (straight(x), None), lambda _, ct: (ct,))
    x = np.float32([[-2, 0.25, 3]])
    np.testing.assert_array_equal(jax.grad(lambda x: kernels.clamp(x).sum())(x), [[0, 1, 0]])
    np.testing.assert_array_equal(jax.grad(lambda x: straight(x).sum())(x), [[1, 1, 1]])
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: straight(x).sum()))(x[None]), [[[1, 1, 1]]])


def test_custom_jvp_overrides():
    @jax.custom_jvp
    def doubled(x):
        return kernels.copy(x)

    doubled.defjvp(lambda xs, ts: (doubled(*xs), 2 * ts[0]))
    np.testing.assert_array_equal(jax.grad(lambda x: doubled(x).sum())(np.ones((1, 2), np.float32)), [[2, 2]])


def test_value_and_grad_with_auxiliary_results():
    logits, labels = normal(5, 4), np.int32([1, 0, 3, 2, 9])

    def f(x):
        losses, slope = kernels.sparse_cross_entropy(x, labels)
        return losses.sum(), slope

    (total, slope), gradient = jax.value_and_grad(f, has_aux=True)(logits)
    losses, want = sparse_cross_entropy(logits, labels)
    np.testing.assert_allclose(total, losses.sum(), rtol=1e-6)
    np.testing.assert_allclose(slope, want, atol=1e-6)
    np.testing.assert_allclose(gradient, want, atol=1e-6)
    np.testing.assert_array_equal(gradient[4], 0)


def test_stop_gradient_and_zero_cotangents():
    x = normal(2, 3)
    gradient = jax.grad(lambda x: (jax.lax.stop_gradient(kernels.exp(x)) * kernels.copy(x)).sum())(x)
    np.testing.assert_allclose(gradient, np.exp(x.astype(np.float64)), rtol=1e-6)
    only_first = jax.grad(lambda x: kernels.softmax_norms(x)[0][0, 0])(x)
    np.testing.assert_array_equal(only_first[1], 0)


def test_jax_37267_one_operand_without_a_tangent():
    a, b = normal(2, 3), normal(3, 4, seed=1)
    t = normal(2, 3, seed=2)
    moved = jax.jvp(lambda a: kernels.gemm(a, b), (a,), (t,))[1]
    np.testing.assert_allclose(moved, t.astype(np.float64) @ b, rtol=1e-5, atol=1e-6)
    by_values = jax.grad(lambda v: (kernels.segment_sum(np.int32([0, 2, 0]), v, 3)[0] ** 2).sum())
    np.testing.assert_array_equal(by_values(np.float32([1, 2, 3])), [8, 4, 8])


def test_jax_22197_reverse_mode():
    x = normal(2, 4)
    np.testing.assert_allclose(jax.grad(loss)(x), hand_gradient(x), atol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), hand_gradient(x), atol=1e-6)
    np.testing.assert_allclose(jax.vjp(loss, x)[1](np.float32(2))[0], 2 * hand_gradient(x), atol=1e-6)


def test_tokamax_887_empty_groups():
    """An empty segment gets a sum of 0 and gives no gradient, even one of NaN."""
    ids, values = np.int32([2, 0, 2, 7]), np.float32([[1, 2], [3, 4], [5, 6], [NAN, NAN]])
    (sums, counts), pull = jax.vjp(partial(kernels.segment_sum, ids, num_segments=4), values)
    np.testing.assert_array_equal(sums, [[3, 4], [0, 0], [6, 8], [0, 0]])
    np.testing.assert_array_equal(counts, [1, 0, 2, 0])
    ct = np.float32([[1, 1], [NAN, NAN], [3, 3], [NAN, NAN]])
    (gradient,) = pull((ct, np.zeros(4, jax.dtypes.float0)))
    np.testing.assert_array_equal(gradient, [[3, 3], [1, 1], [3, 3], [0, 0]])


def test_tensorflow_118673_ties_and_nan():
    def gradient(f, x):
        return np.asarray(jax.grad(lambda x: f(x).sum())(np.float32([x])))[0]

    np.testing.assert_array_equal(gradient(kernels.row_max, [3, 3, 1]), [0.5, 0.5, 0])
    np.testing.assert_array_equal(gradient(kernels.row_min, [3, 1, 1]), [0, 0.5, 0.5])
    np.testing.assert_array_equal(gradient(kernels.row_absmax, [-3, 3, 1]), [-0.5, 0.5, 0])
    for kernel, plain in ((kernels.row_max, jnp.max), (kernels.row_min, jnp.min)):
        for x in ([1, NAN, 2], [NAN, NAN, 0], [np.inf, 1, np.inf], [-np.inf] * 3):
            want = np.asarray(jax.grad(plain)(np.float32(x)))
            np.testing.assert_array_equal(gradient(kernel, x), want)
    for kernel, plain, x in (
        (kernels.clamp, lambda x: jnp.clip(x, -0.5, 0.5), [-0.5, 0.5, 0]),
        (kernels.row_abssum, jnp.abs, [0, -2, 2]),
    ):
        np.testing.assert_array_equal(gradient(kernel, x), gradient(plain, x))


def test_tensorflow_118673_shares_of_three_and_more():
    """A tree of pairs would give 1/2 to one of three and 1/4 to the others."""
    x = np.float32([[5, 5, 5, 1], [2, 2, 2, 2]])
    want = np.float32([[1 / 3] * 3 + [0], [1 / 4] * 4])
    np.testing.assert_allclose(jax.grad(lambda x: kernels.row_max(x).sum())(x), want, rtol=1e-6)
    half = x.astype(jnp.bfloat16)
    np.testing.assert_array_equal(
        jax.grad(lambda x: kernels.row_max(x).sum())(half), want.astype(jnp.bfloat16)
    )


def test_tensorflow_118673_nan_in_softmax_spreads_along_its_row():
    x = np.float32([[1, NAN, 2], [1, 2, 3]])
    gradient = np.asarray(jax.grad(lambda x: (kernels.softmax(x) ** 2).sum())(x))
    assert np.isnan(gradient[0]).all()
    np.testing.assert_allclose(gradient[1], hand_gradient(x[1:])[0], atol=1e-6)


def test_tensorflow_118673_sorted_ties_and_running_maximum():
    ct = np.float32([[1, 10, 100]])
    x = np.float32([[2, 1, 2]])
    values_only = lambda f: lambda x: f(x)[0]  # noqa: E731
    np.testing.assert_array_equal(jax.vjp(values_only(kernels.sort), x)[1](ct)[0], [[10, 1, 100]])
    best = jax.vjp(values_only(partial(kernels.top_k, k=2)), x)[1](ct[:, :2])[0]
    np.testing.assert_array_equal(best, [[1, 0, 10]])
    got = jax.vjp(kernels.cummax, x)[1](ct)[0]
    np.testing.assert_array_equal(got, jax.vjp(lambda x: jax.lax.cummax(x, 1), x)[1](ct)[0])


@pytest.mark.parametrize("masked", [[0], [2], [4], [0, 1, 2, 3, 4]], ids=["first", "middle", "last", "all"])
def test_flash_attention_1930_masked_rows_of_a_loss(masked):
    """A row that does not count has loss 0 and gradient 0, whatever its logits."""
    logits, labels = normal(5, 4), np.int32([1, 0, 3, 2, 2])
    logits[masked] = NAN
    labels[masked] = -1
    losses, pull = jax.vjp(lambda x: kernels.sparse_cross_entropy(x, labels)[0], logits)
    np.testing.assert_array_equal(losses[np.array(masked)], 0)
    (gradient,) = pull(np.ones(5, np.float32))
    want = np.asarray(sparse_cross_entropy(np.nan_to_num(logits), labels)[1])
    np.testing.assert_array_equal(gradient[np.array(masked)], 0)
    np.testing.assert_allclose(gradient, want, atol=1e-6)


def test_flash_attention_1930_attention_to_nothing():
    """Without keys each result is 0 and so are all gradients."""
    q, k, v = normal(1, 2, 3, 4), np.zeros((1, 2, 0, 4), np.float32), np.zeros((1, 2, 0, 5), np.float32)
    out, pull = jax.vjp(kernels.flash_attention, q, k, v)
    np.testing.assert_array_equal(out, np.zeros((1, 2, 3, 5)))
    dq, dk, dv = pull(np.ones_like(out))
    np.testing.assert_array_equal(dq, np.zeros_like(q))
    assert dk.shape == k.shape
    assert dv.shape == v.shape
