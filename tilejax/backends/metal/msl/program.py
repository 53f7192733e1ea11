"""A whole program in Metal: a kernel for each parallel nest, others for what is outside."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax.extend.core import Literal

from ...._errors import UnsupportedError
from ....ir.jaxprs import equations
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
from .source import Buffer, Launch, Source
from .storage import Storage, Stored, Tile, stored
from .types import FLOAT32, check_types

_THREADS = 256
"""The most threads of a group; more would leave each too few registers."""
_BUFFERS = 31
"""How many buffers Metal passes to a kernel."""


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
    for eqn in equations(jaxpr.eqns):
        makes = eqn.primitive.name.startswith("tile_") and eqn.primitive.name != "tile_store"
        if makes and "body" not in eqn.params:
            yield from (math.prod(v.aval.shape) for v in eqn.outvars)


def _names(jaxpr: Any) -> dict[Any, str]:
    """What the user calls the views that are loaded from, as far as Metal takes it."""
    found: dict[Any, str] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "tile_load":
            found.setdefault(eqn.invars[0], _identifier(eqn.params["name"]))
        elif "body" in eqn.params:
            inner, params = eqn.params["body"].jaxpr, eqn.params
            operands = eqn.invars[params.get("num_bounds", 0) :]
            names = _names(inner)
            for var, operand in zip(inner.invars[len(params["extents"]) :], operands, strict=True):
                if var in names and not isinstance(operand, Literal):
                    found.setdefault(operand, names[var])
    return found


def _identifier(name: str) -> str:
    """The letters and digits of a name; a number is put behind it."""
    kept = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return kept if kept[:1].isalpha() else f"arg_{kept}" if kept else "arg"


class _Program:
    def __init__(self, name: str, settings: Settings):
        self.name, self.settings = _identifier(name), settings
        self.given = name
        self.functions: list[str] = []
        self.launches: list[Launch] = []
        self.buffers: list[Buffer] = []
        self.own: set[Storage] = set()
        """The arrays that kernels may store to."""

    def run(self, program: Any) -> Source:
        jaxpr = program.jaxpr
        names = _names(jaxpr)
        arguments = [self._argument(names.get(v, "arg"), v.aval) for v in jaxpr.invars]
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

    def _argument(self, name: str, aval: Any) -> Tile:
        space = "device" if aval.shape else "constant"
        dtype = FLOAT32 if aval.dtype == np.float64 else aval.dtype
        storage = Storage(f"{name}_{len(self.buffers)}", dtype, math.prod(aval.shape), space, mutable=False)
        self.buffers.append(Buffer(storage.name, dtype, tuple(aval.shape), "argument"))
        return stored(storage, aval.shape)

    def _new(self, dtype: Any, shape: Sequence[int]) -> Stored:
        name = f"out_{len(self.buffers)}"
        storage = Storage(name, np.dtype(dtype), math.prod(shape), "device", mutable=False)
        self.own.add(storage)
        self.buffers.append(Buffer(storage.name, storage.dtype, tuple(shape), "array"))
        return stored(storage, shape)

    def _array(self, value: Value) -> Stored:
        """The value in a buffer of its own."""
        assert isinstance(value, Tile)
        if isinstance(value, Stored) and value.storage in self.own:
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

    def _launch(self, programs: int, *, single: bool, reserved: int, body: Callable[[Kernel], None]) -> None:
        """Writes a kernel and notes its launch."""
        if programs >= 2**32:
            raise UnsupportedError(
                f"kernel {self.given}: a grid of {programs} programs is above 2**32 - 1: take larger blocks"
            )
        name = f"{self.name}_{len(self.functions)}"
        kernel = write(lambda denied: Kernel(name, programs, self.settings, single, denied, reserved), body)
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

    # Equations outside of nests

    def _outside(self, frame: Frame, eqn: Any, values: list[Any]) -> list[Value] | None:
        """Nests are launched, other tile operations are programs of their own, elementwise work waits."""
        name = eqn.primitive.name
        if name == "tile_parallel":
            return self._nest(frame, eqn, values)
        if name in ("copy", "copy_p"):
            return [self._copy(values[0])]
        if name.startswith("tile_") and name not in ("tile_load", "tile_gather"):
            return self._operation(frame, eqn, values)
        return None

    def _nest(self, frame: Frame, eqn: Any, values: list[Any]) -> list[Value]:
        """A kernel whose programs are those of the nest."""
        params = eqn.params
        extents, split = params["extents"], len(values) - params["num_views"]
        views = [self._view(frame, values, i, covers(eqn, i)) for i in range(split, len(values))]
        if 0 in extents or not views:
            return list(views)

        def body(kernel: Kernel) -> None:
            lines, indices = unraveled(kernel, "program", extents)
            with kernel.step(scoped=False) as block:
                block.lines += lines
            inner = Frame(kernel, self.given)
            inner.run(params["body"].jaxpr, [*indices, *map(inner.settle, values[:split]), *views])

        single = params["scope"] is Scope.WORKER
        reserved = 0 if single else memory.bytes_of(params["body"].jaxpr)
        with self._written(views):
            self._launch(math.prod(extents), single=single, reserved=reserved, body=body)
        return list(views)

    def _operation(self, frame: Frame, eqn: Any, values: list[Any]) -> list[Value]:
        """A kernel of one program for one tile operation."""
        views = [self._view(frame, values, 0, False)] if eqn.primitive.name == "tile_store" else []
        out = views or [self._new(v.aval.dtype, v.aval.shape) for v in eqn.outvars]

        def body(kernel: Kernel) -> None:
            inner = Frame(kernel, self.given)
            inner.last.update((v, 0) for v in eqn.outvars)
            given = [*views, *map(inner.settle, values[len(views) :])]
            for target, result in zip(out, inner.apply(eqn, given), strict=True):
                if isinstance(result, Tile) and not views:
                    kernel.keep(result, target.storage)

        with self._written(views):
            self._launch(1, single=False, reserved=0, body=body)
        return list(out)

    def _view(self, frame: Frame, values: Sequence[Any], position: int, whole: bool) -> Stored:
        """The buffer to store to: the operand's own, or a new one that starts as the operand if it is not
        stored `whole`."""
        value = values[position]
        own = isinstance(value, Stored) and value.storage in self.own
        readers = [x for i, x in enumerate(values) if i != position] + [x for _, x in frame.live()]
        if own and not any(value.storage in x.reads for x in readers if isinstance(x, Tile)):
            return value
        return self._new(value.dtype, value.shape) if whole else self._copy(value)

    @contextmanager
    def _written(self, views: Sequence[Stored]) -> Iterator[None]:
        """Within it, the buffers of these views change and no others."""
        for view in views:
            view.storage.mutable = True
        yield
        for view in views:
            view.storage.mutable = False
