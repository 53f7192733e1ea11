"""What `tilejax.metal.source` gives: a text, and how a host runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...._errors import UnsupportedError


@dataclass(frozen=True)
class Buffer:
    """An array that the host makes. `role` is "argument" (it holds the operand of that number), "array"
    (what it holds at first does not matter), or "scratch" (nor later)."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    role: str


@dataclass(frozen=True)
class Launch:
    """A kernel to run, after those before it have ended: `groups` threadgroups of `threads` threads each,
    with `buffers` at the indices 0, 1, ..."""

    kernel: str
    groups: int
    threads: int
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """A program in Metal Shading Language, and how a host runs it."""

    text: str
    matrix_operations: int
    """How many SIMD-group matrix operations (multiply and accumulate) the text holds."""
    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    results: tuple[str, ...]
    """The buffers that hold the results in the end."""
    operands: tuple[Any, ...] = ()
    """What the buffers of arguments hold, in their order."""

    def __str__(self) -> str:
        return self.text

    def launch(self) -> None:
        """Always `UnsupportedError`: no JAX plugin takes Metal source."""
        raise UnsupportedError(
            "launching Metal source needs a JAX plugin that takes it, and there is none: compile .text with "
            "Metal's own API (newLibraryWithSource, fast math off) and encode .launches, or run the kernel "
            'by tilejax.jit(kernel, backend="metal"), which goes through StableHLO'
        )
