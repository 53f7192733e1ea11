"""Kernels on an NVIDIA GPU through Triton: checked against `jnp`, then timed beside it in the same process.

python -m benchmarks.gpu [--check] [NAME ...]

One compiled program calls a kernel once for each of several argument sets, one call after another, so neither
a launch from Python nor a warm cache is in the time; it is the median of repeats, once the clocks are up. GB/s
counts every argument and result once. The ceiling is a copy of 1 GiB or, for products, a bfloat16 product of
8192, measured in the same run. Beside `jnp` stand tilejax's own XLA backend, and torch where it is installed.
The rows are Markdown.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import tilejax as tj
from tilejax import kernels

from . import rivals

SETS_BYTES = 2**28  # several times the L2 cache
REPEATS, WARM_UP, SPAN = 7, 0.1, 0.02
"""Runs of which the median counts, seconds before the first, seconds that each is to take."""
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

    def call(self, backend: str) -> Callable[..., Any]:
        kernel = tj.jit(self.kernel, backend=backend)
        return lambda *args: kernel(*args, *self.static, **self.options)


def cases() -> Iterator[Case]:
    """What is timed, at the sizes of the documented targets."""
    big = ((8192, 8192), "float32")
    for name, torch in (("copy", "a.clone()"), ("exp", "a.exp()"), ("clamp", "a.clamp(-.5, .5)")):
        rival = (lambda x: x + 0) if name == "copy" else rivals.RIVALS[name]
        yield Case(f"{name} f32 8192x8192", getattr(kernels, name), rival, (big,), torch=torch)
    yield Case("add f32 8192x8192", kernels.add, jnp.add, (big, big), torch="a + b")
    yield Case("saxpy f32 8192x8192", kernels.saxpy, rivals.saxpy, (big, big), torch="a / 0.4 + b")
    yield Case("transpose f32 8192x8192", kernels.transpose, jnp.transpose, (big,), torch="a.T.contiguous()")
    for n in (1024, 4096, 8192, 16384):
        for name, torch in (
            ("softmax", "a.softmax(-1)"),
            ("layernorm", "F.layer_norm(a, a.shape[-1:])"),
            ("rmsnorm", "F.rms_norm(a, a.shape[-1:])"),
            ("residual_layernorm", "F.layer_norm(a + b, a.shape[-1:])"),
        ):
            x = ((8192, n), "bfloat16")
            shapes = (x, x) if name == "residual_layernorm" else (x,)
            rival = rivals.RIVALS[name]
            yield Case(f"{name} bf16 8192x{n}", getattr(kernels, name), rival, shapes, torch=torch)
    rows = ((8192, 4096), "float32")
    for name in ("row_sum", "row_max", "cumsum"):
        yield Case(
            f"{name} f32 8192x4096", getattr(kernels, name), rivals.RIVALS[name], (rows,), tolerance=1e-5
        )
    yield Case("row_statistics f32 8192x4096", kernels.row_statistics, rivals.row_statistics, (rows,) * 3)
    logits = (((8192, 32000), "float32"), ((8192,), "int32"))
    yield Case(
        "sparse_cross_entropy 8192x32000", kernels.sparse_cross_entropy, rivals.sparse_cross_entropy, logits
    )
    for m, n, k in ((1024,) * 3, (2048,) * 3, (4096,) * 3, (4097, 4001, 1023)):
        shapes = (((m, k), "bfloat16"), ((k, n), "bfloat16"))
        flops = 2.0 * m * n * k
        yield Case(f"gemm bf16 {m}x{n}x{k}", kernels.gemm, rivals.gemm, shapes, flops, torch="a @ b")
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


def argument_sets(shapes: Shapes, least: int = 3) -> list[list[Any]]:
    """Random arguments, several times over, so that together they are more than the cache holds."""
    size = sum(jnp.dtype(dtype).itemsize * functools.reduce(int.__mul__, shape) for shape, dtype in shapes)
    count = max(least, min(8, SETS_BYTES // size))
    keys = iter(jax.random.split(jax.random.key(0), count * len(shapes)))
    return jax.block_until_ready([[_argument(next(keys), *spec) for spec in shapes] for _ in range(count)])


def _argument(key: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "int32":
        return jax.random.randint(key, shape, 0, 1000, jnp.int32)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def error(got: Any, want: Any) -> float:
    """The greatest relative error in norm over the results; NaN never passes."""
    worst = 0.0
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = g.astype(jnp.float32).ravel(), w.astype(jnp.float32).ravel()
        off = float(jnp.linalg.norm(g - w) / (jnp.linalg.norm(w) + 1e-30))
        worst = off if off != off else max(worst, off)
    return worst


def seconds(fn: Callable[..., Any], sets: list[list[Any]]) -> float:
    """The median time of a call, in a program of one after another."""

    def all_of(sets: list[list[Any]]) -> list[Any]:
        outs, before = [], jnp.zeros(())
        for args in sets:
            args, _ = lax.optimization_barrier((args, before))
            before = fn(*args)
            outs.append(before)
        return outs

    return _median(jax.jit(all_of).lower(sets).compile(), sets)


def _median(program: Callable[..., Any], sets: list[list[Any]]) -> float:
    def run(count: int) -> float:
        """Seconds for each set. Results are given back while the next ones are computed."""
        begin, out = time.perf_counter(), None
        for _ in range(count):
            out = program(sets)
        jax.block_until_ready(out)
        return (time.perf_counter() - begin) / (count * len(sets))

    begin, took = time.perf_counter(), run(1)
    while time.perf_counter() - begin < WARM_UP:
        took = run(3)
    count = max(3, round(SPAN / (took * len(sets))))
    return statistics.median(run(count) for _ in range(REPEATS))


def ceilings() -> tuple[float, float]:
    """Bytes a second of a copy of 1 GiB, and operations of a bfloat16 product of 8192."""
    copied = seconds(lambda x: x + 1, argument_sets((((2**28,), "float32"),)))
    square = ((8192, 8192), "bfloat16")
    multiplied = seconds(jnp.matmul, argument_sets((square, square)))
    return 2 * 2**30 / copied, 2.0 * 8192**3 / multiplied


def torch_seconds(case: Case, sets: list[list[Any]]) -> float | None:
    """The same in PyTorch, replayed as a graph; None where it has no such call."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    if case.torch is None:
        return None
    code = compile(case.torch, case.name, "eval")
    moved = [[torch.utils.dlpack.from_dlpack(x) for x in args] for args in sets]

    def all_of() -> list[Any]:
        return [
            eval(code, {"F": torch.nn.functional, **dict(zip("abc", args, strict=False))}) for args in moved
        ]

    all_of()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = all_of()  # a graph writes to what it was captured with
    return _median(lambda _: (graph.replay(), torch.cuda.synchronize()) and None, sets, outs)


