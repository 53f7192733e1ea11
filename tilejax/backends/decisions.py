"""What a compiler decides about a program, as data that reads well: the parts of `tilejax.explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


Decisions = tuple[list[PipelineDecision], list[MmaDecision], list[StoreDecision]]
Nests = tuple[Any, ...]
"""The nests around an equation, outermost first."""


def decided(
    jaxpr: Any,
    pipeline: Callable[[Any, Nests], tuple[bool, str]],
    mma: Callable[[Any, Nests], str],
    store: Callable[[Any, Nests], str],
) -> Decisions:
    """The pipelines, contractions and stores of a program, in its order; the functions say what becomes of
    an equation."""
    pipelines, mmas, stores = [], [], []
    for eqn, nests in _equations(jaxpr):
        name, p = eqn.primitive.name, eqn.params
        if name == "tile_pipeline":
            pipelines.append(PipelineDecision(label(eqn), p["loc"], *pipeline(eqn, nests)))
        elif name == "tile_mma":
            a, b, acc = (v.aval.dtype.name for v in eqn.invars)
            mmas.append(MmaDecision(p["loc"], (a, b, acc), mma(eqn, nests)))
        elif name == "tile_store":
            stores.append(StoreDecision(p["name"], p["loc"], store(eqn, nests)))
    return pipelines, mmas, stores


def _equations(jaxpr: Any, around: Nests = ()) -> Iterator[tuple[Any, Nests]]:
    for eqn in jaxpr.eqns:
        yield eqn, around
        if "body" in eqn.params:
            yield from _equations(eqn.params["body"].jaxpr, (*around, eqn))


def label(eqn: Any) -> str:
    """A nest as an error names it."""
    return f"{eqn.primitive.name.removeprefix('tile_')}({', '.join(eqn.params['names'])})"
