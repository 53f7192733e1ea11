"""Races that can be proved from a program alone: two programs of a parallel nest that surely touch one
element."""

from __future__ import annotations

from typing import Any

from .._errors import RaceError
from .accesses import Access, Walk


def check_races(program: Any) -> None:
    """`RaceError` if two programs of one parallel nest are bound to touch an element that one of them
    stores.

    Only accesses with affine starts that surely happen count, and of the programs only neighbours along one
    axis are compared: it is a proof where it speaks, and the interpreter finds the rest.
    """
    walk = Walk()
    walk.walk(program.jaxpr, {}, {}, True)
    for eqn, indices, accesses in walk.nests:
        extents = eqn.params["extents"]
        sure = [a for a in accesses if a.certain and a.affine]
        for axis, extent in enumerate(extents):
            if extent > 1 and 0 not in extents:
                _compare(sure, indices, axis, eqn.params["names"])


def _compare(accesses: list[Access], indices: list[Any], axis: int, names: tuple[str, ...]) -> None:
    """The programs 0 and 1 along one axis, every other index being 0."""
    second = {indices[axis]: 1}
    for a in accesses:
        for b in accesses:
            if a.root is b.root and (a.stores or b.stores) and (element := _shared(a, b, second)) is not None:
                here, there = ({n: int(i == axis) * k for i, n in enumerate(names)} for k in (1, 0))
                does = "stores" if b.stores else "reads"
                was = (
                    "is also stored by"
                    if a.stores and b.stores
                    else "is stored by"
                    if a.stores
                    else "is read by"
                )
                raise RaceError(
                    f"a race: {_program(here)} {does} element {element} of {b.name}, "
                    f"which {was} {_program(there)}. "
                    "The programs of a parallel nest must not touch the same element "
                    "if one of them stores it: "
                    "make the origins differ, or use serial for what depends on the order",
                    loc=b.loc,
                )


def _program(point: dict[str, int]) -> str:
    return f"program ({', '.join(f'{n}={i}' for n, i in point.items())})"


def _shared(a: Access, b: Access, second: dict[Any, int]) -> tuple[int, ...] | None:
    """An element that `a` touches in the first program and `b` in the second."""
    element = []
    for s, t, m, n, size in zip(a.starts, b.starts, a.extents, b.extents, a.shape, strict=True):
        p, q = s.at({}), t.at(second)
        low = max(p, q, 0)
        if low >= min(p + m, q + n, size):
            return None
        element.append(low)
    return tuple(element)
