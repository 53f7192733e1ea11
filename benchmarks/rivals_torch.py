"""The same in eager PyTorch on the CPU, for a column of the table where torch is installed."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .ceilings import cores


def load() -> Any:
    """The module `torch`, set to as many threads as XLA uses; None where it is not installed.

    Its threads would spin after each call, beside whatever is timed next, unless told to sleep.
    """
    os.environ.update(OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", KMP_BLOCKTIME="0")
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    torch.set_num_threads(cores())
    return torch


def tensor(torch: Any, x: np.ndarray) -> Any:
    """`x` as torch takes it: class labels and segments are int64 there."""
    if x.dtype == jnp.bfloat16:
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(x.astype(np.int64) if x.dtype == np.int32 else x)


def array(torch: Any, tree: Any) -> list[np.ndarray]:
    """The leaves of a result as NumPy arrays, bfloat16 ones as float32."""
    return [(t.float() if t.dtype == torch.bfloat16 else t).detach().numpy() for t in jax.tree.leaves(tree)]


def rivals(torch: Any) -> dict[str, Callable[..., Any]]:
    """By the name of the kernel."""
    F = torch.nn.functional

    def softmax_norms(x):
        return x.softmax(-1), F.layer_norm(x, x.shape[-1:]), F.rms_norm(x, x.shape[-1:], eps=1e-5)

    def row_statistics(*args):
        # In float32 as its rivals: 1 - 1e-4 is 1 in bfloat16, and the logarithm of what is left infinite.
        x, target, probability = (a.float() for a in args)
        p = probability.clamp(1e-4, 1 - 1e-4)
        losses = (
            F.mse_loss(x, target, reduction="none"),
            F.l1_loss(x, target, reduction="none"),
            F.huber_loss(x, target, reduction="none", delta=0.75),
            -(target * p.log() + (1 - target) * (1 - p).log()),
        )
        return x.sum(-1), x.mean(-1), x.amax(-1), x.argmax(-1), *(a.mean(-1) for a in losses)

    def sparse_cross_entropy(logits, labels):
        logits = logits.detach().requires_grad_()
        with torch.enable_grad():
            losses = F.cross_entropy(logits, labels, reduction="none")
            return losses, torch.autograd.grad(losses.sum(), logits)[0]

    def attention(q, k, v, *, causal):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def conv2d(x, w, bias=None, *, stride=1, padding=0, relu=False):
        y = F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), bias, stride, padding)
        return (y.relu() if relu else y).permute(0, 2, 3, 1)

    def depthwise_conv_pool(x, w):
        x, w = x.permute(2, 0, 1)[None], w.permute(2, 0, 1)[:, None]
        convolution = F.conv2d(x, w, padding=1, groups=x.shape[1])
        pool = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), w.shape[2:], 1)
        return tuple(y[0].permute(1, 2, 0) for y in (convolution, pool))

    def sobel_median(image):
        sobel = torch.tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=image.dtype)
        gx, gy = F.conv2d(image[None, None], torch.stack([sobel, sobel.T])[:, None], padding=1)[0]
        taps = F.pad(image, (1, 1, 1, 1)).unfold(0, 3, 1).unfold(1, 3, 1)
        return gx, gy, taps.reshape(*image.shape, 9).median(-1).values

    def segment_sum(ids, values, *, num_segments):
        sums = torch.zeros(num_segments, *values.shape[1:], dtype=values.dtype)
        return sums.index_add_(0, ids, values), torch.bincount(ids, minlength=num_segments)

    return {
        "copy": lambda x: x.clone(),
        "exp": lambda x: x.exp(),
        "clamp": lambda x: x.clamp(-0.5, 0.5),
        "add": torch.add,
        "saxpy": lambda x, y: torch.add(y, x, alpha=1 / 0.4),
        "bias_gelu_residual": lambda x, bias, residual: F.gelu(x + bias, approximate="tanh") + residual,
        "transpose": lambda x: x.T.contiguous(),
        "cumsum": lambda x: x.cumsum(-1),
        "cummax": lambda x: x.cummax(-1).values,
        "row_sum": lambda x: x.sum(-1),
        "row_max": lambda x: x.amax(-1),
        "row_min": lambda x: x.amin(-1),
        "row_abssum": lambda x: x.abs().sum(-1),
        "row_absmax": lambda x: x.abs().amax(-1),
        "row_statistics": row_statistics,
        "softmax": lambda x: x.softmax(-1),
        "layernorm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "rmsnorm": lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-12),
        "softmax_norms": softmax_norms,
        "residual_layernorm": lambda x, residual: F.layer_norm(x + residual, x.shape[-1:]),
        "sparse_cross_entropy": sparse_cross_entropy,
        "gemm": lambda a, b: torch._int_mm(a, b) if a.dtype == torch.int8 else a @ b,
        "manual_gemm": torch.matmul,
        "flash_attention": attention,
        "conv2d": conv2d,
        "depthwise_conv_pool": depthwise_conv_pool,
        "sobel_median": sobel_median,
        "sort": lambda x: tuple(x.sort(stable=True, dim=-1)),
        "top_k": lambda x, *, k: tuple(x.topk(k)),
        "segment_sum": segment_sum,
        "structured_sum": lambda x: x.sum((1, 2, 3)),
    }
