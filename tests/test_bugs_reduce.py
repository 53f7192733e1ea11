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
