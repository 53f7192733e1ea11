"""Faults that people reported in tile kernels elsewhere: scans, sorts, loops and composition with JAX.

One test a report, named after it. test_bugs.py has those of values and bounds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

NAN = float("nan")


def test_triton_4362_reverse_associative_scan():
    f = np.array([1, 1.5, 0.8, 2], np.float32)
    x = np.array([1, -1, 0.5, 2], np.float32)

    def fn(a, f, x):
        return tj.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (f, x), a.i, reverse=True)

    want = np.array([2.4, 2.4, 1.6, 2], np.float32), np.array([3.15, 2.15, 2.1, 2], np.float32)
    tiles("i,i", fn, f, x, want=want, rtol=1e-6)


@pytest.mark.parametrize("shape", [(32, 64), (64, 32), (1, 9), (9, 1)])
def test_tilelang_2284_cumsum_along_each_axis(shape):
    x = np.random.default_rng(0).integers(-4, 5, (shape[0] + 2, shape[1] + 3)).astype(np.float32)

    def kernel(x):
        outs = [tj.output(shape, x.dtype) for _ in range(2)]
        i, j = (tj.axis(name, n) for name, n in zip("ij", shape, strict=True))

        @tj.parallel(1)
        def _(nest):
            part = x[tj.coord(1, 2), tj.shape(i, j)]
            for out, axis in zip(outs, (i, j), strict=True):
                out(tj.coord(0, 0), tj.shape(i, j)).store(tj.cumsum(part, axis))

        return outs

    part = x[1 : shape[0] + 1, 2 : shape[1] + 2]
    both(kernel, x, want=[np.cumsum(part, 0), np.cumsum(part, 1)])


def test_triton_5999_sort_with_inf_and_nan():
    x = np.array([NAN, -0.0, 0.0, -NAN, np.inf, -1], np.float32)

    def fn(a, x):
        return [tj.sort(x, a.i, descending=d)[1] for d in (False, True)] + [tj.isnan(tj.sort(x, a.i)[0])]

    want = [np.array([5, 1, 2, 4, 0, 3], np.int32), np.array([0, 3, 4, 1, 2, 5], np.int32), np.arange(6) >= 4]
    tiles("i", fn, x, want=want)


def test_tensorflow_117287_top_k_with_nan():
    x = np.array([[NAN, 1, 2], [1, -NAN, 2], [1, 2, NAN], [NAN, NAN, 5]], np.float32)

    def fn(a, x):
        return [tj.top_k(x, a.j, k, largest=largest)[1] for k in (0, 1, 3) for largest in (True, False)]

    down, up = [[0, 2, 1], [1, 2, 0], [2, 1, 0], [0, 1, 2]], [[1, 2, 0], [0, 2, 1], [0, 1, 2], [2, 0, 1]]
    tiles("ij", fn, x, want=[np.array(o, np.int32)[:, :k] for k in (0, 1, 3) for o in (down, up)])
    with pytest.raises(ValueError, match=r"(?s)4.*3.*test_bugs_flow\.py"):
        tiles("ij", lambda a, x: tj.top_k(x, a.j, 4)[1], x, want=np.zeros((4, 4), np.int32))


def test_flaggems_1578_zero_size_tiles():
    def fn(a, x):
        empty, three = tj.axis("empty", 0), tj.axis("three", 3)
        none = tj.iota(empty, jnp.float32)
        return [
            tj.top_k(x, a.i, 0)[0],
            none,
            tj.reshape(none, tj.shape(empty, three)),
            tj.sum(none, empty),
            tj.prod(none, empty),
            tj.sort(none, empty)[1],
        ]

    zero = np.zeros(0, np.float32)
    want = [zero, zero, zero.reshape(0, 3), np.float32(0), np.float32(1), np.zeros(0, np.int32)]
    tiles("i", fn, np.ones(3, np.float32), want=want)
    for op in (tj.max, tj.min, tj.argmax, tj.argmin):
        with pytest.raises(ValueError, match=r"(?s)empty.*test_bugs_flow\.py"):
            tiles("i", lambda a, x, op=op: op(x, a.i), zero, want=np.float32(0))


def test_triton_5326_segmented_counts_are_exact():
    ids = np.array([0, 2, 2, 2, 4, 0, 2, -1, 9], np.int32)
    values = np.arange(9, dtype=np.float32)

    def kernel(ids, values):
        sums, counts = tj.output((5,), jnp.float32), tj.output((5,), jnp.int32)
        buckets, item = tj.axis("buckets", 5), tj.axis("item", 9)

        @tj.parallel(buckets)
        def _(nest):
            match = ids[tj.coord(0), tj.shape(item)] == nest.index()
            at = tj.coord(nest.index()), tj.shape(1)
            sums(*at).store(tj.sum(tj.where(match, values[tj.coord(0), tj.shape(item)], 0), item))
            counts(*at).store(tj.sum(match, item))

        return sums, counts

    want = [values[ids == b].sum() for b in range(5)], [(ids == b).sum() for b in range(5)]
    both(kernel, ids, values, want=(np.array(want[0], np.float32), np.array(want[1], np.int32)))


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
        with pytest.raises(tj.RaceError, match=r"(?s)y.*test_bugs_flow\.py"):
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
        with pytest.raises(tj.RaceError, match=r"(?s)out.*j.*test_bugs_flow\.py"):
            run(provable)(x)
    both(dynamic, x, np.array([2, 0], np.int32), want=np.array([1, 0, 1], np.float32))
    both(
        dynamic, x, np.array([5, 5], np.int32), want=np.zeros(3, np.float32)
    )  # dropped stores race with nobody
    with pytest.raises(tj.RaceError, match=r"(?s)out.*1.*test_bugs_flow\.py"):
        tj.interpret(dynamic)(x, np.array([1, 1], np.int32))


def doubled(x):
    out = tj.output_like(x)
    blocks = tj.axis("blocks", tj.cdiv(x.shape[0], 8))

    @tj.parallel(blocks)
    def _(nest):
        at = tj.coord(nest.index() * 8), tj.shape(8)
        out(*at).store(x[at] * 2 + nest.index())

    return out


def test_jax_40847_one_kernel_on_several_grids():
    for tiles_ in (2, 5, 3, 4, 2):
        x = normal(8 * tiles_)
        both(doubled, x, want=x * 2 + np.repeat(np.arange(tiles_, dtype=np.float32), 8))


def test_jax_22746_captured_constants():
    table = np.arange(4, dtype=np.float32)

    def make(number, device):
        def kernel(x, s):
            out = tj.output_like(x)

            @tj.parallel(2)
            def _(nest):
                at = tj.coord(nest.index() * 2), tj.shape(2)
                out(*at).store(x[at] * number + tj.view(table)[at] + tj.view(device)[at] * s)

            return out

        return tj.jit(kernel)

    x = normal(4)
    got = make(2.0, jnp.asarray(table) * 10)(x, 3.0)
    np.testing.assert_array_equal(got, x * 2 + table + table * 30)

    @jax.jit
    def outer(x, traced, scalar):
        return make(scalar, traced)(x, scalar)

    np.testing.assert_array_equal(outer(x, table * 10, jnp.float32(3)), x * 3 + table + table * 30)


def test_jax_18847_index_dtypes_under_x64():
    with jax.enable_x64(True):
        x = np.array([1.0, 5.0, 5.0], np.float32)

        def fn(a, x):
            index = a.nest.index()
            assert index.dtype == jnp.int32
            return tj.argmax(x, a.i), tj.argmin(x, a.i), tj.sum(x > 2, a.i), tj.iota(a.i) + index

        want = np.int64(1), np.int64(0), np.int64(2), np.arange(3, dtype=np.int32)
        tiles("i", fn, x, want=want)
        y = np.arange(24, dtype=np.float64)
        both(doubled, y, want=y * 2 + np.repeat(np.arange(3.0), 8))


def test_jax_38432_empty_arrays_and_arrays_smaller_than_a_tile():
    for n in (0, 3):
        both(doubled, np.arange(n, dtype=np.float32), want=np.arange(n, dtype=np.float32) * 2)


def test_triton_1242_every_distinct_key_has_its_own_kernel():
    traces = []

    def kernel(x, *, block, bias=0):
        traces.append(block)
        out = tj.output_like(x)

        @tj.parallel(tj.cdiv(x.shape[0], block))
        def _(nest):
            at = tj.coord(nest.index() * block), tj.shape(block)
            out(*at).store((x[at] * 2 + bias).astype(x.dtype))

        return out

    run = tj.jit(kernel, static_argnames=("block", "bias"))
    f32, i32 = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.int32)
    for _ in range(3):
        for x in (f32, i32, f32[:4]):
            for block in (2, 4):
                for bias in (0, 1):
                    np.testing.assert_array_equal(run(x, block=block, bias=bias), x * 2 + bias)
    assert len(traces) == 12
    for _ in range(100):
        run(f32, block=2, bias=0)
    assert len(traces) == 12
