"""Rows of which a program wants reductions alone, and long rows: in pieces, with one loop for all reductions
that do not need each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from test_triton import close, interpreted

import tilejax as tj
from tests.helpers import normal
from tilejax import kernels
from tilejax.backends.triton import lower
from tilejax.ir.jaxprs import equations

LENGTHS = pytest.mark.parametrize("n", [33, 2048, 3001, 4096, 40_001])


def loops(kernel, *args):
    """How many loops the bodies of a kernel's launches have."""
    traced = tj.jit(kernel).__wrapped__._tilejax_kernel.trace(args, {})
    run = functools.partial(lower.run, traced.program, num_warps=None, num_stages=None)
    calls = jax.make_jaxpr(lambda *operands: run(operands))(*traced.operands).jaxpr.eqns
    bodies = [e.params["jaxpr"] for e in calls if e.primitive.name == "pallas_call"]
    return sum(e.primitive.name in ("scan", "while") for body in bodies for e in equations(body.eqns))


@LENGTHS
def test_all_statistics_of_a_row_are_one_loop(n):
    x, target, p = normal(3, n), normal(3, n, seed=1), abs(normal(3, n, seed=2)) % 1
    x[0, n - 1], x[1, [7, n // 2]] = np.nan, 9.0
    close(interpreted(kernels.row_statistics, x, target, p), oracle.row_statistics(x, target, p), 1e-4)
    assert loops(kernels.row_statistics, x, target, p) == (n > 33)


def extrema(x):
    """The maximum, the minimum, their places and the sum of two rows a program."""
    outs = [tj.output(x.shape[:1], x.dtype) for _ in range(2)]
    places = [tj.output(x.shape[:1], jnp.int32) for _ in range(2)]
    total = tj.output(x.shape[:1], jnp.float32)
    rows, columns = tj.axis("rows", 2), tj.axis("columns", x.shape[1])

    @tj.parallel(tj.axis("blocks", tj.cdiv(x.shape[0], 2)))
    def _(nest):
        at = tj.coord(nest.index() * 2)
        tile = x[tj.coord(nest.index() * 2, 0), tj.shape(rows, columns)]
        found = tj.max(tile, columns), tj.min(tile, columns)
        where = tj.argmax(tile, columns), tj.argmin(tile, columns)
        for view, value in zip((*outs, *places), (*found, *where), strict=True):
            view(at, tj.shape(rows)).store(value.astype(view.dtype))
        total(at, tj.shape(rows)).store(tj.sum(tile.astype(jnp.float32), columns))

    return *outs, *places, total


DTYPES = pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int32", "uint32", "bool"]
)


@LENGTHS
@DTYPES
def test_extrema_and_their_places(n, dtype):
    x = check_extrema(interpreted, n, dtype)
    assert loops(extrema, x) == (n > 33)


def check_extrema(run, n, dtype):
    """Ties go to the first, NaN before all; the last block has one row, the last piece is ragged."""
    rng = np.random.default_rng(n)
    values = rng.integers(0, 2 if dtype == "bool" else 100, (5, n))
    x = np.array(jnp.asarray(values, dtype))
    if dtype == "uint32":
        x[1, n - 5 :] = 2**32 - 1
    if jnp.issubdtype(x.dtype, np.floating):
        x[0, [n // 2, n - 1]] = np.nan
        x[1], x[1, ::3] = -0.0, 0.0
        x[2, n - 2 :] = -2.0
        x[3] = np.nan
        if dtype != "float8_e4m3fn":
            x[4] = -np.inf
    wide = x.astype(np.float64)
    spoiled = np.isnan(wide).any(1)
    first = np.isnan(wide).argmax(1)
    greatest, least, at, below, total = map(np.asarray, run(extrema, x))
    np.testing.assert_array_equal(greatest.astype(float), wide.max(1))
    np.testing.assert_array_equal(least.astype(float), wide.min(1))
    np.testing.assert_array_equal(at, np.where(spoiled, first, np.nan_to_num(wide, neginf=-1e9).argmax(1)))
    np.testing.assert_array_equal(below, np.where(spoiled, first, np.nan_to_num(wide, neginf=-1e9).argmin(1)))
    np.testing.assert_allclose(total, wide.sum(1), rtol=1e-6)
    return x


def test_short_floats_add_up_in_float32():
    """Thousands of ones, which stop at 256 in bfloat16."""

    def kernel(x):
        y, columns = tj.output(x.shape[:1], x.dtype), tj.axis("columns", x.shape[1])

        @tj.parallel(x.shape[0])
        def _(nest):
            tile = x[tj.coord(nest.index(), 0), tj.shape(1, columns)]
            y(tj.coord(nest.index()), tj.shape(1)).store(tj.sum(tile, columns))

        return y

    x = np.ones((2, 2**19), jnp.bfloat16)
    np.testing.assert_array_equal(interpreted(kernel, x), np.full(2, 2**19, jnp.bfloat16))


def moments(x):
    """What is left of rows without their mean over the maximum; the mean, the variance and the next one."""
    y, found = tj.output_like(x), tj.output((x.shape[0], 3), x.dtype)
    columns, one = tj.axis("columns", x.shape[1]), tj.axis("one", 1)

    @tj.parallel(x.shape[0])
    def _(nest):
        row, shape = nest.index(), tj.shape(one, columns)
        tile = x[tj.coord(row, 0), shape]
        mean = tj.mean(tile, columns)
        rest = tile - mean
        second = tj.mean(rest * rest, columns)
        peak = tj.max(tile, columns)
        third = tj.mean(rest * rest * rest, columns)
        y(tj.coord(row, 0), shape).store(tj.broadcast_to(rest / peak, shape))
        for i, value in enumerate((mean, second, third)):
            found(tj.coord(row, i), tj.shape(one, 1)).store(tj.reshape(value, tj.shape(one, 1)))

    return y, found


@pytest.mark.parametrize(("n", "count"), [(50_001, 3), (3000, 0)])
def test_reductions_that_need_others_come_after_them(n, count):
    """Two loops for the moments, and one that stores; rows that are short enough are held."""
    x = check_moments(interpreted, n)
    assert loops(moments, x) == count


def check_moments(run, n):
    x = normal(2, n)
    wide = x.astype(np.float64)
    mean = wide.mean(1, keepdims=True)
    rest = wide - mean
    y, found = run(moments, x)
    np.testing.assert_allclose(y, rest / wide.max(1, keepdims=True), rtol=1e-4, atol=1e-5)
    want = np.stack([mean[:, 0], (rest**2).mean(1), (rest**3).mean(1)], 1)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    return x


def test_what_a_program_stores_and_loads_stays_in_order():
    """A row's sum is stored and loaded before its maximum takes its place."""

    def kernel(x):
        y, columns, one = tj.output(x.shape[:1], x.dtype), tj.axis("columns", x.shape[1]), tj.axis("one", 1)
        z = tj.output(x.shape[:1], x.dtype)

        @tj.parallel(x.shape[0])
        def _(nest):
            tile, at = x[tj.coord(nest.index(), 0), tj.shape(one, columns)], tj.coord(nest.index())
            y(at, tj.shape(one)).store(tj.sum(tile, columns))
            before = y[at, tj.shape(one)]
            y(at, tj.shape(one)).store(tj.max(tile, columns))
            z(at, tj.shape(one)).store(before + tj.min(tile, columns))

        return y, z

    x = normal(3, 40_000)
    greatest, rest = interpreted(kernel, x)
    np.testing.assert_array_equal(greatest, x.max(1))
    np.testing.assert_allclose(rest, x.astype(float).sum(1) + x.min(1), rtol=1e-4)
    assert loops(kernel, x) == 3


def updating(columns):
    """A kernel of programs that each take a row, and four elements of an updated one, which they overwrite.
    The function decorated gives what is stored then, in so many columns."""

    def decorate(body):
        def kernel(x, z0):
            z, out = tj.update(z0), tj.output((x.shape[0], columns), x.dtype)
            n, one = tj.axis("n", x.shape[1]), tj.axis("one", 1)

            @tj.parallel(x.shape[0])
            def _(nest):
                i = nest.index()
                found = body(nest, i, x[tj.coord(i, 0), tj.shape(one, n)], n, z, out)
                z(tj.coord(i, 0), tj.shape(one, 4)).store(tj.full(tj.shape(one, 4), 100.0))
                if found is not None:
                    out(tj.coord(i, 0), tj.shape(one, 1)).store(found)

            return z, out

        return kernel

    return decorate


ONE = tj.shape(1, 1)
"""One element of a row."""


@updating(1)
def looping(nest, i, tile, n, z, out):
    """A loop loads what is stored after it."""

    @nest.serial(4, carry=tj.reshape(tj.max(tile, n), ONE))
    def total(step, total):
        return total + z[tj.coord(i, step.index()), ONE]

    return total


@updating(1)
def stored_by_a_loop(nest, i, tile, n, z, out):
    """A loop stores what is loaded at a place that a reduction gives, and then overwritten."""
    place = tj.reshape(tj.argmax(tile, n), tj.shape()) % 4

    @nest.serial(4)
    def _(step):
        z(tj.coord(i, step.index()), ONE).store(tj.full(ONE, step.index().astype(jnp.float32)))

    return z[tj.coord(i, place), ONE]


@updating(4)
def nested(nest, i, tile, n, z, out):
    """Programs of a nest inside load what is stored after it."""
    peak = tj.reshape(tj.max(tile, n), ONE)

    @nest.parallel(4)
    def _(inner):
        here = tj.coord(i, inner.index()), ONE
        out(*here).store(z[here] + peak)


@pytest.mark.parametrize("kernel", [looping, stored_by_a_loop, nested])
def test_no_store_passes_a_load_inside_of_a_nest(kernel):
    x, z = normal(3, 40_001), normal(3, 4, seed=1)
    after, got = interpreted(kernel, x, z)
    np.testing.assert_array_equal(after, np.full((3, 4), 100))
    want = {
        looping: x.max(1, keepdims=True) + z.astype(float).sum(1, keepdims=True),
        stored_by_a_loop: x.argmax(1)[:, None] % 4,
        nested: x.max(1, keepdims=True) + z,
    }
    np.testing.assert_allclose(got, want[kernel], rtol=1e-5, atol=1e-5)
