"""What is timed on a GPU: kernels at the sizes of the documented targets, beside the best `jnp`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import tilejax as tj
from tilejax import kernels

from . import rivals

Shapes = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Case:
    """A kernel at the shapes and dtypes of its arguments, and the same in `jnp`."""

    name: str
    kernel: Any
    rival: Callable[..., Any]
    shapes: Shapes
    flops: float = 0.0
    tolerance: float = 1e-2
    static: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    torch: str | None = None
    """What `torch` calls it: an expression of its arguments `a`, `b` and of `F`."""

    def forms(self, timed: bool) -> list[Callable[..., Any]]:
        """The kernel through Triton and its rival; where they are timed, the kernel through XLA as well."""
        return [self._call("triton"), self.rival, *([self._call("xla")] if timed else [])]

    def _call(self, backend: str) -> Callable[..., Any]:
        kernel = tj.jit(self.kernel, backend=backend)
        return lambda *args: kernel(*args, *self.static, **self.options)


def argmax(x: tj.TensorView) -> Any:
    """The places of the maxima of rows."""
    out = tj.output(x.shape[:1], jnp.int32)
    row, one, column = tj.axis("row", x.shape[0]), tj.axis("one", 1), tj.axis("column", x.shape[1])

    @tj.parallel(row)
    def _(nest: tj.Nest):
        tile = x[tj.coord(nest.index(), 0), tj.shape(one, column)]
        out(tj.coord(nest.index()), tj.shape(one)).store(tj.argmax(tile, column))

    return out


def linear_gelu(x: tj.TensorView, w: tj.TensorView, bias: tj.TensorView) -> Any:
    """`gelu(x @ w + bias)`: a product with an epilogue."""
    out = tj.output((x.shape[0], w.shape[1]), x.dtype)
    m, n, k = tj.axis("m", 128), tj.axis("n", 256), tj.axis("k", 64)
    rows, columns = tj.axis("rows", x.shape[0] // 128), tj.axis("columns", w.shape[1] // 256)

    @tj.parallel(rows, columns)
    def _(nest: tj.Nest):
        m0, n0 = nest.index(rows) * 128, nest.index(columns) * 256

        @nest.pipeline(tj.axis("steps", x.shape[1] // 64), carry=tj.zeros(tj.shape(m, n), jnp.float32))
        def acc(step, acc):
            k0 = step.index() * 64
            return tj.mma(x[tj.coord(m0, k0), tj.shape(m, k)], w[tj.coord(k0, n0), tj.shape(k, n)], acc)

        y = acc + bias[tj.coord(n0), tj.shape(n)].astype(jnp.float32)
        y = 0.5 * y * (1.0 + tj.tanh(0.7978845608 * (y + 0.044715 * y * y * y)))
        out(tj.coord(m0, n0), tj.shape(m, n)).store(y.astype(out.dtype))

    return out


def by_log_softmax(logits: Any, labels: Any) -> Any:
    """Cross entropy and its gradient as they are mostly written; the gradient of `logsumexp` is faster."""

    def total(logits: Any) -> Any:
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], -1)[:, 0]
        return losses.sum(), losses

    gradient, losses = jax.grad(total, has_aux=True)(logits)
    return losses, gradient


def dense_gelu(x: Any, w: Any, bias: Any) -> Any:
    """The same in `jnp`."""
    product = jnp.matmul(x, w, preferred_element_type=jnp.float32)
    return jax.nn.gelu(product + bias).astype(x.dtype)


def cases() -> Iterator[Case]:
    """What is timed, at the sizes of the documented targets."""
    big = ((8192, 8192), "float32")
    for name, torch in (("copy", "a.clone()"), ("exp", "a.exp()"), ("clamp", "a.clamp(-.5, .5)")):
        rival = (lambda x: x + 0) if name == "copy" else rivals.RIVALS[name]
        yield Case(f"{name} f32 8192x8192", getattr(kernels, name), rival, (big,), torch=torch)
    yield Case("add f32 8192x8192", kernels.add, jnp.add, (big, big), torch="a + b")
    yield Case("saxpy f32 8192x8192", kernels.saxpy, rivals.saxpy, (big, big), torch="a / 0.4 + b")
    yield Case("transpose f32 8192x8192", kernels.transpose, jnp.transpose, (big,), torch="a.T.contiguous()")
    norms = {
        "softmax": "a.softmax(-1)",
        "layernorm": "F.layer_norm(a, a.shape[-1:])",
        "rmsnorm": "F.rms_norm(a, a.shape[-1:])",
        "residual_layernorm": "F.layer_norm(a + b, a.shape[-1:])",
    }
    for short, dtype in (("bf16", "bfloat16"), ("f32", "float32")):
        for n, name in itertools.product((1024, 4096, 8192, 16384), norms):
            shapes = (((8192, n), dtype),) * (2 if name == "residual_layernorm" else 1)
            kernel, rival = getattr(kernels, name), rivals.RIVALS[name]
            yield Case(f"{name} {short} 8192x{n}", kernel, rival, shapes, torch=norms[name])
    rows = ((8192, 4096), "float32")
    for name in (
        *("row_sum", "row_abssum", "row_max", "row_min", "row_absmax"),
        *("cumsum", "cummax", "softmax_norms"),
    ):
        yield Case(
            f"{name} f32 8192x4096", getattr(kernels, name), rivals.RIVALS[name], (rows,), tolerance=1e-5
        )
    places = functools.partial(lax.argmax, axis=1, index_dtype=jnp.int32)
    yield Case("argmax f32 8192x4096", argmax, places, (rows,), tolerance=0.0, torch="a.argmax(-1)")
    yield Case("row_statistics f32 8192x4096", kernels.row_statistics, rivals.row_statistics, (rows,) * 3)
    logits = (((8192, 32000), "float32"), ((8192,), "int32"))
    loss = kernels.sparse_cross_entropy
    yield Case("sparse_cross_entropy 8192x32000", loss, rivals.sparse_cross_entropy, logits)
    yield Case("sparse_cross_entropy 8192x32000, jnp's by log_softmax", loss, by_log_softmax, logits)
    for m, n, k in ((1024,) * 3, (2048,) * 3, (4096,) * 3, (4097, 4001, 1023)):
        shapes = (((m, k), "bfloat16"), ((k, n), "bfloat16"))
        flops = 2.0 * m * n * k
        yield Case(f"gemm bf16 {m}x{n}x{k}", kernels.gemm, rivals.gemm, shapes, flops, torch="a @ b")
    square = ((4096, 4096), "bfloat16")
    yield Case(
        "manual_gemm bf16 4096x4096x4096", kernels.manual_gemm, rivals.gemm, (square, square), 2.0 * 4096**3
    )
    yield Case(
        "linear_gelu bf16 4096x4096x4096",
        linear_gelu,
        dense_gelu,
        (square, square, ((4096,), "bfloat16")),
        2.0 * 4096**3,
        torch="F.gelu(F.linear(a, b.T, c), approximate='tanh')",
    )
    exact = functools.partial(jnp.matmul, precision="highest")
    for m in (1024, 4096):
        shapes = (((m, m), "float32"),) * 2
        yield Case(f"gemm f32 {m}x{m}x{m}", kernels.gemm, exact, shapes, 2.0 * m**3, 1e-5, torch="a @ b")
    bias = (((8192, 4096), "bfloat16"), ((4096,), "bfloat16"), ((8192, 4096), "bfloat16"))
    yield Case(
        "bias_gelu_residual bf16 8192x4096", kernels.bias_gelu_residual, rivals.bias_gelu_residual, bias
    )
    for d in (64, 128):
        heads = (((4, 16, 4096, d), "bfloat16"),) * 3
        flops = 2.0 * 4 * 16 * 4096 * 4096 * d
        options = {"causal": True}
        yield Case(
            f"flash_attention bf16 causal b4 h16 s4096 d{d}",
            kernels.flash_attention,
            functools.partial(rivals.dot_product_attention, causal=True, implementation="cudnn"),
            heads,
            flops,
            options=options,
            torch="F.scaled_dot_product_attention(a, b, c, is_causal=True)",
        )
    yield Case(
        "sort f32 8192x1024", kernels.sort, rivals.sort, (((8192, 1024), "float32"),), torch="a.sort(-1)"
    )
    scores = (((1024, 32000), "float32"),)
    best = functools.partial(lax.top_k, k=64)
    yield Case("top_k 64 f32 1024x32000", kernels.top_k, best, scores, static=(64,), torch="a.topk(64)")
    nested = (((256, 16, 16, 256), "float32"),)
    total = rivals.RIVALS["structured_sum"]
    yield Case("structured_sum f32 256x16x16x256", kernels.structured_sum, total, nested, tolerance=1e-5)
    image = (((4096, 4096), "float32"),)
    yield Case("sobel_median f32 4096x4096", kernels.sobel_median, rivals.sobel_median, image)
    channels = (((512, 512, 64), "float32"), ((3, 3, 64), "float32"))
    yield Case(
        "depthwise_conv_pool f32 512x512x64",
        kernels.depthwise_conv_pool,
        rivals.depthwise_conv_pool,
        channels,
    )
    for hw, c in ((56, 64), (28, 256)):
        yield Case(
            f"conv2d bf16 64x{hw}x{hw}x{c}",
            kernels.conv2d,
            functools.partial(rivals.conv2d, padding=1),
            (((64, hw, hw, c), "bfloat16"), ((3, 3, c, c), "bfloat16")),
            2.0 * 64 * hw * hw * c * c * 9,
            options={"padding": 1},
        )
    items = (((10**6,), "int32"), ((10**6,), "float32"))
    rival = functools.partial(rivals.segment_sum, num_segments=1000)
    yield Case("segment_sum f32 1000 of 1e6", kernels.segment_sum, rival, items, static=(1000,))
