"""The backward kernels one tile at a time: they stay in bounds, no two programs race, and their values are
those of the compiled ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import same
from kernel_cases import i32, normal

import tilejax as tj
from tilejax.kernels.backward import (
    attention,
    columns,
    convolution,
    cross_entropy,
    elementwise,
    matmul,
    norms,
    scans,
    segments,
)

X, Y, BIAS = normal(7, 9), normal(7, 9, seed=1), normal(9, seed=2)
ROWS, TILES = {"block_rows": 3}, {"block_rows": 3, "block_cols": 4}
IMAGE, SLOPE, FILTER = normal(2, 6, 5, 3), normal(2, 2, 2, 4, seed=1), normal(3, 2, 3, 4, seed=2)
GEOMETRY = (3, 2), (1, 0), (1, 2)
Q, K, V = normal(1, 4, 5, 3), normal(1, 2, 7, 3, seed=1), normal(1, 2, 7, 2, seed=2)
DY, LSE = normal(1, 4, 5, 2, seed=3), np.abs(normal(1, 4, 5, seed=4)) + 2
LABELS = i32([0, 8, -1, 3, 9, 2, 2])

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "product": (
        matmul.product,
        (X, Y, (True, False), np.float32, None, None, (4, 2, 3)),
        {},
        (2, 3, 4, 5, 6),
    ),
    "product turned": (
        matmul.product,
        (X, Y, (False, True), np.float32, None, None, (4, 2, 3)),
        {},
        (2, 3, 4, 5, 6),
    ),
    "softmax": (norms.softmax_backward, (X, Y), ROWS, ()),
    "layernorm": (norms.layernorm_backward, ((X, Y), Y, 1e-5), ROWS, ()),
    "rmsnorm": (norms.rmsnorm_backward, (X, Y, 1e-5), ROWS, ()),
    "bias_gelu": (elementwise.bias_gelu_backward, (X, BIAS, Y), TILES, ()),
    "column_sum": (columns.column_sum, (X, np.float32), TILES, (1,)),
    "cross_entropy": (cross_entropy.sparse_cross_entropy_backward, (X, LABELS, X[:, 0], Y), ROWS, ()),
    "cumsum": (scans.reverse_cumsum, (X,), TILES, ()),
    "segments": (segments.take_segments, (LABELS, Y[:4]), {}, ()),
    "attention": (
        attention.flash_attention_backward,
        (Q, K, V, DY, LSE, DY),
        {"block_q": 2, "block_kv": 3},
        (),
    ),
    "causal attention": (
        attention.flash_attention_backward,
        (Q, K, V, DY, LSE, DY),
        {"block_q": 3, "block_kv": 2, "causal": True},
        (),
    ),
    "relu": (convolution.relu_backward, (X, Y), {}, ()),
    "image": (
        convolution.conv2d_image_backward,
        (SLOPE, FILTER, IMAGE.shape, np.float32, *GEOMETRY),
        TILES,
        (2, 3, 4, 5, 6),
    ),
    "filters": (
        convolution.conv2d_filters_backward,
        (IMAGE, SLOPE, FILTER.shape, np.float32, *GEOMETRY),
        {"block_rows": 1, "block_cols": 2},
        (2, 3, 4, 5, 6),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees(name):
    kernel, args, keywords, static = CASES[name]
    got, want = (
        run(kernel, static_argnums=static, static_argnames=tuple(keywords))(*args, **keywords)
        for run in (tj.interpret, tj.jit)
    )
    same(got, want, rtol=2e-5, atol=2e-5)
