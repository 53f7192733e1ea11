"""A whole program in Metal Shading Language: a kernel for each parallel nest, others for what is outside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...._errors import UnsupportedError
from ....ir.types import Scope
from ....transforms.accesses import covers
from ...placement import METAL, check_placement
from . import access, contract, gather, memory, nests, order, reduce, scan, shapes  # noqa: F401  (register their rules)
from .evaluate import Frame, Value
from .kernel import Kernel, Settings, write
from .nests import unraveled
from .prelude import with_prelude
from .reduce import power
from .simdgroup import WIDTH
from .storage import Storage, Stored, Tile, stored
from .types import FLOAT32, check_types

_THREADS = 256
"""The most threads of a group; more would leave each too few registers."""
_BUFFERS = 31
"""How many buffers Metal passes to a kernel."""


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


def emit(program: Any, name: str, *, cooperative_matrix: bool = False, threads: int | None = None) -> Source:
    """The source of a program, with `threads` in a group (a multiple of 32; None chooses). `UnsupportedError`
    for a dtype or an operation that Metal lacks, a scope that it does not take, and more threadgroup memory
    than it has."""
    check_types(program, name)
    check_placement(program, METAL, name)
    return _Program(name, Settings(threads or _threads(program), cooperative_matrix)).run(program)


def _threads(program: Any) -> int:
    """A thread for each element of the largest tile, within limits."""
    largest = max(_sizes(program.jaxpr), default=1)
    return min(max(WIDTH, power(largest)), _THREADS)


def _sizes(jaxpr: Any) -> Iterator[int]:
    """The sizes of the tiles that a jaxpr makes."""
    for eqn in jaxpr.eqns:
        if "body" in eqn.params:
            yield from _sizes(eqn.params["body"].jaxpr)
        elif eqn.primitive.name.startswith("tile_") and eqn.primitive.name != "tile_store":
            yield from (math.prod(v.aval.shape) for v in eqn.outvars)


class _Program:
    def __init__(self, name: str, settings: Settings):
        self.name, self.settings = re.sub(r"\W", "_", name), settings
        self.given = name
        self.functions: list[str] = []
        self.launches: list[Launch] = []
        self.buffers: list[Buffer] = []

    def run(self, program: Any) -> Source:
        jaxpr = program.jaxpr
        arguments = [self._argument(i, v.aval) for i, v in enumerate(jaxpr.invars)]
        results = [self._array(x) for x in Frame(None, self.given).run(jaxpr, arguments, self._outside)]
        text = with_prelude(self.functions)
        return Source(
            text,
            text.count("simdgroup_multiply_accumulate("),
            tuple(self.launches),
            tuple(self.buffers),
            tuple(x.storage.name for x in results),
        )

    # Buffers

    def _argument(self, number: int, aval: Any) -> Tile:
        space = "device" if aval.shape else "constant"
        dtype = FLOAT32 if aval.dtype == np.float64 else aval.dtype
        storage = Storage(f"arg{number}", dtype, math.prod(aval.shape), space, mutable=False)
        self.buffers.append(Buffer(storage.name, dtype, tuple(aval.shape), "argument"))
        return stored(storage, aval.shape)

    def _new(self, dtype: Any, shape: Sequence[int]) -> Stored:
        storage = Storage(
            f"out{len(self.buffers)}", np.dtype(dtype), math.prod(shape), "device", mutable=False
        )
        self.buffers.append(Buffer(storage.name, storage.dtype, tuple(shape), "array"))
        return stored(storage, shape)

    def _array(self, value: Value) -> Stored:
        """The value in a buffer of its own."""
        assert isinstance(value, Tile)
        if isinstance(value, Stored) and value.storage.name.startswith("out"):
            return value
        return self._copy(value)

    def _copy(self, value: Tile) -> Stored:
        """A new buffer that holds the value: a kernel of a thread for each element."""
        target = self._new(value.dtype, value.shape)
        if value.size:

            def body(kernel: Kernel) -> None:
                with kernel.step() as block:
                    index = block.unravel("program", value.shape)
                    block.write(target.storage, "program", block.get(value, index), None)

            self._launch(value.size, single=True, reserved=0, body=body)
        return target

    def _launch(self, programs: int, *, single: bool, reserved: int, body: Callable[[Kernel], Any]) -> Any:
        """Writes a kernel and notes its launch."""
        if programs >= 2**32:
            raise UnsupportedError(
                f"kernel {self.given}: a grid of {programs} programs is above 2**32 - 1: take larger blocks"
            )
        name = f"{self.name}_{len(self.functions)}"
        kernel, result = write(
            lambda denied: Kernel(name, programs, self.settings, single, denied, reserved), body
        )
        self.functions.append(kernel.text())
        spilled = []
        for storage in kernel.spilled():
            buffer = Buffer(f"{name}_{storage.name}", storage.dtype, (programs, storage.size), "scratch")
            self.buffers.append(buffer)
            spilled.append(buffer.name)
        count = len(kernel.buffers) + len(spilled)
        if count > _BUFFERS:
            raise UnsupportedError(
                f"kernel {self.given}: a nest uses {count} arrays, but Metal passes at most {_BUFFERS} to a "
                "kernel: split the nest"
            )
        threads = self.settings.threads
        groups = -(-programs // threads) if single else programs
        self.launches.append(Launch(name, groups, threads, (*(s.name for s in kernel.buffers), *spilled)))
        return result

    # Equations outside of nests

    def _outside(self, frame: Frame, eqn: Any, values: list[Any]) -> list[Value] | None:
        """Nests are launched, other tile operations run as one program, elementwise work waits."""
        name = eqn.primitive.name
        if name == "tile_parallel":
            return self._nest(frame, eqn, values)
        if name in ("copy", "copy_p"):
            return [self._copy(values[0])]
        if name.startswith("tile_") and name not in ("tile_load", "tile_gather"):
            raise UnsupportedError(
                f"kernel {self.given}: {name} outside a nest is not written in Metal: put it into a nest, "
                "tilejax.parallel(1) for example",
                loc=eqn.params["loc"],
            )
        return None

    def _nest(self, frame: Frame, eqn: Any, values: list[Any]) -> list[Value]:
        params = eqn.params
        extents, split = params["extents"], len(values) - params["num_views"]
        views = [self._view(frame, eqn, i, values) for i in range(split, len(values))]
        if 0 in extents or not views:
            return list(views)
        single = params["scope"] is Scope.WORKER
        written = {v.storage for v in views}
        for value in values[:split]:
            for storage in value.reads:
                storage.mutable = storage in written
        for storage in written:
            storage.mutable = True

        def body(kernel: Kernel) -> None:
            lines, indices = unraveled(kernel, "program", extents)
            with kernel.step(scoped=False) as block:
                block.lines += lines
            inner = Frame(kernel, self.given)
            given = [inner.settle(v) if not v.shape else v for v in values[:split]]
            inner.run(params["body"].jaxpr, [*indices, *given, *views])

        reserved = 0 if single else memory.bytes_of(params["body"].jaxpr)
        self._launch(math.prod(extents), single=single, reserved=reserved, body=body)
        for storage in written:
            storage.mutable = False
        return list(views)

    def _view(self, frame: Frame, eqn: Any, position: int, values: Sequence[Any]) -> Stored:
        """The buffer that a nest stores to: the operand's own, or a new one that starts as the operand."""
        value = values[position]
        own = isinstance(value, Stored) and value.storage.name.startswith("out")
        readers = [x for i, x in enumerate(values) if i != position] + [x for _, x in frame.live()]
        if own and not any(value.storage in x.reads for x in readers if isinstance(x, Tile)):
            return value
        if covers(eqn, position):
            return self._new(value.dtype, value.shape)
        return self._copy(value)


def with_operands(source: Source, operands: Sequence[Any]) -> Source:
    return replace(source, operands=tuple(operands))
