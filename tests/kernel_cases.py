"""The documented kernels over matrices: their inputs, their values, and how far rounding may take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle

from tilejax.kernels import elementwise, matmul, norms, reductions, scans, transposition

FLOATS = (np.float32, np.float16, ml_dtypes.bfloat16)
INT = jnp.result_type(int)
"""What JAX counts in: int32, or int64 under x64."""
EPS = float(np.finfo(np.float32).eps)


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def i32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def i8(values: Any) -> np.ndarray:
    return np.array(values, np.int8)


def close(got: Any, want: Any, dtype: Any, slack: Any = 0.0) -> None:
    """`got` is the float64 `want` rounded to `dtype`, after float32 arithmetic that is off by at most `slack`
    units of the float32 eps (absolute; an array or a scalar).

    Integers, and floats without slack, must be exact.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == dtype
    assert got.shape == want.shape
    if not jnp.issubdtype(dtype, jnp.floating):
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        rounded, got = want.astype(dtype).astype(np.float64), got.astype(np.float64)
        if np.all(np.asarray(slack) == 0):
            np.testing.assert_array_equal(got, rounded)
            return
        info, off = ml_dtypes.finfo(dtype), np.broadcast_to(slack, want.shape) * EPS
        tolerance = float(info.eps) / 2 * (np.abs(want) + off) + off + float(info.smallest_subnormal)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(got[~finite], rounded[~finite])
        excess = np.abs(got - want)[finite] - tolerance[finite]
        assert np.all(excess <= 0), (
            f"beyond rounding by {excess.max()} at a tolerance of {tolerance[finite].max()}"
        )


@dataclass(frozen=True)
class Case:
    """A kernel body of matrices of one shape."""

    body: Callable[..., Any]
    want: Callable[..., Any]
    slack: Callable[..., Any]
    blocks: dict[str, int]
    inputs: Callable[..., tuple[np.ndarray, ...]]

    def args(self, shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
        return self.inputs(shape, dtype)


def _one(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
    return (normal(*shape, dtype=dtype),)


def _two(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
    return normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)


def _bias(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
    return (
        normal(*shape, dtype=dtype),
        normal(shape[-1], dtype=dtype, seed=1),
        normal(*shape, dtype=dtype, seed=2),
    )


def _product(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, ...]:
    return normal(shape[0], 19, dtype=dtype), normal(19, shape[1], dtype=dtype, seed=1)


def _exact(*args: np.ndarray) -> float:
    return 0.0


def _magnitude(*args: np.ndarray) -> Any:
    """A sum of n terms is off by at most n roundings of the sum of magnitudes."""
    return args[0].shape[-1] * oracle.row_abssum(args[0])


def _softmax(x: np.ndarray) -> Any:
    """exp(x - peak) is off by the rounding of its argument."""
    x = oracle.f64(x)
    largest = np.where(np.isfinite(x), np.abs(x), 0).max(-1, keepdims=True, initial=0)
    return (x.shape[-1] + 16 + 2 * largest) * oracle.softmax(x)


def _standard(x: np.ndarray, eps: float = 1e-5) -> Any:
    """The mean is off by n roundings of the mean magnitude, which the deviation then divides."""
    x = oracle.f64(x)
    mean = oracle.row_mean(np.abs(x))
    deviation = np.sqrt(oracle.row_mean((x - oracle.row_mean(x)) ** 2) + eps)
    return (x.shape[-1] + 8) * ((mean + np.abs(x)) / deviation + np.abs(oracle.layernorm(x, eps)))


_TILES, _ROWS = {"block_rows": 8, "block_cols": 16}, {"block_rows": 3}

CASES = {
    "copy": Case(elementwise.copy, oracle.f64, _exact, _TILES, _one),
    "exp": Case(elementwise.exp, oracle.exp, lambda x: 8 * oracle.exp(x), _TILES, _one),
    "clamp": Case(elementwise.clamp, oracle.clamp, _exact, _TILES, _one),
    "add": Case(elementwise.add, oracle.add, _exact, _TILES, _two),
    "saxpy": Case(
        elementwise.saxpy,
        oracle.saxpy,
        lambda x, y: 2 * (np.abs(oracle.f64(x) / 0.4) + np.abs(oracle.f64(y))),
        _TILES,
        _two,
    ),
    "bias_gelu_residual": Case(
        elementwise.bias_gelu_residual,
        oracle.bias_gelu_residual,
        lambda *args: 16 * sum(np.abs(oracle.f64(a)) for a in args),
        _TILES,
        _bias,
    ),
    "row_sum": Case(reductions.row_sum, oracle.row_sum, _magnitude, _ROWS, _one),
    "row_max": Case(reductions.row_max, oracle.row_max, _exact, _ROWS, _one),
    "row_min": Case(reductions.row_min, oracle.row_min, _exact, _ROWS, _one),
    "row_abssum": Case(reductions.row_abssum, oracle.row_abssum, _magnitude, _ROWS, _one),
    "row_absmax": Case(reductions.row_absmax, oracle.row_absmax, _exact, _ROWS, _one),
    "rmsnorm": Case(
        norms.rmsnorm, oracle.rmsnorm, lambda x: (x.shape[-1] + 8) * np.abs(oracle.rmsnorm(x)), _ROWS, _one
    ),
    "softmax": Case(
        norms.softmax,
        oracle.softmax,
        _softmax,
        _ROWS,
        _one,
    ),
    "layernorm": Case(norms.layernorm, oracle.layernorm, _standard, _ROWS, _one),
    "residual_layernorm": Case(
        norms.residual_layernorm,
        oracle.residual_layernorm,
        lambda x, residual: 2 * _standard(oracle.f64(x) + oracle.f64(residual)),
        _ROWS,
        _two,
    ),
    "cumsum": Case(
        scans.cumsum, oracle.cumsum, lambda x: x.shape[-1] * oracle.cumsum(np.abs(x)), _TILES, _one
    ),
    "cummax": Case(scans.cummax, oracle.cummax, _exact, _TILES, _one),
    "transpose": Case(transposition.transpose, lambda x: oracle.f64(x).T, _exact, _TILES, _one),
    "gemm": Case(
        matmul.gemm,
        oracle.gemm,
        lambda a, b: a.shape[1] * oracle.gemm(np.abs(a), np.abs(b)),
        {"block_m": 8, "block_n": 16, "block_k": 4},
        _product,
    ),
}

NEED_A_COLUMN = {"row_max", "row_min", "row_absmax"}
"""An empty row has no extremum."""

FIFTEEN = [
    "copy",
    "exp",
    "clamp",
    "add",
    "saxpy",
    "rmsnorm",
    "row_sum",
    "row_max",
    "row_min",
    "row_abssum",
    "row_absmax",
    "cumsum",
    "cummax",
    "transpose",
    "gemm",
]
