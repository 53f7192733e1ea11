"""Derivatives of kernels that users write: indices in values, captures, loops, updates, gathers, sorts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import tilejax as tj
from tests.helpers import normal
from tilejax import kernels

NAN = float("nan")


def whole(fn, *, size=None, dtype=None):
    """A kernel of one program: `fn(nest, axis, *tiles)` of vectors, to a vector."""

    @tj.jit
    def kernel(*xs):
        n = tj.axis("n", xs[0].shape[0])
        y = tj.output((xs[0].shape[0] if size is None else size,), dtype or xs[0].dtype)

        @tj.parallel(1)
        def _(nest):
            tiles = [x[tj.coord(0), tj.shape(n)] if getattr(x, "ndim", 0) else x for x in xs]
            y(tj.coord(0), tj.shape(*y.shape)).store(fn(nest, n, *tiles))

        return y

    return kernel


@tj.jit
def powers(x):
    """`x[i] ** (1 + i // 2)`: the program's index is in the value."""
    y = tj.output_like(x)

    @tj.parallel(tj.cdiv(x.shape[0], 2))
    def _(nest):
        at = tj.coord(nest.index() * 2), tj.shape(2)
        y(*at).store(tj.power(x[at], (1 + nest.index()).astype(x.dtype)))

    return y


def test_jax_37521_index_in_the_value():
    x = np.float32([2, 3, 4, 5, 2, 3])
    exponent = np.float32([1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(powers(x), x**exponent, rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda x: powers(x).sum())(x), exponent * x ** (exponent - 1), rtol=1e-6
    )
    check_grads(powers, (x,), order=2, atol=0.1, rtol=0.01)


def test_integer_inputs_have_no_tangent():
    double = whole(lambda nest, n, x, ids: tj.gather(x, ids, n) * 2)
    x, ids = np.float32([1, 2, 4]), np.int32([2, 2, 0])
    out, moved = jax.jvp(lambda x: double(x, ids), (x,), (np.float32([1, 0, 3]),))
    np.testing.assert_array_equal(out, [8, 8, 2])
    np.testing.assert_array_equal(moved, [6, 6, 2])
    zero = np.zeros(3, jax.dtypes.float0)
    np.testing.assert_array_equal(jax.jvp(double, (x, ids), (np.float32([1, 0, 3]), zero))[1], [6, 6, 2])
    cotangents = jax.vjp(double, x, ids)[1](np.float32([1, 10, 100]))
    np.testing.assert_array_equal(cotangents[0], [200, 0, 22])
    assert cotangents[1].dtype == jax.dtypes.float0
    gradient = jax.grad(lambda x, ids: double(x, ids).sum(), allow_int=True, argnums=1)(x, ids)
    assert gradient.dtype == jax.dtypes.float0


def test_a_kernel_of_integers_alone():
    count = whole(lambda nest, n, ids: ids * 2)
    out, moved = jax.jvp(count, (np.int32([1, 2]),), (np.zeros(2, jax.dtypes.float0),))
    np.testing.assert_array_equal(out, [2, 4])
    assert moved.dtype == jax.dtypes.float0


def test_integer_results_of_floating_inputs():
    """Their cotangent is float0, and does not count."""
    x = normal(3, 4)
    (values, places), pull = jax.vjp(kernels.sort, x)
    (ct,) = pull(
        (np.ones(values.shape, np.float32) * np.arange(4), np.zeros(places.shape, jax.dtypes.float0))
    )
    np.testing.assert_array_equal(ct, np.argsort(np.argsort(x, -1), -1))


def test_zero_tangents_are_pruned():
    """Of one operand of two, only its own derivative is in the program."""
    a, b = normal(2, 3), normal(3, 2, seed=1)
    program = jax.make_jaxpr(jax.grad(lambda b: kernels.gemm(a, b).sum()))(b)
    assert [v.aval.shape for v in program.jaxpr.outvars] == [b.shape]
    np.testing.assert_allclose(
        jax.grad(lambda b: kernels.gemm(a, b).sum())(b), np.repeat(a.sum(0)[:, None], 2, 1), rtol=1e-5
    )


def test_closure_over_traced_arrays_differentiates():
    def loss(w, x):
        @tj.jit
        def kernel(x):
            y = tj.output_like(x)
            n = tj.axis("n", x.shape[0])

            @tj.parallel(1)
            def _(nest):
                at = tj.coord(0), tj.shape(n)
                y(*at).store(x[at] * tj.view(w)[at] ** 2)

            return y

        return kernel(x).sum()

    w, x = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    for run in (jax.grad(loss, argnums=(0, 1)), jax.jit(jax.grad(loss, argnums=(0, 1)))):
        dw, dx = run(w, x)
        np.testing.assert_array_equal(dw, 2 * w * x)
        np.testing.assert_array_equal(dx, w**2)
    np.testing.assert_array_equal(jax.hessian(loss)(w, x), np.diag(2 * x))
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(loss), in_axes=(0, None))(np.stack([w, -w]), x), np.stack([2 * w * x, -2 * w * x])
    )


