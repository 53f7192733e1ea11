"""Every schedule of a pipeline gives what the steps give in order: trips, ragged columns, windows, intervals.

``interpret`` runs prologue, steady state and epilogue, ``jit`` what XLA makes of the loop. The values are
integers, so every result is exact, and equal to the same loop in NumPy.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from test_triton import interpreted

import tilejax as tj
from tests.helpers import both, same
from tilejax.backends import interpreter
from tilejax.ir.verify import verify
from tilejax.transforms.pipeline import find_cuts
from tilejax.transforms.prefetch import prefetched

TRIPS, COLUMNS = [0, 1, 2, 3, 5, 9], [1, 7, 37, 129]
SCHEDULES = [(window, interval) for interval in (1, 3) for window in (0, 1, 2, 4)]
BLOCK = 32


def data(trips, columns):
    rng = np.random.default_rng(trips * 1000 + columns)
    return rng.integers(-4, 5, (2 * trips + 2, columns)).astype(np.float32)


def in_blocks(columns, body, outputs):
    """Runs ``body(nest, column0, c)`` for every block of columns."""
    blocks, c = tj.axis("blocks", tj.cdiv(columns, BLOCK)), tj.axis("c", BLOCK)

    @tj.parallel(blocks)
    def _(nest):
        body(nest, nest.index() * BLOCK, c)

    return outputs


def carries(trips, window, interval):
    """Three carries, none of which only accumulates, and a store in every step."""

    def kernel(x):
        columns = x.shape[1]
        log, end = tj.output((trips, columns), x.dtype), tj.output((3, columns), x.dtype)
        steps, r = tj.axis("steps", trips), tj.axis("r", 2)

        def body(nest, at, c):
            start = tj.zeros(tj.shape(c)), tj.full(tj.shape(c), -100.0), 1.0

            @nest.pipeline(steps, carry=start, window=window, interval=interval)
            def final(step, carry):
                horner, peak, last = carry
                step.stage("load")
                tile = x[tj.coord(step.index() * 2, at), tj.shape(r, c)]
                total = tj.sum(tile, r)
                step.stage("compute")
                horner, peak = horner * 2 + total, tj.maximum(peak, total)
                step.stage("store")
                log(tj.coord(step.index(), at), tj.shape(1, c)).store(horner - peak)
                return horner, peak, last * -2 + step.index()

            for i, value in enumerate(final):
                end(tj.coord(i, at), tj.shape(1, c)).store(value)

        return in_blocks(columns, body, (log, end))

    def want(x):
        total = x[: 2 * trips].reshape(trips, 2, x.shape[1]).sum(1)
        horner, peak, last = np.zeros_like(x[0]), np.full_like(x[0], -100), 1.0
        log = np.zeros_like(total)
        for i in range(trips):
            horner, peak, last = horner * 2 + total[i], np.maximum(peak, total[i]), last * -2 + i
            log[i] = horner - peak
        return log, np.stack([horner, peak, np.full_like(peak, last)])

    return kernel, want


def in_place(trips, window, interval):
    """``y`` starts as ``x``: each step reads ``x``, which stays, and the row of ``y`` that it replaces."""

    def kernel(x):
        y = tj.update(x)
        steps = tj.axis("steps", trips)

        def body(nest, at, c):
            @nest.pipeline(steps, window=window, interval=interval)
            def _(step):
                here, there = (tj.coord(step.index() + k, at) for k in (0, 1))
                old, before = y[here, tj.shape(1, c)], x[there, tj.shape(1, c)]
                y(here, tj.shape(1, c)).store(old * 3 + before)

        return in_blocks(x.shape[1], body, y)

    def want(x):
        y = x.copy()
        y[:trips] = x[:trips] * 3 + x[1 : trips + 1]
        return y

    return kernel, want


def recurrence(trips, window, interval):
    """Each step reads the two rows before the one that it stores: nothing may run ahead."""

    def kernel(x):
        y = tj.update(x)
        steps, r = tj.axis("steps", trips), tj.axis("r", 2)

        def body(nest, at, c):
            @nest.pipeline(steps, window=window, interval=interval)
            def _(step):
                step.stage("load")
                rows = y[tj.coord(step.index(), at), tj.shape(r, c)]
                step.stage("store")
                y(tj.coord(step.index() + 2, at), tj.shape(1, c)).store(tj.sum(rows, r))

        return in_blocks(x.shape[1], body, y)

    def want(x):
        y = x.copy()
        for i in range(trips):
            y[i + 2] = y[i] + y[i + 1]
        return y

    return kernel, want


def late_store(trips, window, interval):
    """A product summed over the steps; then, late, a store that the next step's late stage reads."""

    def kernel(x):
        rows, columns = x.shape
        out, log = tj.output((rows, columns), x.dtype), tj.output((1, columns), x.dtype, init=1)
        steps, m, k = tj.axis("steps", trips), tj.axis("m", rows), tj.axis("k", 2)

        def body(nest, at, c):
            carry = tj.zeros(tj.shape(m, c))

            @nest.pipeline(steps, carry=carry, window=window, interval=interval)
            def acc(step, acc):
                step.stage("load")
                right = x[tj.coord(step.index() * 2, at), tj.shape(k, c)]
                left = tj.fromfunction(tj.shape(m, k), lambda m, k: m - k + step.index())
                step.stage("compute")
                acc = tj.mma(left.astype(x.dtype), right, acc)
                step.stage("late")
                old = log[tj.coord(0, at), tj.shape(1, c)]
                log(tj.coord(0, at), tj.shape(1, c)).store(old * 2 - step.index())
                return acc

            out(tj.coord(0, at), tj.shape(m, c)).store(acc)

        return in_blocks(columns, body, (out, log))

    def want(x):
        acc, log = np.zeros_like(x), np.ones_like(x[:1])
        for i in range(trips):
            left = np.arange(len(x))[:, None] - np.arange(2) + i
            acc += left.astype(x.dtype) @ x[2 * i : 2 * i + 2]
            log = log * 2 - i
        return acc, log

    return kernel, want


