"""The shape of a kernel's text: steps and uniform loops, and the barriers between them.

A step is what each thread does without waiting for others. It says which storages it touches; two steps that
touch the same storage from different threads, one of them writing, need a barrier in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .storage import Storage


@dataclass(frozen=True)
class Access:
    """A storage read or written. Where two accesses have the same `owner`, an element that both touch is
    touched by the same thread; None says that any thread may touch any element."""

    storage: Storage
    writes: bool
    owner: Hashable

    def meets(self, other: Access) -> bool:
        """Whether the two must be ordered by a barrier."""
        if not (self.writes or other.writes):
            return False
        return self.owner is None or self.owner != other.owner


@dataclass
class Step:
    lines: list[str] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)


@dataclass
class Loop:
    """A loop that all threads of a group run together; `certain` if it surely runs at least once."""

    header: str
    certain: bool
    body: list[Step | Loop] = field(default_factory=list)


Pending = set[Access]
"""What was accessed since the last barrier of its kind of memory."""


def render(nodes: Sequence[Step | Loop]) -> list[str]:
    """The lines of a kernel's body, with barriers where they are needed and nowhere else."""
    return list(_render(nodes, set()))


def flatten(nodes: Sequence[Step | Loop]) -> Step:
    """Steps and loops as one step of a thread by itself."""
    step = Step()
    for node in nodes:
        inner = node if isinstance(node, Step) else flatten(node.body)
        lines = node.lines if isinstance(node, Step) else [f"{node.header} {{", *indent(inner.lines), "}"]
        step.lines += lines
        step.accesses += inner.accesses
    return step


def indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _render(nodes: Sequence[Step | Loop], pending: Pending) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Step):
            spaces = _conflicts(node, pending)
            if spaces:
                flags = " | ".join(f"mem_flags::mem_{space}" for space in sorted(spaces, reverse=True))
                yield f"threadgroup_barrier({flags});"
            _pass(node, spaces, pending)
            yield from node.lines
        else:
            before = set(pending)
            _settle(node, pending)
            yield f"{node.header} {{"
            yield from indent(list(_render(node.body, pending)))
            yield "}"
            if not node.certain:
                pending |= before


def _conflicts(step: Step, pending: Pending) -> set[str]:
    return {
        mine.storage.space
        for mine in step.accesses
        for theirs in pending
        if mine.storage is theirs.storage and mine.meets(theirs)
    }


def _pass(step: Step, spaces: set[str], pending: Pending) -> None:
    pending -= {access for access in pending if access.storage.space in spaces}
    pending |= {access for access in step.accesses if access.storage.shared}


def _settle(loop: Loop, pending: Pending) -> None:
    """Adds to `pending` what a step of the loop leaves to the next one."""
    while True:
        after: Any = set(pending)
        for _ in _render(loop.body, after):
            pass
        if after <= pending:
            return
        pending |= after