def test_closure_over_a_traced_scalar():
    x = np.float32([4, 5, 6])

    def loss(s):
        return whole(lambda nest, n, x: x * s * s)(x).sum()

    assert jax.grad(loss)(3.0) == 6 * x.sum()


def running(op):
    """`total = op(total, x[i])` over the first `stop` rows."""

    @tj.jit
    def kernel(x, stop):
        y = tj.output((x.shape[1],), x.dtype)
        rows, one, c = tj.axis("rows", x.shape[0]), tj.axis("one", 1), tj.axis("c", x.shape[1])

        @tj.parallel(1)
        def _(nest):
            @nest.serial(rows, carry=tj.ones(tj.shape(c), x.dtype), stop=stop)
            def total(step, total):
                row = tj.reshape(x[tj.coord(step.index(), 0), tj.shape(one, c)], tj.shape(c))
                return op(total, row)

            y(tj.coord(0), tj.shape(c)).store(total)

        return y

    return kernel


@pytest.mark.parametrize("stop", [0, 1, 3, 7, -2])
def test_reverse_mode_through_a_dynamic_stop(stop):
    product = running(lambda total, row: total * row)
    x = np.float32([[1, 2], [3, 4], [5, -6], [7, 8]])
    taken = x[: max(stop, 0)]
    want = np.zeros_like(x)
    for i in range(len(taken)):
        want[i] = np.delete(taken, i, 0).prod(0)
    np.testing.assert_array_equal(product(x, stop), taken.prod(0))
    np.testing.assert_allclose(jax.grad(lambda x: product(x, stop).sum())(x), want, rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(jax.grad(lambda x, stop: product(x, stop).sum()))(x, stop), want, rtol=1e-6
    )


def test_second_order_through_a_dynamic_stop():
    product = running(lambda total, row: total * row)
    x = np.float32([[2], [3], [5], [7]])
    hessian = jax.hessian(lambda x: product(x, 3)[0])(x)[:, 0, :, 0]
    np.testing.assert_allclose(hessian, [[0, 5, 3, 0], [5, 0, 2, 0], [3, 2, 0, 0], [0, 0, 0, 0]], rtol=1e-6)
    check_grads(lambda x: product(x, 3), (x,), order=2, atol=0.5, rtol=0.01)


def test_a_stop_read_from_an_array():
    """Reverse mode where the bound is data: `lengths[i]` elements of row `i` add up."""

    @tj.jit
    def ragged(x, lengths):
        y = tj.output((x.shape[0],), x.dtype)
        r, one, columns = tj.axis("r", 1), tj.axis("one", 1), tj.axis("columns", x.shape[1])

        @tj.parallel(x.shape[0])
        def _(nest):
            i = nest.index()
            stop = tj.reshape(lengths[tj.coord(i), tj.shape(r)], tj.shape())

            @nest.pipeline(columns, carry=tj.zeros(tj.shape(r), x.dtype), stop=stop)
            def total(step, total):
                value = x[tj.coord(i, step.index()), tj.shape(r, one)]
                return total + tj.sum(value * value, one)

            y(tj.coord(i), tj.shape(r)).store(total)

        return y

    x, lengths = normal(3, 4), np.int32([2, 0, 9])
    mask = np.arange(4) < lengths[:, None]
    np.testing.assert_allclose(ragged(x, lengths), (x.astype(np.float64) ** 2 * mask).sum(1), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: ragged(x, lengths).sum())(x), 2 * x * mask, rtol=1e-6)


