"""Every kernel, called in every way; and what wrong arguments say."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from kernel_cases import i8, i32, normal

import tilejax as tj
from tilejax import kernels

X, Y, ROW, IDS = normal(3, 5), normal(3, 5, seed=1), normal(5, seed=2), i32([0, 2, 1])
BACKEND = "triton" if jax.default_backend() == "gpu" else "xla"
HEADS = normal(1, 2, 3, 4)

OF_ONE_MATRIX = """
    copy exp clamp rmsnorm row_sum row_max row_min row_abssum row_absmax
    cumsum cummax transpose softmax layernorm softmax_norms sobel_median
"""

CALLS = {
    **{name: ((X,), {}) for name in OF_ONE_MATRIX.split()},
    "add": ((X, Y), {}),
    "saxpy": ((X, Y), {}),
    "residual_layernorm": ((X, Y), {}),
    "gemm": ((X, Y.T), {"block_m": 2}),
    "bias_gelu_residual": ((X, ROW, Y), {}),
    "row_statistics": ((X, Y, Y), {}),
    "sparse_cross_entropy": ((X, IDS), {}),
    "flash_attention": ((HEADS, HEADS, HEADS), {"causal": True}),
    "conv2d": ((normal(1, 4, 4, 2), normal(2, 2, 2, 3)), {"stride": (1, 2)}),
    "depthwise_conv_pool": ((normal(4, 4, 2), normal(3, 3, 2)), {}),
    "sort": ((X,), {"descending": True}),
    "top_k": ((X, 2), {}),
    "segment_sum": ((IDS, X, 3), {}),
    "structured_sum": ((HEADS,), {}),
}


def test_every_kernel_is_here():
    assert set(kernels.__all__) - {"Window", "manual_gemm"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_ways_to_call(name):
    """One program: its values are the same by its backend's name, in jit, and (to rounding) interpreted."""
    kernel, (args, options) = getattr(kernels, name), CALLS[name]
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    want = kernel(*args, **options)
    jax.tree.map(np.testing.assert_array_equal, tj.jit(kernel, backend=BACKEND)(*args, **options), want)
    inline = jax.jit(lambda *arrays: kernel(*arrays, *args[len(arrays) :], **options))
    jax.tree.map(np.testing.assert_array_equal, inline(*arrays), want)
    got = tj.interpret(kernel)(*args, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, want)

    program = str(tj.make_jaxpr(kernel)(*args, **options))
    for primitive in ("tile_parallel", "tile_load", "tile_store"):
        assert primitive in program


F, Q, IMAGE = np.float32, normal(1, 2, 3, 4), normal(1, 4, 4, 2)

