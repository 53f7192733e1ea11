"""Kernels on an NVIDIA GPU: checked against `jnp`, then timed beside it in the same process.

python -m benchmarks.gpu [--check] [NAME ...]

Times are medians over several argument sets, each call synchronised; GB/s counts every argument and result
once.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tilejax as tj
from tilejax import kernels

SETS, QUEUED, REPEATS = 3, 5, 10


@dataclass(frozen=True)
class Case:
    name: str
    kernel: Any
    rival: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    options: dict[str, Any]
    flops: float = 0.0
    tolerance: float = 2e-2


def cases() -> list[Case]:
    """What is timed, at the sizes of the documented targets."""
    out = []

    def add(
        name: str,
        kernel: Any,
        rival: Any,
        *shapes: Any,
        flops: float = 0.0,
        tolerance: float = 2e-2,
        **options: Any,
    ) -> None:
        out.append(Case(name, kernel, rival, shapes, options, flops, tolerance))

    big = ((8192, 8192), "float32")
    add("copy f32 8192x8192", kernels.copy, lambda x: x + 0, big)
    add("add f32 8192x8192", kernels.add, jnp.add, big, big)
    add("saxpy f32 8192x8192", kernels.saxpy, lambda x, y: x / 0.4 + y, big, big)
    add("clamp f32 8192x8192", kernels.clamp, lambda x: jnp.clip(x, -0.5, 0.5), big)
    add("exp f32 8192x8192", kernels.exp, jnp.exp, big)
    add("transpose f32 8192x8192", kernels.transpose, jnp.transpose, big)
    for n in (1024, 4096, 8192, 16384):
        x = ((8192, n), "bfloat16")
        add(
            f"softmax bf16 8192x{n}",
            kernels.softmax,
            lambda x: jax.nn.softmax(x.astype(jnp.float32), -1).astype(x.dtype),
            x,
        )
        add(f"layernorm bf16 8192x{n}", kernels.layernorm, _layernorm, x)
        add(f"rmsnorm bf16 8192x{n}", kernels.rmsnorm, _rmsnorm, x)
        add(
            f"residual_layernorm bf16 8192x{n}",
            kernels.residual_layernorm,
            lambda x, r: _layernorm(x.astype(jnp.float32) + r).astype(x.dtype),
            x,
            x,
        )
    add("row_sum f32 8192x4096", kernels.row_sum, lambda x: x.sum(-1), ((8192, 4096), "float32"))
    add(
        "cumsum f32 8192x4096",
        kernels.cumsum,
        lambda x: jnp.cumsum(x, -1),
        ((8192, 4096), "float32"),
        tolerance=1e-3,
    )
    add(
        "sparse_cross_entropy f32 8192x32000",
        kernels.sparse_cross_entropy,
        _cross_entropy,
        ((8192, 32000), "float32"),
        ((8192,), "int32"),
    )
    for m, n, k in ((4096, 4096, 4096), (4097, 4001, 1023)):
        add(
            f"gemm bf16 {m}x{n}x{k}",
            kernels.gemm,
            _matmul,
            ((m, k), "bfloat16"),
            ((k, n), "bfloat16"),
            flops=2.0 * m * n * k,
        )
    add(
        "gemm f32 1024x1024x1024",
        kernels.gemm,
        functools.partial(jnp.matmul, precision="highest"),
        ((1024, 1024), "float32"),
        ((1024, 1024), "float32"),
        flops=2.0**31,
        tolerance=1e-5,
    )
    heads = ((4, 16, 4096, 128), "bfloat16")
    add(
        "flash_attention bf16 causal b4 h16 s4096 d128",
        kernels.flash_attention,
        _attention,
        heads,
        heads,
        heads,
        flops=2.0 * 4 * 16 * 4096 * 4096 * 128,
        causal=True,
    )
    add(
        "sort f32 8192x1024",
        kernels.sort,
        lambda x: (jnp.sort(x, -1), jnp.argsort(x, -1)),
        ((8192, 1024), "float32"),
    )
    add("sobel_median f32 4096x4096", kernels.sobel_median, lambda x: None, ((4096, 4096), "float32"))
    return out


def _matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(a.dtype)


def _layernorm(x: Any) -> Any:
    y = x.astype(jnp.float32)
    y = y - y.mean(-1, keepdims=True)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def _rmsnorm(x: Any) -> Any:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-12)).astype(x.dtype)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    logp = jax.nn.log_softmax(logits, -1)
    picked = jnp.take_along_axis(logp, labels[:, None], -1)[:, 0]
    return -picked, jnp.exp(logp) - jax.nn.one_hot(labels, logits.shape[-1])


def _attention(q: Any, k: Any, v: Any) -> Any:
    """cuDNN's, which takes (batch, seq, heads, dim)."""
    swap = functools.partial(jnp.swapaxes, axis1=1, axis2=2)
    return swap(
        jax.nn.dot_product_attention(swap(q), swap(k), swap(v), is_causal=True, implementation="cudnn")
    )


def arguments(case: Case, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    out = []
    for shape, dtype in case.shapes:
        if dtype == "int32":
            out.append(jnp.asarray(rng.integers(0, 1000, shape), jnp.int32))
        else:
            out.append(jax.random.normal(jax.random.key(int(rng.integers(2**31))), shape, dtype))
    return [jax.block_until_ready(x) for x in out]


def error(got: Any, want: Any) -> float:
    """The greatest relative error in norm over the results."""
    worst = 0.0
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = g.astype(jnp.float32), w.astype(jnp.float32)
        worst = max(worst, float(jnp.linalg.norm((g - w).ravel()) / (jnp.linalg.norm(w.ravel()) + 1e-30)))
        if bool(jnp.isnan(g).any()) != bool(jnp.isnan(w).any()):
            return float("nan")
    return worst


def seconds(fn: Callable[..., Any], sets: list[list[Any]]) -> float:
    """The median time of a call: some are queued together, so that launching is not what is timed."""
    jax.block_until_ready(fn(*sets[0]))
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(QUEUED):
            outs = [fn(*args) for args in sets]
        jax.block_until_ready(outs)
        times.append((time.perf_counter() - begin) / (QUEUED * len(sets)))
    return statistics.median(times)


def report(case: Case, check_only: bool) -> str:
    sets = [arguments(case, seed) for seed in range(1 if check_only else SETS)]
    fn = functools.partial(tj.jit(case.kernel, backend="triton"), **case.options)
    rival = jax.jit(case.rival)
    got, want = fn(*sets[0]), rival(*sets[0])
    wrong = error(got, want) if want is not None else 0.0
    state = "ok" if wrong <= case.tolerance else "WRONG"
    if check_only:
        return f"{case.name:45s} {state} {wrong:.1e}"
    size = sum(x.nbytes for x in [*sets[0], *jax.tree.leaves(got)])
    mine = seconds(fn, sets)
    theirs = seconds(rival, sets) if want is not None else float("nan")
    rate = f"{case.flops / mine / 1e12:6.0f} TFLOP/s" if case.flops else f"{size / mine / 1e9:6.0f} GB/s"
    return f"{case.name:45s} {state} {wrong:.1e} {mine * 1e3:8.3f} ms {rate:>14s} {theirs / mine:6.2f}x jnp"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true", help="compare, do not time")
    options = parser.parse_args()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    for case in cases():
        if options.names and not any(name in case.name for name in options.names):
            continue
        try:
            print(report(case, options.check), flush=True)
        except Exception as failure:
            print(f"{case.name:45s} FAILED {type(failure).__name__}: {str(failure)[:300]}", flush=True)


if __name__ == "__main__":
    main()