def test_update_outputs():
    """What is kept passes its cotangent to the old array, what is stored to the stored."""

    @tj.jit
    def patched(big, x):
        y = tj.update(big)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(1), tj.shape(2)).store(x[tj.coord(0), tj.shape(2)] * 3 + y[tj.coord(0), tj.shape(2)])

        return y

    big, x = np.float32([1, 2, 4, 8]), np.float32([10, 20])
    np.testing.assert_array_equal(patched(big, x), [1, 31, 62, 8])
    d_big, d_x = jax.vjp(patched, big, x)[1](np.float32([1, 10, 100, 1000]))
    np.testing.assert_array_equal(d_big, [11, 100, 0, 1000])
    np.testing.assert_array_equal(d_x, [30, 300])


def test_initial_values_of_an_output_differentiate():
    def padded(x, init):
        @tj.jit
        def kernel(x):
            y = tj.output((4,), x.dtype, init=tj.view(init))

            @tj.parallel(1)
            def _(nest):
                y(tj.coord(1), tj.shape(2)).store(x[tj.coord(0), tj.shape(2)])

            return y

        return kernel(x)

    ct = np.float32([1, 2, 3, 4])
    d_x, d_init = jax.vjp(padded, np.float32([5, 6]), np.float32([0, 1, 2, 3]))[1](ct)
    np.testing.assert_array_equal(d_x, [2, 3])
    np.testing.assert_array_equal(d_init, [1, 0, 0, 4])


@tj.jit
def recurrence(x):
    """`y[i] = y[i-1] * x[i] + x[i]`, in place: each step loads what the last one stored."""
    y = tj.output_like(x)
    steps, one = tj.axis("steps", x.shape[0]), tj.axis("one", 1)

    @tj.parallel(1)
    def _(nest):
        @nest.serial(steps)
        def _(step):
            i = step.index()
            here, before = (tj.coord(i), tj.shape(one)), (tj.coord(i - 1), tj.shape(one))
            y(*here).store(y[before] * x[here] + x[here])

    return y


def test_in_place_stores_in_a_serial_loop():
    def plain(x):
        y, out = 0.0, []
        for i in range(4):
            y = y * x[i] + x[i]
            out.append(y)
        return jnp.stack(out)

    x = np.float32([2, -1, 3, 0.5])
    np.testing.assert_array_equal(recurrence(x), plain(x))
    np.testing.assert_allclose(jax.jacrev(recurrence)(x), jax.jacfwd(plain)(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(recurrence)(x), jax.jacfwd(plain)(x), rtol=1e-6)
    want = jax.hessian(lambda x: plain(x).sum())(x)
    np.testing.assert_allclose(jax.hessian(lambda x: recurrence(x).sum())(x), want, rtol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(lambda x: recurrence(x).sum()))(np.stack([x, 2 * x])),
        jax.vmap(jax.grad(lambda x: plain(x).sum()))(np.stack([x, 2 * x])),
        rtol=1e-6,
    )


def test_gather_adds_up_and_outside_gets_nothing():
    pick = whole(lambda nest, n, x, ids: tj.gather(x, ids, n, fallback=7))
    x, ids = np.float32([1, 2, 4, 8]), np.int32([3, 3, -1, 4])
    np.testing.assert_array_equal(pick(x, ids), [8, 8, 7, 7])
    ct = np.float32([1, 10, 100, 1000])
    np.testing.assert_array_equal(jax.vjp(lambda x: pick(x, ids), x)[1](ct)[0], [0, 0, 0, 11])


