"""Kernels on an NVIDIA GPU through Triton: checked against `jnp`, then timed beside it in the same process.

python -m benchmarks.gpu [--check] [NAME ...]

One compiled program calls a kernel once for each of several argument sets, one call after another, so that
neither a launch from Python nor a warm cache is in the time; it is the median of repeats, once the clocks are
up. GB/s counts every argument and result once. The ceiling is a copy of 1 GiB or, for products, a bfloat16
product of 8192, measured in the same run. Beside `jnp` stand tilejax's own XLA backend, and torch where it is
installed. The rows are Markdown.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .gpu_cases import Case, Shapes, cases

SETS_BYTES = 2**28  # several times the L2 cache
REPEATS, WARM_UP, SPAN = 7, 0.1, 0.02
"""Runs of which the median counts, seconds before the first, seconds that each is to take."""


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

    program = jax.jit(all_of).lower(sets).compile()
    return _median(lambda: program(sets), jax.block_until_ready) / len(sets)


def _median(call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
    """Seconds of a call; `wait` waits for what calls before it have launched."""

    def run(count: int) -> float:
        begin, out = time.perf_counter(), None
        for _ in range(count):
            out = call()  # the results before are given back
        wait(out)
        return (time.perf_counter() - begin) / count

    begin, took = time.perf_counter(), run(1)
    while time.perf_counter() - begin < WARM_UP:
        took = run(3)
    count = max(3, round(SPAN / took))
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
    return _median(graph.replay, lambda _: torch.cuda.synchronize()) / len(outs)


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
        print("| kernel | ms | rate | of the ceiling | jnp / ours | our XLA / ours | torch / ours | error |")
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
