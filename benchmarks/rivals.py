"""Each documented kernel as the best plain `jnp` or `lax` that a user would write, in the same precision.

Where a kernel computes in float32 and rounds once, so does its rival.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def in_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of float32 arguments, its results rounded to the dtype of the first one."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return _cast(function(*_cast(args, jnp.float32), **options), args[0].dtype)

    return call


@in_f32
def layernorm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


@in_f32
def rmsnorm(x, *, eps=1e-12):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps)


softmax = in_f32(jax.nn.softmax)


@in_f32
def softmax_norms(x):
    return softmax(x), layernorm(x), rmsnorm(x, eps=1e-5)


@in_f32
def residual_layernorm(x, residual):
    return layernorm(x + residual)


@in_f32
def saxpy(x, y):
    return x / 0.4 + y


@in_f32
def bias_gelu_residual(x, bias, residual):
    return jax.nn.gelu(x + bias, approximate=True) + residual


@in_f32
def row_statistics(x, target, probability):
    difference, p = x - target, jnp.clip(probability, 1e-4, 1 - 1e-4)
    size = jnp.abs(difference)
    huber = jnp.where(size <= 0.75, 0.5 * difference**2, 0.75 * (size - 0.375))
    bce = -(target * jnp.log(p) + (1 - target) * jnp.log(1 - p))
    means = (a.mean(-1) for a in (difference**2, size, huber, bce))
    return x.sum(-1), x.mean(-1), x.max(-1), x.argmax(-1), *means


@in_f32
def sparse_cross_entropy(logits, labels):
    def total(logits):
        picked = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
        losses = jax.nn.logsumexp(logits, -1) - picked
        return losses.sum(), losses

    gradient, losses = jax.grad(total, has_aux=True)(logits)
    return losses, gradient


def gemm(a, b):
    # Without the preferred type the CPU converts bfloat16 operands to float32, which is slower.
    if a.dtype == jnp.int8:
        return jnp.matmul(a, b, preferred_element_type=jnp.int32)
    return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(a.dtype)


def attention(q, k, v, *, causal):
    scores = jnp.einsum("bhqd,bhsd->bhqs", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores).astype(v.dtype)
    return jnp.einsum("bhqs,bhsd->bhqd", weights, v)


def dot_product_attention(q, k, v, *, causal, implementation=None):
    q, k, v = (jnp.swapaxes(a, 1, 2) for a in (q, k, v))  # it takes (batch, seq, heads, dim)
    out = jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation=implementation)
    return jnp.swapaxes(out, 1, 2)


def conv2d(x, w, bias=None, *, stride=1, padding=0, relu=False):
    y = lax.conv_general_dilated(
        x, w, (stride,) * 2, [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    y = y if bias is None else y + bias
    return jax.nn.relu(y) if relu else y


def depthwise_conv_pool(x, w):
    height, width, channels = w.shape
    convolution = lax.conv_general_dilated(
        x[None],
        w[:, :, None],
        (1, 1),
        [(1, 1)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=channels,
    )[0]
    padded = jnp.pad(x, [(1, 1), (1, 1), (0, 0)])
    least = np.array(-np.inf, x.dtype)
    return convolution, lax.reduce_window(padded, least, lax.max, (height, width, 1), (1, 1, 1), "VALID")


def sobel_median(image):
    rows, columns = image.shape
    padded = jnp.pad(image, 1)
    taps = jnp.stack([padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)], -1)
    sobel = np.array([-1, 0, 1, -2, 0, 2, -1, 0, 1], np.float32)
    gx, gy = (jnp.sum(taps * w, -1) for w in (sobel, sobel.reshape(3, 3).T.ravel()))
    return gx.astype(image.dtype), gy.astype(image.dtype), jnp.sort(taps, -1)[..., 4]


def sort(x):
    return lax.sort((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), num_keys=1, is_stable=True)


def segment_sum(ids, values, *, num_segments):
    sums = in_f32(lambda values: jax.ops.segment_sum(values, ids, num_segments))(values)
    return sums, jax.ops.segment_sum(jnp.ones(ids.shape, jnp.int32), ids, num_segments)


RIVALS: dict[str, Callable[..., Any]] = {
    "copy": jnp.copy,
    "exp": in_f32(jnp.exp),
    "clamp": lambda x: jnp.clip(x, -0.5, 0.5),
    "add": jnp.add,
    "saxpy": saxpy,
    "bias_gelu_residual": bias_gelu_residual,
    "transpose": jnp.transpose,
    "cumsum": in_f32(lambda x: jnp.cumsum(x, -1)),
    "cummax": lambda x: lax.cummax(x, 1),
    "row_sum": lambda x: jnp.sum(x, -1),
    "row_max": lambda x: jnp.max(x, -1),
    "row_min": lambda x: jnp.min(x, -1),
    "row_abssum": lambda x: jnp.sum(jnp.abs(x), -1),
    "row_absmax": lambda x: jnp.max(jnp.abs(x), -1),
    "row_statistics": row_statistics,
    "softmax": softmax,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "softmax_norms": softmax_norms,
    "residual_layernorm": residual_layernorm,
    "sparse_cross_entropy": sparse_cross_entropy,
    "gemm": gemm,
    "manual_gemm": gemm,
    "conv2d": conv2d,
    "depthwise_conv_pool": depthwise_conv_pool,
    "sobel_median": sobel_median,
    "sort": sort,
    "top_k": lambda x, *, k: lax.top_k(x, k),
    "segment_sum": segment_sum,
    "structured_sum": lambda x: jnp.sum(x, (1, 2, 3)),
}
"""By the name of the kernel; attention has two, `attention` and `dot_product_attention`."""
