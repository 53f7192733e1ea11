"""Kernels over four CPU devices: shard_map, sharded inputs, donation."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import NamedSharding, lax
from jax import P as Spec
from jax.sharding import AxisType

import tilejax as tj
from tests.helpers import normal
from tilejax import kernels

pytestmark = pytest.mark.usefixtures("on_cpu")
AXES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def mesh(kind="auto", shape=(4,), names=("d",)):
    return jax.make_mesh(shape, names, axis_types=(AXES[kind],) * len(shape), devices=jax.devices("cpu"))


def place(x, devices, spec):
    return jax.device_put(x, NamedSharding(devices, spec))


def f64(x):
    return np.asarray(x, np.float64)


def softmax(x):
    e = np.exp(f64(x))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", AXES)
def test_rows_over_devices(kind):
    x, devices = normal(8, 5), mesh(kind)
    run = jax.shard_map(kernels.softmax, mesh=devices, in_specs=Spec("d"), out_specs=Spec("d"))
    for f in (run, jax.jit(run)):
        got = f(place(x, devices, Spec("d")))
        np.testing.assert_allclose(got, softmax(x), atol=1e-6)
        assert got.sharding.is_equivalent_to(NamedSharding(devices, Spec("d")), 2)


@pytest.mark.parametrize("kind", AXES)
def test_columns_over_devices_with_a_sum(kind):
    """The contraction is over the devices; `psum` makes the result the same on all."""
    a, b, devices = normal(3, 8), normal(8, 5, seed=1), mesh(kind)
    specs = Spec(None, "d"), Spec("d", None)
    run = jax.shard_map(
        lambda a, b: lax.psum(kernels.gemm(a, b), "d"), mesh=devices, in_specs=specs, out_specs=Spec()
    )
    shards = [place(x, devices, spec) for x, spec in zip((a, b), specs, strict=True)]
    np.testing.assert_allclose(run(*shards), f64(a) @ b, rtol=1e-5, atol=1e-5)
    da, db = jax.jit(jax.grad(lambda a, b: (run(a, b) ** 2).sum(), argnums=(0, 1)))(*shards)
    out = f64(a) @ b
    np.testing.assert_allclose(da, 2 * out @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, 2 * a.T @ out, rtol=1e-4, atol=1e-4)


def test_results_that_vary_may_not_leave_as_if_they_did_not():
    run = jax.shard_map(kernels.softmax, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec())
    with pytest.raises(ValueError, match="out_specs"):
        run(normal(8, 5))
    fine = jax.shard_map(kernels.softmax, mesh=mesh(), in_specs=Spec(), out_specs=Spec())
    np.testing.assert_allclose(fine(normal(8, 5)), softmax(normal(8, 5)), atol=1e-6)


def test_derivatives_that_vary_are_known_to():
    def gradient(x):
        return jax.grad(lambda x: (kernels.softmax(x) ** 2).sum())(x)

    with pytest.raises(ValueError, match="out_specs"):
        jax.shard_map(gradient, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec())(normal(8, 5))


def test_operands_of_which_one_varies():
    x, bias, residual = normal(8, 6), normal(6, seed=1), normal(8, 6, seed=2)
    run = jax.shard_map(
        kernels.bias_gelu_residual,
        mesh=mesh(),
        in_specs=(Spec("d"), Spec(), Spec("d")),
        out_specs=Spec("d"),
    )
    plain = lambda x, b, r: jax.nn.gelu(x + b, approximate=True) + r  # noqa: E731
    np.testing.assert_allclose(run(x, bias, residual), plain(x, bias, residual), rtol=1e-5, atol=1e-6)
    got = jax.grad(lambda *args: (run(*args) ** 2).sum(), argnums=(0, 1, 2))(x, bias, residual)
    want = jax.grad(lambda *args: (plain(*args) ** 2).sum(), argnums=(0, 1, 2))(x, bias, residual)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


def test_gradients_inside():
    """Of a replicated operand, each device has its own part until `psum`."""
    a, b = normal(8, 3), normal(3, 5, seed=1)

    def local(a, b):
        b = lax.pcast(b, ("d",), to="varying")
        da, db = jax.grad(lambda a, b: (kernels.gemm(a, b) ** 2).sum(), argnums=(0, 1))(a, b)
        return da, lax.psum(db, "d")

    run = jax.shard_map(local, mesh=mesh(), in_specs=(Spec("d"), Spec()), out_specs=(Spec("d"), Spec()))
    out = f64(a) @ b
    for f in (run, jax.jit(run)):
        da, db = f(a, b)
        np.testing.assert_allclose(da, 2 * out @ b.T, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(db, 2 * a.T @ out, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_an_unvarying_operand_is_summed():
    """Without a `pcast` JAX itself sums the cotangents of what all devices share."""
    a, b = normal(8, 3), normal(3, 5, seed=1)
    run = jax.shard_map(
        lambda a, b: jax.grad(lambda b: (kernels.gemm(a, b) ** 2).sum())(b),
        mesh=mesh(),
        in_specs=(Spec("d"), Spec()),
        out_specs=Spec(),
    )
    np.testing.assert_allclose(run(a, b), 2 * a.T @ (f64(a) @ b), rtol=1e-4, atol=1e-4)


def test_jvp_and_vmap_inside():
    x, t = normal(8, 2, 5), normal(8, 2, 5, seed=1)

    def local(x, t):
        return jax.jvp(jax.vmap(kernels.softmax), (x,), (t,))[1]

    run = jax.shard_map(local, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d"))
    p = softmax(x)
    np.testing.assert_allclose(run(x, t), p * (t - (p * t).sum(-1, keepdims=True)), atol=1e-6)


def test_vmap_outside():
    x = normal(3, 8, 5)
    run = jax.vmap(jax.shard_map(kernels.softmax, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d")))
    np.testing.assert_allclose(run(x), softmax(x), atol=1e-6)


def test_two_mesh_axes():
    """`a` varies over one, `b` over the other, their product over both."""
    a, b = normal(4, 3), normal(3, 6, seed=1)
    run = jax.shard_map(
        kernels.gemm,
        mesh=mesh(shape=(2, 2), names=("x", "y")),
        in_specs=(Spec("x"), Spec(None, "y")),
        out_specs=Spec("x", "y"),
    )
    np.testing.assert_allclose(run(a, b), f64(a) @ b, rtol=1e-5, atol=1e-5)
    da, db = jax.grad(lambda a, b: (run(a, b) ** 2).sum(), argnums=(0, 1))(a, b)
    out = f64(a) @ b
    np.testing.assert_allclose(da, 2 * out @ b.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db, 2 * a.T @ out, rtol=1e-4, atol=1e-4)


def test_a_mesh_axis_left_to_the_compiler():
    """shard_map over `x` alone; `y` stays automatic."""
    x = normal(4, 6)
    grid = mesh(shape=(2, 2), names=("x", "y"))
    run = jax.jit(
        jax.shard_map(kernels.softmax, mesh=grid, in_specs=Spec("x"), out_specs=Spec("x"), axis_names={"x"})
    )
    np.testing.assert_allclose(run(x), softmax(x), atol=1e-6)


def test_captured_arrays_and_loops_inside():
    weights = jnp.asarray(normal(5, 5))

    def local(x):
        return lax.scan(lambda x, _: (kernels.rmsnorm(kernels.gemm(x, weights)), None), x, length=3)[0]

    x = normal(8, 5, seed=1)
    got = jax.jit(jax.shard_map(local, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d")))(x)
    want = f64(x)
    for _ in range(3):
        want = want @ f64(weights)
        want /= np.sqrt((want**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_the_index_of_the_device_as_a_scalar():
    @tj.jit
    def shifted(x, by):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(2)).store(x[tj.coord(0), tj.shape(2)] + by)

        return y

    run = jax.shard_map(
        lambda x: shifted(x, lax.axis_index("d")), mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d")
    )
    np.testing.assert_array_equal(run(np.zeros(8, np.int32)), [0, 0, 1, 1, 2, 2, 3, 3])


@pytest.mark.parametrize("kind", AXES)
def test_sharded_inputs_under_jit(kind):
    x, labels = normal(8, 5), np.int32([1, 0, 4, 3, 2, 2, 1, 0])
    devices = mesh(kind)
    there = NamedSharding(devices, Spec("d"))
    shards, tags = jax.device_put(x, there), jax.device_put(labels, there)

    @jax.jit
    def run(x, labels):
        return kernels.softmax(x), jax.grad(lambda x: kernels.sparse_cross_entropy(x, labels)[0].sum())(x)

    with jax.set_mesh(devices):
        p, gradient = run(shards, tags)
        alone = kernels.softmax(shards)
    # XLA spreads the kernel itself over Auto axes; the type of its result has no Explicit ones.
    assert p.sharding.is_equivalent_to(there if kind == "auto" else NamedSharding(devices, Spec()), 2)
    np.testing.assert_allclose(p, softmax(x), atol=1e-6)
    np.testing.assert_allclose(alone, softmax(x), atol=1e-6)
    np.testing.assert_allclose(gradient, softmax(x) - np.eye(5)[labels], atol=1e-6)


def test_sharded_inputs_without_a_mesh_in_context():
    x = normal(8, 5)
    for kind in AXES:
        shards = jax.device_put(x, NamedSharding(mesh(kind), Spec("d")))
        np.testing.assert_allclose(jax.jit(kernels.softmax)(shards), softmax(x), atol=1e-6)
        np.testing.assert_allclose(jax.vmap(kernels.row_sum)(shards[None]), f64(x).sum(-1)[None], rtol=1e-5)


@tj.jit
def sine(x):
    y = tj.output_like(x)
    rows = tj.axis("rows", x.shape[0])

    @tj.parallel(rows)
    def _(nest):
        at = tj.coord(nest.index(), 0), tj.shape(1, x.shape[1])
        y(*at).store(tj.sin(x[at]))

    return y


@pytest.mark.parametrize("kind", AXES)
def test_derivatives_at_sharded_inputs(kind):
    """The cotangent of an operand has its type, which may say how it is spread."""
    x, devices = normal(8, 4), mesh(kind)
    with jax.set_mesh(devices):
        shards = place(x, devices, Spec("d"))
        for wrap in (lambda f: f, jax.jit):
            gradient = wrap(jax.grad(lambda x: sine(x).sum()))(shards)
            _, tangent = wrap(lambda x: jax.jvp(sine, (x,), (x,)))(shards)
            np.testing.assert_allclose(gradient, np.cos(x), rtol=1e-5)
            np.testing.assert_allclose(tangent, x * np.cos(x), rtol=1e-5, atol=1e-6)


@tj.jit(donate_argnums=0)
def patch(big, x):
    y = tj.update(big)

    @tj.parallel(1)
    def _(nest):
        at = tj.coord(1, 0), tj.shape(2, 3)
        y(*at).store(x[tj.coord(0, 0), tj.shape(2, 3)])

    return y


def test_donation_aliases():
    """The compiled module updates its argument in place, and the caller's is gone."""
    big, x = jnp.zeros((4, 3)), normal(2, 3)
    compiled = patch.lower(big, x).compile()
    (aliases,) = re.findall(r"input_output_alias=\{ (.*?) \}", compiled.as_text())
    assert re.fullmatch(r"\{\}: \(0, \{\}, \S+\)", aliases)
    assert compiled.memory_analysis().alias_size_in_bytes == big.nbytes
    assert " copy(" not in compiled.as_text()
    got = patch(big, x)
    np.testing.assert_array_equal(got, np.concatenate([np.zeros((1, 3)), x, np.zeros((1, 3))]))
    assert big.is_deleted()


