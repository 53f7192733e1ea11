"""Kernels on an NVIDIA GPU through Triton: checked against `jnp`, then timed beside it in the same process.

python -m benchmarks.gpu [--check] [NAME ...]

One compiled program calls a kernel once for each of several argument sets, one call after another, so that
neither a launch from Python nor a warm cache is in the time; it is the median of repeats in which the rivals
take turns, once the clocks are up. GB/s counts every argument and result once. The ceiling is a copy of 1 GiB
or, for products, a bfloat16 product of 8192, measured in the same run. Beside `jnp` stand tilejax's own XLA
backend, and torch where it is installed. The rows are Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .gpu_cases import Case, Shapes, cases

SETS_BYTES = 2**28  # several times the L2 cache
CALLS = 32
"""What a program of a small kernel calls: longer than Python takes for the next one."""
REPEATS, WARM_UP, SPAN = 15, 0.05, 0.01
"""Runs of which the median counts, seconds before the first, seconds that each is to take."""


def set_count(shapes: Shapes) -> int:
    """How many sets of arguments are together more than the cache holds."""
    return max(3, min(8, SETS_BYTES // _bytes(shapes)))


def call_count(shapes: Shapes) -> int:
    """How many calls a program makes, each set of arguments as often as the others."""
    sets = set_count(shapes)
    return sets * max(1, min(CALLS, 4 * SETS_BYTES // _bytes(shapes)) // sets)


def _bytes(shapes: Shapes) -> int:
    return sum(jnp.dtype(dtype).itemsize * math.prod(shape) for shape, dtype in shapes)


def argument_sets(shapes: Shapes) -> list[list[Any]]:
    """Random arguments, several times over."""
    count = set_count(shapes)
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


def program(fn: Callable[..., Any], shapes: Shapes) -> Callable[[list[list[Any]]], list[Any]]:
    """Calls of `fn`, one after another, as one compiled program; the sets of arguments take turns."""

    def all_of(sets: list[list[Any]]) -> list[Any]:
        outs, before = [], jnp.zeros(())
        for _, args in zip(range(call_count(shapes)), itertools.cycle(sets), strict=False):
            args, _ = lax.optimization_barrier((args, before))
            before = fn(*args)
            outs.append(before)
        return outs

    args = [jax.ShapeDtypeStruct(*spec) for spec in shapes]
    return jax.jit(all_of).lower([args] * set_count(shapes)).compile()


Run = tuple[Callable[[], Any], Callable[[Any], Any]]
"""A call, and what waits for what it and calls before it have launched."""


def seconds(runs: Sequence[Run]) -> list[float]:
    """The median time of each call; they take turns."""

    def timed(run: Run, count: int) -> float:
        (call, wait), out = run, None
        begin = time.perf_counter()
        for _ in range(count):
            out = call()  # the results before are given back
        wait(out)
        return (time.perf_counter() - begin) / count

    counts = []
    for run in runs:
        begin, took = time.perf_counter(), timed(run, 1)
        while time.perf_counter() - begin < WARM_UP:
            took = timed(run, 3)
        counts.append(max(1, round(SPAN / took)))
    rounds = [[timed(run, n) for run, n in zip(runs, counts, strict=True)] for _ in range(REPEATS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def run_of(fn: Callable[[list[list[Any]]], list[Any]], sets: list[list[Any]]) -> Run:
    """A `program` at its arguments."""
    return lambda: fn(sets), jax.block_until_ready


def ceilings() -> tuple[float, float]:
    """Bytes a second of a copy of 1 GiB, and operations of a bfloat16 product of 8192."""
    line: Shapes = (((2**28,), "float32"),)
    square: Shapes = (((8192, 8192), "bfloat16"),) * 2
    (copied,) = seconds([run_of(program(lambda x: x + 1, line), argument_sets(line))])
    (multiplied,) = seconds([run_of(program(jnp.matmul, square), argument_sets(square))])
    return 2 * 2**30 * call_count(line) / copied, 2.0 * 8192**3 * call_count(square) / multiplied


def run_of_torch(case: Case, sets: list[list[Any]]) -> list[Run]:
    """The same in PyTorch, replayed as a graph, where it has such a call."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return []
    if case.torch is None:
        return []
    code = compile(case.torch, case.name, "eval")
    moved = [[torch.utils.dlpack.from_dlpack(x) for x in args] for args in sets]

    def all_of() -> list[Any]:
        return [
            eval(code, {"F": torch.nn.functional, **dict(zip("abc", args, strict=False))})
            for _, args in zip(range(call_count(case.shapes)), itertools.cycle(moved), strict=False)
        ]

    all_of()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = all_of()  # a graph writes to what it was captured with

    def wait(_: Any) -> list[Any]:
        torch.cuda.synchronize()
        return outs

    return [(graph.replay, wait)]


def row(case: Case, programs: Sequence[Callable[..., Any]], peak: tuple[float, float] | None) -> str:
    """A row of the table; without ceilings only the comparison."""
    sets = argument_sets(case.shapes)
    ours, rival, *others = programs
    got, want = ours(sets)[0], rival(sets)[0]
    off = error(got, want)
    state = f"{off:.0e}" if off <= case.tolerance else f"WRONG {off:.1e}"
    if peak is None:
        return f"| {case.name} | {state} |"
    size = sum(x.nbytes for x in [*sets[0], *jax.tree.leaves(got)])
    runs = [*(run_of(p, sets) for p in (ours, rival, *others)), *run_of_torch(case, sets)]
    mine, theirs, whole, *torch = (t / call_count(case.shapes) for t in seconds(runs))
    work, unit, most = (case.flops, "TFLOP/s", peak[1]) if case.flops else (size, "GB/s", peak[0])
    rate = work / mine / (1e12 if case.flops else 1e9)
    beside = "".join(f"{t / mine:.2f}" for t in torch)
    return (
        f"| {case.name} | {mine * 1e3:.4f} | {rate:.0f} {unit} | {work / mine / most:.2f} "
        f"| {theirs / mine:.2f} | {whole / mine:.2f} | {beside} | {state} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true", help="compare, do not time")
    options = parser.parse_args()
    chosen = [c for c in cases() if not options.names or any(name in c.name for name in options.names)]
    with ThreadPoolExecutor() as pool:  # all is compiled before anything is timed
        compiling = [
            [pool.submit(program, fn, case.shapes) for fn in case.forms(timed=not options.check)]
            for case in chosen
        ]
    peak = None if options.check else ceilings()
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    if peak is not None:
        print(f"a copy: {peak[0] / 1e9:.0f} GB/s; a bfloat16 product: {peak[1] / 1e12:.0f} TFLOP/s")
        print("| kernel | ms | rate | of the ceiling | jnp / ours | our XLA / ours | torch / ours | error |")
        print("|---|---|---|---|---|---|---|---|")
    for case, programs in zip(chosen, compiling, strict=True):
        try:
            print(row(case, [p.result() for p in programs], peak), flush=True)
        except Exception as failure:
            print(f"| {case.name} | FAILED {type(failure).__name__}: {str(failure)[:200]!r} |", flush=True)


if __name__ == "__main__":
    main()
