"""A parallel nest by the elements that it stores: which program makes one, and where in its tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...transforms.affine import Affine
from ...transforms.inline import inlined
from .points import Frame, NotPoints, Places, Point, coordinate
from .pointwise import Pointwise


@dataclass(frozen=True)
class Elements:
    """An element is at the wholes `0, 1, ...` in the dimensions of the view."""

    jaxpr: Any
    """The body, without calls."""
    places: Places
    indices: dict[Any, Affine]
    stores: list[Any]
    evaluator: Pointwise
    tile: Point
    """Where an element is in the tile that is stored."""
    element: Point
    """Where it is in the view."""


def elements_of(eqn: Any, contract: Callable[..., Any]) -> Elements:
    """Those of a `tile_parallel`, with the evaluator of a frame without arrays. All stores must be alike, and
    no two programs may store the same; else it is `NotPoints`."""
    p, places, jaxpr = eqn.params, Places(), inlined(eqn.params["body"])
    indices = {v: coordinate(v, n) for v, n in zip(jaxpr.invars, p["extents"], strict=False)}
    places.extents.update(zip(indices, p["extents"], strict=True))
    views = jaxpr.invars[len(jaxpr.invars) - p["num_views"] :]
    known = {**indices, **{v: None for v in jaxpr.invars[len(indices) :] if not v.aval.shape}}
    evaluator = Pointwise(jaxpr, places, known, frozenset(views), contract)
    stores = [e for e in jaxpr.eqns if e.primitive.name == "tile_store"]
    stored = [e.invars[0] for e in stores]
    if not stores or not stored[0].aval.shape or sorted(map(id, views)) != sorted(map(id, stored)):
        raise NotPoints
    alike = {(e.invars[0].aval.shape, e.invars[1].aval.shape) for e in stores}
    starts = [[evaluator.form(v, (), Frame(places, used=set())) for v in e.invars[2:]] for e in stores]
    if len(alike) > 1 or any(s != starts[0] for s in starts):
        raise NotPoints
    tile, evaluator.element = _places(places, starts[0], *alike.pop(), set(indices))
    return Elements(jaxpr, places, indices, stores, evaluator, tile, evaluator.element)


def _places(
    places: Places, starts: Sequence[Affine], sizes: Sequence[int], shape: Sequence[int], indices: set[Any]
) -> tuple[Point, Point]:
    """The coordinates of an element in a tile and in the view."""
    used: set[Any] = set()
    tile, element = [], []
    for d, (start, size, n) in enumerate(zip(starts, sizes, shape, strict=True)):
        places.extents["tile", d] = n
        parts, reach = [(("tile", d), 1)] if n > 1 else [], n
        for atom in sorted(start.coefs, key=lambda a: start.coefs[a]):
            if start.coefs[atom] != reach or atom in used:
                raise NotPoints
            used.add(atom)
            parts.append((atom, reach))
            reach *= places.extents[atom]
        reach = min(reach, size - start.const)
        if start.const < 0 or start.base is not None or reach < 1:
            raise NotPoints
        places.compose(d, reach, parts)
        tile.append(coordinate(("tile", d), n))
        element.append(Affine(start.const, {d: 1} if parts else {}))
    if any(places.extents[v] > 1 and v not in used for v in indices):
        raise NotPoints
    return tuple(tile), tuple(element)
