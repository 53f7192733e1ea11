"""What stands for the primitives that the plugins lack, against NumPy or the primitives themselves."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from emulate import check_module, operations
from jax import lax
from jax.extend import core as jex
from kernel_cases import FLOATS, f32, normal
from metal_cases import ties

import tilejax as tj
from tilejax.backends.metal.profiles import PROFILES
from tilejax.backends.metal.rewrite import rewrite

RNG = np.random.default_rng(0)


def rewritten(fn, *args):
    return jax.jit(jex.jaxpr_as_fun(rewrite(jax.make_jaxpr(fn)(*args), PROFILES["mlx"], "a test")))


def module_of(fn, *args):
    return rewritten(fn, *args).trace(*args).lower(lowering_platforms=("METAL",)).compiler_ir()


def run(fn, *args):
    """The results of `fn` rewritten for Metal, whose module is in the whitelist."""
    check_module(str(module_of(fn, *args)))
    return [np.asarray(x) for x in rewritten(fn, *args)(*args)]


def plain(x):
    return x.astype(np.float64) if jnp.issubdtype(x.dtype, np.floating) else x


def same(fn, *args, rtol=0.0):
    """The rewritten `fn` gives what `fn` gives."""
    for got, want in zip(run(fn, *args), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(plain(got), plain(np.asarray(want)), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int32, np.uint32], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_casts_to_integers_saturate(dtype, to):
    edges = [0, 0.5, -0.5, 1.5, -1.5, 127.5, 128, -128.5, -129, 255.5, 256, 3e9, -3e9, 2**31, -(2**31), 2**32]
    with np.errstate(over="ignore"):
        x = f32([*edges, np.nan, np.inf, -np.inf]).astype(dtype)
    wide, info = x.astype(np.float64), np.iinfo(to)
    want = np.clip(np.trunc(np.nan_to_num(wide, nan=0.0, posinf=1e30, neginf=-1e30)), info.min, info.max)
    (got,) = run(lambda x: lax.convert_element_type(x, to), x)
    np.testing.assert_array_equal(got, want.astype(np.int64).astype(to))


def test_bfloat16_rounding_is_not_folded():
    x = normal(500) * f32(10.0) ** RNG.integers(-38, 38, 500).astype(np.float32)
    x[:5] = [np.nan, np.inf, -np.inf, 3.3895314e38, 3.4028235e38]
    with np.errstate(over="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    (got,) = run(lambda x: lax.reduce_precision(x, 8, 7), x)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32], ids=lambda d: np.dtype(d).name)
def test_shifts_past_the_width(dtype):
    amount = np.arange(0, 70).astype(dtype)
    x = np.full(70, 77, dtype) if np.iinfo(dtype).min == 0 else np.full(70, -77, dtype)
    bits = np.iinfo(dtype).bits
    unsigned = int(x[0]) % 2**bits
    left = [(unsigned << a) % 2**bits for a in range(70)]
    right = [unsigned >> a for a in range(70)]
    for shift, want in ((lax.shift_left, left), (lax.shift_right_logical, right)):
        (got,) = run(shift, x, amount)
        np.testing.assert_array_equal(got, np.array(want, np.uint64).astype(dtype))
    (got,) = run(lax.shift_right_arithmetic, x, amount)
    np.testing.assert_array_equal(got, [int(x[0]) >> a for a in range(70)])


def test_erf():
    x = np.concatenate([np.linspace(-5, 5, 4001), [np.nan, np.inf, -np.inf, 0]]).astype(np.float32)
    np.testing.assert_allclose(run(lax.erf, x)[0], [math.erf(v) for v in x], rtol=6e-7, atol=1e-40)


def test_other_elementwise_functions():
    x = np.linspace(-5, 5, 401).astype(np.float32)
    for fn, want in ((jnp.exp2, np.exp2), (jnp.tan, np.tan), (lax.square, np.square)):
        np.testing.assert_allclose(run(fn, x)[0], want(x.astype(np.float64)), rtol=2e-5)
    halves = f32([0.5, -0.5, 1.5, -2.5, np.nan, np.inf, 0.49999997, 8388609, -8388611, 0])
    (got,) = run(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), halves)
    np.testing.assert_array_equal(got, [1, -1, 2, -3, np.nan, np.inf, 0, 8388609, -8388611, 0])
    np.testing.assert_array_equal(run(jnp.round, halves)[0], np.round(halves))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_order(dtype):
    x = ties(dtype)
    wide, order = x.astype(np.float64), oracle.order(x)
    values, indices = run(lambda x: lax.sort((x, lax.broadcasted_iota(np.int32, x.shape, 1)), num_keys=1), x)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(plain(values), np.take_along_axis(wide, order, 1))
    values, indices = run(lambda x: lax.top_k(x, 9), x)
    np.testing.assert_array_equal(indices, oracle.order(x, True)[:, :9])
    np.testing.assert_array_equal(plain(values), np.take_along_axis(wide, indices, 1))
    for fn, want in ((lax.argmax, np.argmax), (lax.argmin, np.argmin)):
        for axis in (0, 1):
            np.testing.assert_array_equal(
                run(lambda x, f=fn, a=axis: f(x, a, np.int32), x)[0], want(wide, axis)
            )


SCANS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name):
    fn = getattr(lax, name)
    for n in (1, 2, 129):
        x = RNG.integers(-3, 4, (2, n)).astype(np.int32)
        np.testing.assert_array_equal(run(lambda x: fn(x, axis=1), x)[0], SCANS[name].accumulate(x, 1))
    (got,) = run(lambda x: fn(x, axis=0, reverse=True), x.T)
    np.testing.assert_array_equal(got, SCANS[name].accumulate(x[:, ::-1], 1)[:, ::-1].T)


def test_a_scan_of_blocks_of_blocks():
    x = RNG.integers(-3, 4, (2, 16500)).astype(np.int32)
    np.testing.assert_array_equal(run(lambda x: lax.cumsum(x, axis=1), x)[0], np.cumsum(x, 1))


def test_reductions_of_five_dimensions():
    x = normal(2, 3, 4, 2, 3)
    for axes in ((0,), (1, 3), (0, 2, 4), (0, 1, 2, 3, 4)):
        np.testing.assert_array_equal(run(lambda x, a=axes: x.max(a), x)[0], x.max(axes))
        np.testing.assert_array_equal(run(lambda x, a=axes: (x > -1).all(a), x)[0], (x > -1).all(axes))
    np.testing.assert_array_equal(run(lambda x: lax.argmax(x, 2, np.int32), x)[0], x.argmax(2))


def test_products_of_bytes_are_exact():
    a, b = (
        RNG.integers(-128, 128, (3, 700, 5)).astype(np.int8),
        RNG.integers(0, 256, (3, 4, 700)).astype(np.uint8),
    )
    a[0], b[0] = -128, 255
    dims = (((1,), (2,)), ((0,), (0,)))
    (got,) = run(lambda a, b: lax.dot_general(a.astype(np.int32), b.astype(np.int32), dims), a, b)
    np.testing.assert_array_equal(got, np.einsum("bkm,bnk->bmn", a.astype(np.int64), b.astype(np.int64)))


def test_dynamic_slices_are_clamped_first():
    x, i, u = normal(5, 6), np.int32([-3, 9]), normal(2, 3, seed=1)

    def cut(x, i):
        return lax.dynamic_slice(x, (i[0], i[1]), (2, 3))

    def put(x, i, u):
        return lax.dynamic_update_slice(x, u, (i[0], i[1]))

    same(cut, x, i)
    same(put, x, i, u)
    for fn, args, arrays in ((cut, (x, i), 1), (put, (x, i, u), 2)):
        (starts,) = (
            [str(v.owner.name) for v in list(op.operands)[arrays:]]
            for op in operations(str(module_of(fn, *args)))
            if "dynamic" in op.name
        )
        assert starts == ["stablehlo.clamp"] * 2


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_gathers(mode):
    x, (i, j) = normal(5, 6, 7), RNG.integers(-8, 9, (2, 4, 3)).astype(np.int32)
    all_of_it = slice(None)

    def gathers(x, i, j):
        places = (i,), (all_of_it, i), (i, all_of_it, j), (i, j)
        return [x.at[where].get(mode=mode) for where in places]

    def windows(x, i):
        def window(r, k, size):
            return lax.dynamic_slice(r, (k[0], k[1]), size)

        own = jax.vmap(lambda r, k: window(r, k, (2, 3)))(x[:4], i)
        return own, jax.vmap(lambda k: window(x[0], k, (6, 3)))(i), jax.vmap(gather_own)(x[:4], i)

    def gather_own(r, k):
        return r.at[k].get(mode=mode)

    same(gathers, x, i, j)
    same(windows, x, i)


@pytest.mark.parametrize("kind", ["set", "add", "mul", "min", "max"])
def test_scatters(kind):
    """Of whole rows and of windows, some outside, some in one place."""
    x, i, u = normal(5, 6, 7), RNG.integers(-1, 6, (4, 3)).astype(np.int32), normal(4, 3, 6, 7)
    u[0, 0] = np.nan
    u[1, 1] = np.inf
    for mode in ("clip", "drop"):
        same(lambda x, i, u, m=mode: getattr(x.at[i], kind)(u, mode=m), x, i, u, rtol=2e-6)
        same(lambda x, i, u, m=mode: getattr(x.at[i, :, i + 1], kind)(u[..., 0], mode=m), x, i, u, rtol=2e-6)
    same(jax.vmap(lambda r, k, v: lax.dynamic_update_slice(r, v, (k[0], k[1]))), x[:4], i, u[:, 0, :2, :3])


def test_a_scatter_of_many_into_many_goes_in_blocks():
    """Selected, selected in float32, multiplied by zeros and ones; and one by one, for a NaN is there."""
    ids = RNG.integers(-1, 3001, 9000).astype(np.int32)
    holed = normal(9000, 200)
    holed[7, 3] = np.nan
    for values in (np.ones(9000, np.int32), normal(9000).astype(np.float16), normal(9000, 200), holed):
        zeros = np.zeros((3000, *values.shape[1:]), values.dtype)
        (got,) = run(lambda i, v, z: z.at[i].add(v, mode="drop"), np.where(ids < 0, 3000, ids), values, zeros)
        want = oracle.segment_sum(ids, values.astype(np.float64), 3000)[0]
        np.testing.assert_allclose(plain(got), want, rtol=1e-3, atol=1e-3)


CONVOLUTIONS = {
    "strides": ((2, 7, 6, 3), (3, 3, 3, 4), {"window_strides": (2, 1), "padding": ((1, 2), (0, 1))}),
    "groups": ((2, 7, 6, 4), (3, 2, 2, 6), {"padding": "SAME", "feature_group_count": 2}),
    "dilations": (
        (1, 7, 6, 3),
        (3, 3, 3, 4),
        {"padding": ((-1, 2), (2, 1)), "lhs_dilation": (2, 3), "rhs_dilation": (1, 2)},
    ),
    "many taps": ((1, 12, 12, 3), (9, 9, 3, 4), {"window_strides": (1, 2), "padding": ((3, 4), (4, 3))}),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    x, w, options = CONVOLUTIONS[name]
    a, b = np.round(4 * normal(*x)), np.round(4 * normal(*w, seed=1))  # so that the order of sums is free
    options = {"window_strides": (1, 1)} | options
    for spec, moved in (("NHWC", a), ("NCHW", np.moveaxis(a, 3, 1))):
        numbers = (spec, "HWIO", "HWNC" if spec == "NCHW" else spec)
        same(lambda a, b, n=numbers: lax.conv_general_dilated(a, b, dimension_numbers=n, **options), moved, b)


def test_control_flow():
    x, n = normal(5, 6), np.int32([1, 2, 3, 0, 4])
    same(lambda x: lax.scan(lambda c, y: (c + y, c * 2), x[0], x, reverse=True), x)
    same(lambda x, n: jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda i, c: c + x, x))(x, n), x, n)
    same(lambda x, n: lax.switch(n, [lambda x: x, lambda x: x + 1, lambda x: x * 3], x), x, np.int32(9))
    same(lambda x: lax.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x - 1, x), x)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lax.lgamma, "operation lgamma of float32"),
        (lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID"), "operation reduce_window_sum"),
        (lambda x: lax.convert_element_type(x, np.complex64), "convert_element_type is complex64"),
        (lambda x: lax.reduce_precision(x, 5, 10), "reduce_precision of float32 to 5 bits"),
        (lambda x: lax.dot(x.astype(np.int32), x.astype(np.int32)), "dot_general of int32 and int32"),
    ],
    ids=["lgamma", "reduce_window", "complex", "reduce_precision", "integers"],
)
def test_what_has_no_form_is_refused(fn, said):
    with pytest.raises(tj.UnsupportedError, match=said):
        rewrite(jax.make_jaxpr(fn)(normal(7)), PROFILES["mlx"], "a test")
