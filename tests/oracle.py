"""What each kernel computes, as float64 NumPy formulas that share nothing with it (and no JAX)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

Array = np.ndarray
quiet = np.errstate(all="ignore")  # NaN and inf are values here


def f64(x: Any) -> Array:
    return np.asarray(x).astype(np.float64)


@quiet
def exp(x: Array) -> Array:
    return np.exp(f64(x))


def clamp(x: Array, lo: float = -0.5, hi: float = 0.5) -> Array:
    return np.clip(f64(x), lo, hi)


@quiet
def add(x: Array, y: Array) -> Array:
    return f64(x) + f64(y)


def saxpy(x: Array, y: Array) -> Array:
    return f64(x) / 0.4 + f64(y)


def bias_gelu_residual(x: Array, bias: Array, residual: Array) -> Array:
    z = f64(x) + f64(bias)
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) + f64(residual)


@quiet
def row_sum(x: Array) -> Array:
    return f64(x).sum(-1)


@quiet
def row_abssum(x: Array) -> Array:
    return np.abs(f64(x)).sum(-1)


def row_max(x: Array) -> Array:
    return f64(x).max(-1)


def row_min(x: Array) -> Array:
    return f64(x).min(-1)


def row_absmax(x: Array) -> Array:
    return np.abs(f64(x)).max(-1)


@quiet
def cumsum(x: Array) -> Array:
    return np.cumsum(f64(x), -1)


def cummax(x: Array) -> Array:
    return np.maximum.accumulate(f64(x), -1)


@quiet
def softmax(x: Array) -> Array:
    x = f64(x)
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


@quiet
def row_mean(x: Array) -> Array:
    """As a column; NaN of empty rows."""
    return f64(x).sum(-1, keepdims=True) / np.float64(np.shape(x)[-1])


@quiet
def layernorm(x: Array, eps: float = 1e-5) -> Array:
    x = f64(x)
    centered = x - row_mean(x)
    return centered / np.sqrt(row_mean(centered**2) + eps)


@quiet
def rmsnorm(x: Array, eps: float = 1e-12) -> Array:
    x = f64(x)
    return x / np.sqrt(row_mean(x**2) + eps)


def residual_layernorm(x: Array, residual: Array, eps: float = 1e-5) -> Array:
    return layernorm(f64(x) + f64(residual), eps)


def softmax_norms(x: Array, eps: float = 1e-5) -> tuple[Array, Array, Array]:
    return softmax(x), layernorm(x, eps), rmsnorm(x, eps)


def gemm(a: Array, b: Array) -> Array:
    return f64(a) @ f64(b)


@quiet
def row_statistics(x: Array, target: Array, p: Array, delta: float = 0.75, eps: float = 1e-4) -> list[Array]:
    x, target, p = f64(x), f64(target), np.clip(f64(p), eps, 1 - eps)
    distance = np.abs(x - target)
    huber = np.where(distance <= delta, 0.5 * distance**2, delta * (distance - 0.5 * delta))
    bce = -(target * np.log(p) + (1 - target) * np.log(1 - p))
    means = [m.mean(-1) for m in (distance**2, distance, huber, bce)]
    return [x.sum(-1), x.mean(-1), x.max(-1), x.argmax(-1), *means]


@quiet
def sparse_cross_entropy(logits: Array, labels: Array) -> tuple[Array, Array]:
    losses, gradient = np.zeros(logits.shape[0]), softmax(logits)
    for row, (z, label) in enumerate(zip(f64(logits), labels, strict=True)):
        if 0 <= label < z.size:
            peak = z.max()
            losses[row] = np.log(np.exp(z - peak).sum()) + peak - z[label]
            gradient[row, label] -= 1
        else:
            gradient[row] = 0
    return losses, gradient


@quiet
def attention(q: Array, k: Array, v: Array, scale: float | None = None, causal: bool = False) -> Array:
    """Head by head and query by query."""
    q, k, v = f64(q), f64(k), f64(v)
    batches, heads, queries, channels = q.shape
    scale = 1 / math.sqrt(channels) if scale is None else scale
    out = np.zeros((batches, heads, queries, v.shape[3]))
    for b, h, i in np.ndindex(batches, heads, queries):
        kv = h * k.shape[1] // heads
        seen = min(i + 1, k.shape[2]) if causal else k.shape[2]
        scores = k[b, kv, :seen] @ q[b, h, i] * scale
        if np.any(scores != -np.inf):  # NaN is not -inf
            out[b, h, i] = softmax(scores) @ v[b, kv, :seen]
    return out


def conv2d(
    x: Array,
    w: Array,
    bias: Array | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    relu: bool = False,
) -> Array:
    """Tap by tap."""
    x = np.pad(f64(x), ((0, 0), (padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    extents = [
        max(0, (size - (taps - 1) * d - 1) // s + 1)
        for size, taps, s, d in zip(x.shape[1:3], w.shape[:2], stride, dilation, strict=True)
    ]
    out = np.zeros((x.shape[0], *extents, w.shape[3]))
    if 0 not in extents:
        for fy, fx in itertools.product(range(w.shape[0]), range(w.shape[1])):
            y, z = fy * dilation[0], fx * dilation[1]
            seen = x[:, y :: stride[0], z :: stride[1]][:, : extents[0], : extents[1]]
            out += seen @ f64(w[fy, fx])
    out = out if bias is None else out + f64(bias)
    return np.maximum(out, 0) if relu else out


def depthwise_conv_pool(x: Array, w: Array, padding: int = 1) -> tuple[Array, Array]:
    windows = _windows(np.pad(f64(x), ((padding, padding), (padding, padding), (0, 0))), w.shape[:2])
    return np.einsum("yxcij,ijc->yxc", windows, f64(w)), windows.max((-1, -2))


def sobel_median(image: Array) -> tuple[Array, Array, Array]:
    windows = _windows(np.pad(f64(image), 1), (3, 3))
    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    taps = windows.reshape(*windows.shape[:2], 9)
    return (windows * kernel).sum((2, 3)), (windows * kernel.T).sum((2, 3)), np.sort(taps, -1)[..., 4]


def _windows(x: Array, shape: tuple[int, int]) -> Array:
    """The windows of `shape` over the first two axes, which become the last two; none if they do not fit."""
    if any(size < taps for size, taps in zip(x.shape, shape, strict=False)):
        places = (max(0, size - taps + 1) for size, taps in zip(x.shape, shape, strict=False))
        return np.zeros((*places, *x.shape[2:], *shape))
    return np.lib.stride_tricks.sliding_window_view(x, shape, (0, 1))


def order(x: Array, descending: bool = False) -> Array:
    """The stable order of the last axis: NaN greatest, -0.0 equal to 0.0."""
    x = f64(x)
    if not descending:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


def segment_sum(ids: Array, values: Array, num_segments: int) -> tuple[Array, Array]:
    sums, counts = np.zeros((num_segments, *values.shape[1:])), np.zeros(num_segments, np.int64)
    for i, value in zip(ids, f64(values), strict=True):
        if 0 <= i < num_segments:
            sums[i] += value
            counts[i] += 1
    return sums, counts


def structured_sum(x: Array) -> Array:
    return f64(x).sum((1, 2, 3))
