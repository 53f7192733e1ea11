"""Where programs and their memories run on each kind of device, as data, and the check of a program against
it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._errors import LayoutError, UnsupportedError
from ..ir.types import Proof, Resource, Scope
from ..transforms.proofs import prove


@dataclass(frozen=True)
class Target:
    """What a backend offers on a device."""

    name: str
    resources: Mapping[Scope, Resource]
    """The scopes it takes, and which resource holds the memory of a program of each."""
    limits: Mapping[Resource, int] = field(default_factory=dict)
    """The bytes that one program may have of a resource, where there is a limit."""


_SHARED = {Scope.AUTOMATIC: Resource.SHARED, Scope.GROUP: Resource.SHARED, Scope.WORKER: Resource.PRIVATE}

XLA = Target("xla", dict.fromkeys((Scope.AUTOMATIC, Scope.WORKER, Scope.VECTOR), Resource.PRIVATE))
METAL = Target("metal", _SHARED, {Resource.SHARED: 32 * 1024})


def nvidia(backend: str, shared_bytes: int | None = None) -> Target:
    """An NVIDIA GPU of which one program may have that much shared memory; None if that is not known."""
    return Target(backend, _SHARED, {} if shared_bytes is None else {Resource.SHARED: shared_bytes})


def check_placement(program: Any, target: Target, name: str) -> None:
    """`UnsupportedError` for a scope or a resource that the target lacks, or for more bytes than it has;
    `LayoutError` for a layout of which it is not known that it keeps elements apart."""
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name == "tile_parallel":
            used: dict[Resource, int] = {}
            for memory, resource in _memories(eqn, Scope.AUTOMATIC, target, name):
                _check_layout(memory, name)
                used[resource] = used.get(resource, 0) + size_of(memory)
                if used[resource] > target.limits.get(resource, used[resource]):
                    raise UnsupportedError(
                        f"kernel {name}: with memory {memory.params['name']} one program needs "
                        f"{used[resource]} bytes of {resource.name}, but backend {target.name} has "
                        f"{target.limits[resource]}, padding counted: take smaller blocks",
                        loc=memory.params["loc"],
                    )


def memories_of(program: Any, target: Target, name: str) -> Iterator[tuple[Any, Resource]]:
    """The `tile_memory` equations of a program, and the resource of the target that holds each."""
    for eqn in program.jaxpr.eqns:
        if eqn.primitive.name == "tile_parallel":
            yield from _memories(eqn, Scope.AUTOMATIC, target, name)


def size_of(memory: Any) -> int:
    """The bytes of a `tile_memory`, padding counted."""
    return memory.params["layout"].codomain_size * memory.params["dtype"].itemsize


def _memories(eqn: Any, outer: Scope, target: Target, name: str) -> Iterator[tuple[Any, Resource]]:
    """The memories that the programs of a nest declare, and the resource that holds each."""
    scope = outer
    if eqn.primitive.name == "tile_parallel":
        scope = eqn.params["scope"]
        if scope not in target.resources:
            raise UnsupportedError(
                f"kernel {name}: parallel({', '.join(eqn.params['names'])}) asks for scope {scope.name}, "
                f"which backend {target.name} does not have; it takes "
                f"{', '.join(s.name for s in target.resources)}",
                loc=eqn.params["loc"],
            )
        scope = outer if scope is Scope.AUTOMATIC else scope
    for inner in eqn.params["body"].jaxpr.eqns:
        if inner.primitive.name == "tile_memory":
            yield inner, _resource(inner, scope, target, name)
        elif "body" in inner.params:
            yield from _memories(inner, scope, target, name)


def _resource(memory: Any, scope: Scope, target: Target, name: str) -> Resource:
    asked, has = memory.params["resource"], target.resources[scope]
    if asked not in (Resource.AUTO, has):
        raise UnsupportedError(
            f"kernel {name}: memory {memory.params['name']} asks for resource {asked.name}, which backend "
            f"{target.name} does not have under scope {scope.name}; it takes {has.name}",
            loc=memory.params["loc"],
        )
    return has


def _check_layout(memory: Any, name: str) -> None:
    layout = memory.params["layout"]
    found = prove(layout)
    for claim, proof in (
        ("total", found.total),
        ("in bounds", found.in_bounds),
        ("injective", found.injective),
    ):
        if proof is not Proof.PROVEN:
            raise LayoutError(
                f"kernel {name}: memory {memory.params['name']} has the layout {layout}, not known "
                f"to be {claim}: its structure does not say, and its {layout.size} elements are too many "
                "to visit. Make it of strides and bit operations",
                loc=memory.params["loc"],
            )
