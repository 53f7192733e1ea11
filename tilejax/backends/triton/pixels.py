"""Blocks of pixels as programs of one: what windows hold is read many times over, and registers are not for
that. Each element of what a nest stores becomes a program, or each line of elements along the last dimension
where no window goes along it; small programs run together as it suits the machine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ... import _compat
from ...ir.jaxprs import bind, literal, variables
from ...transforms.affine import Affine
from ...transforms.slices import Cut, NotSliced, Read, Slices
from .elements import Elements, elements_of
from .lanes import CELLS
from .points import Frame, NotPoints, coordinate, key


def single_pixels(program: Any) -> Any:
    """The same function of arrays, the nests with blocks of windows as such programs, if they can be."""
    jaxpr = program.jaxpr
    eqns = [_single(e) if e.primitive.name == "tile_parallel" and _windows(e) else e for e in jaxpr.eqns]
    return _compat.rebuild(jaxpr, jaxpr.invars, jaxpr.outvars, eqns)


def _windows(nest: Any) -> bool:
    """Whether a program gathers more elements of what it loads than can be unrolled."""
    eqns = nest.params["body"].jaxpr.eqns
    if 0 in nest.params["extents"] or any(e.primitive.name == "tile_mma" or "body" in e.params for e in eqns):
        return False
    loaded = {v for e in eqns if e.primitive.name == "tile_load" for v in e.outvars}
    gathers = [e for e in eqns if e.primitive.name == "tile_gather"]
    seen = [e.outvars[0] for e in gathers if not loaded.isdisjoint(variables(e.invars[:1]))]
    sizes = [math.prod(v.aval.shape) for v in seen]
    stored = [math.prod(e.invars[1].aval.shape) for e in eqns if e.primitive.name == "tile_store"]
    return max(sizes, default=0) > CELLS and max(sizes, default=0) > max(stored, default=0) > 1


def _single(nest: Any) -> Any:
    for last in (False, True):
        with contextlib.suppress(NotPoints, NotSliced):
            return _cut(nest, last)
    return nest


def _cut(nest: Any, last: bool) -> Any:
    """The nest cut along all dimensions of what it stores; `last` says whether along the last one, too."""
    this, p = elements_of(nest, _nothing), nest.params
    long = [d for d, form in enumerate(this.tile) if form.coefs]
    cut = frozenset(long if last else long[:-1])
    if not cut:
        raise NotPoints
    names, axes = dict(zip(this.indices, p["names"], strict=True)), {}
    for d in range(len(this.tile)):
        if d in cut:
            axes[d] = f"element_{d}"
            continue
        for part, _ in reversed(this.places.wholes.pop(d)):  # what is not cut stays in parts
            del this.places.owners[part]
            axes.update({part: names[part]} if part in names else {})
    operands = this.jaxpr.invars[len(this.indices) :]
    stored = {e.invars[0]: e for e in this.stores}
    constant = frozenset(v for v in operands if v not in stored)

    def run(*values: Any) -> list[Any]:
        frame = Frame(this.places, dict(zip(axes, values, strict=False)))
        env = dict(zip(operands, values[len(axes) :], strict=True))
        program = _Program(this.evaluator.makers, constant, this, cut, not last, frame, env)
        return [program.store(stored[v]) for v in operands if v in stored]

    index = jax.ShapeDtypeStruct((), np.int32)
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands]
    body = _compat.trace_closed(run, [*(index for _ in axes), *avals])
    extents = tuple(this.places.extents[a] for a in axes)
    return nest.replace(params={**p, "names": tuple(axes.values()), "extents": extents, "body": body})


def _nothing(*_: Any) -> Any:
    raise NotPoints


@dataclass(frozen=True)
class _Program(Slices):
    """Emits one of the new programs. A cut says by a form which element of a dimension there is."""

    nest: Elements
    cut: frozenset[int]
    lines: bool
    """Whether the last dimension stays."""
    frame: Frame
    """The indices of the program."""
    env: dict[Any, Any]
    """Its operands."""
    found: dict[Any, list[Any]] = field(default_factory=dict)

    def store(self, eqn: Any) -> Any:
        """The new version of the view of a `tile_store`."""
        view, tile, *starts = eqn.invars
        value = self.value(tile, {d: (self.nest.tile[d], 1) for d in self.cut})
        forms = [self.nest.element[d] if d in self.cut else self._form(v) for d, v in enumerate(starts)]
        places = [self.frame.index(f) for f in forms]
        return eqn.primitive.bind(self.env[view], value, *places, **eqn.params)[0]

    def value(self, var: Any, cut: Cut, read: Read | None = None) -> Any:
        """A slice of a variable."""
        if isinstance(var, Literal):
            return literal(var)
        if var in self.env:
            return self.env[var]
        if var in self.nest.indices:
            return self.frame.index(self.nest.indices[var])
        eqn = self.makers[var]
        this = (id(eqn), *((d, key((form,))) for d, (form, _) in sorted(cut.items())))
        if this not in self.found:
            self.found[this] = self.made(eqn, cut, lambda var: self.value(var, {}))
        return self.found[this][eqn.outvars.index(var)]

    def made(self, eqn: Any, cut: Cut, read: Read) -> list[Any]:
        name, p = eqn.primitive.name, eqn.params
        sources = variables(eqn.invars[:1]) if name == "tile_gather" else ()
        maker = next(map(self.makers.get, sources), None)
        if maker is not None and maker.primitive.name == "tile_load":
            return [self._window(eqn, maker, cut)]
        if name == "tile_load":
            forms = [self._form(v, cut.get(d)) for d, v in enumerate(eqn.invars[1:-1])]
            return [self._load(eqn, forms, _shape(p["shape"], cut))]
        if name == "iota" and p["dimension"] in cut:
            index = self.frame.index(cut[p["dimension"]][0])
            return [lax.convert_element_type(lax.broadcast(index, _shape(p["shape"], cut)), p["dtype"])]
        if not cut:
            return bind(eqn, [self.value(v, {}) for v in eqn.invars])
        return super().made(eqn, cut, read)

    def _form(self, var: Any, cut: tuple[Any, int] | None = None) -> Affine:
        """A start, and how far into the tile a cut is."""
        form = self.nest.evaluator.form(var, (), Frame(self.nest.places, used=set()))
        return form if cut is None else self.nest.evaluator.combined("add", form, cut[0])

    def _load(self, eqn: Any, forms: Sequence[Affine], shape: tuple[int, ...]) -> Any:
        view, fallback = eqn.invars[0], self.value(eqn.invars[-1], {})
        if view not in self.constant:
            raise NotPoints
        starts = [self.frame.index(f) for f in forms]
        return eqn.primitive.bind(self.env[view], *starts, fallback, **{**eqn.params, "shape": shape})[0]

    def _window(self, eqn: Any, load: Any, cut: Cut) -> Any:
        """A gather from a load: a load of just what is seen there, gathered."""
        p, nest = eqn.params, self.nest
        point = []
        for d, n in enumerate(p["shape"]):
            nest.places.extents["here", d] = n
            point.append(cut[d][0] if d in cut else coordinate(("here", d), n))
        given = iter(zip(eqn.invars[1:-1], p["coord_dims"], strict=True))
        forms, shape, coords, coord_dims = [], [], [], []
        for start, n, d in zip(load.invars[1:-1], load.params["shape"], p["dims"], strict=True):
            if d is not None:
                place = point[d] if n > 1 else Affine()
            else:
                coord, to = next(given)
                here = tuple(
                    point[i] if m > 1 else Affine() for i, m in zip(to, coord.aval.shape, strict=True)
                )
                place = nest.evaluator.form(coord, here, Frame(nest.places, used=set()))
            low, high = nest.places.bounds(place)
            near = {a: c for a, c in place.coefs.items() if a in {("here", i) for i in range(len(point))}}
            if low < 0 or high >= n or min(near.values(), default=0) < 0 or (self.lines and len(near) > 1):
                raise NotPoints
            far = Affine(place.const, {a: c for a, c in place.coefs.items() if a not in near})
            forms.append(self._form(start, (far, 1)))
            shape.append(1 + sum(c * (nest.places.extents[a] - 1) for a, c in near.items()))
            coord_dims.append(tuple(sorted(d for _, d in near)))
            coords.append(_sum([(p["shape"][d], near["here", d]) for d in coord_dims[-1]]))
        tile, shape = self._load(load, forms, tuple(shape)), _shape(p["shape"], cut)
        params = {**p, "shape": shape, "dims": (None,) * len(coords), "coord_dims": tuple(coord_dims)}
        return eqn.primitive.bind(tile, *coords, self.value(eqn.invars[-1], {}), **params)[0]


def _shape(shape: Sequence[int], cut: Cut) -> tuple[int, ...]:
    return tuple(1 if d in cut else n for d, n in enumerate(shape))


def _sum(terms: Sequence[tuple[int, int]]) -> Any:
    """The sum of indices, each times a factor, over a dimension of each."""
    extents = tuple(n for n, _ in terms)
    total: Any = np.int32(0)
    for d, (n, factor) in enumerate(terms):
        term = lax.iota(np.int32, n)
        term = lax.mul(term, np.int32(factor)) if factor != 1 else term
        term = lax.broadcast_in_dim(term, extents, (d,))
        total = lax.add(total, term) if d else term
    return total