def test_donation_by_name_and_from_outside():
    @partial(tj.jit, donate_argnames="big")
    def named(big):
        y = tj.update(big)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(1)).store(tj.full(tj.shape(1), 7, y.dtype))

        return y

    first, second = jnp.arange(3.0), jnp.arange(3.0)
    np.testing.assert_array_equal(named(big=first), [7, 1, 2])
    assert first.is_deleted()
    np.testing.assert_array_equal(jax.jit(lambda x: named(big=x), donate_argnums=0)(second), [7, 1, 2])
    assert second.is_deleted()


def test_donation_of_shards():
    there = NamedSharding(mesh(), Spec("d"))
    big, x = jax.device_put(np.zeros((16, 3), np.float32), there), jax.device_put(normal(8, 3), there)
    run = jax.jit(
        jax.shard_map(patch, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d")), donate_argnums=0
    )
    got = run(big, x)
    assert big.is_deleted()
    want = np.zeros((4, 4, 3), np.float32)
    want[:, 1:3] = np.asarray(x).reshape(4, 2, 3)
    np.testing.assert_array_equal(got, want.reshape(16, 3))


@pytest.mark.parametrize("use", ["index", "value"])
def test_what_varies_over_devices_is_an_argument(use):
    def shifted(x, me):
        """Rows of a pair, the place of one or its values moved by a number."""
        out, row = tj.output_like(x), tj.shape(1, x.shape[1])

        @tj.parallel(2)
        def _(nest):
            tile = x[tj.coord((nest.index() + me) % 2 if use == "index" else nest.index(), 0), row]
            out(tj.coord(nest.index(), 0), row).store(tile if use == "index" else tile + me)

        return out

    def given(x):
        return tj.jit(shifted)(x, lax.axis_index("d"))

    def captured(x):
        me = lax.axis_index("d")
        return tj.jit(lambda x: shifted(x, me))(x)

    x = normal(8, 3)
    run = partial(jax.shard_map, mesh=mesh(), in_specs=Spec("d"), out_specs=Spec("d"))
    pairs, moved = x.reshape(4, 2, 3).copy(), np.arange(4)[:, None, None]
    pairs[1::2] = pairs[1::2, ::-1] if use == "index" else pairs[1::2]
    want = pairs if use == "index" else (pairs + moved).astype(np.float32)
    np.testing.assert_array_equal(run(given)(x), want.reshape(8, 3))
    with pytest.raises(tj.TileTypeError, match=r"varies over mesh axes of.*as an argument"):
        run(captured)(x)
