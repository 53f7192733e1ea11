"""Faults that people reported in tile kernels elsewhere: reads and writes outside, unwritten elements."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal

NAN = float("nan")


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
            with pytest.raises(tj.BoundsError, match=rf"x.*{start}.*8(?s:.*)test_bugs_bounds\.py"):
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
