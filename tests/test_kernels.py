"""The kernels over matrices against float64 formulas: ragged, tiny, empty; all dtypes; other blocks."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from kernel_cases import CASES, FIFTEEN, FLOATS, INT, NEED_A_COLUMN, close, f32, normal

import tilejax as tj
from tilejax import kernels
from tilejax.kernels import Window

ALL = sorted(CASES)


def check(name, call, args, **blocks):
    case, dtype = CASES[name], args[0].dtype
    close(call(*args, **blocks), case.want(*args), dtype, case.slack(*args))


@pytest.mark.parametrize("shape", [(1, 1), (17, 65), (7, 1), (1, 31), (0, 5), (5, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_shapes(name, shape):
    if shape[1] == 0 and name in NEED_A_COLUMN:
        with pytest.raises(tj.ShapeError, match=f"{name}: the rows of x, of shape .* are empty"):
            getattr(kernels, name)(np.zeros(shape, np.float32))
    else:
        check(name, getattr(kernels, name), CASES[name].args(shape, np.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ALL)
def test_dtypes_in_ragged_blocks(name, dtype):
    check(name, getattr(kernels, name), CASES[name].args((13, 37), dtype), **CASES[name].blocks)


@pytest.mark.parametrize("name", ALL)
def test_interpreted(name):
    check(
        name,
        tj.interpret(getattr(kernels, name)),
        CASES[name].args((5, 19), np.float32),
        **CASES[name].blocks,
    )


@pytest.mark.parametrize("shape", [(1, 1), (17, 65), (19, 32)], ids=str)
@pytest.mark.parametrize("name", FIFTEEN)
def test_nothing_around_the_output_is_touched(name, shape):
    guarded(name, shape, tj.jit)


@pytest.mark.parametrize("name", FIFTEEN)
def test_nothing_around_the_output_is_touched_by_the_interpreter(name):
    guarded(name, (5, 19), tj.interpret)


def guarded(name, shape, run):
    """The result goes to a poisoned window of a larger array, whose border keeps every bit."""
    case, args = CASES[name], CASES[name].args(shape, np.float32)
    want = case.want(*args)
    start = (3, 5)[-want.ndim :]
    inner = tuple(slice(s, s + n) for s, n in zip(start, want.shape, strict=True))
    canary = np.full([n + 11 for n in want.shape], -12345.0, np.float32)
    canary[inner] = np.nan

    def kernel(around, *args):
        y = tj.update(around)
        case.body(*args, out=Window(y, start, want.shape), **case.blocks)
        return y

    got = np.array(run(kernel)(canary, *args))
    close(got[inner], want, np.float32, case.slack(*args))
    got[inner] = np.nan
    np.testing.assert_array_equal(got, canary)


@pytest.mark.parametrize("name", ["copy", "cumsum", "layernorm", "row_max", "softmax"])
def test_leading_axes_are_a_batch(name):
    x = normal(2, 3, 5, 7)
    close(getattr(kernels, name)(x, block_rows=2), CASES[name].want(x), np.float32, CASES[name].slack(x))


@pytest.mark.parametrize("name", ["copy", "cummax", "layernorm", "softmax"])
def test_a_vector_is_one_row(name):
    x = normal(11)
    close(getattr(kernels, name)(x), CASES[name].want(x), np.float32, CASES[name].slack(x))


SPECIAL = np.array(
    [
        [1, 2, np.nan, 3],
        [np.inf, 1, 2, -np.inf],
        [-np.inf, 1, 2, 3],
        [-np.inf, -np.inf, -np.inf, -np.inf],
        [1e15, -1e15, 3, 0],
        [0, 0, 0, -0.0],
    ],
    np.float32,
)


@pytest.mark.parametrize("run", [tj.jit, tj.interpret], ids=["jit", "interpret"])
@pytest.mark.parametrize(
    "name",
    ["clamp", "exp", "softmax", "rmsnorm", "row_sum", "row_max", "row_min", "row_absmax", "cumsum", "cummax"],
)
def test_nan_and_infinity(name, run):
    """The formula in NumPy says what becomes NaN: a row of -inf has no softmax, inf - inf no sum."""
    close(run(getattr(kernels, name))(SPECIAL), CASES[name].want(SPECIAL), np.float32, finite_slack(name))


def finite_slack(name):
    with np.errstate(all="ignore"):
        return np.nan_to_num(CASES[name].slack(SPECIAL), nan=0.0, posinf=0.0, neginf=0.0)


def test_a_scan_keeps_nan_across_blocks():
    x = f32([[1, np.nan, 2, 3, 4, 5]])
    close(kernels.cummax(x, block_cols=2), oracle.cummax(x), np.float32)
    close(kernels.cumsum(x, block_cols=2), oracle.cumsum(x), np.float32)


def test_norms_are_robust_to_a_large_mean():
    x = normal(4, 65) + np.float32(1e4)
    close(kernels.layernorm(x), oracle.layernorm(x), np.float32, CASES["layernorm"].slack(x))
    # The formula mean(x**2) - mean(x)**2 is off by about 1e8 * eps, as much as the variance itself.
    assert np.abs(np.asarray(kernels.layernorm(x)) - oracle.layernorm(x)).max() < 5e-3


def test_softmax_norms_is_the_three():
    x = normal(7, 33)
    for got, want, name in zip(
        kernels.softmax_norms(x), oracle.softmax_norms(x), ["softmax", "layernorm", "rmsnorm"], strict=True
    ):
        close(got, want, np.float32, CASES[name].slack(x))


def test_eps_is_used():
    x = normal(3, 5) * np.float32(0.01)
    close(kernels.layernorm(x, 0.1), oracle.layernorm(x, 0.1), np.float32, 16)
    close(kernels.rmsnorm(x, eps=0.1), oracle.rmsnorm(x, 0.1), np.float32, 16)
    for got, want in zip(kernels.softmax_norms(x, eps=0.1), oracle.softmax_norms(x, 0.1), strict=True):
        close(got, want, np.float32, 16)


def test_long_rows_are_scanned_in_blocks():
    x = np.arange(9001, dtype=np.int32)[None] % 7
    close(kernels.cumsum(x), np.cumsum(x, 1), np.int32)
    close(kernels.cummax(x[:, ::-1]), np.maximum.accumulate(x[:, ::-1], 1), np.int32)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
def test_short_floats_sum_in_float32(dtype):
    """A bfloat16 sum stalls at 256, a float16 one overflows at 65504 on the way."""
    ones = np.ones((1, 1000), dtype)
    close(kernels.row_sum(ones), [1000], dtype)
    close(kernels.cumsum(ones, block_cols=300), np.arange(1, 1001)[None], dtype)
    close(kernels.rmsnorm(np.full((1, 4), 300, dtype)), np.ones((1, 4)), dtype, 8)


INTEGERS = np.random.default_rng(3).integers(-128, 128, (13, 37)).astype(np.int8)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8], ids=lambda d: np.dtype(d).name)
def test_integers(dtype):
    x = INTEGERS.astype(dtype)
    wide = np.dtype(f"u{INT}" if dtype == np.uint8 else INT)
    close(kernels.copy(x), x, dtype)
    close(kernels.add(x, x), x + x, dtype)
    close(kernels.clamp(x, 3, 50), np.clip(x, 3, 50), dtype)
    close(kernels.transpose(x, block_rows=8, block_cols=16), x.T, dtype)
    close(kernels.row_sum(x), x.sum(1, dtype=wide), wide)
    close(kernels.row_max(x), x.max(1), dtype)
    close(kernels.row_min(x), x.min(1), dtype)
    close(kernels.row_abssum(x), np.abs(x).sum(1, dtype=wide), wide)
    close(kernels.row_absmax(x), np.abs(x).max(1), dtype)
    close(kernels.cumsum(x, block_cols=16), np.cumsum(x, 1, dtype=dtype), dtype)
    close(kernels.cummax(x, block_cols=16), np.maximum.accumulate(x, 1), dtype)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits(dtype):
    """All that are less than 1 in magnitude, and a NaN; one of the dtypes has no infinity."""
    x = np.array(jax.numpy.asarray(normal(3, 33) % 1 - 1, dtype))
    x[1, 20] = np.nan
    wide = x.astype(np.float64)
    close(kernels.row_max(x), wide.max(1), x.dtype)
    close(kernels.row_min(x), wide.min(1), x.dtype)
    close(kernels.row_absmax(x), np.abs(wide).max(1), x.dtype)
    close(kernels.cummax(x, block_cols=16), np.maximum.accumulate(wide, 1), x.dtype)


def test_bools_count():
    x = normal(3, 300) > 0
    close(kernels.row_sum(x), x.sum(1), INT)
    close(kernels.cumsum(x, block_cols=100), np.cumsum(x, 1), np.int32)
    close(kernels.cummax(x, block_cols=100), np.maximum.accumulate(x, 1), np.bool_)


def test_add_and_saxpy_promote_as_jax():
    x, y = normal(3, 5, dtype=np.float16), normal(3, 5, seed=1)
    close(kernels.add(x, y), oracle.add(x, y), np.float32)
    close(kernels.saxpy(y, x), oracle.saxpy(y, x), np.float32, CASES["saxpy"].slack(y, x))


class TestGemm:
    def test_bytes_accumulate_in_int32(self):
        a, b = np.full((3, 5), 100, np.int8), np.full((5, 2), 100, np.int8)
        close(kernels.gemm(a, b), np.full((3, 2), 50_000), np.int32)
        unsigned = np.full((3, 5), 200, np.uint8)
        close(kernels.gemm(unsigned, b), np.full((3, 2), 100_000), np.int32)

    def test_the_result_dtype_is_a_choice(self):
        a, b = normal(5, 300, dtype=np.float16) * np.float16(100), normal(300, 7, dtype=np.float16, seed=1)
        close(kernels.gemm(a, b, np.float32), oracle.gemm(a, b), np.float32, CASES["gemm"].slack(a, b))
        close(kernels.gemm(a, b), oracle.gemm(a, b), np.float16, CASES["gemm"].slack(a, b))

    def test_no_product_is_zero(self):
        close(
            kernels.gemm(np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)),
            np.zeros((3, 2)),
            np.float32,
        )

    @pytest.mark.parametrize("window", [1, 3])
    def test_a_window_changes_nothing(self, window):
        a, b = normal(9, 50), normal(50, 7, seed=1)
        got = kernels.gemm(a, b, block_m=4, block_n=4, block_k=8, window=window)
        close(got, oracle.gemm(a, b), np.float32, CASES["gemm"].slack(a, b))

    def test_float32_is_multiplied_as_float32(self):
        a, b = normal(8, 1024), normal(1024, 8, seed=1)
        close(kernels.gemm(a, b), oracle.gemm(a, b), np.float32, 32 * oracle.gemm(np.abs(a), np.abs(b)))


def test_a_body_is_part_of_another_kernel():
    """Two kernels into halves of one output, inside a jax.jit."""
    x = normal(4, 6)

    def halves(x):
        y = tj.output((4, 12), np.float32)
        elements, rows = Window(y, (0, 0), (4, 6)), Window(y, (0, 6), (4, 6))
        CASES["exp"].body(x, out=elements, block_cols=4)
        CASES["softmax"].body(x, out=rows)
        return y

    got = jax.jit(lambda x: tj.jit(halves)(x) * 2)(x)
    want = 2 * np.concatenate([oracle.exp(x), oracle.softmax(x)], 1)
    close(got, want, np.float32, 32 * np.abs(want))
