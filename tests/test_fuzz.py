"""Random kernels: the compiler and the interpreter must give the same bits.

`TILEJAX_FUZZ=1000:3000 pytest tests/test_fuzz.py` runs the kernels of those seeds. The message of a failure
is the source of a kernel that was made as small as it could be while it fails.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import tilejax as tj
from tests.fuzz_kernels import random_kernel
from tests.fuzz_patterns import random_pattern
from tests.fuzz_reduce import reduced
from tests.fuzz_text import Kernel
from tests.helpers import same

SEEDS = os.environ.get("TILEJAX_FUZZ", "")
BUDGETS: list[dict[str, Any]] = [{}, {"temporary_bytes": 2000}, {"temporary_bytes": 1}]
"""For temporaries: a small one cuts the grid into slabs."""

Check = Callable[[Kernel, int], tuple[Callable[[], Any], Any]]
"""From a kernel and a seed: how to run it compiled, and what it must give."""


def compiled(kernel: Kernel, seed: int) -> tuple[Callable[[], Any], Any]:
    fn = kernel.function()
    want = jax.tree.map(np.asarray, tj.interpret(fn)(*kernel.args))
    return lambda: tj.jit(fn, compiler_params=BUDGETS[seed % 3])(*kernel.args), want


def batched(kernel: Kernel, seed: int) -> tuple[Callable[[], Any], Any]:
    """`vmap` over some of the arguments; the interpreter takes one entry at a time."""
    fn, draw = kernel.function(), random.Random(seed)
    axes = [draw.choice([None, *range(np.ndim(arg) + 1)]) for arg in kernel.args]
    axes[0] = axes[0] or 0
    other = [np.flip(arg) if np.ndim(arg) else arg + 1 for arg in kernel.args]
    pairs = [(a, a if axis is None else b) for a, b, axis in zip(kernel.args, other, axes, strict=True)]
    results = [tj.interpret(fn)(*entry) for entry in zip(*pairs, strict=True)]
    want = jax.tree.map(lambda *entries: np.stack(entries), *results)
    args = [a if axis is None else np.stack([a, b], axis) for (a, b), axis in zip(pairs, axes, strict=True)]
    return lambda: jax.vmap(tj.jit(fn), in_axes=axes)(*args), want


def fault(check: Check, kernel: Kernel, seed: int) -> Exception | None:
    run, want = check(kernel, seed)
    try:
        same(run(), want)
    except Exception as error:
        return error
    return None


def seeds(first: int, last: int) -> list[int]:
    return list(range(*map(int, SEEDS.split(":")))) if SEEDS else list(range(first, last))


@pytest.mark.parametrize(
    ("check", "make", "seed"),
    [
        *((compiled, random_kernel, seed) for seed in seeds(0, 30)),
        *((compiled, random_pattern, seed) for seed in seeds(0, 20)),
        *((batched, random_kernel, seed) for seed in seeds(30, 40)),
        *((batched, random_pattern, seed) for seed in seeds(20, 26)),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_random_kernels_agree_with_the_interpreter(check: Check, make: Callable[[int], Kernel], seed: int):
    agrees(check, make(seed), seed)


def agrees(check: Check, kernel: Kernel, seed: int) -> None:
    """The test of one kernel."""
    error = fault(check, kernel, seed)
    if seed % 25 == 0:
        jax.clear_caches()
    if error is None:
        return

    def fails(smaller: Kernel) -> bool:
        try:
            return type(fault(check, smaller, seed)) is type(error)
        except Exception:  # the interpreter does not take it: no kernel any more
            return False

    smaller = reduced(kernel, fails)
    pytest.fail(f"{smaller}\n{fault(check, smaller, seed)}", pytrace=False)
