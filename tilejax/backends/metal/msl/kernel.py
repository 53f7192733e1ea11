"""One Metal kernel while it is written: its steps, its storages, its signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .block import Block
from .steps import Access, Loop, Step, flatten, render
from .storage import Index, Storage, Tile, stored
from .types import type_of

THREADGROUP_BYTES = 32 * 1024
"""What every Apple GPU gives a threadgroup."""
STRIPED = 64
"""The most elements that a thread of a group keeps of one tile."""
THREAD_BYTES = 16 * 1024
"""The most bytes that a program of one thread keeps of one tile."""


@dataclass(frozen=True)
class Settings:
    """How a program is written: `threads` in a group, and whether it has SIMD-group matrices."""

    threads: int
    cooperative_matrix: bool


@dataclass
class Kernel:
    """`programs` programs, each of a group of threads, or each of one thread if `single`.

    `denied` names the storages that may not be striped over the threads: an element is needed by another
    thread than the one that has it. It is found while writing, which then starts again."""

    name: str
    programs: int
    settings: Settings
    single: bool
    denied: frozenset[str] = frozenset()
    reserved: int = 0
    """The bytes of threadgroup memory that explicit memories take."""
    nodes: list[Step | Loop] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    buffers: dict[Storage, bool] = field(default_factory=dict)
    """The arrays passed by the host, in order of use, and whether they are written."""
    violations: set[str] = field(default_factory=set)
    extents: dict[Any, int] = field(default_factory=dict)
    """The number of values of each index variable."""
    turns: dict[str, str] = field(default_factory=dict)
    """Of each variable that counts elements, the one that counts those of a thread."""
    _names: int = 0
    _pool: list[Storage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lanes = 1 if self.single else self.settings.threads

    def fresh(self, prefix: str) -> str:
        """A name that is used nowhere else in the kernel."""
        self._names += 1
        return f"{prefix}{self._names}"

    # Code

    @contextmanager
    def step(self, scoped: bool = True) -> Iterator[Block]:
        """A step that all threads do; its names stay inside unless it is not `scoped`."""
        step = Step()
        block = Block(self, step.accesses)
        yield block
        if block.lines:
            step.lines = ["{", *(f"    {line}" for line in block.lines), "}"] if scoped else block.lines
            self.nodes.append(step)

    @contextmanager
    def each(self, shape: Sequence[int]) -> Iterator[tuple[Block, Index]]:
        """A step in which each thread takes its share of the elements of `shape`: the block for one."""
        with self.step(scoped=False) as block, block.elements(shape) as one:
            yield one

    @contextmanager
    def loop(self, header: str, certain: bool) -> Iterator[None]:
        """A loop that all threads run together."""
        outer, self.nodes = self.nodes, []
        yield
        body, self.nodes = self.nodes, outer
        if body:
            outer.append(Loop(header, certain, body))

    @contextmanager
    def alone(self, header: str) -> Iterator[None]:
        """A loop whose steps are done by one thread each."""
        outer, self.nodes, lanes, self.lanes = self.nodes, [], self.lanes, 1
        yield
        body, self.nodes, self.lanes = self.nodes, outer, lanes
        done = flatten([Loop(header, False, body)])
        for access in done.accesses:
            if access.storage.striped:
                self.violations.add(access.storage.name)
        outer.append(Step(done.lines, [Access(a.storage, a.writes, None) for a in done.accesses]))

    # Storage

    def allocate(self, dtype: Any, size: int, home: object = None, *, memory: bool = False) -> Storage:
        """A new storage: striped over the threads, else in threadgroup memory while there is some, else in
        a device buffer. An explicit `memory` is in threadgroup memory, or a thread's own. A program of one
        thread has all to itself, but what is large in a device buffer."""
        storage = Storage(f"t{len(self.storages)}", np.dtype(dtype), max(size, 1), "thread", home=home)
        if self.lanes > 1:
            striped = not memory and storage.name not in self.denied
            if striped and storage.size <= STRIPED * self.lanes:
                storage.striped = True
            elif memory:
                storage.space = "threadgroup"
                self.reserved -= aligned(storage.bytes)
            else:
                storage.space = "threadgroup" if storage.bytes <= self.free_bytes() else "device"
        elif self.single and not memory and storage.bytes > THREAD_BYTES:
            storage.space = "device"
        self.storages.append(storage)
        return storage

    def scratch(self, dtype: Any, size: int) -> Storage:
        """A storage that any thread may read, for the time until `release`."""
        for storage in self._pool:
            if storage.dtype == dtype and storage.size >= size:
                self._pool.remove(storage)
                return storage
        storage = self.allocate(dtype, size)
        if storage.striped:
            storage.striped = False
            storage.space = "threadgroup" if storage.bytes <= self.free_bytes() else "device"
        return storage

    def release(self, storage: Storage) -> None:
        """Lets the next `scratch` have the storage."""
        self._pool.append(storage)

    def free_bytes(self) -> int:
        """The threadgroup memory that is left."""
        return THREADGROUP_BYTES - self.reserved - self._used()

    def _used(self) -> int:
        return sum(aligned(s.bytes) for s in self.storages if s.space == "threadgroup")

    def place(self, storage: Storage, offset: str, owner: Any) -> str:
        """The text of an element of a storage."""
        if storage.space in ("device", "constant") and storage not in self.storages:
            self.buffers.setdefault(storage, False)
            if storage.space == "constant":
                return storage.name
        if storage.striped:
            if owner != "flat":
                self.violations.add(storage.name)
            offset = "0" if storage.size <= self.lanes else self.turns.get(offset, "0")
        return f"{storage.name}[{offset}]"

    def keep(self, tile: Tile, storage: Storage) -> Tile:
        """Stores a tile, row-major."""
        with self.each(tile.shape) as (block, index):
            block.write(storage, block.flatten(index, tile.shape), block.get(tile, index), "flat")
        return stored(storage, tile.shape)

    # Text

    def text(self) -> str:
        """The function."""
        body = flatten(self.nodes).lines if self.single else render(self.nodes)
        self.buffers.update(
            {a.storage: True for a in flatten(self.nodes).accesses if a.storage in self.buffers and a.writes}
        )
        parameters = [self._parameter(i, s, written) for i, (s, written) in enumerate(self.buffers.items())]
        parameters += [
            f"device {type_of(s.dtype)}* all_{s.name} [[buffer({len(self.buffers) + i})]]"
            for i, s in enumerate(self.spilled())
        ]
        parameters += [
            "uint group [[threadgroup_position_in_grid]]",
            "uint lane [[thread_position_in_threadgroup]]",
        ]
        lines = [
            f"[[max_total_threads_per_threadgroup({self.settings.threads})]]",
            f"kernel void {self.name}(",
            *(f"    {p}," for p in parameters[:-1]),
            f"    {parameters[-1]}) {{",
        ]
        if self.single:
            threads = self.settings.threads
            lines += [f"    const uint program = group * {threads}u + lane;"]
            lines += [f"    if (program >= {self.programs}u) return;"]
        else:
            lines += ["    const uint program = group;"]
        for s in self.storages:
            lines.append(f"    {self._declaration(s)}")
        return "\n".join([*lines, *(f"    {line}" for line in body), "}"])

    def spilled(self) -> list[Storage]:
        """The storages that are slices, one a program, of device buffers."""
        return [s for s in self.storages if s.space == "device"]

    def _parameter(self, number: int, storage: Storage, written: bool) -> str:
        kind = type_of(storage.dtype)
        if storage.space == "constant":
            return f"constant {kind}& {storage.name} [[buffer({number})]]"
        return f"device {'' if written else 'const '}{kind}* {storage.name} [[buffer({number})]]"

    def _declaration(self, storage: Storage) -> str:
        kind = type_of(storage.dtype)
        if storage.space == "device":
            return f"device {kind}* {storage.name} = all_{storage.name} + ulong(program) * {storage.size}u;"
        if storage.striped:
            return f"{kind} {storage.name}[{-(-storage.size // self.lanes)}];"
        space = "threadgroup " if storage.space == "threadgroup" else ""
        return f"{space}{kind} {storage.name}[{storage.size}];"


def write(make: Callable[[frozenset[str]], Kernel], body: Callable[[Kernel], None]) -> Kernel:
    """A kernel with `body` written into it: again until no storage is striped that may not be."""
    denied: frozenset[str] = frozenset()
    while True:
        kernel = make(denied)
        body(kernel)
        if not kernel.violations:
            return kernel
        denied |= kernel.violations


def aligned(size: int) -> int:
    """The bytes that an array takes of threadgroup memory."""
    return -(-size // 16) * 16
