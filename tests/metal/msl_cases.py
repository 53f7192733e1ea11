"""The documented kernels at ragged sizes, with the checks that the other backends are held to."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import oracle
from kernel_cases import CASES as MATRICES
from kernel_cases import close, i8, i32, normal
from msl_host import Case
from test_kernels import check
from test_kernels_attention import check_attention, check_cross_entropy, qkv
from test_kernels_images import check_conv, check_depthwise, check_sobel
from test_kernels_order import TIES, check_segments, check_sort, check_statistics, check_top_k, ids_of, losses

from tilejax import Resource, Scope, kernels

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16


def _case(kernel: Any, check: Any, *args: Any, coop: bool = False, **kwargs: Any) -> Case:
    return Case(kernel, lambda call: check(call, *args, **kwargs), coop)


def _matrix(name: str, shape: tuple[int, int], dtype: Any) -> Case:
    case = MATRICES[name]
    return Case(
        getattr(kernels, name), lambda call: check(name, call, case.args(shape, dtype), **case.blocks)
    )


def check_product(call: Any, a: np.ndarray, b: np.ndarray, **blocks: Any) -> None:
    slack = a.shape[1] * oracle.gemm(np.abs(a), np.abs(b))
    close(call(a, b, **blocks), oracle.gemm(a, b), a.dtype, slack)


def check_bytes(call: Any, a: np.ndarray, b: np.ndarray, **blocks: Any) -> None:
    close(call(a, b, **blocks), oracle.gemm(a, b), np.int32)


def check_norms(call: Any, x: np.ndarray, **blocks: Any) -> None:
    slacks = [MATRICES[name].slack(x) for name in ("softmax", "layernorm", "rmsnorm")]
    for got, want, slack in zip(call(x, **blocks), oracle.softmax_norms(x), slacks, strict=True):
        close(got, want, x.dtype, 2 * slack)


def check_structured(call: Any, x: np.ndarray) -> None:
    close(call(x), oracle.structured_sum(x), x.dtype, x.size * oracle.structured_sum(np.abs(x)))


def _pair(m: int, k: int, n: int, dtype: Any = F32) -> tuple[np.ndarray, np.ndarray]:
    return normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)


_MANUAL = {"block_m": 8, "block_n": 5, "block_k": 4, "window": 2}
_WORKER = {"scope": Scope.WORKER, "resource": Resource.PRIVATE}
_LABELS = i32([0, 2, 2, 9, -1, 4, 1, 3])


def _others(dtype: Any) -> dict[str, Case]:
    """The kernels that `kernel_cases` does not have."""
    image, logits = normal(6, 7, dtype=dtype), normal(8, 7, dtype=dtype)
    items = ids_of(37, 4), (8 * normal(37)).astype(dtype)
    filters = normal(3, 2, 3, 4, dtype=dtype, seed=1)
    depthwise = normal(7, 5, 2, dtype=dtype), normal(2, 4, 2, dtype=dtype, seed=1)
    attend = functools.partial(_case, kernels.flash_attention, check_attention)
    convolve = functools.partial(_case, kernels.conv2d, check_conv, normal(2, 7, 5, 3, dtype=dtype), filters)
    return {
        "manual_gemm": _case(kernels.manual_gemm, check_product, *_pair(19, 13, 21, dtype), **_MANUAL),
        "row_statistics": _case(
            kernels.row_statistics, check_statistics, *losses(13, 9, dtype), block_rows=4
        ),
        "softmax_norms": _case(kernels.softmax_norms, check_norms, normal(7, 37, dtype=dtype), block_rows=2),
        "sparse_cross_entropy": _case(
            kernels.sparse_cross_entropy,
            check_cross_entropy,
            logits,
            _LABELS,
            block_rows=3,
        ),
        "flash_attention": attend(*qkv(1, 4, 2, 17, 33, 8, 8, dtype), block_q=4, block_kv=8),
        "flash_attention_causal": attend(
            *qkv(1, 3, 1, 19, 11, 5, 7, dtype), causal=True, block_q=8, block_kv=3
        ),
        "conv2d": convolve(normal(4, dtype=dtype, seed=2), padding=(1, 0), stride=(1, 2), relu=True),
        "conv2d_blocks": convolve(dilation=(2, 3), padding=2, block_rows=2, block_cols=3),
        "depthwise_conv_pool": _case(kernels.depthwise_conv_pool, check_depthwise, *depthwise, 2),
        "depthwise_blocks": _case(
            kernels.depthwise_conv_pool, check_depthwise, *depthwise, block_rows=2, block_cols=3
        ),
        "sobel_median": _case(kernels.sobel_median, check_sobel, image),
        "sobel_median_blocks": _case(kernels.sobel_median, check_sobel, image, block_rows=2, block_cols=3),
        "sort": _case(kernels.sort, check_sort, TIES.astype(dtype), block_rows=3),
        "top_k": _case(kernels.top_k, check_top_k, TIES.astype(dtype), 3, block_rows=3),
        "segment_sum": _case(
            kernels.segment_sum,
            check_segments,
            *items,
            4,
            block_items=8,
        ),
        "structured_sum": _case(kernels.structured_sum, check_structured, normal(3, 2, 3, 4, dtype=dtype)),
    }


ONE = {name: _matrix(name, (13, 37), F32) for name in MATRICES} | _others(F32)
ONE["sort_long"] = _case(kernels.sort, check_sort, np.round(3 * normal(3, 50)), descending=True)
"""Every documented kernel in float32, and a few of them again in other blocks."""

_LONG = {
    "softmax_long": _matrix("softmax", (2, 301), F32),
    "sort_bytes": _case(kernels.sort, check_sort, (9 * normal(2, 65)).astype(np.int8)),
    "top_k_long": _case(kernels.top_k, check_top_k, np.round(3 * normal(3, 50)).astype(F16), 5, block_rows=2),
    "top_k_smallest": _case(kernels.top_k, check_top_k, TIES, 4, False),
    "segment_features": _case(
        kernels.segment_sum, check_segments, ids_of(11, 3), normal(11, 5), 3, block_items=4
    ),
    "gemm_chunks": _case(
        kernels.gemm, check_product, *_pair(70, 150, 66), block_m=64, block_n=64, block_k=150
    ),
    "gemm_bytes": _case(
        kernels.gemm, check_bytes, i8(9 * normal(13, 19)), i8(9 * normal(19, 7, seed=1)), block_k=8
    ),
    "manual_gemm_worker": _case(kernels.manual_gemm, check_product, *_pair(9, 7, 5), **_MANUAL, **_WORKER),
    "empty": _matrix("cumsum", (0, 5), F32),
    "empty_rows": _matrix("softmax", (5, 0), F32),
}

_ATOMS = {
    "gemm_atoms": _case(
        kernels.gemm, check_product, *_pair(21, 19, 13), coop=True, block_m=16, block_n=8, block_k=8
    ),
    "gemm_atoms_ragged": _case(
        kernels.gemm, check_product, *_pair(21, 19, 13), coop=True, block_m=9, block_n=7, block_k=5
    ),
    "gemm_atoms_chunks": _case(
        kernels.gemm, check_product, *_pair(70, 150, 66), coop=True, block_m=64, block_n=64, block_k=150
    ),
    "manual_gemm_atoms": _case(
        kernels.manual_gemm, check_product, *_pair(19, 13, 21), coop=True, block_m=8, block_n=16, block_k=8
    ),
}

ALL = (
    ONE
    | _LONG
    | _ATOMS
    | {
        f"{name}_{kind}": case
        for kind, dtype in (("f16", F16), ("bf16", BF16))
        for name, case in ({n: _matrix(n, (5, 19), dtype) for n in MATRICES} | _others(dtype)).items()
    }
)
