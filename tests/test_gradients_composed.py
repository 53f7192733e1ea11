"""Gradients of gradients, and gradients inside of JAX's other transformations, in float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from tests.jnp_reference import REFERENCES, attention, rmsnorm
from tests.test_gradients import QUICK
from tilejax import kernels

OWN = [
    "gemm",
    "softmax",
    "layernorm",
    "rmsnorm",
    "residual_layernorm",
    "bias_gelu_residual",
    "sparse_cross_entropy",
    "flash_attention",
    "cumsum",
    "segment_sum",
    "conv2d",
]


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def smooth(name: str) -> tuple[Any, Any, list[Any]]:
    """The kernel and its reference as functions of their floating arguments, with smooth results; and
    those."""
    reference = REFERENCES[name]
    where = [i for i, x in enumerate(reference.args) if x.dtype.kind == "f"]

    def part(f: Any) -> Any:
        def run(*floats: Any) -> Any:
            args = list(reference.args)
            for i, x in zip(where, floats, strict=True):
                args[i] = x
            return [x for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(x.dtype, jnp.floating)]

        return run

    floats = [reference.args[i].astype(np.float64) for i in where]
    return part(reference.kernel), part(reference.jnp), floats


@pytest.mark.parametrize("name", OWN)
def test_finite_differences_twice(name):
    kernel, _, args = smooth(name)
    check_grads(jax.jit(kernel), args, order=2, rtol=1e-5, atol=1e-5)


def loss(f: Any) -> Any:
    return lambda *args: sum((jnp.sin(x) * x).sum() for x in jax.tree.leaves(f(*args)))


@pytest.mark.parametrize("name", OWN)
def test_hessian(name):
    kernel, plain, args = smooth(name)
    got, want = (jax.jit(jax.hessian(loss(f)), compiler_options=QUICK)(*args) for f in (kernel, plain))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def two_layers(norm: Any, attend: Any) -> Any:
    """A small network that uses one kernel twice, in a `scan`."""

    def run(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> tuple[Any, None]:
            q = norm(x @ w)[None, None]
            return x + attend(q, q, q, causal=True)[0, 0], None

        return (jax.lax.scan(layer, x, w)[0] ** 2).sum()

    return run


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])
def test_in_a_scan(wrap):
    rng = np.random.default_rng(3)
    w, x = rng.standard_normal((2, 4, 4)), rng.standard_normal((5, 4))
    ours = jax.grad(wrap(two_layers(kernels.rmsnorm, kernels.flash_attention)), argnums=(0, 1))(w, x)
    theirs = jax.grad(two_layers(rmsnorm, attention), argnums=(0, 1))(w, x)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("on_cpu")
def test_over_a_mesh():
    """The rows are spread over four devices, the weights are on each: their gradient adds up."""
    mesh = jax.sharding.Mesh(jax.devices("cpu"), ("rows",))
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((8, 6)), rng.standard_normal((6, 5))

    def local(x: Any, w: Any) -> Any:
        return kernels.softmax(kernels.gemm(kernels.rmsnorm(x), w))

    spread = jax.shard_map(local, mesh=mesh, in_specs=(P("rows"), P()), out_specs=P("rows"))
    got = jax.jit(jax.grad(lambda *args: (spread(*args) ** 2).sum(), argnums=(0, 1)))(x, w)
    want = jax.grad(lambda x, w: (jax.nn.softmax(rmsnorm(x) @ w) ** 2).sum(), argnums=(0, 1))(x, w)
    for g, t in zip(got, want, strict=True):
        np.testing.assert_allclose(g, t, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("axes", [(0, None, None), (1, 2, None), (None, 0, 3)], ids=str)
def test_batches_of_attention(axes):
    """The gradient of a batch and the batch of gradients, some operands without a batch."""
    rng = np.random.default_rng(5)
    shapes = [(1, 2, 5, 3), (1, 1, 7, 3), (1, 1, 7, 2)]
    args = [
        rng.standard_normal(s if d is None else (*s[:d], 2, *s[d:]))
        for s, d in zip(shapes, axes, strict=True)
    ]

    def of_batch(f: Any) -> Any:
        return jax.grad(lambda *args: loss(jax.vmap(f, in_axes=axes))(*args), argnums=(0, 1, 2))

    def batch_of(f: Any) -> Any:
        return jax.vmap(jax.grad(loss(f), argnums=(0, 1, 2)), in_axes=axes)

    for transform in (of_batch, batch_of):
        got, want = (
            jax.jit(transform(f), compiler_options=QUICK)(*args)
            for f in (lambda *a: kernels.flash_attention(*a, block_q=2, block_kv=3), attention)
        )
        for g, t in zip(got, want, strict=True):
            np.testing.assert_allclose(g, t, rtol=1e-9, atol=1e-9)
