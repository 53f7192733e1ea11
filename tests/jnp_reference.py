"""The documented kernels as plain `jnp`, each with inputs at which they are smooth: what a transformed kernel
is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tilejax import kernels


def rmsnorm(x, eps=1e-12):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


def layernorm(x, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + eps)


def softmax_norms(x):
    return jax.nn.softmax(x), layernorm(x), rmsnorm(x, 1e-5)


def bias_gelu_residual(x, bias, residual):
    return jax.nn.gelu(x + bias, approximate=True) + residual


def row_statistics(x, target, probability):
    difference, p = x - target, jnp.clip(probability, 1e-4, 1 - 1e-4)
    size = jnp.abs(difference)
    huber = jnp.where(size <= 0.75, 0.5 * difference**2, 0.75 * (size - 0.375))
    bce = -(target * jnp.log(p) + (1 - target) * jnp.log(1 - p))
    means = (a.mean(-1) for a in (difference**2, size, huber, bce))
    return x.sum(-1), x.mean(-1), x.max(-1), x.argmax(-1), *means


def sparse_cross_entropy(logits, labels):
    """Labels out of range do not count."""
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    counts = one_hot.sum(-1)
    losses = counts * (jax.nn.logsumexp(logits, -1) - (logits * one_hot).sum(-1))
    return losses, counts[..., None] * jax.nn.softmax(logits) - one_hot


def attention(q, k, v, *, scale=None, causal=False):
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    scores = jnp.einsum("bhqd,bhsd->bhqs", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqs,bhsd->bhqd", jax.nn.softmax(scores), v)


def conv2d(x, w, bias=None, *, stride=1, padding=0, dilation=1, relu=False):
    y = lax.conv_general_dilated(
        x,
        w,
        (stride,) * 2,
        [(padding, padding)] * 2,
        rhs_dilation=(dilation,) * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    y = y if bias is None else y + bias
    return jax.nn.relu(y) if relu else y


def _taps(x, height, width, padding):
    """The windows of `x` `(H, W, ...)`, stacked last."""
    x = jnp.pad(x, [(padding, padding)] * 2 + [(0, 0)] * (x.ndim - 2))
    rows, columns = x.shape[0] - height + 1, x.shape[1] - width + 1
    return jnp.stack([x[i : i + rows, j : j + columns] for i in range(height) for j in range(width)], -1)


def depthwise_conv_pool(x, w):
    taps = _taps(x, *w.shape[:2], 1)
    return (taps * jnp.moveaxis(w.reshape(-1, w.shape[-1]), 0, -1)).sum(-1), taps.max(-1)


def sobel_median(image):
    taps = _taps(image, 3, 3, 1)
    gx = np.array([-1, 0, 1, -2, 0, 2, -1, 0, 1], image.dtype)
    gy = np.array([-1, -2, -1, 0, 0, 0, 1, 2, 1], image.dtype)
    return (taps * gx).sum(-1), (taps * gy).sum(-1), jnp.sort(taps, -1)[..., 4]


def sort(x, *, descending=False):
    places = jnp.argsort(x, -1, stable=True, descending=descending)
    return jnp.take_along_axis(x, places, -1), places.astype(jnp.int32)


def top_k(x, k):
    values, places = sort(x, descending=True)
    return values[..., :k], places[..., :k]


def segment_sum(ids, values, num_segments):
    outside = jnp.where((ids < 0) | (ids >= num_segments), num_segments, ids)
    sums = jnp.zeros((num_segments + 1, *values.shape[1:]), values.dtype).at[outside].add(values)
    return sums[:-1], jnp.bincount(outside, length=num_segments + 1)[:-1].astype(jnp.int32)


@dataclass(frozen=True)
class Reference:
    """A kernel, the same in `jnp`, and inputs: the floating ones are differentiated."""

    kernel: Callable[..., Any]
    jnp: Callable[..., Any]
    args: tuple[np.ndarray, ...]


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


_MATRIX, _OTHER, _BIAS = _normal(5, 6), _normal(5, 6, seed=1), _normal(6, seed=2)
_TWO_BLOCKS: dict[str, Any] = {"block_rows": 3, "block_cols": 4}
_ROWS: dict[str, Any] = {"block_rows": 2}
_LABELS = np.array([3, 0, -1, 5, 6], np.int32)
_IDS = np.array([1, 0, 3, 1, -1, 4, 0], np.int32)
_Q, _K, _V = _normal(1, 2, 3, 2), _normal(1, 1, 4, 2, seed=1), _normal(1, 1, 4, 1, seed=2)
_IMAGE, _FILTER = _normal(2, 5, 6, 2), _normal(2, 3, 2, 3, seed=1)
_P = np.random.default_rng(3).uniform(0.05, 0.95, (5, 6)).astype(np.float32)

REFERENCES = {
    "copy": Reference(partial(kernels.copy, **_TWO_BLOCKS), lambda x: x, (_MATRIX,)),
    "exp": Reference(partial(kernels.exp, **_TWO_BLOCKS), jnp.exp, (_MATRIX,)),
    "clamp": Reference(partial(kernels.clamp, **_TWO_BLOCKS), lambda x: jnp.clip(x, -0.5, 0.5), (_MATRIX,)),
    "add": Reference(partial(kernels.add, **_TWO_BLOCKS), jnp.add, (_MATRIX, _OTHER)),
    "saxpy": Reference(partial(kernels.saxpy, **_TWO_BLOCKS), lambda x, y: x / 0.4 + y, (_MATRIX, _OTHER)),
    "bias_gelu_residual": Reference(
        partial(kernels.bias_gelu_residual, **_TWO_BLOCKS), bias_gelu_residual, (_MATRIX, _BIAS, _OTHER)
    ),
    "transpose": Reference(partial(kernels.transpose, **_TWO_BLOCKS), jnp.transpose, (_MATRIX,)),
    "cumsum": Reference(partial(kernels.cumsum, **_TWO_BLOCKS), lambda x: jnp.cumsum(x, -1), (_MATRIX,)),
    "cummax": Reference(
        partial(kernels.cummax, **_TWO_BLOCKS), lambda x: lax.cummax(x, x.ndim - 1), (_MATRIX,)
    ),
    "row_sum": Reference(partial(kernels.row_sum, **_ROWS), lambda x: x.sum(-1), (_MATRIX,)),
    "row_max": Reference(partial(kernels.row_max, **_ROWS), lambda x: x.max(-1), (_MATRIX,)),
    "row_min": Reference(partial(kernels.row_min, **_ROWS), lambda x: x.min(-1), (_MATRIX,)),
    "row_abssum": Reference(partial(kernels.row_abssum, **_ROWS), lambda x: jnp.abs(x).sum(-1), (_MATRIX,)),
    "row_absmax": Reference(partial(kernels.row_absmax, **_ROWS), lambda x: jnp.abs(x).max(-1), (_MATRIX,)),
    "row_statistics": Reference(
        lambda *args: tuple(kernels.row_statistics(*args, block_rows=2)),
        row_statistics,
        (_MATRIX, _OTHER, _P),
    ),
    "softmax": Reference(partial(kernels.softmax, **_ROWS), jax.nn.softmax, (_MATRIX,)),
    "layernorm": Reference(partial(kernels.layernorm, **_ROWS), layernorm, (_MATRIX,)),
    "rmsnorm": Reference(partial(kernels.rmsnorm, **_ROWS), rmsnorm, (_MATRIX,)),
    "softmax_norms": Reference(partial(kernels.softmax_norms, **_ROWS), softmax_norms, (_MATRIX,)),
    "residual_layernorm": Reference(
        partial(kernels.residual_layernorm, **_ROWS), lambda x, r: layernorm(x + r), (_MATRIX, _OTHER)
    ),
    "sparse_cross_entropy": Reference(
        partial(kernels.sparse_cross_entropy, **_ROWS), sparse_cross_entropy, (_MATRIX, _LABELS)
    ),
    "gemm": Reference(
        partial(kernels.gemm, block_m=3, block_n=4, block_k=4), jnp.matmul, (_MATRIX, _normal(6, 5, seed=4))
    ),
    "manual_gemm": Reference(
        partial(kernels.manual_gemm, block_m=3, block_n=4, block_k=4),
        jnp.matmul,
        (_MATRIX, _normal(6, 5, seed=4)),
    ),
    "flash_attention": Reference(
        partial(kernels.flash_attention, causal=True, block_q=2, block_kv=3),
        partial(attention, causal=True),
        (_Q, _K, _V),
    ),
    "conv2d": Reference(
        partial(kernels.conv2d, stride=2, padding=1, relu=True, block_rows=2, block_cols=2),
        partial(conv2d, stride=2, padding=1, relu=True),
        (_IMAGE, _FILTER, _normal(3, seed=5)),
    ),
    "depthwise_conv_pool": Reference(
        partial(kernels.depthwise_conv_pool, block_rows=2, block_cols=4),
        depthwise_conv_pool,
        (_IMAGE[0], _FILTER[..., 0]),
    ),
    "sobel_median": Reference(
        partial(kernels.sobel_median, block_rows=2, block_cols=4), sobel_median, (_MATRIX,)
    ),
    "sort": Reference(partial(kernels.sort, **_ROWS), sort, (_MATRIX,)),
    "top_k": Reference(partial(kernels.top_k, k=3, **_ROWS), partial(top_k, k=3), (_MATRIX,)),
    "segment_sum": Reference(
        partial(kernels.segment_sum, num_segments=4, block_items=3),
        partial(segment_sum, num_segments=4),
        (_IDS, _normal(7, 2)),
    ),
    "structured_sum": Reference(kernels.structured_sum, lambda x: x.sum((1, 2, 3)), (_normal(3, 2, 2, 4),)),
}
