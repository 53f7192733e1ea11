"""What is timed: every documented kernel at small, cache-sized, large and ragged shapes, in each dtype."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from tilejax import kernels

from .rivals import RIVALS, attention, dot_product_attention

Shape = tuple[int, ...]
SIZES = ("small", "cache", "large", "ragged")
"""Dispatch counts; the arrays stay in cache; they do not; nothing divides by anything."""
DTYPES = ("float32", "bfloat16", "int8")


@dataclass(frozen=True)
class Case:
    """A kernel at one shape and dtype, with its rivals."""

    kernel: str
    rivals: dict[str, Callable[..., Any]] = field(repr=False)
    """By name: `jnp`, and where the library has a function for it, `jax.nn`."""
    size: str
    shape: Shape
    dtype: str
    make: Callable[..., tuple[np.ndarray, ...]] = field(repr=False)
    options: dict[str, Any]
    """Static keywords of both."""
    flops: float | None
    """Those that the result takes, where arithmetic and not memory is the limit."""

    @property
    def name(self) -> str:
        return f"{self.kernel}/{'x'.join(map(str, self.shape))}/{self.dtype}"

    @property
    def ours(self) -> Any:
        return getattr(kernels, self.kernel)

    def args(self) -> tuple[np.ndarray, ...]:
        """The same numbers each time."""
        return self.make(np.random.default_rng(0), self.shape, jnp.dtype(self.dtype))


@dataclass(frozen=True)
class _Kernel:
    """How the cases of a kernel are made. `shapes` has one or more for each size."""

    name: str
    make: Callable[..., tuple[np.ndarray, ...]]
    shapes: Sequence[tuple[str, Shape]]
    options: Callable[[Shape], dict[str, Any]] = lambda shape: {}
    flops: Callable[[Shape], float] | None = None
    dtypes: tuple[str, ...] = DTYPES[:2]
    rivals: dict[str, Callable[..., Any]] | None = None


def _normals(*shapes: Callable[[Shape], Shape]) -> Callable[..., tuple[np.ndarray, ...]]:
    """Arrays of normal numbers (small integers for int8) whose shapes follow from the case's."""

    def make(rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[np.ndarray, ...]:
        return tuple(_normal(rng, of(shape), dtype) for of in shapes)

    return make


def _normal(rng: np.random.Generator, shape: Shape, dtype: Any) -> np.ndarray:
    if dtype == np.int8:
        return rng.integers(-100, 100, shape, np.int8)
    return rng.standard_normal(shape, np.float32).astype(dtype)


def _same(shape: Shape) -> Shape:
    return shape


def _statistics(rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[np.ndarray, ...]:
    x, target = (_normal(rng, shape, dtype) for _ in range(2))
    return x, target, rng.random(shape, np.float32).astype(dtype)


def _labelled(rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[np.ndarray, ...]:
    return _normal(rng, shape, dtype), rng.integers(0, shape[1], shape[0], np.int32)


def _segments(rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[np.ndarray, ...]:
    items, features, segments = shape
    return rng.integers(0, segments, items, np.int32), _normal(rng, (items, features), dtype)


def _image_and_filter(rng: np.random.Generator, shape: Shape, dtype: Any) -> tuple[np.ndarray, ...]:
    """`shape` is that of the image and the number of output channels; filters are 3x3."""
    *image, channels, outputs = shape
    return _normal(rng, (*image, channels), dtype), _normal(rng, (3, 3, channels, outputs), dtype)


def _product_flops(shape: Shape) -> float:
    return 2 * math.prod(shape)


def _conv_flops(shape: Shape) -> float:
    return 2 * 9 * math.prod(shape)


_MATRICES = [("small", (64, 128)), ("cache", (512, 1024)), ("large", (4096, 4096)), ("ragged", (1013, 1237))]
_UNARY, _BINARY = _normals(_same), _normals(_same, _same)
_PRODUCT = _normals(lambda s: (s[0], s[2]), lambda s: (s[2], s[1]))
_ATTENTION = [
    ("small", (1, 8, 256, 64)),
    ("cache", (1, 8, 1024, 64)),
    ("large", (1, 8, 2048, 64)),
    ("large", (1, 8, 4096, 64)),
    ("ragged", (1, 7, 1021, 48)),
]
_GEMM = [
    ("small", (64, 64, 64)),
    ("cache", (512, 512, 512)),
    ("cache", (1024, 1024, 1024)),
    ("large", (2048, 2048, 2048)),
    ("ragged", (1021, 509, 757)),
]

_KERNELS = [
    *(_Kernel(name, _UNARY, _MATRICES) for name in ("copy", "exp", "clamp")),
    *(_Kernel(name, _BINARY, _MATRICES) for name in ("add", "saxpy")),
    _Kernel("bias_gelu_residual", _normals(_same, lambda shape: shape[1:], _same), _MATRICES),
    _Kernel("transpose", _UNARY, _MATRICES),
    *(
        _Kernel(name, _UNARY, _MATRICES)
        for name in ("row_sum", "row_max", "row_min", "row_abssum", "row_absmax")
    ),
    _Kernel("row_statistics", _statistics, _MATRICES),
    *(_Kernel(name, _UNARY, _MATRICES) for name in ("softmax", "layernorm", "rmsnorm", "softmax_norms")),
    _Kernel("residual_layernorm", _BINARY, _MATRICES),
    _Kernel(
        "sparse_cross_entropy",
        _labelled,
        [("small", (32, 100)), ("cache", (128, 4096)), ("large", (256, 32768)), ("ragged", (101, 5003))],
    ),
    *(
        _Kernel(
            name,
            _UNARY,
            [
                ("small", (64, 128)),
                ("cache", (256, 4096)),
                ("large", (1, 2**20)),
                ("large", (4096, 4096)),
                ("ragged", (1013, 1237)),
            ],
        )
        for name in ("cumsum", "cummax")
    ),
    _Kernel("gemm", _PRODUCT, _GEMM, flops=_product_flops, dtypes=DTYPES),
    _Kernel("manual_gemm", _PRODUCT, _GEMM, flops=_product_flops),
    _Kernel(
        "flash_attention",
        _normals(_same, _same, _same),
        _ATTENTION,
        options=lambda shape: {"causal": True},
        flops=lambda s: 2 * s[0] * s[1] * s[2] * s[2] * s[3],  # two products of one half of the scores
        rivals={"jnp": attention, "jax.nn": dot_product_attention},
    ),
    _Kernel(
        "conv2d",
        _image_and_filter,
        [
            ("small", (1, 16, 16, 16, 16)),
            ("cache", (1, 56, 56, 64, 64)),
            ("large", (16, 56, 56, 64, 64)),
            ("ragged", (3, 37, 53, 19, 29)),
        ],
        options=lambda shape: {"padding": 1, "relu": True},
        flops=_conv_flops,
    ),
    _Kernel(
        "depthwise_conv_pool",
        _normals(_same, lambda shape: (3, 3, shape[2])),
        [
            ("small", (16, 16, 16)),
            ("cache", (56, 56, 128)),
            ("large", (224, 224, 128)),
            ("ragged", (61, 83, 37)),
        ],
    ),
    _Kernel(
        "sobel_median",
        _UNARY,
        [("small", (64, 64)), ("cache", (512, 512)), ("large", (2048, 2048)), ("ragged", (509, 757))],
    ),
    _Kernel(
        "sort",
        _UNARY,
        [("small", (16, 64)), ("cache", (256, 1024)), ("large", (1024, 4096)), ("ragged", (253, 1237))],
    ),
    _Kernel(
        "top_k",
        _UNARY,
        [("small", (64, 128)), ("cache", (512, 1024)), ("large", (4096, 1024)), ("ragged", (1013, 1237))],
        options=lambda shape: {"k": 8},
    ),
    _Kernel(
        "segment_sum",
        _segments,
        [
            ("small", (1000, 1, 16)),
            ("cache", (2**16, 4, 64)),
            ("large", (2**20, 4, 64)),
            ("ragged", (10007, 3, 37)),
        ],
        options=lambda shape: {"num_segments": shape[2]},
    ),
    _Kernel(
        "structured_sum",
        _UNARY,
        [
            ("small", (4, 2, 2, 64)),
            ("cache", (64, 8, 8, 128)),
            ("large", (256, 16, 16, 256)),
            ("ragged", (37, 3, 5, 701)),
        ],
    ),
]


def cases(patterns: Sequence[str] = (), dtypes: Sequence[str] = DTYPES) -> Iterator[Case]:
    """All cases, or those that match a pattern: a kernel (`row_*`), or a whole name (`*/4096x4096/*`)."""
    for kernel in _KERNELS:
        rivals = kernel.rivals or {"jnp": RIVALS[kernel.name]}
        for dtype in (d for d in kernel.dtypes if d in dtypes):
            for size, shape in kernel.shapes:
                options = kernel.options(shape)
                flops = kernel.flops(shape) if kernel.flops else None
                case = Case(kernel.name, rivals, size, shape, dtype, kernel.make, options, flops)
                names = (case.kernel, case.name)
                if not patterns or any(fnmatch.fnmatch(name, p) for p in patterns for name in names):
                    yield case
