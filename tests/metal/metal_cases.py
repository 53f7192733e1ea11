"""Every documented kernel with arguments and its value, for what runs a kernel on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kernel_cases
import numpy as np
import oracle
from kernel_cases import CASES, close, normal
from test_kernels_attention import check_attention, check_cross_entropy, qkv
from test_kernels_images import check_conv, check_depthwise, check_sobel
from test_kernels_order import check_segments, check_sort, check_statistics, check_top_k, ids_of, losses

from tilejax import kernels

Check = Callable[[Callable[[Any], Callable[..., Any]], Any], None]
"""`check(run, dtype)`: the kernel that `run` makes of the documented one gives the right values."""


def _matrix(name: str) -> Check:
    case = CASES[name]

    def check(run: Any, dtype: Any) -> None:
        args = case.args((17, 65), dtype)
        close(run(getattr(kernels, name))(*args), case.want(*args), dtype, case.slack(*args))

    return check


def _structured(run: Any, dtype: Any) -> None:
    x = normal(3, 4, 5, 6, dtype=dtype)
    slack = x.size * oracle.structured_sum(np.abs(x))
    close(run(kernels.structured_sum)(x), oracle.structured_sum(x), dtype, slack)


def _manual(run: Any, dtype: Any) -> None:
    a, b = normal(17, 19, dtype=dtype), normal(19, 33, dtype=dtype, seed=1)
    slack = 19 * oracle.gemm(np.abs(a), np.abs(b))
    close(run(kernels.manual_gemm)(a, b), oracle.gemm(a, b), dtype, slack)


def _norms(run: Any, dtype: Any) -> None:
    x = normal(9, 33, dtype=dtype)
    names, results = ("softmax", "layernorm", "rmsnorm"), run(kernels.softmax_norms)(x)
    for got, want, name in zip(results, oracle.softmax_norms(x), names, strict=True):
        close(got, want, dtype, CASES[name].slack(x))


def _attention(run: Any, dtype: Any) -> None:
    few = {"block_q": 8, "block_kv": 4}
    check_attention(run(kernels.flash_attention), *qkv(1, 2, 1, 20, 24, 8, 4, dtype), causal=True, **few)
    check_attention(run(kernels.flash_attention), *qkv(1, 2, 1, 20, 24, 8, 4, dtype))


def _conv2d(run: Any, dtype: Any) -> None:
    x, w = normal(2, 7, 6, 3, dtype=dtype), normal(3, 3, 3, 4, dtype=dtype, seed=1)
    check_conv(run(kernels.conv2d), x, w, normal(4, dtype=dtype, seed=2), stride=2, padding=1, relu=True)


def _depthwise(run: Any, dtype: Any) -> None:
    check_depthwise(
        run(kernels.depthwise_conv_pool), normal(7, 6, 3, dtype=dtype), normal(3, 3, 3, dtype=dtype)
    )


def _cross_entropy(run: Any, dtype: Any) -> None:
    labels = np.array([0, 32, 7, -1, 33, 1, 2, 3, 4], np.int32)
    check_cross_entropy(run(kernels.sparse_cross_entropy), normal(9, 33, dtype=dtype), labels)


def ties(dtype: Any) -> np.ndarray:
    """Rows with NaN of both signs, infinities, zeros of both signs and equals."""
    x = normal(5, 33, dtype=dtype)
    x[0, 3:9] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0]
    x[1] = np.round(x[1] * 2)
    return x


def _sort(run: Any, dtype: Any) -> None:
    for descending in (False, True):
        check_sort(run(kernels.sort), ties(dtype), descending)


def _top_k(run: Any, dtype: Any) -> None:
    for largest in (True, False):
        check_top_k(run(kernels.top_k), ties(dtype), 3, largest)
    check_top_k(run(kernels.top_k), ties(dtype), 20)


KERNELS: dict[str, Check] = {
    **{name: _matrix(name) for name in CASES},
    "structured_sum": _structured,
    "manual_gemm": _manual,
    "softmax_norms": _norms,
    "flash_attention": _attention,
    "conv2d": _conv2d,
    "depthwise_conv_pool": _depthwise,
    "sobel_median": lambda run, dtype: check_sobel(run(kernels.sobel_median), normal(9, 10, dtype=dtype)),
    "sparse_cross_entropy": _cross_entropy,
    "row_statistics": lambda run, dtype: check_statistics(
        run(kernels.row_statistics), *losses(9, 33, dtype), 0.75, 1e-2
    ),
    "sort": _sort,
    "top_k": _top_k,
    "segment_sum": lambda run, dtype: check_segments(
        run(kernels.segment_sum), ids_of(60, 7), normal(60, 2, dtype=dtype), 6
    ),
}
DTYPES = {np.dtype(d).name: d for d in kernel_cases.FLOATS}
REFUSED = {("METAL", "bfloat16", name) for name in ("gemm", "manual_gemm", "flash_attention", "conv2d")}
"""Platform, dtype and kernel that `UnsupportedError` is raised for."""


def refusals() -> str:
    """The refused pairs, as the documentation has them."""
    names = ", ".join(f"`{name}`" for name in sorted(name for _, _, name in REFUSED))
    return f"Refused for platform `METAL`: bfloat16 in {names}."


def table() -> str:
    """The table of the documentation."""
    rows = ["| kernel | lowered | emulated | run on Apple hardware |", "|---|---|---|---|"]
    for name in sorted(KERNELS):
        half = (
            "f32, f16; bf16 for `mlx` alone" if ("METAL", "bfloat16", name) in REFUSED else "f32, f16, bf16"
        )
        rows.append(f"| `{name}` | {half} | {half} | no |")
    return "\n".join(rows)
