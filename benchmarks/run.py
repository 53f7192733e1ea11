"""Times a case: kernel and rival compiled in one process, compared, then called in turn."""

from __future__ import annotations

import functools
import gc
import hashlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import ceilings, rivals_torch
from .cases import Case

MOST_ROUNDS, FEWEST_ROUNDS = 101, 5
SAMPLE = 1e-3
"""The least seconds of a sample; shorter calls are repeated within one."""


@dataclass(frozen=True)
class Spread:
    """The median of some samples and the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        return cls(*map(float, np.quantile(samples, (0.25, 0.5, 0.75))))


@dataclass(frozen=True)
class Stages:
    """What the first call of a function did, in seconds, and the bytes of its temporaries."""

    trace: float
    lower: float
    compile: float
    run: float
    temporaries: int
    code: str
    """A digest of the compiled module, names left out."""

    @property
    def cold(self) -> float:
        return self.trace + self.lower + self.compile + self.run


@dataclass(frozen=True)
class Result:
    """A case as measured against one rival. `warm` is seconds a call: `tilejax`, `rival`, perhaps `torch`."""

    kernel: str
    rival: str
    size: str
    shape: tuple[int, ...]
    dtype: str
    stages: dict[str, Stages]
    """Of `tilejax` and `rival`."""
    warm: dict[str, Spread]
    ratio: Spread
    """Time of the rival / time of tilejax: that of the medians, and the quartiles over the pairs."""
    same: bool
    """Whether XLA made the same module of both, so that the ratio is 1 and the rest of it noise."""
    ceiling: float
    """How much of the machine's measured copy bandwidth, or operations a second, the kernel reaches."""


def measure(case: Case, seconds: float, torch: Any = None) -> Iterator[Result]:
    """Compiles all, raises `AssertionError` if their results differ, and times about `seconds` of calls."""
    args = case.args()
    arrays = [jnp.asarray(x) for x in args]
    functions = {"tilejax": case.ours}
    for name, rival in case.rivals.items():
        # A function of its own, so that JAX has not traced it before.
        fresh = functools.partial(rival)
        functions[name] = jax.jit(fresh, static_argnames=tuple(case.options))
    stages, got = {}, []
    for name, function in functions.items():
        stages[name], out = _stages(function, arrays, case.options)
        got = got or out
        agree(case, got, out)
        del out
    work = case.flops or sum(x.nbytes for x in (*arrays, *got))
    best = ceilings.bandwidth() if case.flops is None else ceilings.arithmetic(case.dtype)
    samples = alternate(
        {
            name: lambda function=function: jax.block_until_ready(function(*arrays, **case.options))
            for name, function in functions.items()
        },
        seconds,
    )
    warm = {name: Spread.of(times) for name, times in samples.items()}
    torches = {}
    if torch is not None:
        # Apart, and last: its threads spin for a while after each call.
        function = rivals_torch.rivals(torch)[case.kernel]
        tensors = [rivals_torch.tensor(torch, x) for x in args]
        agree(case, got, rivals_torch.array(torch, function(*tensors, **case.options)), values_only=True)
        call = {"torch": lambda: function(*tensors, **case.options)}
        torches = {"torch": Spread.of(alternate(call, seconds / 2)["torch"])}
    for name in case.rivals:
        pairs = Spread.of(np.divide(samples[name], samples["tilejax"]).tolist())
        median = warm[name].median / warm["tilejax"].median
        yield Result(
            kernel=case.kernel,
            rival=name,
            size=case.size,
            shape=case.shape,
            dtype=case.dtype,
            stages={"tilejax": stages["tilejax"], "rival": stages[name]},
            warm={"tilejax": warm["tilejax"], "rival": warm[name], **torches},
            ratio=Spread(min(pairs.low, median), median, max(pairs.high, median)),
            same=stages[name].code == stages["tilejax"].code,
            ceiling=work / warm["tilejax"].median / best,
        )


def _stages(fn: Any, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Stages, list[Any]]:
    """Each stage of a first call, timed, and the leaves of its result."""
    times = [time.perf_counter()]
    traced = fn.trace(*arrays, **options)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    compiled = lowered.compile()
    times.append(time.perf_counter())
    out = jax.block_until_ready(fn(*arrays, **options))
    times.append(time.perf_counter())
    code = hashlib.sha256(nameless(compiled.as_text()).encode()).hexdigest()
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    trace, lower, compile, run = np.diff(times).tolist()
    return Stages(trace, lower, compile, run, temporaries, code), jax.tree.leaves(out)


def nameless(module: str) -> str:
    """The instructions of a compiled module, named in order, without what says where they come from."""
    lines = [line for line in module.splitlines() if re.match(r"ENTRY|%|  (ROOT )?%", line)]
    text = re.sub(r", (metadata|origin)=\{[^}]*\}", "", "\n".join(lines))
    names: dict[str, str] = {}
    text = re.sub(r"(?<=[( ])([\w.-]+)(?=: \w+\[)", r"%\1", text)  # parameters in a signature
    text = re.sub(r"%[\w.-]+", lambda m: names.setdefault(m[0], f"%{len(names)}"), text)
    return re.sub(r", operand_precision=\{[^}]*\}", "", text)  # which the CPU does not read


def agree(case: Case, got: Sequence[Any], want: Sequence[Any], *, values_only: bool = False) -> None:
    """`AssertionError` unless both have the same shapes, dtypes, integers, and floats up to rounding.

    `values_only` compares neither the dtypes nor the integers, which among equal values are free in torch.
    """
    assert len(got) == len(want), f"{case.name}: {len(got)} results, its rival has {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{case.name}, result {i}"
        assert g.shape == w.shape, f"{where}: shape {g.shape}, its rival {w.shape}"
        if values_only and not jnp.issubdtype(g.dtype, jnp.floating):
            continue
        assert values_only or g.dtype == w.dtype, f"{where}: {g.dtype}, its rival {w.dtype}"
        exact = not jnp.issubdtype(g.dtype, jnp.floating)
        tolerance = 0.0 if exact else max(4 * float(jnp.finfo(g.dtype).eps), 3e-4)
        a, b = (np.asarray(x).astype(np.float64) for x in (g, w))
        scale = np.abs(b).max(initial=0.0)
        off = np.abs(a - b).max(initial=0.0)
        assert off <= tolerance * scale, f"{where}: off by {off} of at most {scale}"


def alternate(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Seconds a warm call, sampled in turn, so that what else the machine does falls on all alike."""
    repeats = {}
    for name, call in calls.items():
        call()
        once = _time(call, 1)
        repeats[name] = max(1, round(SAMPLE / max(_time(call, 1 if once > SAMPLE else 10), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    start = time.perf_counter()
    gc.disable()
    try:
        for done in range(MOST_ROUNDS):
            if done >= FEWEST_ROUNDS and time.perf_counter() - start > seconds:
                break
            for name in order:
                calls[name]()  # warm again: the call before was another function's
                samples[name].append(_time(calls[name], repeats[name]))
            order.reverse()  # each comes after the other as often
    finally:
        gc.enable()
    return samples


def _time(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