KERNELS = {"carries": carries, "in_place": in_place, "recurrence": recurrence, "late_store": late_store}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_gives_what_the_steps_give_in_order(name, trips, columns):
    x = data(trips, columns)
    for window, interval in SCHEDULES:
        kernel, want = KERNELS[name](trips, window, interval)
        same(tj.interpret(kernel)(x), want(x))
    same(tj.jit(kernel)(x), want(x))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("name", KERNELS)
def test_xla_sees_no_difference_between_schedules(name):
    """So one of them stands for all above: windows and intervals change nothing of what is compiled."""
    x = data(3, 37)
    texts = {tj.jit(KERNELS[name](3, *schedule)[0]).lower(x).as_text() for schedule in SCHEDULES}
    assert len(texts) == 1


@pytest.mark.parametrize(("trips", "columns"), [(0, 7), (1, 37), (2, 7), (5, 37)])
@pytest.mark.parametrize("name", KERNELS)
def test_the_bodies_of_triton(name, trips, columns):
    """In Pallas's interpreter; it sees no windows. ``tests/gpu`` has the same on a GPU, where Triton does."""
    kernel, want = KERNELS[name](trips, 4, 1)
    x = data(trips, columns)
    same(interpreted(kernel, x), want(x))


@pytest.mark.parametrize("name", ["carries", "in_place", "late_store"])
@pytest.mark.parametrize("trips", [2, 3, 9])
def test_the_transformed_program_itself(name, trips):
    """A valid program with the same results, of which nothing is overlapped again."""
    x = data(trips, 37)
    kernel, want = KERNELS[name](trips, 2, 1)
    program = tj.make_jaxpr(kernel)(x)
    ((_, cut),) = find_cuts(program).values()
    assert cut.overlapped
    schedule = prefetched(program)
    verify(schedule)
    assert prefetched(schedule) is schedule
    steady = [(eqn.params["extents"], cut.reason) for eqn, cut in find_cuts(schedule).values()]
    assert steady == [((trips - 1,), "window=1 asks for no overlap")]
    wanted = want(x)
    for got, expected in zip(
        interpreter.run(schedule, [x]), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


LIMITS = [(0, 0), (0, 6), (2, 5), (-3, 2), (3, 99), (4, 1), (6, 6), (5, 6), (2**31 - 1, 3), (0, -(2**31))]


@pytest.mark.parametrize("window", [0, 1, 2, 4])
@pytest.mark.parametrize("dynamic", [True, False])
def test_bounds_of_the_range(window, dynamic):
    """A load outside ``range(start, stop)`` would read what another program stores, or leave the view."""
    limits = np.array(LIMITS, np.int32)
    x = np.arange(1, 7, dtype=np.float32)

    def kernel(x, limits):
        out = tj.output((len(LIMITS),), x.dtype)
        programs, steps = tj.axis("programs", 1), tj.axis("steps", 6)

        @tj.parallel(programs)
        def _(nest):
            for i, (start, stop) in enumerate(LIMITS):
                if dynamic:
                    start, stop = (
                        tj.reshape(limits[tj.coord(i, j), tj.shape(1, 1)], tj.shape()) for j in (0, 1)
                    )

                @nest.pipeline(steps, carry=1.0, start=start, stop=stop, window=window)
                def total(step, total):
                    tile = x[tj.coord(step.index()), tj.shape(1), tj.Bounds.ASSUME]
                    return total * 2 + tj.reshape(tile, tj.shape())

                out(tj.coord(i), tj.shape(1)).store(total)

        return out

    want = []
    for start, stop in LIMITS:
        total = 1.0
        for i in range(max(start, 0), min(stop, 6)):
            total = total * 2 + x[i]
        want.append(total)
    both(kernel, x, limits, want=np.array(want, np.float32))


@pytest.mark.parametrize("extents", [(2, 3), (1, 4), (3, 1), (2, 2, 2), (0, 3), (1, 1)])
@pytest.mark.parametrize("window", [1, 2])
def test_domains_of_several_axes(extents, window):
    """The index of the next step is that of the next point, row-major."""
    x = np.arange(np.prod(extents), dtype=np.float32).reshape(extents) + 1

    def kernel(x):
        out, order = tj.output((1,), x.dtype), tj.output(extents, x.dtype)
        axes = [tj.axis(f"a{i}", n) for i, n in enumerate(extents)]
        ones = tj.shape(*[1] * len(extents))

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(*axes, carry=0.0, window=window)
            def total(step, total):
                at = tj.coord(*(step.index(a) for a in axes))
                total = total * -1.5 + tj.reshape(x[at, ones], tj.shape())
                order(at, ones).store(total)
                return total

            out(tj.coord(0), tj.shape(1)).store(total)

        return out, order

    total, order = np.float32(0), np.zeros(extents, np.float32)
    for at in np.ndindex(extents):
        order[at] = total = np.float32(total * np.float32(-1.5) + x[at])
    both(kernel, x, want=(np.array([total]), order), rtol=1e-6)


@pytest.mark.parametrize("windows", [(0, 0), (2, 4), (4, 1), (1, 2)])
def test_a_pipeline_in_a_pipeline(windows):
    """The outer loads run ahead of the inner pipeline, which has its own schedule in steady state."""
    x = np.arange(24, dtype=np.float32).reshape(4, 6) - 9
    outer, inner, c = tj.axis("outer", 4), tj.axis("inner", 3), tj.axis("c", 2)

    def kernel(x):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(outer, carry=tj.ones(tj.shape(c)), window=windows[0])
            def _(step, carry):
                row = step.index()
                first = tj.reshape(x[tj.coord(row, 0), tj.shape(1, c)], tj.shape(c))

                @step.pipeline(inner, carry=carry + first, window=windows[1])
                def carry(sub, carry):
                    at = tj.coord(row, sub.index() * 2), tj.shape(1, c)
                    carry = carry * 2 - tj.reshape(x[at], tj.shape(c))
                    y(*at).store(carry)
                    return carry

                return carry

        return y

    want, carry = np.zeros_like(x), np.ones(2, np.float32)
    for i in range(4):
        carry = carry + x[i, :2]
        for j in (0, 2, 4):
            want[i, j : j + 2] = carry = carry * 2 - x[i, j : j + 2]
    both(kernel, x, want=want)


def test_float_sums_of_a_pipeline_are_within_reassociation():
    x = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    k, c = tj.axis("k", 10), tj.axis("c", 5)

    def kernel(x, window):
        out = tj.output((5,), jnp.float32)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(4, carry=tj.zeros(tj.shape(c)), window=window)
            def total(step, total):
                return total + tj.sum(x[tj.coord(step.index() * 10, 0), tj.shape(k, c)], k)

            out(tj.coord(0), tj.shape(c)).store(total)

        return out

    want = x.astype(np.float64).sum(0).astype(np.float32)
    for window in (0, 1, 2, 4):
        both(lambda x, w=window: kernel(x, w), x, want=want, rtol=1e-5, atol=1e-5)


def test_what_is_wrong_in_a_step_is_said_of_that_step():
    """Its load ran one step ahead, in the prologue or the steady state."""

    def kernel(x, trips):
        out = tj.output((1,), x.dtype)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("steps", trips), carry=0.0)
            def total(step, total):
                at = tj.coord(step.index()), tj.shape(1), tj.Bounds.ASSUME
                return total * 2 + tj.reshape(x[at], tj.shape())

            out(tj.coord(0), tj.shape(1)).store(total)

        return out

    for size, trips in ((3, 5), (0, 2)):
        x = np.ones(size, np.float32)
        message = rf"(?s)element \({size},\) of x.*step \(steps={size}\).*test_pipeline\.py"
        with pytest.raises(tj.BoundsError, match=message):
            tj.interpret(kernel, static_argnames="trips")(x, trips=trips)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("windows", [(0, 1), (2, 4), (4, 2), (1, 0)])
