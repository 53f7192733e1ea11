"""Kernels that once came out wrong: what `test_fuzz.py` found, and people who tried to break it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_a_condition_chosen_by_an_id_stays_one():
    """`where(ids == place, flag, False)` as the condition of another choice."""

    def kernel(ids, flag, values):
        y, s, i = tj.output((6,), jnp.float32), tj.axis("s", 6), tj.axis("i", ids.shape[0])

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(i)
            hit = tj.where(ids[at] == tj.iota(s), flag[at], False) & (values[at] < 50)
            y(tj.coord(0), tj.shape(s)).store(tj.sum(tj.where(hit, values[at], 0.0), i))

        return y

    ids, flag = np.array([0, 0, 1, 5, 5], np.int32), np.array([True, False, False, True, True])
    values = np.array([1, 10, 100, 7, 70], np.float32)
    np.testing.assert_array_equal(tj.jit(kernel)(ids, flag, values), [1, 0, 0, 0, 0, 7])
    batch = jax.vmap(tj.jit(kernel), (None, 0, None))(ids, np.stack([flag, ~flag]), values)
    np.testing.assert_array_equal(batch, [[1, 0, 0, 0, 0, 7], [10, 0, 0, 0, 0, 0]])


def test_a_pick_outside_of_a_single_column():
    def kernel(x):
        y, g = tj.output((4, 1, 2), jnp.float32), tj.axis("g", 4)
        t, f, u = tj.axis("t", 2), tj.axis("f", 1), tj.axis("u", 2)

        @tj.parallel(g)
        def _(nest):
            field = x[tj.coord(nest.index(), 0), tj.shape(t, f)]
            total = tj.sum(tj.gather(field, tj.iota(u) - 1, f, fallback=-5.0), t)
            y(tj.coord(nest.index(), 0, 0), tj.shape(1, 1, u)).store(tj.reshape(total, tj.shape(1, 1, u)))

        return y

    x = np.arange(1, 6, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(tj.jit(kernel)(x)[:, 0], [[-10, 3], [-10, 5], [-10, 7], [-10, 9]])


def test_a_loop_index_that_overflows_is_compared_as_it_wraps():
    tests = [
        lambda i: i * 2**30 < 0,
        lambda i: -(i * 2**30) > 0,
        lambda i: i + (2**31 - 3) < 0,
        lambda i: i + (2**31 - 3) > i,
    ]

    def kernel(x):
        y = tj.output((4, 5), jnp.int32)
        steps, one = tj.axis("steps", 5), tj.axis("one", 1)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(steps)
            def _(step):
                for row, test in enumerate(tests):
                    value = tj.full(tj.shape(one, 1), tj.where(test(step.index()), 1, 0))
                    y(tj.coord(row, step.index()), tj.shape(one, 1)).store(value)

        return y

    want = [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1], [1, 1, 1, 0, 0]]
    np.testing.assert_array_equal(tj.jit(kernel)(np.zeros(1, np.float32)), want)


@pytest.mark.parametrize("outer", ["serial", "pipeline"])
def test_a_pipeline_that_goes_on_and_is_read_besides(outer):
    def kernel(x):
        y, phases, steps, r = tj.output((1,), jnp.float32), *map(tj.axis, "psr", (2, 3, 1))

        @tj.parallel(1)
        def _(nest):
            zero = tj.zeros(tj.shape(r))

            @getattr(nest, outer)(phases, carry=(zero, zero))
            def total(phase, carry):
                @phase.pipeline(steps, carry=(carry[0], zero))
                def sums(step, sums):
                    value = x[tj.coord(step.index()), tj.shape(r)]
                    return sums[0] + value, sums[1] + value

                return sums[0], carry[1] + 2 * sums[1]

            y(tj.coord(0), tj.shape(r)).store(total[0] + total[1])

        return y

    assert tj.jit(kernel)(np.arange(3, dtype=np.float32))[0] == 6 + 12


@pytest.mark.parametrize("kind", ["serial", "pipeline"])
@pytest.mark.parametrize("stop", [-1, 0, 1, 2, 5])
@pytest.mark.parametrize("steps", [1, 3])
def test_derivatives_do_not_see_steps_that_are_not_run(kind, stop, steps):
    """The slope of a square root at 0 is infinite."""

    def kernel(x, n):
        y, one, axis = tj.output((1,), jnp.float32), tj.axis("one", 1), tj.axis("steps", steps)

        @tj.parallel(1)
        def _(nest):
            @getattr(nest, kind)(axis, carry=tj.zeros(tj.shape(one)), stop=n)
            def total(step, total):
                return total + tj.sqrt(x[tj.coord(step.index()), tj.shape(one)])

            y(tj.coord(0), tj.shape(one)).store(total)

        return y

    x = np.array([1, 4, 0], np.float32)[:steps]
    inside = np.arange(steps) < min(stop, steps)
    with np.errstate(divide="ignore"):
        want = np.where(inside, 0.5 / np.sqrt(x), 0)
    gradient = jax.grad(lambda x, n: tj.jit(kernel)(x, n)[0])(x, np.int32(stop))
    np.testing.assert_array_equal(gradient, want)
