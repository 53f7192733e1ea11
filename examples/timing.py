"""How long a call takes once it is compiled."""

import time

import jax


def warm(fn, *args, repeats=5) -> float:
    """The least of `repeats` warm calls, in seconds."""
    times = []
    jax.block_until_ready(fn(*args))
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(fn(*args))
        times.append(time.perf_counter() - start)
    return min(times)
