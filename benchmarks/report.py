"""What was measured, as Markdown, JSON and a picture. Tables hold ratios: times say more of a machine."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax

import tilejax as tj

from . import ceilings
from .cases import SIZES
from .run import Result


def machine() -> str:
    """The machine in words: what a ratio depends on."""
    names = [
        line.split(":")[1].strip()
        for line in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "").splitlines()
        if line.startswith("model name")
    ]
    cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, {ceilings.cores()} cores; Python {platform.python_version()}, jax {jax.__version__}"


def line(result: Result) -> str:
    """One result for the terminal: times in milliseconds, tilejax's first."""

    def both(ours: float, theirs: float) -> str:
        return f"{ours * 1e3:.4g}|{theirs * 1e3:.4g}"

    a, b = result.stages["tilejax"], result.stages["rival"]
    parts = [
        f"{label(result)}/{_shape(result)}/{result.dtype}".ljust(48),
        f"{result.ratio.median:7.2f}x{'=' if result.same else ' '}",
        f"warm {both(result.warm['tilejax'].median, result.warm['rival'].median)}",
        f"trace {both(a.trace, b.trace)}",
        f"lower {both(a.lower, b.lower)}",
        f"compile {both(a.compile, b.compile)}",
        f"cold {both(a.cold, b.cold)}",
    ]
    return "  ".join(parts)


def label(result: Result) -> str:
    """The kernel, and its rival unless that is plain jnp."""
    return result.kernel if result.rival == "jnp" else f"{result.kernel} : {result.rival}"


def _shape(result: Result) -> str:
    return "x".join(map(str, result.shape))


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(results: Sequence[Result]) -> str:
    """A row a kernel: jnp time / tilejax time by size in f32, and the geometric mean of other dtypes."""
    others = sorted({r.dtype for r in results} - {"float32"})
    rows = [["kernel", *SIZES, *others, "worst"]]
    for kernel in dict.fromkeys(map(label, results)):
        mine = [r for r in results if label(r) == kernel]
        f32 = [mean(r.ratio.median for r in mine if r.dtype == "float32" and r.size == s) for s in SIZES]
        rest = [mean(r.ratio.median for r in mine if r.dtype == d) for d in others]
        rows.append([f"`{kernel}`", *map(_ratio, [*f32, *rest, min(r.ratio.median for r in mine)])])
    return _table(rows)


def details(results: Sequence[Result]) -> str:
    """A row a case: the ratios of a warm call and of each stage of the first one."""
    torch = any("torch" in r.warm for r in results)
    head = [
        "kernel",
        "shape",
        "dtype",
        "warm",
        "quartiles",
        "trace + lower",
        "compile",
        "cold",
        "of ceiling",
        "code",
    ]
    rows = [head + ["torch"] * torch]
    for r in results:
        a, b = r.stages["tilejax"], r.stages["rival"]
        stages = ((b.trace + b.lower) / (a.trace + a.lower), b.compile / a.compile, b.cold / a.cold)
        row = [f"`{label(r)}`", _shape(r), r.dtype, _ratio(r.ratio.median)]
        row += [
            f"{_ratio(r.ratio.low)} to {_ratio(r.ratio.high)}",
            *map(_ratio, stages),
            f"{r.ceiling:.0%}",
            "same" * r.same,
        ]
        if torch:
            row.append(_ratio(r.warm["torch"].median / r.warm["tilejax"].median) if "torch" in r.warm else "")
        rows.append(row)
    return _table(rows)


def markdown(results: Sequence[Result], calls: dict[str, float], command: str) -> str:
    """The whole report."""
    table = _table([["warm call", "jax.jit / tj.jit"], *([k, f"{v:.2f}"] for k, v in calls.items())])
    seconds = {}
    for kernel in {r.kernel for r in results}:
        stages = [r.stages["tilejax"] for r in results if r.kernel == kernel]
        seconds[kernel] = statistics.median(s.trace + s.lower for s in stages)
    slowest = max(seconds, key=lambda kernel: seconds[kernel])
    return "\n\n".join(
        [
            f"`{command}` on {machine()}, tilejax {tj.__version__}. Numbers are jnp time / tilejax time: "
            "higher is better.",
            summary(results),
            table,
            f"Slowest to trace and lower, by the median of its cases: `{slowest}`, {seconds[slowest]:.2f} s.",
            details(results) + "\n",
        ]
    )


def _ratio(value: float) -> str:
    """Two significant digits at least, none of them after the point from ten on."""
    if math.isnan(value):
        return ""
    return f"{value:.2g}" if value < 0.0995 else f"{value:.2f}" if value < 9.995 else f"{value:.0f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body])


def as_json(results: Sequence[Result], calls: dict[str, float], command: str) -> str:
    """Everything, times in seconds."""
    dtypes = sorted({r.dtype for r in results})
    report: dict[str, Any] = {
        "command": command,
        "machine": machine(),
        "tilejax": tj.__version__,
        "bytes_per_second": ceilings.bandwidth(),
        "operations_per_second": {dtype: ceilings.arithmetic(dtype) for dtype in dtypes},
        "dispatch": calls,
        "results": [dataclasses.asdict(r) for r in results],
    }
    return json.dumps(report, indent=1)


def png(results: Sequence[Result], path: str) -> None:
    """A picture of the float32 ratios, or of the others if there are none: a row a kernel, a dot a case.

    Raises `ModuleNotFoundError` without matplotlib, which the extra `bench` installs.
    """
    from matplotlib.figure import Figure

    shown = [r for r in results if r.dtype == "float32"] or list(results)
    kernels = list(dict.fromkeys(map(label, shown)))
    figure = Figure(figsize=(8, 1.2 + 0.25 * len(kernels)), layout="constrained")
    axes = figure.subplots()
    for size, color in zip(SIZES, ("#8ecae6", "#219ebc", "#023047", "#fb8500"), strict=True):
        mine = [r for r in shown if r.size == size]
        where = [kernels.index(label(r)) for r in mine]
        axes.scatter([r.ratio.median for r in mine], where, s=24, color=color, label=size, zorder=3)
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.25, 0.5, 1, 2, 4, 10, 50], ["0.1", "1/4", "1/2", "1", "2", "4", "10", "50"])
    axes.minorticks_off()
    axes.set_yticks(range(len(kernels)), kernels)
    axes.invert_yaxis()
    axes.grid(axis="x", color="#dddddd")
    axes.set_xlabel(f"jnp time / tilejax time, {shown[0].dtype}: right is better")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
