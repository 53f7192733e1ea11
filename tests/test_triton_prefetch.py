"""Pipelines that the Triton lowering overlaps by itself, and those that it leaves to Triton."""

import numpy as np
import pytest
from test_triton import interpreted

import tilejax as tj
from tilejax.backends.triton.prefetch import MOST, overlapped
from tilejax.ir.verify import verify
from tilejax.transforms.pipeline import find_cuts
from tilejax.transforms.simplify import simplify

COLUMNS = 300


def running(trips, rows=2, columns=COLUMNS, **options):
    """``total * 2 + the sum of the next rows``, in two programs."""

    def kernel(x, bounds):
        out = tj.output((2, columns), x.dtype)
        g, r, c = tj.axis("g", 2), tj.axis("r", rows), tj.axis("c", columns)

        @tj.parallel(g)
        def _(nest):
            limits = {}
            if options.get("dynamic"):
                pair = (bounds[tj.coord(nest.index(), i), tj.shape(1, 1)] for i in (0, 1))
                limits = dict(zip(("start", "stop"), (tj.reshape(b, tj.shape()) for b in pair), strict=True))
            window = options.get("window", 0)

            @nest.pipeline(tj.axis("k", trips), carry=tj.zeros(tj.shape(c)), window=window, **limits)
            def total(step, total):
                return total * 2 + tj.sum(x[tj.coord(step.index() * rows, 0), tj.shape(r, c)], r)

            out(tj.coord(nest.index(), 0), tj.shape(1, c)).store(total)

        return out

    return kernel


X = np.random.default_rng(0).integers(-4, 5, (9, COLUMNS)).astype(np.float32)


def loops(kernel, *args):
    """The windows and extents of the pipelines that are left for Triton."""
    program = overlapped(simplify(tj.make_jaxpr(kernel)(*args)))
    verify(program)
    return [(eqn.params["window"], eqn.params["extents"]) for eqn, _ in find_cuts(program).values()]


@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_known_numbers_of_steps(trips, window):
    """The last step is ragged: there are 9 rows for 5 steps of 2."""
    kernel, none = running(trips, window=window), np.zeros((2, 2), np.int32)
    want = np.zeros(COLUMNS, np.float32)
    for i in range(trips):
        want = want * 2 + X[2 * i : 2 * i + 2].sum(0)
    np.testing.assert_array_equal(interpreted(kernel, X, none), [want] * 2)
    steady = trips > 1 and window != 1
    assert loops(kernel, X, none) == [(1, (trips - 1,)) if steady else (window, (trips,))]


@pytest.mark.parametrize("bounds", [((0, 5), (1, 4)), ((3, 3), (4, 2)), ((-7, 99), (4, 5)), ((2, 3), (5, 9))])
def test_a_range_that_each_program_reads(bounds):
    kernel = running(5, dynamic=True)
    limits = np.array(bounds, np.int32)
    want = np.zeros((2, COLUMNS), np.float32)
    for g, (start, stop) in enumerate(bounds):
        for i in range(max(start, 0), min(stop, 5)):
            want[g] = want[g] * 2 + X[2 * i : 2 * i + 2].sum(0)
    np.testing.assert_array_equal(interpreted(kernel, X, limits), want)
    assert loops(kernel, X, limits) == [(1, (5,)), (1, (4,)), (1, (5,))]


def test_what_is_left_alone():
    """Large tiles, unless the user asks; products; stores."""
    none = np.zeros((2, 2), np.int32)
    large = np.zeros((64, MOST // 16), np.float32)
    assert loops(running(2, rows=17, columns=MOST // 16), large, none) == [(0, (2,))]
    assert loops(running(2, rows=17, columns=MOST // 16, window=2), large, none) == [(1, (1,))]

    m, n, k = tj.axis("m", 32), tj.axis("n", 32), tj.axis("k", 16)

    def product(a):
        out = tj.output((32, 32), a.dtype)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("kt", 4), carry=tj.zeros(tj.shape(m, n)), window=2)
            def acc(step, acc):
                at = tj.coord(0, step.index() * 16)
                return tj.mma(a[at, tj.shape(m, k)], a[at, tj.shape(n, k)], acc)

            out(tj.coord(0, 0), tj.shape(m, n)).store(acc)

        return out

    def stores(a):
        out = tj.output_like(a)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("steps", 4), carry=0.0, window=2)
            def _(step, count):
                at = tj.coord(step.index() * 8, 0), tj.shape(8, 64)
                out(*at).store(a[at] + count)
                return count + 1

        return out

    square = np.ones((32, 64), np.float32)
    assert loops(product, square) == [(2, (4,))]
    assert loops(stores, square) == [(2, (4,))]


def test_programs_that_run_as_lanes_of_one(monkeypatch):
    monkeypatch.setattr("tilejax.backends.triton.prefetch.lanes_of", lambda nest: (0, 8))
    assert loops(running(5, window=2), X, np.zeros((2, 2), np.int32)) == [(2, (5,))]
