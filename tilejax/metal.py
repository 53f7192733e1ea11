"""Metal Shading Language, `tilejax.metal.source(kernel)(*args)`, and portable artifacts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._jit import as_kernel
from .backends.metal.msl.program import emit
from .backends.metal.msl.source import Buffer, Launch, Source
from .backends.metal.portable import portable
from .backends.registry import Options

__all__ = ["Buffer", "Launch", "Source", "portable", "source"]


def source(
    kernel: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[..., Source]:
    """`source(kernel)(*args, cooperative_matrix=False)` is the kernel in Metal Shading Language at these
    arguments (arrays or `jax.ShapeDtypeStruct`s): an object with `.text` and `.matrix_operations`, and with
    `.launches`, `.buffers`, `.results` and `.operands` for a host that runs it.

    `cooperative_matrix=True` asserts that the device has SIMD-group matrices and SIMD groups of 32 threads
    (Apple GPU family 7 and later): then products of float32 matrices by a group, added in any order, are
    made of 8x8 atoms. Raises `UnsupportedError` for float64 and 8-bit floats, for scopes and
    resources that Metal lacks, and for more than 32 KiB of explicit memory.
    """
    this = as_kernel(kernel, Options(), static_argnums, static_argnames)

    @functools.wraps(this.fn)
    def written(*args: Any, cooperative_matrix: bool = False, **kwargs: Any) -> Source:
        traced = this.trace(args, kwargs)
        made = emit(traced.program, this.name, cooperative_matrix=cooperative_matrix)
        return dataclasses.replace(made, operands=tuple(traced.operands))

    return written
