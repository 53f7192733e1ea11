"""What this machine can do at most, as measured: copied bytes and multiplied matrices a second."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def cores() -> int:
    """How many the process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def bandwidth() -> float:
    """Bytes read and written a second: the best of a NumPy copy into place and a `jnp` copy, of 128 MiB."""
    source = np.ones(2**25, np.float32)
    target = np.ones_like(source)
    array = jnp.asarray(source)
    copy = jax.jit(jnp.copy)
    calls = (lambda: np.copyto(target, source), lambda: copy(array).block_until_ready())
    return 2 * source.nbytes / min(map(_least, calls))


@functools.cache
def arithmetic(dtype: str) -> float:
    """Operations a second of the best `jnp` matrix product of that dtype, 512 to 2048 wide."""
    narrow = dtype == "int8"
    product = jax.jit(
        lambda a: jnp.matmul(a, a, preferred_element_type=jnp.int32 if narrow else jnp.float32),
    )
    speeds = []
    for n in (512,) if narrow else (512, 1024, 2048):
        a = jnp.ones((n, n), dtype)
        speeds.append(2 * n**3 / _least(lambda a=a: product(a).block_until_ready()))
    return max(speeds)


def _least(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times[1:])
