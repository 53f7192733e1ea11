"""Faults that people reported in tile kernels elsewhere: trip counts, pipelines, races."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both

NAN = float("nan")


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
def test_triton_2672_results_of_every_trip_count(trips):
    """A running softmax (numerator, denominator, output), and serial over pipeline over reduce."""
    x = np.linspace(-1, 2, 14).astype(np.float32)

    def kernel(x):
        out = tj.output((4,), x.dtype)
        steps, outer, c = tj.axis("steps", trips), tj.axis("outer", 2), tj.axis("c", 2)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(steps, carry=(-1e30, 0.0, 0.5), window=2)
            def end(step, carry):
                peak, total, last = carry
                tile = x[tj.coord(step.index() * 2), tj.shape(c)]
                new = tj.maximum(peak, tj.max(tile, c))
                return new, total * tj.exp(peak - new) + tj.sum(tj.exp(tile - new), c), last * 2 + new

            @nest.serial(outer, carry=1.0)
            def nested(step, carry):
                @step.pipeline(steps, carry=carry)
                def inner(sub, carry):
                    return carry * 1.5 + tj.sum(x[tj.coord(sub.index() * 2), tj.shape(c)], c) - step.index()

                return inner

            for i, value in enumerate([*end, nested]):
                out(tj.coord(i), tj.shape(1)).store(value)

        return out

    peak, last, nested = -1e30, 0.5, 1.0
    for i in range(trips):
        peak = max(peak, float(x[2 * i : 2 * i + 2].max()))
        last = last * 2 + peak
    total = float(np.exp(x[: 2 * trips].astype(np.float64) - peak).sum())
    for o in range(2):
        for i in range(trips):
            nested = nested * 1.5 + float(x[2 * i : 2 * i + 2].sum()) - o
    both(kernel, x, want=np.array([peak, total, last, nested], np.float32), rtol=1e-4, atol=1e-4)


def test_triton_9264_trip_counts_read_from_an_array():
    counts = np.array([0, 1, 5, 3, 2], np.int32)

    def kernel(counts):
        out = tj.output((5,), jnp.int32)
        programs, steps = tj.axis("programs", 5), tj.axis("steps", 5)

        @tj.parallel(programs)
        def _(nest):
            stop = tj.reshape(counts[tj.coord(nest.index()), tj.shape(1)], tj.shape())

            @nest.serial(steps, carry=1, stop=stop)
            def end(step, carry):
                return carry * 3 + step.index()

            out(tj.coord(nest.index()), tj.shape(1)).store(end)

        return out

    want = []
    for n in counts:
        value = 1
        for i in range(n):
            value = value * 3 + i
        want.append(value)
    both(kernel, counts, want=np.array(want, np.int32))


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_tilelang_2668_read_then_overwrite_in_a_pipeline(window):
    """Each step consumes scratch and refills it."""
    x = np.arange(24, dtype=np.float32).reshape(6, 4)

    def kernel(x):
        out, scratch = tj.output_like(x), tj.output((1, 4), x.dtype, init=-1)
        steps, c, r = tj.axis("steps", 6), tj.axis("c", 4), tj.axis("r", 1)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(steps, window=window)
            def _(step):
                at = tj.coord(step.index(), 0), tj.shape(r, c)
                step.stage("use")
                used = scratch[tj.coord(0, 0), tj.shape(r, c)]
                out(*at).store(used * 10)
                step.stage("refill")
                scratch(tj.coord(0, 0), tj.shape(r, c)).store(x[at] + used)

        return out, scratch

    scratch, want = np.full((1, 4), -1, np.float32), np.zeros_like(x)
    for i in range(6):
        want[i] = scratch[0] * 10
        scratch = x[i : i + 1] + scratch
    both(kernel, x, want=(want, scratch))


@pytest.mark.parametrize("window", [0, 1, 2, 4])
def test_tilelang_2595_a_read_is_not_hoisted_above_an_update(window):
    def kernel(x):
        y = tj.update(x)
        steps, c = tj.axis("steps", 5), tj.axis("c", 4)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(steps, window=window)
            def _(step):
                alias = y.tile(tj.coord(0), tj.shape(c))
                step.stage("load")
                tile = y[tj.coord(0), tj.shape(c)]
                step.stage("store")
                y(tj.coord(0), tj.shape(c)).store(tile * 2 + step.index())
                step.stage("again")
                y(tj.coord(1), tj.shape(1)).store(tj.sum(alias.load(), c) - tj.sum(tile, c))

        return y

    x = np.array([1, 2, 3, 4], np.float32)
    want = x.copy()
    for i in range(5):
        old = want.sum()
        want = want * 2 + i
        want[1] = want.sum() - old
    both(kernel, x, want=want)


def test_tilelang_2309_sibling_pipelines_over_the_same_scratch():
    def kernel(x):
        y = tj.update(x)
        steps, inner, c = tj.axis("steps", 3), tj.axis("inner", 2), tj.axis("c", 4)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(c)
            for window in (2, 4):

                @nest.pipeline(steps, window=window)
                def _(step):
                    tile = y[at]
                    step.stage("store")
                    y(*at).store(tile * 2 + step.index())

                    @step.pipeline(inner, window=3)
                    def _(sub):
                        tile = y[at]
                        sub.stage("store")
                        y(*at).store(tile - sub.index())

        return y

    want = np.arange(4, dtype=np.float32)
    for _ in range(2):
        for i in range(3):
            want = want * 2 + i - 1
    both(kernel, np.arange(4, dtype=np.float32), want=want)


def test_triton_11153_one_program_reads_what_another_wrote():
    """Undefined when compiled; the interpreter says so, by view, index and line."""

    def kernel(x, starts):
        y = tj.update(x)

        @tj.parallel(4)
        def _(nest):
            i = nest.index()
            source = tj.reshape(starts[tj.coord(i), tj.shape(1)], tj.shape())
            y(tj.coord(i), tj.shape(1)).store(y[tj.coord(source), tj.shape(1)] + 1)

        return y

    x = np.zeros(4, np.float32)
    result = tj.interpret(kernel)(x, np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(result, np.ones(4))
    for starts in ([0, 0, 2, 3], [1, 1, 2, 3]):
        with pytest.raises(tj.RaceError, match=r"(?s)y.*test_bugs_loops\.py"):
            tj.interpret(kernel)(x, np.array(starts, np.int32))


def test_jax_23099_two_programs_store_the_same_tile():
    """Provable: an error at trace. Depending on data: the interpreter reports it."""

    def provable(x):
        out = tj.output((3,), x.dtype)
        i, j = tj.axis("i", 3), tj.axis("j", 2)

        @tj.parallel(i, j)
        def _(nest):
            at = tj.coord(nest.index(i)), tj.shape(1)
            out(*at).store(out[at] + x[at])

        return out

    def dynamic(x, starts):
        out = tj.output((3,), x.dtype)

        @tj.parallel(2)
        def _(nest):
            start = tj.reshape(starts[tj.coord(nest.index()), tj.shape(1)], tj.shape())
            out(tj.coord(start), tj.shape(1)).store(1)

        return out

    x = np.ones(3, np.float32)
    for run in (tj.jit, tj.interpret):
        with pytest.raises(tj.RaceError, match=r"(?s)out.*j.*test_bugs_loops\.py"):
            run(provable)(x)
    both(dynamic, x, np.array([2, 0], np.int32), want=np.array([1, 0, 1], np.float32))
    both(
        dynamic, x, np.array([5, 5], np.int32), want=np.zeros(3, np.float32)
    )  # dropped stores race with nobody
    with pytest.raises(tj.RaceError, match=r"(?s)element .1.*out.*test_bugs_loops\.py"):
        tj.interpret(dynamic)(x, np.array([1, 1], np.int32))
