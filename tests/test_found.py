"""Kernels that once came out wrong, found by `test_fuzz.py`."""

import numpy as np

import tilejax as tj
from tests.helpers import both

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_loop_whose_start_and_stop_both_depend_on_the_program():
    """Once the axis was cut twice, and its programs ran twice as far."""

    def kernel(x):
        out = tj.output((6,), np.int32)
        g, h, s, one = tj.axis("g", 3), tj.axis("h", 2), tj.axis("s", 2), tj.axis("one", 1)

        @tj.parallel(g)
        def _(nest):
            @nest.parallel(h)
            def _(sub):
                j = sub.index(h)

                @sub.serial(s, carry=tj.full(tj.shape(), 10), start=j, stop=j + 1)
                def last(step, carry):
                    return carry + step.index()

                out(tj.coord(nest.index(g) * 2 + j), tj.shape(one)).store(last)

        return out

    both(kernel, X, want=np.array([10, 11] * 3, np.int32))


def test_a_loop_that_adds_a_scalar_to_a_tile():
    """Once the sum over the steps kept rank 0."""

    def kernel(x):
        out = tj.output((4,), x.dtype)
        s, c = tj.axis("s", 3), tj.axis("c", 4)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(s, carry=tj.reshape(x[tj.coord(2, 0), tj.shape(1, c)], tj.shape(c)))
            def total(step, total):
                return total + tj.lowlevel.load(x, step.index(), 1)

            out(tj.coord(0), tj.shape(c)).store(total)

        return out

    both(kernel, X, want=X[2] + np.float32(1 + 5 + 9))


def test_a_gather_at_indices_that_were_loaded_by_windows():
    """Once unrolled coordinates were taken for an array."""

    def kernel(x, steps):
        out = tj.output((4, 3), x.dtype)
        g, t, c = tj.axis("g", 4), tj.axis("t", 3), tj.axis("c", 4)

        @tj.parallel(g)
        def _(nest):
            index = steps[tj.coord(nest.index(g)), tj.shape(t)]
            row = tj.reshape(x[tj.coord(1, 0), tj.shape(1, c)], tj.shape(c))
            out(tj.coord(nest.index(g), 0), tj.shape(1, t)).store(tj.gather(row, index, c))

        return out

    steps = np.array([0, 2, -1, 3, 1, 7], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(steps, 3)
    want = np.where((windows >= 0) & (windows < 4), X[1][windows % 4], 0)
    both(kernel, X, steps, want=want.astype(np.float32))


def test_a_loop_that_takes_the_least_of_windows():
    """Once what a folded loop combines was unrolled when its steps were reduced."""

    def kernel(x):
        out = tj.output((4,), x.dtype)
        s, t = tj.axis("s", 3), tj.axis("t", 4)

        @tj.parallel()
        def _(nest):
            @nest.pipeline(s, carry=x[tj.coord(0), tj.shape(t)])
            def least(step, least):
                return tj.minimum(least, x[tj.coord(step.index() * 2 - 1), tj.shape(t)])

            out(tj.coord(0), tj.shape(t)).store(least)

        return out

    row = np.array([2, 8, -4, -4, 1, 2, -8], np.float32)
    padded = np.concatenate([[0], row]).astype(np.float32)
    want = np.minimum.reduce([row[:4], *(padded[2 * s : 2 * s + 4] for s in range(3))])
    both(kernel, row, want=want)
