"""Faults that people reported in tile kernels elsewhere: scans, sorts, loops and composition with JAX.

One test a report, named after it. test_bugs.py has those of values and bounds.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, tiles

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
    with pytest.raises(ValueError, match=r"(?s)4.*3.*test_bugs_order\.py"):
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
        with pytest.raises(ValueError, match=r"(?s)empty.*test_bugs_order\.py"):
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
