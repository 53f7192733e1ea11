"""`explain`: what the compiler decides about a kernel, in words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from ._jit import as_kernel
from .backends.decisions import Explanation, MemoryDecision
from .backends.placement import memories_of, size_of
from .backends.registry import TARGETS, Options, choose, launches
from .backends.triton import explain as triton
from .backends.xla import explain as xla


def explain(
    kernel: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    backend: str | None = None,
    compiler_params: dict[str, Any] | None = None,
) -> Callable[..., Explanation]:
    """`explain(kernel)(*args)` says what the compiler decides about the kernel at these arguments, without
    running it: print it, or look at its parts.

    It takes what `jit` takes; what `jit` returned keeps its backend and parameters. Arguments may be
    `jax.ShapeDtypeStruct`s. The `pipelines` say whether their steps overlap and how, or why not; the
    `memories` where each lives; the `mmas` which class of instructions each takes; the `stores` what was
    proved of their places. Raises `UnsupportedError` as compiling would.
    """
    this = as_kernel(kernel, None, static_argnums, static_argnames)
    options = Options.make(
        this.options.backend if backend is None else backend,
        dict(this.options.params) if compiler_params is None else compiler_params,
    )

    @functools.wraps(this.fn)
    def explained(*args: Any, **kwargs: Any) -> Explanation:
        return explanation(this.trace(args, kwargs).program, this.name, options, jax.default_backend())

    return explained


def explanation(program: Any, name: str, options: Options, device: str) -> Explanation:
    """What is decided about a program that runs on a device, named as JAX names its backends."""
    platforms = ("cuda" if device == "gpu" else device,)
    taken = launches(program, options, name, platforms) is not None
    backend = "triton" if taken else choose(program, options, name, platforms)
    if backend == "triton":
        pipelines, mmas, stores = triton.decisions(program, options["num_stages"])
    else:
        pipelines, mmas, stores = xla.decisions(program, options["temporary_bytes"])
    place = triton.MEMORY if backend == "triton" else xla.MEMORY
    memories = tuple(
        MemoryDecision(m.params["name"], m.params["loc"], resource, size_of(m), place)
        for m, resource in memories_of(program, TARGETS[backend], name)
    )
    return Explanation(name, backend, device, tuple(pipelines), memories, tuple(mmas), tuple(stores))
