"""What a compiler decides about a program, as data that reads well: the parts of `tilejax.explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .._errors import Loc
from ..ir.types import Resource


@dataclass(frozen=True)
class PipelineDecision:
    """One `pipeline` of the kernel."""

    name: str
    """As in an error: `pipeline(k_tiles)`."""
    loc: Loc | None
    overlapped: bool
    """Whether steps run at once or loads run ahead of their step."""
    reason: str
    """How, or why not."""

    def __str__(self) -> str:
        return f"{self.name} ({self.loc}): {'overlapped' if self.overlapped else 'in order'}; {self.reason}"


@dataclass(frozen=True)
class MemoryDecision:
    """One `memory` of the kernel."""

    name: str
    loc: Loc | None
    resource: Resource
    nbytes: int
    """For each program, padding counted."""
    place: str
    """Where it lives."""

    def __str__(self) -> str:
        return f"{self.name} ({self.loc}): {self.resource.name}, {self.nbytes} bytes a program; {self.place}"


@dataclass(frozen=True)
class MmaDecision:
    """One `mma` of the kernel."""

    loc: Loc | None
    dtypes: tuple[str, str, str]
    """Of both operands and of the result."""
    instruction: str
    """Which class of instructions it takes."""

    def __str__(self) -> str:
        a, b, acc = self.dtypes
        return f"{a} * {b} + {acc} ({self.loc}): {self.instruction}"


@dataclass(frozen=True)
class StoreDecision:
    """One `store` of the kernel to a view."""

    name: str
    loc: Loc | None
    proved: str
    """What was proved of the places that the programs store to, and what became of it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.loc}): {self.proved}"


@dataclass(frozen=True)
class Explanation:
    """What the compiler decided about a kernel at some arguments; `print` it."""

    kernel: str
    backend: str
    platform: str
    pipelines: tuple[PipelineDecision, ...]
    memories: tuple[MemoryDecision, ...]
    mmas: tuple[MmaDecision, ...]
    stores: tuple[StoreDecision, ...]

    def __str__(self) -> str:
        lines = [f"kernel {self.kernel}, backend {self.backend} on {self.platform}"]
        for title in ("pipelines", "memories", "mmas", "stores"):
            decisions = getattr(self, title)
            lines.append(f"{title}:" if decisions else f"{title}: none")
            lines += [f"    {decision}" for decision in decisions]
        return "\n".join(lines)


def equations(
    jaxpr: Any, names: Iterable[str], around: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """The equations of these names in a program and its nests, each with the nests around it, outermost
    first."""
    names = frozenset(names)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in names:
            yield eqn, around
        if "body" in eqn.params:
            yield from equations(eqn.params["body"].jaxpr, names, (*around, eqn))


def label(eqn: Any) -> str:
    """A nest as an error names it."""
    return f"{eqn.primitive.name.removeprefix('tile_')}({', '.join(eqn.params['names'])})"


def dtypes_of(mma: Any) -> tuple[str, str, str]:
    a, b, acc = (v.aval.dtype.name for v in mma.invars)
    return a, b, acc