def row(case: Case, peak: tuple[float, float] | None) -> str:
    """A row of the table; without ceilings only the comparison."""
    sets = argument_sets(case.shapes, 1 if peak is None else 3)
    fn = case.call("triton")
    got, want = fn(*sets[0]), case.rival(*sets[0])
    off = error(got, want)
    state = f"{off:.0e}" if off <= case.tolerance else f"WRONG {off:.1e}"
    if peak is None:
        return f"| {case.name} | {state} |"
    size = sum(x.nbytes for x in [*sets[0], *jax.tree.leaves(got)])
    mine, theirs, torch = seconds(fn, sets), seconds(case.rival, sets), torch_seconds(case, sets)
    whole = seconds(case.call("xla"), sets)
    work, unit, most = (case.flops, "TFLOP/s", peak[1]) if case.flops else (size, "GB/s", peak[0])
    rate = work / mine / (1e12 if case.flops else 1e9)
    beside = "" if torch is None else f"{torch / mine:.2f}"
    return (
        f"| {case.name} | {mine * 1e3:.3f} | {rate:.0f} {unit} | {work / mine / most:.2f} "
        f"| {theirs / mine:.2f} | {whole / mine:.2f} | {beside} | {state} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true", help="compare, do not time")
    options = parser.parse_args()
    peak = None if options.check else ceilings()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    if peak is not None:
        print(f"a copy: {peak[0] / 1e9:.0f} GB/s; a bfloat16 product: {peak[1] / 1e12:.0f} TFLOP/s")
        print("| kernel | ms | rate | of the ceiling | jnp / Triton | own XLA / Triton | torch / Triton | error |")
        print("|---|---|---|---|---|---|---|---|")
    for case in cases():
        if options.names and not any(name in case.name for name in options.names):
            continue
        try:
            print(row(case, peak), flush=True)
        except Exception as failure:
            print(f"| {case.name} | FAILED {type(failure).__name__}: {str(failure)[:200]!r} |", flush=True)


if __name__ == "__main__":
    main()
