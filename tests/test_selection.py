"""top_k of many rows, which the compiler ranks by counting: ties, NaN, zeros and ragged rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejax as tj
from tests.test_structure import operations
from tilejax import kernels

ROWS = 600
"""Enough of any length that they are not left to XLA's TopK."""
TOP_K = tj.jit(kernels.top_k, backend="xla")
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-38, 3.4e38, -3.4e38]


def check(x, k, largest):
    values, indices = TOP_K(x, k, largest=largest)
    want = oracle.order(x, descending=largest)[:, :k]
    np.testing.assert_array_equal(indices, want)
    assert values.dtype == x.dtype
    # The elements themselves: also the sign of a zero, though not the bits of a NaN.
    got, taken = (v.astype(np.float64) for v in (np.asarray(values), np.take_along_axis(x, want, 1)))
    np.testing.assert_array_equal(got, taken)
    number = ~np.isnan(taken)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(taken)[number])


def few_values(n, dtype=np.float32, rows=ROWS):
    """Rows of which most elements have equals: some of special values, some of small integers."""
    rng = np.random.default_rng(n)
    x = rng.choice(np.array([*SPECIAL, 2, 3, 4]), (rows, n))
    x[::3] = rng.integers(-9, 9, x[::3].shape)
    x[1::7] = x[1::7, :1]
    with np.errstate(over="ignore"):
        return x.astype(dtype)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("k", [1, 3, 16])
@pytest.mark.parametrize("n", [16, 33, 1237])
def test_ties_go_by_index(n, k, largest):
    check(few_values(n), k, largest)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_narrow_floats(dtype, largest):
    check(few_values(131, jnp.dtype(dtype)), 5, largest)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers(dtype, largest):
    rng = np.random.default_rng(0)
    info = np.iinfo("uint8" if dtype == "bool" else dtype)
    x = rng.integers(info.min, info.max, (37, 150), endpoint=True, dtype=info.dtype)
    x[::2] = rng.choice(np.array([info.min, info.max, 0, 1], info.dtype), x[::2].shape)
    check((x & 1).astype(bool) if dtype == "bool" else x, 7, largest)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
@pytest.mark.parametrize(("shape", "k"), [((1, 2**16), 4), ((0, 64), 4), ((5000, 1), 1), ((2, 40000), 17)])
def test_shapes(shape, k, largest):
    check(few_values(shape[1], rows=shape[0]), k, largest)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_bits(data):
    n, k = data.draw(st.tuples(st.integers(1, 200), st.integers(1, 16)).filter(lambda p: p[1] <= p[0]))
    pool = data.draw(st.lists(st.floats(width=32, allow_subnormal=False), min_size=1, max_size=300))
    x = np.random.default_rng(n).choice(np.array(pool, np.float32), (2**16 // n, n))
    check(x, k, data.draw(st.booleans()))


def test_its_gradient_goes_to_the_selected():
    x = np.random.default_rng(0).standard_normal((ROWS, 130), np.float32)
    weights = np.random.default_rng(1).standard_normal((ROWS, 4), np.float32)
    gradient = jax.grad(lambda x: (weights * kernels.top_k(x, 4)[0]).sum())(x)
    want = np.zeros_like(x)
    np.put_along_axis(want, oracle.order(x, True)[:, :4], weights, 1)
    np.testing.assert_array_equal(gradient, want)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int8], ids=lambda d: jnp.dtype(d).name)
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_no_row_is_sorted(dtype, largest):
    found = operations(kernels.top_k, jax.ShapeDtypeStruct((512, 1000), dtype), 8, largest=largest)
    assert not {"sort", "top_k", "while", "case"} & set(found)


def test_a_users_selection_along_another_axis_is_the_same():
    def best(x):
        out = tj.output((3, x.shape[1]), jnp.int32)
        column, row, one = tj.axis("column", x.shape[1]), tj.axis("row", x.shape[0]), tj.axis("one", 1)

        @tj.parallel(column)
        def _(nest):
            here = tj.coord(0, nest.index())
            _, places = tj.top_k(x[here, tj.shape(row, one)], row, 3)
            out(here, tj.shape(3, one)).store(places)

        return out

    x = few_values(ROWS, rows=200)
    np.testing.assert_array_equal(tj.jit(best)(x).T, oracle.order(x.T, True)[:, :3])
    assert not {"sort", "top_k"} & set(operations(best, x))
