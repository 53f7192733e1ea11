"""What `with_gradient` attaches, and that JAX's transformations go through it.

The rules here are wrong on purpose, by a factor, to tell them from the derivative of the program.
"""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.test_gradients import kernels_of
from tilejax import kernels
from tilejax._gradient import with_gradient
from tilejax.kernels import norms


def scaled(x: tj.TensorView, factor: Any) -> tj.TensorView:
    """`factor * x` of a vector."""
    y = tj.output_like(x)
    n = tj.axis("n", x.shape[0])

    @tj.parallel(1)
    def _(nest):
        y(tj.coord(0), tj.shape(n)).store(x[tj.coord(0), tj.shape(n)] * factor)

    return y


def tenfold(saved, dy, x, factor):
    """Ten times the cotangent of `x`, none of `factor`."""
    return 10 * factor * dy, None


def make(kernel: Any = scaled, **rules: Any) -> Any:
    """A kernel like `kernel` with the rules."""

    def copy(*args: Any) -> Any:
        return kernel(*args)

    copy.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    return with_gradient(**rules)(copy)


X = np.array([1, 2, 4], np.float32)


def test_reverse_mode_runs_the_rule_and_forward_mode_the_program():
    f = tj.jit(make(backward=tenfold), static_argnames="factor")
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, 3).sum())(X), [30, 30, 30])
    np.testing.assert_array_equal(jax.jvp(lambda x: f(x, 3), (X,), (X,))[1], 3 * X)


def test_an_argument_without_a_cotangent_has_that_of_the_program():
    f = tj.jit(make(backward=tenfold))
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, 3.0).sum())(X), [30, 30, 30])
    assert jax.grad(lambda factor: f(X, factor).sum())(3.0) == 7
    both = jax.grad(lambda x, factor: f(x, factor).sum(), argnums=(0, 1))(X, 3.0)
    np.testing.assert_array_equal(both[0], [3, 3, 3])
    assert both[1] == 7


def test_what_forward_saves_comes_to_backward():
    def forward(x, factor):
        return factor * x, {"twice": (2 * x, None)}

    def backward(saved, dy, x, factor):
        return (saved["twice"][0] * dy,)

    f = tj.jit(make(forward=forward, backward=backward), static_argnames="factor")
    np.testing.assert_array_equal(jax.grad(lambda x: f(x, 3).sum())(X), 2 * X)
    batch = np.stack([X, X + 1])
    by_row = jax.vmap(lambda x: f(x, 3))
    np.testing.assert_array_equal(jax.grad(lambda x: by_row(x).sum())(batch), 2 * batch)
    np.testing.assert_array_equal(jax.vmap(jax.grad(lambda x: f(x, 3).sum()))(batch), 2 * batch)


def difference(pair: dict[str, tj.TensorView], order: str, ids: tj.TensorView) -> dict[str, Any]:
    """`a - b` and `b - a`, and the sum of the integers `ids`."""
    a, b = pair["a"], pair["b"]
    n = tj.axis("n", a.shape[0])
    out = {"first": tj.output_like(a), "second": tj.output_like(a), "ids": tj.output_like(ids)}

    @tj.parallel(1)
    def _(nest):
        here = tj.coord(0), tj.shape(n)
        out["first"](*here).store(a[here] - b[here])
        out["second"](*here).store(b[here] - a[here])
        out["ids"](*here).store(ids[here])

    return out


class TestPytrees:
    def kernel(self, seen: list[Any]) -> Any:
        def backward(saved, ct, pair, order, ids):
            seen[:] = [saved, ct, order]
            first = jnp.zeros_like(pair["a"]) if ct["first"] is None else ct["first"]
            return {"a": 10 * first, "b": -100 * first}, None, None

        return tj.jit(make(difference, backward=backward), static_argnames="order")

    def test_cotangents_come_and_go_as_the_arguments_and_results_do(self):
        seen: list[Any] = []
        f = self.kernel(seen)
        ids = np.arange(3)
        got = jax.grad(lambda pair: (f(pair, "ab", ids)["first"] * X).sum())({"a": X, "b": X})
        np.testing.assert_array_equal(got["a"], 10 * X)
        np.testing.assert_array_equal(got["b"], -100 * X)
        saved, ct, order = seen
        assert saved is None
        assert order == "ab"
        assert ct["second"] is None
        assert ct["ids"] is None

    def test_one_leaf_of_an_argument(self):
        f = self.kernel([])
        got = jax.grad(lambda b: f({"a": X, "b": b}, "ab", np.arange(3))["first"].sum())(X)
        np.testing.assert_array_equal(got, [-100, -100, -100])

    def test_what_is_shared_by_a_batch_adds_up(self):
        f = self.kernel([])
        ids, batch = np.arange(3), np.stack([X, X, X, X])

        def loss(a, b):
            return jax.vmap(lambda a: f({"a": a, "b": b}, "ab", ids)["first"])(a).sum()

        da, db = jax.grad(loss, argnums=(0, 1))(batch, X)
        np.testing.assert_array_equal(da, np.full((4, 3), 10))
        np.testing.assert_array_equal(db, np.full(3, -400))

    def test_a_batch_of_cotangents(self):
        f = self.kernel([])
        _, pull = jax.vjp(lambda a: f({"a": a, "b": X}, "ab", np.arange(3))["first"], X)
        (got,) = jax.vmap(pull)(jnp.eye(3))
        np.testing.assert_array_equal(got, 10 * np.eye(3))


def test_captured_arrays_have_the_derivative_of_the_program():
    """They are no arguments, so a rule says nothing of them."""

    def loss(captured):
        def kernel(x: tj.TensorView) -> tj.TensorView:
            factor = tj.view(captured)
            y, n = tj.output_like(x), tj.axis("n", 3)

            @tj.parallel(1)
            def _(nest):
                here = tj.coord(0), tj.shape(n)
                y(*here).store(x[here] * factor[here])

            return y

        return tj.jit(make(kernel, backward=lambda saved, dy, x: (10 * dy,)))(X).sum()

    np.testing.assert_array_equal(jax.grad(loss)(X), X)


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_a_documented_kernel_keeps_its_rule(backend):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for f in (tj.jit(kernels.softmax, backend=backend), tj.jit(norms.softmax, backend=backend)):
        assert kernels_of(f, [x]) == ["softmax", "softmax_backward"]


def test_a_traced_eps():
    """Of the plain kernel `eps` is an argument like any other."""
    f = tj.jit(norms.rmsnorm)
    x = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)

    def plain(x, eps):
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)

    for argnums in (0, 1, (0, 1)):
        ours, theirs = (
            jax.grad(lambda *a, f=f: (f(*a) ** 3).sum(), argnums=argnums)(x, 0.25) for f in (f, plain)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), ours, theirs)
    assert kernels_of(lambda x: f(x, 0.25), [x]) == ["rmsnorm", "rmsnorm_backward"]
