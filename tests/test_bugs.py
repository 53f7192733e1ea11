"""Faults that people reported in tile kernels elsewhere: values, reductions, bounds and integers.

One test a report, named after it. test_bugs_flow.py has those of loops, ordering and composition.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

NAN = float("nan")


def test_triton_10291_argmax_nan():
    rows = [np.roll([NAN, 6, 8, 1, 2, 3, 4, 5], lane) for lane in range(8)] + [[NAN] * 8]
    x = np.array(rows, np.float32)
    tiles(
        "ij",
        lambda a, x: (tj.argmax(x, a.j), tj.argmin(x, a.j)),
        x,
        want=(np.array([*range(8), 0], np.int32),) * 2,
    )


def test_tilelang_2697_running_max_drops_nan():
    x = np.ones((1, 12), np.float32)
    x[0, 5] = NAN

    def kernel(x):
        outs = [tj.output((1,), x.dtype) for _ in range(2)]
        chunks, r, c = tj.axis("chunks", 3), tj.axis("r", 1), tj.axis("c", 4)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(chunks, carry=(tj.full(tj.shape(r), -1.0), tj.full(tj.shape(r), 9.0)))
            def end(step, carry):
                tile = x[tj.coord(0, step.index() * 4), tj.shape(r, c)]
                low = tj.minimum(tj.reduce(tile, c, tj.minimum), carry[1])
                return tj.maximum(carry[0], tj.reduce(tile, c, tj.maximum)), low

            for out, value in zip(outs, end, strict=True):
                out(tj.coord(0), tj.shape(r)).store(value)

        return outs

    both(kernel, x, want=[np.array([NAN], np.float32)] * 2)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1024])
def test_tvm_19518_reduce_max_drops_nan(n):
    x = np.zeros((3, n), np.float32)
    x[0, 0] = x[1, n // 2] = x[2, n - 1] = NAN
    want = {"max": np.full(3, NAN, np.float32), "min": np.full(3, NAN, np.float32)}
    tiles("ij", lambda a, x: {"max": tj.max(x, a.j), "min": tj.reduce(x, a.j, tj.minimum)}, x, want=want)


def test_tilelang_3024_clamp_swallows_nan():
    x = np.array([NAN, -5, 0.25, 5], np.float32)

    def fn(a, x):
        lo, hi = 1e-4, 1 - 1e-4
        return [tj.minimum(tj.maximum(x, lo), hi), tj.minimum(hi, tj.maximum(lo, x)), tj.clip(x, lo, hi)]

    tiles("i", fn, x, want=[np.clip(x, np.float32(1e-4), np.float32(1 - 1e-4))] * 3)


@pytest.mark.parametrize("n", [8, 33, 64, 1028])
def test_triton_10094_ties_go_to_the_smallest_index(n):
    cycle = np.arange(n) % 8
    x = np.stack([cycle, 7 - cycle, np.ones(n), np.isin(np.arange(n), [n // 2 - 1, n // 2])]).astype(
        np.float32
    )
    want = x.argmax(1).astype(np.int32), x.argmin(1).astype(np.int32)
    tiles("ij", lambda a, x: (tj.argmax(x, a.j), tj.argmin(x, a.j)), x, want=want)


def test_triton_5763_sum_of_bools_counts():
    x = np.ones(300, np.bool_)

    def fn(a, x):
        return [tj.reduce(x, a.i, tj.add), tj.sum(~x, a.i), tj.max(x, a.i), tj.min(~x, a.i), tj.any(x, a.i)]

    tiles("i", fn, x, want=[np.int32(300), np.int32(0), np.bool_(1), np.bool_(0), np.bool_(1)])


def test_triton_1960_narrow_sums_accumulate_wide():
    ones, many = np.ones(4096, jnp.bfloat16), np.ones(60000, np.float16)
    waves = np.where(np.arange(512) % 2, -30000, 30000).astype(np.float16)

    def fn(a, ones, many, waves):
        return [tj.sum(ones, a.i), tj.sum(many, a.j), tj.sum(waves, a.k), tj.mean(many, a.j)]

    want = [np.array(4096, jnp.bfloat16), np.float16(60000), np.float16(0), np.float16(1)]
    tiles("i,j,k", fn, ones, many, waves, want=want)


def test_tensorflow_115731_cumsum_in_bfloat16():
    tenth = np.full(1000, 0.1, jnp.bfloat16)
    last = (tenth.astype(np.float64).sum()).astype(jnp.bfloat16)
    assert float(last) == 100

    def fn(a, ones, tenth):
        return tj.cumsum(ones, a.i), tj.gather(tj.cumsum(tenth, a.i), 999, a.i)

    ones = np.ones(1000, jnp.bfloat16)
    tiles("i,i", fn, ones, tenth, want=(np.arange(1, 1001).astype(jnp.bfloat16), last))


def test_triton_1883_sum_over_several_axes_in_every_order():
    n = np.random.default_rng(0).integers(-9, 9, (2, 3, 4, 5)).astype(np.int32)
    x = normal(2, 3, 4, 5)

    def fn(a, n, x):
        orders = [(a.i, a.j, a.k), (a.k, a.j, a.i), (a.j, a.k, a.i)]
        ints = [tj.reduce(n, tj.shape(*axes), tj.add) for axes in orders]
        nested = tj.reduce(tj.reduce(tj.reduce(n, a.j, tj.add), a.k, tj.add), a.i, tj.add)
        return [*ints, nested], tj.sum(x, tj.shape(a.k, a.i, a.j))

    want = [n.sum((0, 1, 2)).astype(np.int32)] * 4, x.astype(np.float64).sum((0, 1, 2)).astype(np.float32)
    tiles("ijkl,ijkl", fn, n, x, want=want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 31, 33, 48, 100, 513])
def test_tilelang_2542_sum_of_any_width(n):
    x = np.arange(1, n + 1, dtype=np.float32)
    tiles("i", lambda a, x: tj.sum(x, a.i), x, want=np.float32(n * (n + 1) // 2))


def test_torch_fl_350_padding_lanes_take_no_part():
    x = np.arange(30, 10, -1).astype(np.float32)

    def kernel(x):
        outs = [tj.output((3,), d) for d in (jnp.int32, x.dtype, x.dtype, jnp.bool_)]
        blocks, c = tj.axis("blocks", 3), tj.axis("c", 8)

        @tj.parallel(blocks)
        def _(nest):
            ref = x(tj.coord(nest.index() * 8), tj.shape(c))
            low = tj.argmin(ref.load(float("inf")), c)
            peak = tj.max(-ref.load(float("inf")), c)
            product = tj.prod(ref.load(10) / 10, c)
            for out, value in zip(outs, [low, peak, product, tj.all(ref.load(1) > 0, c)], strict=True):
                out(tj.coord(nest.index()), tj.shape(1)).store(value)

        return outs

    parts = [x[:8], x[8:16], x[16:]]
    want = [
        np.array([f(p) for p in parts]) for f in (np.argmin, lambda p: -p.min(), lambda p: np.prod(p / 10))
    ]
    want = [
        want[0].astype(np.int32),
        want[1].astype(np.float32),
        want[2].astype(np.float32),
        np.ones(3, np.bool_),
    ]
    both(kernel, x, want=want, rtol=1e-5)


def test_triton_9917_masked_loads_are_zero():
    """The tail tile lies over NaN in the larger array that the view was cut from; 0 * NaN must not leak."""
    large = np.full((8, 8), NAN, np.float32)
    large[:5, :6] = normal(5, 6)

    def kernel(x, y):
        outs = [tj.output((8,), x.dtype), tj.output((8,), x.dtype), tj.output((8, 8), x.dtype)]
        m, n, k = tj.axis("m", 8), tj.axis("n", 8), tj.axis("k", 8)

        @tj.parallel(1)
        def _(nest):
            a = x[tj.coord(0, 0), tj.shape(m, k)]
            b = y[tj.coord(0, 0), tj.shape(k, n)]
            outs[0](tj.coord(0), tj.shape(m)).store(tj.sum(a, k))
            outs[1](tj.coord(0), tj.shape(m)).store(tj.max(tj.abs(a), k))
            outs[2](tj.coord(0, 0), tj.shape(m, n)).store(tj.mma(a, b, tj.zeros(tj.shape(m, n))))

        return outs

    x = np.zeros((8, 8), np.float32)
    x[:5, :6] = large[:5, :6]
    args = jnp.asarray(large)[:5, :6], jnp.asarray(large).T[:6, :5]
    want = [x.sum(1), np.abs(x).max(1), x @ x.T]
    both(kernel, *args, want=want, rtol=1e-5, atol=1e-5)


def test_jax_21143_an_overrunning_slice_is_not_shifted_back():
    def kernel(x):
        loaded, stored = tj.output((4,), x.dtype), tj.update(x)

        @tj.parallel(1)
        def _(nest):
            loaded(tj.coord(0), tj.shape(4)).store(x[tj.coord(3), tj.shape(4)])
            stored(tj.coord(3), tj.shape(4)).store(-1)

        return loaded, stored

    x = np.array([1, 2, 3, 4, 5], np.float32)
    want = np.array([4, 5, 0, 0], np.float32), np.array([1, 2, 3, -1, -1], np.float32)
    both(kernel, x, want=want)


def test_tilelang_2543_the_fallback_holds_on_every_path():
    x = normal(64, 64)

    def kernel(x):
        outs = [tj.output((32, 64), x.dtype) for _ in range(5)]
        origins = [(0, 0), (48, 0), (0, 32), (64, 0), (-40, -80)]

        @tj.parallel(1)
        def _(nest):
            for out, origin in zip(outs, origins, strict=True):
                out(tj.coord(0, 0), tj.shape(32, 64)).store(x(tj.coord(*origin), tj.shape(32, 64)).load(-99))

        return outs

    want = [np.full((32, 64), -99, np.float32) for _ in range(5)]
    want[0][:], want[1][:16], want[2][:, :32] = x[:32], x[48:], x[:32, 32:]
    both(kernel, x, want=want)


def test_tilelang_2979_a_promise_to_stay_inside_is_checked():
    def reading(start):
        def kernel(x):
            out = tj.output((6,), x.dtype)

            @tj.parallel(1)
            def _(nest):
                out(tj.coord(0), tj.shape(6)).store(x[tj.coord(start), tj.shape(6), tj.Bounds.ASSUME])

            return out

        return kernel

    x = np.arange(8, dtype=np.float32)
    both(reading(2), x, want=x[2:])
    for start in (6, 3, -1):
        for run in (tj.jit, tj.interpret):
            with pytest.raises(tj.BoundsError, match=rf"x.*{start}.*8(?s:.*)test_bugs\.py"):
                run(reading(start))(x)


def test_warp_1653_negative_indices_are_outside_too():
    x = np.arange(100, 105, dtype=np.float32)
    index = np.array([-1, -5, -6, 5, 4, 0, np.iinfo(np.int32).min, np.iinfo(np.int32).max], np.int32)

    def kernel(x, index):
        outs = [tj.output((8,), x.dtype) for _ in range(2)]
        i, j, programs = tj.axis("i", 5), tj.axis("j", 8), tj.axis("programs", 8)

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0), tj.shape(i)]
            outs[0](tj.coord(0), tj.shape(j)).store(tj.gather(tile, index[tj.coord(0), tj.shape(j)], i))

        @tj.parallel(programs)
        def _(nest):
            start = tj.reshape(index[tj.coord(nest.index()), tj.shape(1)], tj.shape())
            outs[1](tj.coord(nest.index()), tj.shape(1)).store(x[tj.coord(start), tj.shape(1)])

        return outs

    inside = jnp.asarray(np.pad(x, 3, constant_values=7))[3:8]
    both(kernel, inside, index, want=[np.array([0, 0, 0, 0, 104, 100, 0, 0], np.float32)] * 2)


def test_jax_20227_elements_that_nobody_stores_are_defined():
    def kernel(x):
        out = tj.output((64, 128), x.dtype)

        @tj.parallel(64)
        def _(nest):
            at = tj.coord(nest.index(), 1), tj.shape(1, 3)
            out(*at).store(x[at])

        return out

    x = normal(64, 128)
    want = np.zeros_like(x)
    want[:, 1:4] = x[:, 1:4]
    run = tj.jit(kernel)
    for _ in range(3):
        np.testing.assert_array_equal(run(x), want)
        junk = jnp.full((64, 128), 3.0) * 2  # what an allocator might hand out next
        del junk
    both(kernel, x, want=want)


@pytest.mark.parametrize("blocks", [(1, 9), (3, 4), (8, 1), (2, 7)])
def test_jax_38497_copies_with_several_blocks_on_each_axis(blocks):
    x = normal(blocks[0] * 2, blocks[1] * 3)

    def kernel(x):
        out = tj.output_like(x)
        i, j = (tj.axis(name, n) for name, n in zip("ij", blocks, strict=True))

        @tj.parallel(i, j)
        def _(nest):
            at = tj.coord(nest.index(i) * 2, nest.index(j) * 3), tj.shape(2, 3)
            out(*at).store(x[at])

        return out

    both(kernel, x, want=x)


def test_triton_619_division_floors():
    def kernel(n):
        out = tj.output((5, 3), jnp.int32)
        i = tj.axis("i", 5)

        @tj.parallel(i)
        def _(nest):
            k = nest.index() - 7
            for j, value in enumerate([k // 2, k % 2, tj.cdiv(k, 2)]):
                out(tj.coord(nest.index(), j), tj.shape(1, 1)).store(value)

        return out

    k = np.arange(-7, -2)
    both(kernel, np.zeros(1), want=np.stack([k // 2, k % 2, -(-k // 2)], 1).astype(np.int32))
    assert (tj.cdiv(-7, 2), -7 // 2, -7 % 2) == (-3, -4, 1)
    x, y = np.array([-7, 7], np.int32), np.array([2, -2], np.int32)
    want = np.array([-4, -4], np.int32), np.array([1, -1], np.int32)
    tiles("i,i", lambda a, x, y: (x // y, x % y), x, y, want=want)


def test_triton_10930_constants_weak_scalars_and_indices_agree():
    def kernel(x, s, w):
        outs = [tj.output((4,), jnp.int32) for _ in range(4)]

        @tj.parallel(4)
        def _(nest):
            k = nest.index() - 5
            results = [(-5 % 3) + k * 0, s % 3 + k * 0, w % 3 + k * 0, (k - nest.index()) % 3]
            for out, value in zip(outs, results, strict=True):
                out(tj.coord(nest.index()), tj.shape(1)).store(value)

        return outs

    both(kernel, np.zeros(1, np.float32), jnp.int32(-5), -5, want=[np.ones(4, np.int32)] * 4)


def test_openvino_38073_float_to_int_saturates():
    x = np.array([NAN, np.inf, -np.inf, 3e9, -3e9], np.float32)
    y = np.array([-1, 300, NAN], np.float32)
    top = 2**31 - 1

    def fn(a, x, y):
        return x.astype(jnp.int32), y.astype(jnp.uint8), y.astype(jnp.int8)

    want = ([0, top, -top - 1, top, -top - 1], np.int32), ([0, 255, 0], np.uint8), ([-1, 127, 0], np.int8)
    tiles("i,j", fn, x, y, want=tuple(np.array(*w) for w in want))


def test_tilelang_2944_overflow_to_float8():
    x = np.array([np.inf, -np.inf, 1e5, 57344], np.float32)

    def fn(a, x):
        return [x.astype(d).astype(jnp.float32) for d in (jnp.float8_e5m2, jnp.float8_e4m3fn)]

    tiles(
        "i", fn, x, want=[np.array([np.inf, -np.inf, np.inf, 57344], np.float32), np.full(4, NAN, np.float32)]
    )


def test_jax_triton_199_accumulator_dtypes():
    a8, au8 = np.full((2, 4), 100, np.int8), np.full((2, 4), 200, np.uint8)
    half = np.full((2, 4), 200, np.float16)

    def fn(axes, a, u, h):
        def square(x, dtype):
            other = tj.relabel(x, tj.shape(axes.n, axes.k))
            return tj.mma(x, other, tj.zeros(tj.shape(axes.m, axes.n), dtype))

        axes.n = tj.axis("n", 2)
        return square(a, jnp.int32), square(u, jnp.int32), square(h, jnp.float32)

    want = (
        np.full((2, 2), 40000, np.int32),
        np.full((2, 2), 160000, np.int32),
        np.full((2, 2), 160000, np.float32),
    )
    tiles("mk,mk,mk", fn, a8, au8, half, want=want)


def test_triton_5895_float32_is_not_tf32():
    a, b = normal(4, 1024), normal(1024, 4, seed=1)
    want = (a.astype(np.float64) @ b).astype(np.float32)
    tiles("mk,kn", lambda x, a, b: tj.mma(a, b, tj.zeros(tj.shape(x.m, x.n))), a, b, want=want, atol=1e-4)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 17])
def test_triton_10141_mma_of_any_extent(m):
    for k in (1, 3, 17):
        a, b = np.ones((m, k), np.float32) * np.arange(k, dtype=np.float32), np.ones((k, 5), np.float32)
        want = np.full((m, 5), k * (k - 1) / 2, np.float32)
        tiles("mk,kn", lambda x, a, b: tj.mma(a, b, tj.zeros(tj.shape(x.m, x.n))), a, b, want=want)


def test_jax_21928_integer_powers_of_narrow_floats():
    x = np.array([0, 0.5, 2, np.inf, NAN], np.float32)
    dtypes = ["float16", "bfloat16", "float32"]

    def fn(a, x):
        return {f"{d} {n}": x.astype(d) ** n for d in dtypes for n in range(-2, 6)}

    with np.errstate(divide="ignore"):
        want = {
            f"{d} {n}": (x.astype(np.float64) ** n).astype(jnp.dtype(d)) for d in dtypes for n in range(-2, 6)
        }
    tiles("i", fn, x, want=want)
    with pytest.raises(TypeError, match=r"(?s)negative.*test_bugs\.py"):
        tiles("i", lambda a, x: x ** (-1), np.array([1, 2], np.int32), want=np.zeros(2, np.int32))