def test_loads_and_stores_outside_get_nothing():
    """The load is one to the left and the store two to the right; what falls off has no gradient."""
    shifted = whole(lambda nest, n, x: x)

    @tj.jit
    def shift(x):
        y = tj.output_like(x)
        n = tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(2), tj.shape(n)).store(x[tj.coord(-1), tj.shape(n)])

        return y

    x = np.float32([1, 2, 3, 4])
    np.testing.assert_array_equal(shift(shifted(x)), [0, 0, 0, 1])
    ct = np.float32([1, 10, 100, 1000])
    np.testing.assert_array_equal(jax.vjp(shift, x)[1](ct)[0], [1000, 0, 0, 0])


def test_sort_carries_its_cotangents_back():
    order = whole(lambda nest, n, x: tj.sort(x, n, descending=True)[0])
    x, ct = np.float32([2, 9, 5, 9]), np.float32([1, 10, 100, 1000])
    np.testing.assert_array_equal(jax.vjp(order, x)[1](ct)[0], [1000, 1, 100, 10])


def test_associative_scan_of_a_pair():
    """A linear recurrence as a scan, against the loop."""

    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    scan = whole(lambda nest, n, a, b: tj.associative_scan(combine, (a, b), n)[1])

    def plain(a, b):
        out = [b[0]]
        for i in range(1, 4):
            out.append(out[-1] * a[i] + b[i])
        return jnp.stack(out)

    a, b = normal(4), normal(4, seed=1)
    np.testing.assert_allclose(scan(a, b), plain(a, b), rtol=1e-5, atol=1e-6)
    for argnum in (0, 1):
        got, want = (jax.jacrev(f, argnum)(a, b) for f in (scan, plain))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_several_nests_and_scratch_between_them():
    @tj.jit
    def squared_twice(x):
        scratch, y = tj.output_like(x), tj.output_like(x)

        @tj.parallel(x.shape[0])
        def _(nest):
            at = tj.coord(nest.index()), tj.shape(1)
            scratch(*at).store(x[at] * x[at])

        @tj.parallel(x.shape[0])
        def _(nest):
            at = tj.coord(x.shape[0] - 1 - nest.index()), tj.shape(1)
            y(tj.coord(nest.index()), tj.shape(1)).store(scratch[at] * scratch[at])

        return y

    x = np.float32([1, 2, 3])
    np.testing.assert_array_equal(squared_twice(x), (x**4)[::-1])
    np.testing.assert_array_equal(jax.vjp(squared_twice, x)[1](np.float32([1, 10, 100]))[0], [400, 320, 108])


def test_pytrees_in_and_out():
    @tj.jit
    def kernel(params, scale):
        out = {"sum": tj.output_like(params["a"]), "product": tj.output_like(params["a"])}

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(2)
            a, b = params["a"][at], params["b"][0][at]
            out["sum"](*at).store(a + b)
            out["product"](*at).store(a * b * scale)

        return out

    params = {"a": np.float32([1, 2]), "b": [np.float32([3, 5])]}

    def loss(params, scale):
        out = kernel(params, scale)
        return out["sum"].sum() + out["product"].sum()

    gradient, by_scale = jax.grad(loss, argnums=(0, 1))(params, 2.0)
    np.testing.assert_array_equal(gradient["a"], [7, 11])
    np.testing.assert_array_equal(gradient["b"][0], [3, 5])
    assert by_scale == 13


def test_half_precision():
    x = normal(4, 6).astype(jnp.bfloat16)
    gradient = jax.grad(lambda x: (kernels.softmax(x).astype(jnp.float32) ** 2).sum())(x)
    assert gradient.dtype == jnp.bfloat16
    p = np.exp(x.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    want = 2 * p * (p - (p * p).sum(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(gradient, np.float64), want, rtol=0.03, atol=2e-3)


def test_jax_24656_a_store_into_an_input_is_an_error():
    """Not a store without effect; nor under a transformation."""

    @tj.jit
    def kernel(x):
        @tj.parallel(1)
        def _(nest):
            x(tj.coord(0), tj.shape(2)).store(x[tj.coord(0), tj.shape(2)] * 2)

        return x

    x = np.ones(2, np.float32)
    for run, arg in ((kernel, x), (jax.vmap(kernel), x[None]), (jax.grad(lambda x: kernel(x).sum()), x)):
        with pytest.raises(tj.ReadOnlyError, match="x is read-only"):
            run(arg)
