"""vmap: one more grid axis, wherever the batch is."""

from __future__ import annotations

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import normal
from tests.jaxprs import count
from tilejax import kernels


@tj.jit
def prefix_sum(x, stop):
    """The sum of the first `stop` of `x`, an element a step."""
    y = tj.output((1,), x.dtype)
    n, one = tj.axis("n", x.shape[0]), tj.axis("one", 1)

    @tj.parallel(1)
    def _(nest):
        @nest.serial(n, carry=tj.zeros(tj.shape(one), x.dtype), stop=stop)
        def total(step, total):
            return total + x[tj.coord(step.index()), tj.shape(one)]

        y(tj.coord(0), tj.shape(one)).store(total)

    return y


@tj.jit
def scaled_from(x, factor, start):
    """`x * factor` from `start` on, by twos, with the index of the program added."""
    y = tj.output_like(x)

    @tj.parallel(tj.cdiv(x.shape[0], 2))
    def _(nest):
        place = nest.index() * 2
        value = x[tj.coord(place + start), tj.shape(2)] * factor + nest.index()
        y(tj.coord(place), tj.shape(2)).store(value.astype(y.dtype))

    return y


def scaled_from_numpy(x, factor, start):
    moved = np.concatenate([x[start:], np.zeros(start, x.dtype)])
    return moved * factor + np.arange(len(x)) // 2


@pytest.mark.parametrize("axes", list(product((None, 0, 1, -1), (None, 0, -2, 2)))[1:])
def test_any_in_axes_and_out_axes(axes):
    a, b = normal(3, 5), normal(5, 2, seed=1)
    factors = np.float32([1, -2, 4])
    moved = [
        x if d is None else np.stack([x * f for f in factors], d) for x, d in zip((a, b), axes, strict=True)
    ]
    power = sum(d is not None for d in axes)
    want = np.stack([(a.astype(np.float64) @ b) * f**power for f in factors])
    for out in (0, 2):
        got = jax.vmap(kernels.gemm, in_axes=axes, out_axes=out)(*moved)
        np.testing.assert_allclose(got, np.moveaxis(want, 0, out), rtol=1e-5, atol=1e-5)


def test_nested_with_an_operand_mapped_by_either():
    a, b = normal(2, 3, 4), normal(5, 4, 2, seed=1)
    inner = jax.vmap(kernels.gemm, in_axes=(None, 0))
    got = jax.vmap(inner, in_axes=(0, None), out_axes=1)(a, b)
    want = np.einsum("pik,qkj->qpij", a.astype(np.float64), b).swapaxes(0, 1)
    np.testing.assert_allclose(got, want.swapaxes(0, 1), rtol=1e-5, atol=1e-5)


