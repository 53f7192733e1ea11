"""The documented kernels, ready to call: each is `tj.jit` of a plain function of this package.

Those functions are the bodies: written in the language alone, they make their outputs, or store to the
view that `out=` gives them, which may be a `Window` of a larger one. So a body can be part of a kernel:

    from tilejax.kernels import Window, norms

    def normalise_into(big, x):
        y = tj.update(big)
        norms.softmax(x, out=Window(y, (2, 3), x.shape))
        return y
"""

from __future__ import annotations

from .._jit import jit
from . import (
    attention,
    convolution,
    cross_entropy,
    elementwise,
    images,
    manual,
    matmul,
    norms,
    order,
    reductions,
    scans,
    segments,
    statistics,
    structured,
    transposition,
)
from . import backward as backward  # attaches the reverse mode of the others
from .window import Window

_TILES = ("block_rows", "block_cols")

copy = jit(elementwise.copy, static_argnames=_TILES)
exp = jit(elementwise.exp, static_argnames=_TILES)
clamp = jit(elementwise.clamp, static_argnames=("lo", "hi", *_TILES))
add = jit(elementwise.add, static_argnames=_TILES)
saxpy = jit(elementwise.saxpy, static_argnames=_TILES)
bias_gelu_residual = jit(elementwise.bias_gelu_residual, static_argnames=_TILES)
transpose = jit(transposition.transpose, static_argnames=_TILES)
cumsum = jit(scans.cumsum, static_argnames=_TILES)
cummax = jit(scans.cummax, static_argnames=_TILES)

row_sum = jit(reductions.row_sum, static_argnames="block_rows")
row_max = jit(reductions.row_max, static_argnames="block_rows")
row_min = jit(reductions.row_min, static_argnames="block_rows")
row_abssum = jit(reductions.row_abssum, static_argnames="block_rows")
row_absmax = jit(reductions.row_absmax, static_argnames="block_rows")
row_statistics = jit(statistics.row_statistics, static_argnames=("huber_delta", "eps", "block_rows"))

softmax = jit(norms.softmax, static_argnames="block_rows")
layernorm = jit(norms.layernorm, static_argnames=("eps", "block_rows"))
rmsnorm = jit(norms.rmsnorm, static_argnames=("eps", "block_rows"))
softmax_norms = jit(norms.softmax_norms, static_argnames=("eps", "block_rows"))
residual_layernorm = jit(norms.residual_layernorm, static_argnames=("eps", "block_rows"))
sparse_cross_entropy = jit(cross_entropy.sparse_cross_entropy, static_argnames="block_rows")

gemm = jit(
    matmul.gemm,
    static_argnames=("out_dtype", "acc_dtype", "precision", "block_m", "block_n", "block_k", "window"),
)
manual_gemm = jit(
    manual.manual_gemm,
    static_argnames=("scope", "resource", "block_m", "block_n", "block_k", "window"),
)
flash_attention = jit(attention.flash_attention, static_argnames=("scale", "causal", "block_q", "block_kv"))
conv2d = jit(convolution.conv2d, static_argnames=("stride", "padding", "dilation", "relu", *_TILES))
depthwise_conv_pool = jit(convolution.depthwise_conv_pool, static_argnames=("padding", *_TILES))
sobel_median = jit(images.sobel_median, static_argnames=_TILES)

sort = jit(order.sort, static_argnames=("descending", "block_rows"))
top_k = jit(order.top_k, static_argnames=("k", "largest", "block_rows"))
segment_sum = jit(segments.segment_sum, static_argnames=("num_segments", "block_items"))
structured_sum = jit(structured.structured_sum)

__all__ = [
    "Window",
    "add",
    "bias_gelu_residual",
    "clamp",
    "conv2d",
    "copy",
    "cummax",
    "cumsum",
    "depthwise_conv_pool",
    "exp",
    "flash_attention",
    "gemm",
    "layernorm",
    "manual_gemm",
    "residual_layernorm",
    "rmsnorm",
    "row_absmax",
    "row_abssum",
    "row_max",
    "row_min",
    "row_statistics",
    "row_sum",
    "saxpy",
    "segment_sum",
    "sobel_median",
    "softmax",
    "softmax_norms",
    "sort",
    "sparse_cross_entropy",
    "structured_sum",
    "top_k",
    "transpose",
]