WRONG = [
    ("copy", (3.0,), {}, tj.ShapeError, "copy: x must have 1 or more dimensions, it has 0"),
    ("row_sum", (ROW,), {}, tj.ShapeError, "row_sum: x must have 2 or more dimensions, it has 1"),
    ("transpose", (Q,), {}, tj.ShapeError, "transpose: x must have 2 dimensions, it has 4"),
    ("exp", (i32([[1]]),), {}, tj.DtypeError, "exp: x must be floating, it is int32"),
    ("softmax", (i32([[1]]),), {}, tj.DtypeError, "softmax: x must be floating, it is int32"),
    ("clamp", (i8([[1]]),), {}, tj.DtypeError, "clamp: lo=-0.5 is not a value of x, which is int8"),
    (
        "clamp",
        (i8([[1]]), 0, 300),
        {},
        tj.DtypeError,
        "clamp: hi=300 is not a value of x, which is int8",
    ),
    ("add", (X, X.T), {}, tj.ShapeError, "add: y has shape (5, 3), but x asks for (3, 5)"),
    ("saxpy", (X, 2.0), {}, tj.ShapeError, "saxpy: y has shape (), but x asks for (3, 5)"),
    (
        "bias_gelu_residual",
        (X, IDS, X),
        {},
        tj.ShapeError,
        "bias_gelu_residual: bias has shape (3,), but the last axis of x asks for (5,)",
    ),
    ("residual_layernorm", (X, ROW), {}, tj.ShapeError, "residual has shape (5,), but x asks for (3, 5)"),
    ("row_max", (X[:, :0],), {}, tj.ShapeError, "row_max: the rows of x, of shape (3, 0), are empty"),
    ("row_statistics", (X, X, X.T), {}, tj.ShapeError, "probability has shape (5, 3), but x asks for (3, 5)"),
    ("row_statistics", (X[:, :0],) * 3, {}, tj.ShapeError, "the rows of x, of shape (3, 0), are empty"),
    ("gemm", (X, X), {}, tj.ShapeError, "gemm: a has shape (3, 5) and b (3, 5)"),
    ("gemm", (X, X.T.astype(np.float16)), {}, tj.DtypeError, "a is float32, b is float16"),
    ("gemm", (X, X.T), {"block_k": 0}, tj.AxisError, "block_k must be at least 1, got 0"),
    ("gemm", (X, X.T), {"precision": "none such"}, tj.DtypeError, "unknown precision 'none such'"),
    ("copy", (X,), {"block_rows": 0}, tj.AxisError, "block_rows must be at least 1, got 0"),
    (
        "flash_attention",
        (Q, Q, Q[0]),
        {},
        tj.ShapeError,
        "flash_attention: v must have 4 dimensions, it has 3",
    ),
    (
        "flash_attention",
        (normal(1, 3, 2, 4), Q, Q),
        {},
        tj.ShapeError,
        "q has shape (1, 3, 2, 4), k (1, 2, 3, 4) and v (1, 2, 3, 4); the heads of q must be a multiple",
    ),
    (
        "flash_attention",
        (Q[..., :3], Q, Q),
        {},
        tj.ShapeError,
        "the batches and channels of q and k must agree",
    ),
    ("flash_attention", (Q, Q, Q[:, :, :2]), {}, tj.ShapeError, "k and v may differ in their channels only"),
    (
        "flash_attention",
        (Q, Q, Q.astype(np.float16)),
        {},
        tj.DtypeError,
        "q is float32, k float32 and v float16",
    ),
    ("sparse_cross_entropy", (X, X[:, 0]), {}, tj.DtypeError, "labels must be integers, it is float32"),
    ("sparse_cross_entropy", (X, IDS[:2]), {}, tj.ShapeError, "labels has shape (2,), but"),
    ("conv2d", (IMAGE, normal(2, 2, 3, 1)), {}, tj.ShapeError, "x has shape (1, 4, 4, 2) and w (2, 2, 3, 1)"),
    ("conv2d", (IMAGE, normal(0, 2, 2, 1)), {}, tj.ShapeError, "conv2d: the filter w is empty"),
    ("conv2d", (IMAGE, normal(2, 2, 2, 1), ROW), {}, tj.ShapeError, "conv2d: bias has shape (5,), but"),
    ("conv2d", (IMAGE, IMAGE.astype(np.float16)), {}, tj.DtypeError, "x is float32 and w is float16"),
    (
        "conv2d",
        (IMAGE, normal(2, 2, 2, 1)),
        {"stride": 0},
        tj.ShapeError,
        "stride must be an int, or two, of at least 1",
    ),
    ("depthwise_conv_pool", (IMAGE[0], X[..., None]), {}, tj.ShapeError, "their channels must agree"),
    ("sobel_median", (IMAGE,), {}, tj.ShapeError, "sobel_median: image must have 2 dimensions, it has 4"),
    ("top_k", (X, 6), {}, tj.ShapeError, "top_k: k=6 is not within the last axis of x, of shape (3, 5)"),
    ("segment_sum", (X[:, 0], X, 3), {}, tj.DtypeError, "ids must be integers, it is float32"),
    ("segment_sum", (IDS, ROW, 3), {}, tj.ShapeError, "values has shape (5,), but"),
    ("structured_sum", (X,), {}, tj.ShapeError, "structured_sum: x must have 4 dimensions, it has 2"),
]


@pytest.mark.parametrize(
    ("name", "args", "options", "error", "message"), WRONG, ids=lambda v: v if isinstance(v, str) else ""
)
def test_wrong_arguments(name, args, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        getattr(kernels, name)(*args, **options)


def test_out_is_for_views_inside_a_kernel():
    with pytest.raises(tj.ReadOnlyError, match="out is read-only"):
        kernels.copy(X, out=X)
