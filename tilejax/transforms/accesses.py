"""The loads and stores that every program of a parallel nest surely makes, with affine starts: what proofs
are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax.extend.core import Literal

from .._errors import Loc
from .affine import Affine, combine


@dataclass(frozen=True)
class Access:
    """A load or store. `root` is the variable of the first version of its view; `starts` has all of them only
    if it is `affine`."""

    eqn: Any
    stores: bool
    root: Any
    starts: tuple[Affine, ...]
    affine: bool
    certain: bool
    extents: tuple[int, ...]
    shape: tuple[int, ...]
    name: str
    loc: Loc | None


class Walk:
    """Collects the accesses of a body. `extents` gives the number of values of each index variable."""

    def __init__(self, extents: dict[Any, int] | None = None):
        self.extents: dict[Any, int] = {} if extents is None else extents
        self.accesses: list[Access] = []
        self.nests: list[tuple[Any, list[Any], list[Access]]] = []
        """Every parallel nest with its index variables and the accesses of its programs."""
        self.loops: list[tuple[Any, list[Any], list[Access]]] = []
        """Every loop with its index variables and the accesses of its steps."""

    def walk(self, jaxpr: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        """`forms` are the affine forms of the scalars of `jaxpr`, `roots` what its views are versions of;
        `certain` says whether it surely runs."""
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in ("tile_load", "tile_store"):
                self._access(eqn, forms, roots, certain)
            elif name == "tile_parallel":
                self._parallel(eqn, forms, roots, certain)
            elif name in ("tile_serial", "tile_pipeline"):
                self._loop(eqn, forms, roots, certain)
            elif _is_index(eqn):
                form = combine(name, [form_of(v, forms) for v in eqn.invars], self.extents.__getitem__)
                if form is not None:
                    forms[eqn.outvars[0]] = form

    def _access(self, eqn: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        stores = eqn.primitive.name == "tile_store"
        view, *rest = eqn.invars
        root = roots.get(view, view)
        if stores:
            roots[eqn.outvars[0]] = root
        starts = [form_of(v, forms) for v in (rest[1:] if stores else rest[:-1])]
        known = [s for s in starts if s is not None]
        extents = rest[0].aval.shape if stores else eqn.params["shape"]
        p = eqn.params
        affine = len(known) == len(starts)
        self.accesses.append(
            Access(
                eqn,
                stores,
                root,
                tuple(known),
                affine,
                certain,
                tuple(extents),
                view.aval.shape,
                p["name"],
                p["loc"],
            )
        )

    def enter(
        self,
        eqn: Any,
        operands: Sequence[Any],
        forms: dict[Any, Affine],
        roots: dict[Any, Any],
        certain: bool,
        carried: int = 0,
    ) -> list[Any]:
        """Walks the body of a nest, of which the last `carried` operands change from step to step; its index
        variables."""
        body, count = eqn.params["body"].jaxpr, len(eqn.params["extents"])
        indices, rest = body.invars[:count], body.invars[count:]
        self.extents.update(zip(indices, eqn.params["extents"], strict=True))
        for var, n in zip(indices, eqn.params["extents"], strict=True):
            forms[var] = Affine(0, {var: 1} if n > 1 else {})
        fixed = len(rest) - carried
        for i, (var, outer) in enumerate(zip(rest, operands, strict=True)):
            if i < fixed and (form := form_of(outer, forms)) is not None:
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
        before = len(self.accesses)
        indices = self.enter(eqn, operands, dict(forms), roots, certain, p["num_carry"])
        self.loops.append((eqn, indices, self.accesses[before:]))
        for out, view in zip(eqn.outvars, operands[held - p["num_views"] : held], strict=False):
            if view in roots:
                roots[out] = roots[view]

    def _parallel(self, eqn: Any, forms: dict[Any, Affine], roots: dict[Any, Any], certain: bool) -> None:
        inner = Walk(self.extents)
        indices = inner.enter(eqn, eqn.invars, dict(forms), roots, True)
        p = eqn.params
        for out, view in zip(eqn.outvars, eqn.invars[len(eqn.invars) - p["num_views"] :], strict=True):
            if view in roots:
                roots[out] = roots[view]
        self.nests.extend([*inner.nests, (eqn, indices, inner.accesses)])
        self.loops.extend(inner.loops)
        runs = certain and 0 not in p["extents"]
        self.accesses.extend(a if runs else replace(a, certain=False) for a in inner.accesses)


def form_of(var: Any, forms: dict[Any, Affine]) -> Affine | None:
    """The affine form of a scalar variable or literal."""
    if isinstance(var, Literal):
        aval: Any = var.aval
        return Affine(int(var.val)) if aval.dtype == np.int32 and not aval.shape else None
    return forms.get(var)


def covers(eqn: Any, view: int) -> bool:
    """Whether the programs of a parallel nest surely store every element of operand `view` and load none of
    it: then what it held before does not matter."""
    walk = Walk()
    walk.enter(eqn, eqn.invars, {}, {}, True)
    root = eqn.params["body"].jaxpr.invars[len(eqn.params["extents"]) + view]
    mine = [a for a in walk.accesses if a.root is root]
    return all(a.stores for a in mine) and any(_whole(a, walk.extents) for a in mine)


def _whole(access: Access, extents: dict[Any, int]) -> bool:
    """Whether the tiles of all programs and steps lie side by side and reach over the view."""
    if not access.certain or not access.affine:
        return False
    used: set[Any] = set()
    for form, extent, size in zip(access.starts, access.extents, access.shape, strict=True):
        reach = extent
        for index in sorted(form.coefs, key=lambda i: form.coefs[i]):
            if form.coefs[index] != reach or index in used:
                return False
            used.add(index)
            reach *= extents[index]
        if form.base is not None or form.const > 0 or form.const + reach < size:
            return False
    return True


def _is_index(eqn: Any) -> bool:
    """Whether an equation makes one int32 scalar."""
    avals = [v.aval for v in eqn.outvars]
    return len(avals) == 1 and avals[0].dtype == np.int32 and not avals[0].shape
