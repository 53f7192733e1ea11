"""Few long rows, in pieces that programs share."""

import functools

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import oracle
import pytest
from test_triton import close, interpreted
from test_triton_splits import lowered, traced

import tilejax as tj
from tilejax import kernels
from tilejax.backends import interpreter
from tilejax.backends.triton import splits
from tilejax.ir.verify import verify
from tilejax.kernels import scans
from tilejax.transforms.rows import spread_rows
from tilejax.transforms.simplify import simplify

F32, I32 = np.float32, np.int32
LENGTH = 45
T = tj.axis("t", LENGTH)


def grids(program):
    return [e.params["extents"] for e in program.jaxpr.eqns if e.primitive.name == "tile_parallel"]


def in_widths(kernel, *args, width, length=LENGTH, want=None, **options):
    """The kernel's results in the interpreter, its rows in pieces; `want` are the grids."""
    program = traced(kernel, *args, **options)
    rewritten = spread_rows(simplify(program.program), lambda nest: (length, width))
    verify(rewritten)
    count = -(-length // width)
    assert any(grid[0] == count for grid in grids(rewritten))
    if want is not None:
        assert grids(rewritten) == [tuple(count if n is None else n for n in grid) for grid in want]
    return jax.tree.unflatten(program.results, interpreter.run(rewritten, program.operands))


WIDTHS = pytest.mark.parametrize("width", [1, 15, 16, 44, 45, 64])


@WIDTHS
def test_kernels_of_rows(width):
    """The last piece is ragged, or there is one; a row has a NaN, another an infinity."""
    x = kernel_cases.normal(3, LENGTH)
    x[0, 44], x[1, 20] = np.nan, np.inf
    run = functools.partial(in_widths, width=width, block_rows=1)
    close(run(kernels.row_sum, x, want=[(None, 3), (3,)]), x.astype(float).sum(1))
    close(run(kernels.row_max, x), x.max(1))
    close(run(kernels.row_absmax, x), abs(x).max(1))
    with np.errstate(invalid="ignore"):
        close(run(kernels.softmax, x, want=[(None, 3)] * 3), oracle.softmax(x))
        close(run(kernels.layernorm, x, want=[(None, 3)] * 3), oracle.layernorm(x))
    y = kernel_cases.normal(4, LENGTH, seed=1)
    two = functools.partial(in_widths, width=width, block_rows=2)
    close(two(kernels.softmax, y), oracle.softmax(y))
    close(run(kernels.rmsnorm, y[0], want=[(None, 1)] * 2), oracle.rmsnorm(y[:1])[0], 1e-5)


@WIDTHS
def test_losses_pick_one_element_of_a_row(width):
    x, labels = kernel_cases.normal(4, LENGTH), np.array([0, 44, 17, -1], I32)
    got = in_widths(kernels.sparse_cross_entropy, x, labels, width=width, block_rows=1)
    close(got, oracle.sparse_cross_entropy(x, labels))
    y, p = kernel_cases.normal(4, LENGTH, seed=1), abs(kernel_cases.normal(4, LENGTH, seed=2)) % 1
    got = in_widths(kernels.row_statistics, x, y, p, width=width, block_rows=1, want=[(None, 4), (4,)])
    close(got, oracle.row_statistics(x, y, p), 1e-4)


def along(fn, dtype, *results):
    """A kernel of three rows: `fn` gives a tile for each of the results, of given shapes and dtypes."""

    def kernel(x):
        outs = [tj.output(*result) for result in results]

        @tj.parallel(3)
        def _(nest):
            i = nest.index()
            tiles = fn(x[tj.coord(i, 0), tj.shape(1, T)])
            for out, tile in zip(outs, tiles, strict=True):
                place = (i, 0) if out.ndim == 2 else (i,)
                out(tj.coord(*place), tj.shape(*(1, T)[: out.ndim])).store(tile)

        return outs

    return kernel


@WIDTHS
def test_extrema_and_their_places(width):
    """Ties go to the lowest index, in whichever piece; NaN comes first; a row of nothing but infinities."""
    x = np.random.default_rng(0).integers(-2, 3, (3, LENGTH)).astype(F32)
    x[1, 30], x[1, 40] = np.nan, np.nan
    x[2] = -np.inf
    small = [((3,), I32)] * 2

    def places(row):
        return tj.argmax(row, T).astype(I32), tj.argmin(row, T).astype(I32)

    for array in (x, -x, (10 * np.nan_to_num(x, neginf=-9)).astype(I32), x > 0):
        got = in_widths(along(places, array.dtype, *small), array, width=width)
        np.testing.assert_array_equal(got, [np.argmax(array, 1), np.argmin(array, 1)])


@WIDTHS
def test_scans_along_the_rows(width):
    x = kernel_cases.normal(3, LENGTH) * 0.1 + 1
    x[1, 20], x[2, 3] = np.nan, np.inf
    tall, small = ((3, LENGTH), F32), ((3,), F32)

    def fn(row):
        total = tj.cumsum(row, T)
        back = tj.cumprod(row, T, reverse=True)
        return (
            total,
            back,
            tj.cummax(row * -1, T, reverse=True) + tj.max(total, T),
            tj.sum(tj.cummin(row, T), T),
        )

    total, back, third, last = in_widths(along(fn, F32, tall, tall, tall, small), x, width=width)
    wide = x.astype(float)
    close(total, np.cumsum(wide, 1))
    close(back, np.cumprod(wide[:, ::-1], 1)[:, ::-1], 1e-4)
    greatest = np.maximum.accumulate(-wide[:, ::-1], 1)[:, ::-1]
    close(third, greatest + np.cumsum(wide, 1).max(1, keepdims=True), 1e-4)
    close(last, np.minimum.accumulate(wide, 1).sum(1), 1e-4)


@WIDTHS
def test_folds_products_and_tests(width):
    x = np.random.default_rng(1).integers(-3, 4, (3, LENGTH)).astype(I32)

    def fn(row):
        bits = tj.Reducer(lambda a, b: a | b, 0)
        negative = tj.all(row < 3, T) | tj.any(row == 7, T)
        return tj.reduce(abs(row), T, bits), tj.prod(row * 2 + 1, T), negative.astype(I32)

    got = in_widths(along(fn, I32, *[((3,), I32)] * 3), x, width=width)
    with np.errstate(over="ignore"):
        products = np.prod(x * 2 + 1, 1, dtype=I32)
    np.testing.assert_array_equal(got, [np.bitwise_or.reduce(abs(x), 1), products, (x < 3).all(1)])


def test_what_has_to_stay_whole():
    """Orders that are fixed, two long dimensions, views that are loaded and stored, sorts, places between."""
    x = kernel_cases.normal(3, LENGTH)
    tall, small = ((3, LENGTH), F32), ((3,), F32)

    def left(kernel, *args, width=16):
        program = simplify(traced(kernel, *args).program)
        return spread_rows(program, lambda nest: (LENGTH, width)) is program

    def one(fn, result=small):
        return along(lambda row: [fn(row)], F32, result)

    sum_of = tj.Reducer(lambda a, b: a + b, 0.0)
    assert not left(one(lambda row: tj.sum(row, T)), x)
    assert left(one(lambda row: tj.reduce(row, T, tj.add, order="fold_left")), x)
    assert left(one(lambda row: tj.reduce(row, T, sum_of, order="ordered_tree")), x)
    assert left(one(lambda row: tj.sort(row, T)[0], tall), x)
    assert left(one(lambda row: tj.associative_scan(tj.add, row, T), tall), x)
    assert left(one(lambda row: tj.gather(row, tj.iota(tj.axis("other", 45)), T), tall), x)
    assert left(one(lambda row: tj.gather(tj.cumsum(row, T), 44, T)), x)
    assert not left(one(lambda row: row * 2, tall), x)

    def placed(start, back=False):
        def kernel(x):
            y = tj.update(x)

            @tj.parallel(3)
            def _(nest):
                here = tj.coord(nest.index(), start), tj.shape(1, T)
                y(*here).store((y if back else x)[here] * 2)

            return y

        return kernel

    assert not left(placed(0), x)
    assert left(placed(-1), x)  # the ragged piece would store where the row has ended
    assert not left(placed(-1), x, width=15)
    assert left(placed(0, back=True), x)


@pytest.fixture
def pieces(monkeypatch):
    monkeypatch.setattr(splits, "rows", lambda nest: (LENGTH, 16))


@pytest.mark.usefixtures("pieces")
def test_triton_bodies():
    x, y = kernel_cases.normal(3, LENGTH), kernel_cases.normal(3, LENGTH, seed=1)
    x[1, 40] = np.nan
    close(interpreted(kernels.softmax, y, block_rows=1), oracle.softmax(y))
    close(interpreted(kernels.layernorm, y, block_rows=1), oracle.layernorm(y))
    close(interpreted(kernels.row_max, x, block_rows=1), x.max(1))
    p = abs(kernel_cases.normal(3, LENGTH, seed=2)) % 1
    got = interpreted(kernels.row_statistics, x, y, p, block_rows=1)
    close(got, oracle.row_statistics(x, y, p), 1e-4)
    labels = np.array([0, 44, -1], I32)
    got = interpreted(kernels.sparse_cross_entropy, y, labels, block_rows=1)
    close(got, oracle.sparse_cross_entropy(y, labels))
    close(interpreted(kernels.cumsum, y, block_rows=1), np.cumsum(y.astype(float), 1))
    close(interpreted(kernels.cummax, x, block_rows=1), np.maximum.accumulate(x, 1))
    integers = (100 * y).astype(np.int8)
    np.testing.assert_array_equal(
        interpreted(kernels.cumsum, integers, block_rows=1), np.cumsum(integers, 1, np.int8)
    )


def test_launches_and_their_grids(monkeypatch):
    s = jax.ShapeDtypeStruct
    assert lowered(kernels.row_sum, s((4, 10**7), F32)) == ([4 * 2442, 4], 0)
    assert lowered(kernels.softmax, s((2, 10**6), F32)) == ([490] * 3, 0)
    assert lowered(kernels.softmax, s((300, 10**5), F32)) == ([300], 0)
    monkeypatch.setattr(scans, "on_gpu", lambda: True)
    assert lowered(kernels.cumsum, s((1, 2**24), jnp.bfloat16)) == ([4096] * 2, 0)
    assert lowered(kernels.cumsum, s((100, 10**5), F32)) == ([100], 0)
