"""Scans of long rows, which the compiler runs by blocks: special values, ragged rows, integers, rounding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejax as tj
from tests.helpers import normal
from tilejax import kernels

SHAPES = [(1, 20000), (3, 2731), (70, 129), (300, 33), (257, 32), (5000, 2), (1, 2), (0, 50), (9000, 1)]


def scans(x, name, reverse=False):
    """A user's scan of whole rows."""

    def kernel(x):
        out = tj.output(x.shape, x.dtype)
        rows, columns = (tj.axis(n, e) for n, e in zip(("rows", "columns"), x.shape, strict=True))

        @tj.parallel(rows)
        def _(nest):
            here = tj.coord(nest.index(), 0), tj.shape(tj.axis("one", 1), columns)
            out(*here).store(getattr(tj, name)(x[here], columns, reverse=reverse))

        return out

    return np.asarray(tj.jit(kernel)(x))


def flipped(x, reverse):
    return x[:, ::-1] if reverse else x


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums(shape, reverse):
    x = normal(*shape)
    want = flipped(np.cumsum(flipped(x.astype(np.float64), reverse), 1), reverse)
    got = scans(x, "cumsum", reverse)
    np.testing.assert_allclose(got, want, atol=1e-6 * shape[1] ** 0.5 + 1e-6)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["cummax", "cummin"])
def test_extrema_and_their_nan(name, shape, reverse):
    x = normal(*shape)
    x[1::3, shape[1] // 3] = np.nan
    x[2::3, shape[1] // 2] = -np.inf
    scan = np.maximum if name == "cummax" else np.minimum
    want = flipped(scan.accumulate(flipped(x, reverse), 1), reverse)
    np.testing.assert_array_equal(scans(x, name, reverse), want)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32], ids=lambda d: np.dtype(d).name)
def test_integers_wrap(dtype, name):
    ufunc = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}[name]
    x = np.random.default_rng(0).integers(-9 if np.iinfo(dtype).min else 0, 9, (70, 131)).astype(dtype)
    np.testing.assert_array_equal(scans(x, name), ufunc.accumulate(x, 1, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_extrema_of_short_floats(dtype):
    x = normal(70, 131).astype(jnp.dtype(dtype))
    x[1::3, 40] = np.nan
    wide = np.maximum.accumulate(x.astype(np.float32), 1)
    got = scans(x, "cummax")
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(np.float32), wide)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_what_is_not_finite_spreads_only_forward(data):
    """An infinity makes the sums from there on infinite, two that differ and NaN make them NaN."""
    n = data.draw(st.sampled_from([1, 31, 32, 33, 100, 1025, 2000]))
    x = np.ones((9000 // n, n), np.float32)
    for place in data.draw(st.lists(st.integers(0, n - 1), max_size=3)):
        x[0, place] = data.draw(st.sampled_from([np.inf, -np.inf, np.nan]))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(kernels.cumsum(x), np.cumsum(x, 1))
        want = np.cumsum(x[:, ::-1], 1)[:, ::-1]
    np.testing.assert_array_equal(scans(x, "cumsum", True), want)


def test_a_sum_that_overflows_is_infinite_from_there_on():
    x = np.zeros((3, 4000), np.float32)
    x[1, [100, 2000]] = 3e38
    x[2, [100, 120]] = -3e38
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(kernels.cumsum(x), np.cumsum(x, 1))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_carry_float32_and_round_each_sum(dtype):
    x = np.abs(normal(3, 3000)).astype(jnp.dtype(dtype))
    got = kernels.cumsum(x)
    assert got.dtype == x.dtype
    want = np.cumsum(x.astype(np.float64), 1).astype(x.dtype).astype(np.float64)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=1.01 * eps)
    assert (np.asarray(got) == want).mean() > 0.98


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", ["positive", "mixed", "opposite halves"])
def test_sums_round_no_worse_than_those_of_jnp(kind):
    x = normal(64, 4096)
    if kind == "positive":
        x = np.abs(x)
    if kind == "opposite halves":
        x[:, 2048:] = -x[:, :2048][:, ::-1]
    want = np.cumsum(x.astype(np.float64), 1)
    calls = kernels.cumsum, lambda x: jnp.cumsum(x, 1)
    ours, theirs = (np.abs(np.asarray(call(x)) - want).mean() for call in calls)
    assert ours < 1.2 * theirs


def test_the_gradient_is_the_sum_from_the_end():
    weights = normal(3, 5000)
    gradient = jax.grad(lambda x: (weights * kernels.cumsum(x)).sum())(normal(3, 5000, seed=1))
    want = np.cumsum(weights[:, ::-1].astype(np.float64), 1)[:, ::-1]
    np.testing.assert_allclose(gradient, want, atol=2e-4)
