"""Serial and pipeline nests: carries, trip counts, bounds, windows, and the order of their stores."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal

X = normal(7, 6)
KINDS = ["serial", "pipeline"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
def test_a_carry_after_every_trip_count(kind, trips):
    """``acc * 2 + row``: not a fold, so every step counts, in order. Zero trips give the initial carry."""

    def kernel(x):
        out = tj.output((6,), x.dtype)
        rows, r, c = tj.axis("rows", trips), tj.axis("r", 1), tj.axis("c", 6)

        @tj.parallel(1)
        def _(nest):
            @getattr(nest, kind)(rows, carry=tj.full(tj.shape(c), 0.5))
            def acc(step, acc):
                row = tj.reshape(x[tj.coord(step.index(), 0), tj.shape(r, c)], tj.shape(c))
                return acc * 2 + row

            out(tj.coord(0), tj.shape(c)).store(acc)

        return out

    want = np.full(6, 0.5, np.float32)
    for i in range(trips):
        want = want * 2 + X[i]
    both(kernel, X, want=want)


@pytest.mark.parametrize("window", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("interval", [1, 2])
def test_every_window_and_interval_gives_what_serial_gives(window, interval):
    """A GEMM with a ragged tail, and a step that reads what the step before stored."""
    a = np.arange(-10, 18, dtype=np.float32).reshape(4, 7)
    b = np.arange(35, dtype=np.float32).reshape(7, 5)

    def kernel(a, b):
        c = tj.output((4, 5), jnp.float32)
        log = tj.update(a)
        kt, one = tj.axis("kt", 4), tj.axis("one", 1)
        m, n, k = tj.axis("m", 4), tj.axis("n", 5), tj.axis("k", 2)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n)), window=window, interval=interval)
            def acc(step, acc):
                k0 = step.index() * 2
                step.stage("load")
                left, right = a[tj.coord(0, k0), tj.shape(m, k)], b[tj.coord(k0, 0), tj.shape(k, n)]
                step.stage("compute")
                acc = tj.mma(left, right, acc)
                step.stage("late store")
                previous = log[tj.coord(0, step.index()), tj.shape(m, one)]
                log(tj.coord(0, step.index() + 1), tj.shape(m, one)).store(previous + 1)
                return acc

            c(tj.coord(0, 0), tj.shape(m, n)).store(acc)

        return c, log

    log = a.copy()
    for j in range(4):
        log[:, j + 1] = log[:, j] + 1
    both(kernel, a, b, want=(a @ b, log))


@pytest.mark.parametrize("kind", KINDS)
def test_start_and_stop_are_clipped_to_the_axis(kind):
    """Each program sums ``range(start, stop)`` of its own row of ``bounds``, as the Python loop does."""
    bounds = np.array([[0, 0], [0, 5], [2, 4], [-3, 2], [3, 99], [4, 1], [5, 5], [7, 9]], np.int32)

    def kernel(bounds):
        out = tj.output((8, 2), jnp.int32)
        programs, steps = tj.axis("programs", 8), tj.axis("steps", 5)

        @tj.parallel(programs)
        def _(nest):
            i = nest.index()
            start, stop = (tj.reshape(bounds[tj.coord(i, j), tj.shape(1, 1)], tj.shape()) for j in (0, 1))

            @getattr(nest, kind)(steps, carry=(jnp.int32(0), jnp.int32(1)), start=start, stop=stop)
            def total(step, carry):
                count, product = carry
                return count + 1, product * (step.index() + 2)

            for j, value in enumerate(total):
                out(tj.coord(i, j), tj.shape(1, 1)).store(value)

        return out

    def loop(start, stop):
        span = range(max(start, 0), min(stop, 5))
        return [len(span), np.prod([i + 2 for i in span], dtype=np.int64)]

    both(kernel, bounds, want=np.array([loop(*row) for row in bounds.tolist()], np.int32))


@pytest.mark.parametrize("kind", KINDS)
def test_static_start_and_stop_and_a_stop_that_depends_on_the_program(kind):
    def kernel():
        out = tj.output((4, 3), jnp.int32)
        programs, steps = tj.axis("programs", 4), tj.axis("steps", 6)

        @tj.parallel(programs)
        def _(nest):
            i = nest.index()
            limits = [{"start": 2}, {"stop": 3}, {"start": 1, "stop": i + 1}]
            for j, limit in enumerate(limits):

                @getattr(nest, kind)(steps, carry=0, **limit)
                def total(step, total):
                    return total * 10 + step.index()

                out(tj.coord(i, j), tj.shape(1, 1)).store(total)

        return out

    both(kernel, want=np.array([[2345, 12, 0], [2345, 12, 1], [2345, 12, 12], [2345, 12, 123]], np.int32))


def test_a_carry_is_any_pytree_and_weak_scalars_take_the_dtype_of_the_body():
    def kernel(x):
        row = tj.output((6,), x.dtype)
        scalars = tj.output((3,), jnp.float32)
        rows, c = tj.axis("rows", 7), tj.axis("c", 6)

        @tj.parallel(1)
        def _(nest):
            start = {"peak": tj.full(tj.shape(c), float("-inf")), "rest": (0, [0.0, ()])}

            @nest.serial(rows, carry=start)
            def end(step, carry):
                count, (total, nothing) = carry["rest"]
                assert nothing == ()
                line = tj.reshape(x[tj.coord(step.index(), 0), tj.shape(1, c)], tj.shape(c))
                rest = count + 0.5, [total + tj.max(line, c), ()]
                return {"peak": tj.maximum(carry["peak"], line), "rest": rest}

            row(tj.coord(0), tj.shape(c)).store(end["peak"])
            scalars(tj.coord(0), tj.shape(1)).store(end["rest"][0])
            scalars(tj.coord(1), tj.shape(1)).store(end["rest"][1][0])

        return row, scalars

    total = np.float32(0)
    for line in X:
        total += line.max()
    both(kernel, X, want=(X.max(0), np.array([3.5, total, 0], np.float32)))


def test_an_empty_carry_and_no_carry():
    def kernel(x):
        y = tj.update(x)
        rows, c = tj.axis("rows", 7), tj.axis("c", 6)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(rows, carry=())
            def end(step, carry):
                assert carry == ()
                at = tj.coord(step.index(), 0), tj.shape(1, c)
                y(*at).store(y[at] + 1)
                return ()

            assert end == ()

            @nest.pipeline(rows)
            def _(step):
                at = tj.coord(step.index(), 0), tj.shape(1, c)
                y(*at).store(y[at] * 2)

        return y

    both(kernel, X, want=(X + 1) * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_stores_are_seen_by_later_steps_and_after_the_nest(kind):
    """Fibonacci in place: step i reads what steps i-1 and i-2 stored; then a copy of the last element."""

    def kernel(x):
        y = tj.update(x)
        steps, two = tj.axis("steps", x.shape[0] - 3), tj.axis("two", 2)

        @tj.parallel(1)
        def _(nest):
            @getattr(nest, kind)(steps)
            def _(step):
                i = step.index()
                y(tj.coord(i + 2), tj.shape(1)).store(tj.sum(y[tj.coord(i), tj.shape(two)], two))

            y(tj.coord(10), tj.shape(1)).store(y[tj.coord(9), tj.shape(1)])

        return y

    x = np.ones(11, np.int32)
    want = np.array([1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 55], np.int32)
    both(kernel, x, want=want)


@pytest.mark.parametrize("trips", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weak_carry_has_the_dtype_of_the_body_after_every_trip_count(kind, trips):
    """Python scalars and weak tiles alike; one that the body leaves weak is weak after the loop."""

    def kernel(x):
        out = tj.output((6,), jnp.float16)
        rows, c = tj.axis("rows", trips), tj.axis("c", 6)

        @tj.parallel(1)
        def _(nest):
            tile = tj.reshape(x[tj.coord(0, 0), tj.shape(1, c)], tj.shape(c))

            @getattr(nest, kind)(rows, carry=(1, 2, tj.full(tj.shape(c), 3)))
            def end(step, carry):
                count, total, weak = carry
                return count + 1, total + tj.max(tile, c), weak + tile

            count, total, weak = end
            assert total.dtype == weak.dtype == jnp.float16
            out(tj.coord(0), tj.shape(c)).store(tile * count + total + weak)

        return out

    x = np.arange(42, dtype=np.float16).reshape(7, 6)
    line = x[0]
    both(kernel, x, want=line * (1 + trips) + (2 + trips * line.max()) + (3 + trips * line))
