"""Sorting, selection, segments, statistics and nested loops against NumPy."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from kernel_cases import FLOATS, INT, close, f32, i8, i32, normal

import tilejax as tj
from tilejax import kernels
from tilejax.kernels import Window, order, segments, structured

TIES = f32(
    [
        [np.nan, -0.0, 0.0, -np.nan, np.inf, -1, 0.0],
        [1, 1, 1, 1, 1, 1, 1],
        [-np.inf, np.inf, np.nan, 2, np.nan, 2, -np.inf],
        [3, 2, 1, 0, -1, -2, -3],
    ]
)


def taken(x, indices):
    return np.take_along_axis(x, indices, -1)


def check_sort(call, x, descending=False, **blocks):
    values, indices = call(x, descending=descending, **blocks)
    want = oracle.order(x, descending)
    close(indices, want, np.int32)
    close(values, taken(x, want), x.dtype)


def check_top_k(call, x, k, largest=True, **blocks):
    values, indices = call(x, k, largest=largest, **blocks)
    want = oracle.order(x, descending=largest)[..., :k]
    close(indices, want, np.int32)
    close(values, taken(x, want), x.dtype)


SORTED = [TIES, normal(7, 33), normal(1, 1), normal(5, 0), normal(0, 3), np.round(normal(3, 64) * 2)]


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
class TestSort:
    @pytest.mark.parametrize("x", SORTED, ids=lambda x: str(x.shape))
    def test_is_stable_with_nan_greatest(self, x, descending):
        check_sort(kernels.sort, x, descending)

    @pytest.mark.parametrize(
        "dtype", [*FLOATS[1:], np.int8, np.int32, np.uint8], ids=lambda d: np.dtype(d).name
    )
    def test_dtypes(self, dtype, descending):
        check_sort(kernels.sort, np.abs(3 * normal(5, 13)).astype(dtype), descending, block_rows=2)

    def test_interpreted(self, descending):
        check_sort(tj.interpret(kernels.sort), TIES, descending, block_rows=3)


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
class TestTopK:
    @pytest.mark.parametrize("k", [0, 1, 3, 7])
    def test_counts_nan_as_greatest(self, k, largest):
        check_top_k(kernels.top_k, TIES, k, largest)

    @pytest.mark.parametrize("x", SORTED[1:], ids=lambda x: str(x.shape))
    def test_shapes(self, x, largest):
        check_top_k(kernels.top_k, x, min(2, x.shape[1]), largest)

    @pytest.mark.parametrize(
        "dtype", [*FLOATS[1:], np.int8, np.int32, np.uint8], ids=lambda d: np.dtype(d).name
    )
    def test_dtypes(self, dtype, largest):
        check_top_k(kernels.top_k, np.abs(3 * normal(5, 13)).astype(dtype), 4, largest, block_rows=2)

    def test_interpreted(self, largest):
        check_top_k(tj.interpret(kernels.top_k), TIES, 3, largest, block_rows=3)


def check_segments(call, ids, values, num_segments, **blocks):
    sums, counts = call(ids, values, num_segments, **blocks)
    want, want_counts = oracle.segment_sum(ids, values, num_segments)
    close(counts, want_counts, np.int32)
    floating = not np.issubdtype(values.dtype, np.integer)
    close(
        sums,
        want,
        values.dtype,
        floating * len(ids) * oracle.segment_sum(ids, np.abs(values), num_segments)[0],
    )


def ids_of(items, segments, dtype=np.int32):
    return np.random.default_rng(7).integers(0, max(segments, 1), items).astype(dtype)


class TestSegmentSum:
    @pytest.mark.parametrize(
        ("items", "segments"), [(13, 5), (1, 1), (300, 7), (0, 3), (5, 0), (3, 40)], ids=str
    )
    def test_shapes(self, items, segments):
        check_segments(kernels.segment_sum, ids_of(items, segments), normal(items), segments)

    @pytest.mark.parametrize("dtype", [*FLOATS, np.int32], ids=lambda d: np.dtype(d).name)
    def test_dtypes_in_ragged_blocks(self, dtype):
        values = (8 * normal(37)).astype(dtype)
        check_segments(kernels.segment_sum, ids_of(37, 4), values, 4, block_items=8)

    def test_narrow_integers_wrap(self):
        sums, counts = kernels.segment_sum(i32([1, 1, 0]), i8([100, 100, -3]), 2)
        close(sums, i8([-3, -56]), np.int8)
        close(counts, [1, 2], np.int32)

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32], ids=lambda d: np.dtype(d).name)
    def test_ids_outside_count_nowhere(self, dtype):
        """Also the zeros past the end of the last block, and with more segments than an int8 id can name."""
        ids = np.array([0, 2, 2, np.iinfo(dtype).max, np.iinfo(dtype).min, 100, 1], dtype)
        for count in (3, 300):
            check_segments(kernels.segment_sum, ids, normal(7), count, block_items=4)

    def test_features(self):
        check_segments(kernels.segment_sum, ids_of(11, 3), normal(11, 5), 3, block_items=4)

    def test_short_floats_add_in_float32(self):
        sums, _ = kernels.segment_sum(np.zeros(4096, np.int32), np.ones(4096, FLOATS[2]), 1, block_items=100)
        close(sums, [4096], FLOATS[2])

    def test_nan_stays_in_its_segment(self):
        sums, _ = kernels.segment_sum(i32([0, 1, 2]), f32([1, np.nan, np.inf]), 3)
        close(sums, [1, np.nan, np.inf], np.float32)

    def test_interpreted(self):
        check_segments(tj.interpret(kernels.segment_sum), i32([0, 2, 2, 9, -1]), normal(5), 4, block_items=2)

    def test_the_gradient_of_an_empty_segment_is_zero(self):
        def third(values):
            return kernels.segment_sum(i32([0, 1, 1, 5]), values, 3)[0][2]

        close(jax.grad(third)(normal(4)), np.zeros(4), np.float32)


def check_statistics(call, x, target, p, *options, **blocks):
    got = call(x, target, p, *options, **blocks)
    assert got._fields == ("sum", "mean", "peak", "argmax", "mse", "mae", "huber", "bce")
    n = x.shape[1]
    a, t, d = np.abs(oracle.f64(x)), np.abs(oracle.f64(target)), np.abs(oracle.f64(x) - oracle.f64(target))
    rounding = (n + 16) * np.stack(
        [
            a.sum(1),
            a.mean(1),
            0 * a[:, 0],
            0 * a[:, 0],
            (d**2).mean(1),
            d.mean(1),
            (d + d**2).mean(1),
            32 * (1 + t.mean(1)),
        ]
    )
    for name, value, want, slack in zip(
        got._fields, got, oracle.row_statistics(x, target, p, *options), rounding, strict=True
    ):
        close(value, want, INT if name == "argmax" else x.dtype, slack)


def losses(rows, columns, dtype=np.float32):
    uniform = np.random.default_rng(9).uniform(-0.1, 1.1, (rows, columns))
    return (
        normal(rows, columns, dtype=dtype),
        normal(rows, columns, dtype=dtype, seed=1),
        uniform.astype(dtype),
    )


class TestRowStatistics:
    @pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 65), (0, 4)], ids=str)
    def test_shapes(self, shape):
        check_statistics(kernels.row_statistics, *losses(*shape))

    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    def test_dtypes_in_ragged_blocks(self, dtype):
        check_statistics(kernels.row_statistics, *losses(13, 9, dtype), block_rows=4)

    def test_options(self):
        check_statistics(kernels.row_statistics, *losses(4, 9), 0.1, 0.01)

    def test_interpreted(self):
        check_statistics(tj.interpret(kernels.row_statistics), *losses(5, 7), block_rows=2)

    def test_nan_and_ties(self):
        x = f32([[1, np.nan, 8, np.nan], [3, 7, 7, 1], [np.nan, 1, 1, 1]])
        half = np.full_like(x, 0.5)
        got = kernels.row_statistics(x, half, half)
        np.testing.assert_array_equal(got.argmax, [1, 1, 0])
        np.testing.assert_array_equal(got.peak, f32([np.nan, 7, np.nan]))
        nan = kernels.row_statistics(half, half, x)  # clip keeps NaN
        np.testing.assert_array_equal(np.isnan(nan.bce), [True, False, True])


class TestStructuredSum:
    @pytest.mark.parametrize(
        "shape", [(3, 2, 3, 4), (1, 1, 1, 1), (2, 0, 3, 4), (2, 3, 0, 4), (0, 1, 1, 1)], ids=str
    )
    def test_shapes(self, shape):
        x = normal(*shape)
        close(
            kernels.structured_sum(x),
            oracle.structured_sum(x),
            np.float32,
            x.size * oracle.structured_sum(np.abs(x)),
        )

    @pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
    def test_short_floats_add_in_float32(self, dtype):
        close(kernels.structured_sum(np.ones((1, 10, 10, 10), dtype)), [1000], dtype)

    def test_integers_widen(self):
        x = np.full((2, 3, 4, 5), 100, np.int8)
        close(kernels.structured_sum(x), [6000, 6000], INT)

    def test_interpreted(self):
        x = normal(3, 2, 3, 4)
        close(tj.interpret(kernels.structured_sum)(x), oracle.structured_sum(x), np.float32, 256)


@pytest.mark.parametrize("run", [tj.jit, tj.interpret], ids=["jit", "interpret"])
def test_into_windows(run):
    """What is around the results stays, though blocks reach past them."""
    x, ids, cube = TIES[:, :5], i32([0, 2, 2, 1]), normal(3, 2, 3, 4)
    floats, ints, vector, counters = (
        np.ones(shape, dtype)
        for shape, dtype in (((8, 8), np.float32), ((8, 8), np.int32), ((9,), np.float32), ((9,), np.int32))
    )

    def kernel(floats, ints, vector, counters, x, ids, finite, cube):
        results = [tj.update(v) for v in (floats, ints, floats, ints, floats, counters, vector)]
        values, indices, best, places, sums, counts, total = results
        order.sort(x, out=(Window(values, (1, 1), (4, 5)), Window(indices, (2, 2), (4, 5))), block_rows=3)
        order.top_k(x, 2, out=(Window(best, (3, 4), (4, 2)), Window(places, (0, 0), (4, 2))), block_rows=3)
        out = Window(sums, (2, 1), (3, 5)), Window(counts, (4,), (3,))
        segments.segment_sum(ids, finite, 3, out=out, block_items=3)
        structured.structured_sum(cube, out=Window(total, (5,), (3,)))
        return results

    def around(want, start, shape):
        padding = [(s, n - s - m) for s, n, m in zip(start, shape, want.shape, strict=True)]
        return np.pad(want, padding, constant_values=1)

    finite = normal(4, 5)
    got = run(kernel)(floats, ints, vector, counters, x, ids, finite, cube)
    ascending, descending = oracle.order(x), oracle.order(x, descending=True)[:, :2]
    sums, counts = oracle.segment_sum(ids, finite, 3)
    close(got[0], around(taken(x, ascending), (1, 1), (8, 8)), np.float32)
    close(got[1], around(ascending, (2, 2), (8, 8)), np.int32)
    close(got[2], around(taken(x, descending), (3, 4), (8, 8)), np.float32)
    close(got[3], around(descending, (0, 0), (8, 8)), np.int32)
    close(got[4], around(sums, (2, 1), (8, 8)), np.float32, 16)
    close(got[5], around(counts, (4,), (9,)), np.int32)
    close(got[6], around(oracle.structured_sum(cube), (5,), (9,)), np.float32, 256)