def test_memories_consumed_and_refilled_by_sibling_and_nested_pipelines(windows, inside):
    """As tiles of the pipelines' views, memories have in each step what the step before left in them."""
    x = np.arange(1, 25, dtype=np.float32).reshape(6, 4)
    steps, inner, c, r = tj.axis("steps", 3), tj.axis("inner", 2), tj.axis("c", 4), tj.axis("r", 1)

    def pipeline(nest, n, held, x, y):
        @nest.pipeline(steps, window=windows[n])
        def _(step):
            step.stage("load")
            row = x[tj.coord(step.index() + 3 * n, 0), tj.shape(r, c)]
            fresh = tj.memory(tj.shape(r, c), x.dtype) if inside else held
            if inside:
                fresh.store(row)
            step.stage("use")
            at = tj.coord(n, step.index(), 0), tj.shape(1, r, c)
            y(*at).store(tj.reshape(fresh.load() * 3 - held.load(), tj.shape(1, r, c)))
            step.stage("refill")

            @step.pipeline(inner, window=windows[1 - n])
            def _(sub):
                held.store(held.load() * 2 + row + sub.index())

    def kernel(x):
        y = tj.output((2, 3, 4), x.dtype)

        @tj.parallel(1)
        def _(nest):
            held = tj.memory(tj.shape(r, c), x.dtype)
            held.store(1)
            pipeline(nest, 0, held, x, y)
            pipeline(nest, 1, held, x, y)

        return y

    want, held = np.zeros((2, 3, 4), np.float32), np.ones(4, np.float32)
    for n, i in np.ndindex(2, 3):
        row = x[3 * n + i]
        want[n, i] = (row if inside else held) * 3 - held
        for j in range(2):
            held = held * 2 + row + j
    both(kernel, x, want=want)
