"""Races that can be proved from a program alone: two programs of a parallel nest that surely touch one
element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import Literal

from .._errors import Loc, RaceError
from .affine import Affine, combine


@dataclass(frozen=True)
class _Access:
    """A load or store that every program of the nest makes."""

    stores: bool
    root: Any
    starts: tuple[Affine, ...]
    extents: tuple[int, ...]
    shape: tuple[int, ...]
    name: str
    loc: Loc | None


def check_races(program: Any) -> None:
    """`RaceError` if two programs of one parallel nest are bound to touch an element that one of them
    stores.

    Only accesses with affine starts that surely happen count, and of the programs only neighbours along one
    axis are compared: it is a proof where it speaks, and the interpreter finds the rest.
    """
    _Walk({}).walk(program.jaxpr, {}, {}, True)


class _Walk:
    def __init__(self, extents: dict[Any, int]):
        self.extents = extents
        self.accesses: list[_Access] = []

    def walk(self, jaxpr: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        """Collects the accesses of `jaxpr`. `forms` are the affine forms of its scalars, `roots` what its
        views are versions of."""
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in ("tile_load", "tile_store"):
                self._access(eqn, forms, roots, certain)
            elif name == "tile_parallel":
                self._parallel(eqn, forms, roots, certain)
            elif name in ("tile_serial", "tile_pipeline"):
                self._loop(eqn, forms, roots, certain)
            elif (
                len(eqn.outvars) == 1
                and eqn.outvars[0].aval.dtype == np.int32
                and not eqn.outvars[0].aval.shape
            ):
                form = combine(name, [_form(v, forms) for v in eqn.invars], self.extents.__getitem__)
                if form is not None:
                    forms[eqn.outvars[0]] = form

    def _access(self, eqn: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        stores = eqn.primitive.name == "tile_store"
        view, *rest = eqn.invars
        root = roots.get(view, view)
        if stores:
            roots[eqn.outvars[0]] = root
        starts = [_form(v, forms) for v in (rest[1:] if stores else rest[:-1])]
        known = [s for s in starts if s is not None]
        if certain and len(known) == len(starts):
            extents = rest[0].aval.shape if stores else eqn.params["shape"]
            p = eqn.params
            self.accesses.append(
                _Access(stores, root, tuple(known), tuple(extents), view.aval.shape, p["name"], p["loc"])
            )

    def _enter(
        self,
        eqn: Any,
        operands: Sequence[Any],
        forms: dict[Any, Affine],
        roots: dict[Any, Any],
        certain: bool,
    ) -> list[Any]:
        """Walks the body of a nest; its index variables."""
        body, count = eqn.params["body"].jaxpr, len(eqn.params["extents"])
        indices, rest = body.invars[:count], body.invars[count:]
        self.extents.update(zip(indices, eqn.params["extents"], strict=True))
        for var, n in zip(indices, eqn.params["extents"], strict=True):
            forms[var] = Affine(0, {var: 1} if n > 1 else {})
        for var, outer in zip(rest, operands, strict=True):
            if (form := _form(outer, forms)) is not None:
                forms[var] = form
            # Outside all nests a view and its `update` may still be one variable, so a slot is its own root.
            roots[var] = var if isinstance(outer, Literal) else roots.get(outer, var)
        self.walk(body, forms, roots, certain)
        return indices

    def _loop(self, eqn: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        p = eqn.params
        operands = eqn.invars[p["num_bounds"] :]
        held = len(operands) - p["num_carry"]
        certain = certain and not p["num_bounds"] and 0 not in p["extents"]
        known = {k: v for k, v in forms.items() if k not in operands[held:]}  # a carried scalar changes
        self._enter(eqn, operands, known, roots, certain)
        for out, view in zip(eqn.outvars, operands[held - p["num_views"] : held], strict=False):
            if view in roots:
                roots[out] = roots[view]

    def _parallel(self, eqn: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        inner = _Walk(self.extents)
        indices = inner._enter(eqn, eqn.invars, dict(forms), roots, True)
        p = eqn.params
        for out, view in zip(eqn.outvars, eqn.invars[len(eqn.invars) - p["num_views"] :], strict=True):
            if view in roots:
                roots[out] = roots[view]
        if 0 not in p["extents"]:
            for axis, extent in enumerate(p["extents"]):
                if extent > 1:
                    _compare(inner.accesses, indices, axis, p["names"])
        if certain and 0 not in p["extents"]:
            self.accesses.extend(inner.accesses)


def _form(var: Any, forms: dict[Any, Affine]) -> Affine | None:
    if isinstance(var, Literal):
        aval: Any = var.aval
        return Affine(int(var.val)) if aval.dtype == np.int32 and not aval.shape else None
    return forms.get(var)


def _compare(accesses: list[_Access], indices: list[Any], axis: int, names: tuple[str, ...]) -> None:
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


def _shared(a: _Access, b: _Access, second: dict[Any, int]) -> tuple[int, ...] | None:
    """An element that `a` touches in the first program and `b` in the second."""
    element = []
    for s, t, m, n, size in zip(a.starts, b.starts, a.extents, b.extents, a.shape, strict=True):
        p, q = s.at({}), t.at(second)
        low = max(p, q, 0)
        if low >= min(p + m, q + n, size):
            return None
        element.append(low)
    return tuple(element)