def test_three_deep():
    x = normal(2, 3, 4, 5, 6)
    got = jax.vmap(jax.vmap(jax.vmap(kernels.row_sum), in_axes=1), in_axes=-1, out_axes=-1)(x)
    assert got.shape == (3, 2, 4, 6)
    np.testing.assert_allclose(got, np.einsum("abcde->bace", x.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_it_is_one_kernel_with_one_more_axis():
    program = jax.make_jaxpr(jax.vmap(kernels.row_sum))(normal(7, 4, 5))
    assert count(program, "tile_kernel") == 1
    assert count(program, "tile_parallel", names=("batch", "rows_blocks"), extents=(7, 1)) == 1
    assert count(program, "scan") == count(program, "while") == 0


def test_mapped_scalars():
    x = np.arange(1, 7, dtype=np.float32)
    factors, starts = np.float32([1, 3, -2]), np.int32([0, 2, 5])
    for mapped in product((0, None), repeat=2):
        if mapped == (None, None):
            continue
        got = jax.vmap(scaled_from, in_axes=(None, *mapped))(
            x, factors if mapped[0] == 0 else 3.0, starts if mapped[1] == 0 else 2
        )
        want = [
            scaled_from_numpy(x, factors[i] if mapped[0] == 0 else 3, starts[i] if mapped[1] == 0 else 2)
            for i in range(3)
        ]
        np.testing.assert_array_equal(got, np.float32(want))


def test_mapped_stop():
    x, stops = np.arange(1, 6, dtype=np.float32), np.int32([0, 3, 9, -1, 5])
    want = np.float32([[x[: max(s, 0)].sum()] for s in stops])
    np.testing.assert_array_equal(jax.vmap(prefix_sum, in_axes=(None, 0))(x, stops), want)
    rows = np.stack([x * i for i in range(5)])
    want = np.float32([[rows[i, : max(s, 0)].sum()] for i, s in enumerate(stops)])
    np.testing.assert_array_equal(jax.vmap(prefix_sum)(rows, stops), want)
    nested = jax.vmap(jax.vmap(prefix_sum, in_axes=(None, 0)), in_axes=(0, None))(rows, stops)
    want = np.float32([[[row[: max(s, 0)].sum()] for s in stops] for row in rows])
    np.testing.assert_array_equal(nested, want)


def test_mapped_stop_of_a_pipeline_and_gradient():
    """The gradient of a prefix sum: 1 before `stop`."""
    stops = np.int32([2, 0, 4])
    rows = normal(3, 4)
    gradient = jax.vmap(jax.grad(lambda x, s: prefix_sum(x, s)[0]))(rows, stops)
    np.testing.assert_array_equal(gradient, (np.arange(4) < stops[:, None]).astype(np.float32))


@pytest.mark.parametrize("size", [0, 1])
def test_axis_of_size_0_and_1(size):
    a, b = normal(size, 3, 5), normal(5, 2, seed=1)
    mapped = jax.vmap(kernels.gemm, in_axes=(0, None))
    np.testing.assert_allclose(mapped(a, b), a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda a, b: mapped(a, b).sum(), argnums=(0, 1))(a, b)
    np.testing.assert_allclose(gradient[0], np.broadcast_to(b.sum(1), a.shape), rtol=1e-5)
    np.testing.assert_allclose(gradient[1], np.repeat(a.sum((0, 1))[:, None], 2, 1), rtol=1e-5, atol=1e-6)


def test_empty_arrays_in_a_batch():
    np.testing.assert_array_equal(jax.vmap(kernels.row_sum)(np.ones((3, 0, 4), np.float32)), np.zeros((3, 0)))
    np.testing.assert_array_equal(jax.vmap(kernels.row_sum)(np.ones((3, 2, 0), np.float32)), np.zeros((3, 2)))


@pytest.mark.usefixtures("on_cpu")
def test_spmd_axis_name():
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=auto, devices=jax.devices("cpu"))
    x = normal(4, 3, 5)
    shards = jax.device_put(x, jax.NamedSharding(mesh, jax.P("data")))
    mapped = jax.jit(jax.vmap(kernels.row_sum, spmd_axis_name="data"))
    np.testing.assert_allclose(mapped(shards), x.astype(np.float64).sum(-1), rtol=1e-5)
    gradient = jax.grad(lambda x: (mapped(x) ** 2).sum())(shards)
    np.testing.assert_allclose(gradient, 2 * np.repeat(x.sum(-1)[..., None], 5, -1), rtol=1e-5, atol=1e-5)


def test_axis_name_is_for_collectives_around_the_kernel():
    def centred(x):
        return x - jax.lax.pmean(kernels.row_sum(x), "batch")[:, None]

    x = normal(3, 2, 4)
    got = jax.vmap(centred, axis_name="batch")(x)
    np.testing.assert_allclose(got, x - x.sum(-1).mean(0)[None, :, None], rtol=1e-5, atol=1e-6)


def test_vmap_of_grad_and_grad_of_vmap():
    x = normal(3, 4, 5)

    def loss(x):
        return (kernels.softmax(x) ** 2).sum()

    each = jax.vmap(jax.grad(loss))(x)
    whole = jax.grad(lambda x: jax.vmap(loss)(x).sum())(x)
    p = np.exp(x.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    want = 2 * p * (p - (p * p).sum(-1, keepdims=True))
    np.testing.assert_allclose(each, want, atol=1e-6)
    np.testing.assert_allclose(whole, want, atol=1e-6)


def test_a_batch_that_only_the_second_operand_has_adds_up_in_the_gradient_of_the_first():
    x, y = normal(2, 3), normal(4, 2, 3, seed=1)
    gradient = jax.grad(lambda x: (jax.vmap(kernels.add, in_axes=(None, 0))(x, y) ** 2).sum())(x)
    np.testing.assert_allclose(gradient, 2 * (x + y).sum(0), rtol=1e-5, atol=1e-5)


def test_updates_in_a_batch():
    """A view that starts as an argument without the batch gets one when what is stored has it."""

    @tj.jit
    def place(big, x, row):
        y = tj.update(big)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(row, 0), tj.shape(1, 2)).store(x[tj.coord(0, 0), tj.shape(1, 2)])

        return y

    big, x, rows = np.zeros((3, 2), np.float32), normal(4, 1, 2), np.int32([0, 2, 5, 1])
    want = np.zeros((4, 3, 2), np.float32)
    for i, row in enumerate(rows):
        if row < 3:
            want[i, row] = x[i, 0]
    np.testing.assert_array_equal(jax.vmap(place, in_axes=(None, 0, 0))(big, x, rows), want)
    gradient = jax.grad(lambda big: jax.vmap(place, in_axes=(None, 0, 0))(big, x, rows).sum())(big)
    np.testing.assert_array_equal(gradient, np.float32([[3, 3], [3, 3], [3, 3]]))


def test_integers_and_captured_arrays():
    table = jnp.asarray(normal(10))

    @tj.jit
    def look_up(ids):
        y = tj.output(ids.shape, table.dtype)
        n = tj.axis("n", ids.shape[0])
        entry = tj.axis("entry", 10)

        @tj.parallel(1)
        def _(nest):
            values = tj.view(table)[tj.coord(0), tj.shape(entry)]
            y(tj.coord(0), tj.shape(n)).store(tj.gather(values, ids[tj.coord(0), tj.shape(n)], entry))

        return y

    ids = np.int32([[1, 9], [0, 3], [11, 2]])
    want = np.where(ids < 10, np.asarray(table)[ids % 10], 0)
    np.testing.assert_array_equal(jax.vmap(look_up)(ids), want)
    np.testing.assert_array_equal(jax.vmap(look_up, in_axes=1, out_axes=1)(ids), want)


def test_sorts_in_a_batch():
    x = np.float32([[[3, 1, np.nan], [2, 2, 0]], [[0, -1, 5], [np.nan, 1, 1]]])
    values, places = jax.vmap(partial(kernels.sort, block_rows=1), in_axes=1, out_axes=1)(x)
    np.testing.assert_array_equal(values, np.sort(x, -1))
    np.testing.assert_array_equal(places, np.argsort(x, -1, kind="stable"))
