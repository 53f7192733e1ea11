"""Values that Triton's own operations get wrong, or do not know: of 64 bits, of 8 bits, and signed zeros."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_triton import interpreted
from test_triton_lowering import for_cuda

import tilejax as tj

BYTES = ("float8_e4m3fn", "float8_e5m2")


def elementwise(fn, dtype=None):
    """A kernel that stores a function of a tile."""

    def kernel(x):
        out, n = tj.output(x.shape, dtype or x.dtype), tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(_):
            out(tj.coord(0), tj.shape(n)).store(fn(x[tj.coord(0), tj.shape(n)]))

        return out

    return kernel


def check(fn, x, want, dtype=None, **tolerance):
    """The kernel of a function is right, and is lowered for a GPU."""
    kernel = elementwise(fn, dtype)
    got = np.asarray(interpreted(kernel, x))
    assert got.dtype == want.dtype
    if tolerance:
        np.testing.assert_allclose(got, want, **tolerance)
    else:
        np.testing.assert_array_equal(got.astype(float), want.astype(float))
        number = ~np.isnan(want.astype(float))
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
    assert "gpu.triton" in for_cuda(kernel, x)


def test_double_precision():
    x = np.array([123456789.4, 1e30, -2.5, 0.5, 1.5, -0.3, -0.0, np.inf, np.nan, 2.0**52 + 1])
    y = np.array([1.5, 1e300, 1e-60, 3.0, 1.0, 0.1])
    with jax.enable_x64(True):
        check(tj.round, x, np.round(x))
        check(lambda t: t // 3, x[:6], np.floor(x[:6] / 3))
        check(tj.log2, y, np.log2(y), rtol=1e-14, atol=1e-15)
        z = np.array([-100.0, 0.5, -1.0, 30.0, 800.0, -800.0])
        with np.errstate(over="ignore"):
            check(tj.sigmoid, z, 1 / (1 + np.exp(-z)), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_keeps_the_sign_of_zero(dtype):
    x = np.array(jnp.asarray([-0.0, 0.0, -0.5, 0.5, 1.5, -1.5, np.inf, -np.inf, np.nan], dtype))
    check(tj.round, x, np.round(x.astype(float)).astype(x.dtype))


def test_unsigned_integers_of_64_bits():
    x = np.array([0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    with jax.enable_x64(True):
        check(lambda t: -t, x, np.uint64(0) - x)
        check(lambda t: ~t, x, ~x)
        check(tj.sign, x, np.minimum(x, np.uint64(1)))


def test_the_largest_integer_as_a_fallback_and_a_value():
    def kernel(x):
        out, n = tj.output((8,), x.dtype), tj.axis("n", 8)
        most = 2**64 - 1

        @tj.parallel(1)
        def _(_):
            tile = x(tj.coord(0), tj.shape(n)).load(most)
            picked = tj.gather(tile, 9, n, fallback=most)
            all_bits = tj.full(tj.shape(n), most, jnp.uint64)
            out(tj.coord(0), tj.shape(n)).store(tile ^ all_bits ^ picked)

        return out

    x = np.array([0, 1, 2**63], np.uint64)
    with jax.enable_x64(True):
        want = np.append(x, np.full(5, 2**64 - 1, np.uint64))
        for run in (interpreted, lambda k, x: tj.jit(k)(x), lambda k, x: tj.interpret(k)(x)):
            np.testing.assert_array_equal(run(kernel, x), want)


@pytest.mark.parametrize("dtype", BYTES)
def test_operations_with_floats_of_eight_bits(dtype):
    x = np.array(jnp.asarray([7.0, -7.0, 0.5, 6.0, -0.5], dtype))
    wide = x.astype(np.float32)
    check(lambda t: t // 3, x, np.floor(wide / 3).astype(x.dtype))
    check(lambda t: t % 3, x, (wide % 3).astype(x.dtype))


@pytest.mark.parametrize("other", [*BYTES, "float16", "float32", "float64"])
@pytest.mark.parametrize("dtype", BYTES)
def test_every_float_of_eight_bits_is_cast(dtype, other):
    x = np.arange(256, dtype=np.uint8).view(dtype)
    with jax.enable_x64(other == "float64"):
        check(lambda t: t.astype(other), x, x.astype(np.float64).astype(other), other)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_ties_are_cast_to_floats_of_eight_bits(dtype, wide):
    """What lies between two of them, and next to it on both sides; and where they end."""
    codes = np.arange(128, dtype=np.uint8)
    values = codes.view(dtype).astype(wide)
    values = values[np.isfinite(values)]
    beyond = values[-1] + (values[-1] - values[-2])
    middle = (values + np.append(values[1:], beyond)) / 2
    below = np.searchsorted(middle, middle)  # the codes of the values below
    tie = below + below % 2
    rounded = np.concatenate([below, tie, below + 1]).astype(np.uint8).view(dtype)
    x = np.concatenate([np.nextafter(middle, 0), middle, np.nextafter(middle, np.inf)]).astype(wide)
    with jax.enable_x64(wide == "float64"):
        check(lambda t: t.astype(dtype), x, rounded, dtype)
        check(lambda t: t.astype(dtype), -x, -rounded, dtype)


def test_constants_of_one_element():
    """What is gathered from, negated and rounded is a number that JAX knows while it traces."""

    def kernel(x):
        out, n, one = tj.output_like(x), tj.axis("n", x.shape[0]), tj.axis("one", 1)
        here = tj.coord(0), tj.shape(n)

        @tj.parallel(1)
        def _(_):
            place = tj.reindex(tj.full(tj.shape(one), 2, "int32"), tj.shape(), lambda _: tj.coord(0))
            picked = tj.gather(x[here], place, n)
            never, even = ~tj.full(tj.shape(), 1, "bool"), tj.round(tj.full(tj.shape(), 2.5, x.dtype))
            out(*here).store(tj.where(never, 0.0, x[here] + picked * tj.round(picked / even)))

        return out

    x = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(interpreted(kernel, x), x + 2)
    assert "gpu.triton" in for_cuda(kernel, x)
