"""What is known of indices: affine forms of int32 tiles and scalars, which tests they decide, and how many
of a loop's first steps need no test. `iota + start < extent` is true of all steps but the last ones, so the
loop is cut in two, and only the second part tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...ir.jaxprs import called
from ...ir.types import Bounds
from ...transforms.accesses import form_of
from ...transforms.affine import Affine, combine, compared
from .tiles import View

_MOVES = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose")


@dataclass
class Facts:
    """The forms of the variables of a kernel. An index of a nest is an atom of its own; so is the place along
    a dimension of each tile of indices, for two tiles need not be read at one place."""

    extents: dict[Any, int] = field(default_factory=dict)
    """How many values an atom has."""
    forms: dict[Any, Affine] = field(default_factory=dict)
    indices: dict[Any, Any] = field(default_factory=dict)
    """The indices of nests, traced; None for those of a nest that is not being run."""
    assumed: list[Affine] = field(default_factory=list)
    """Forms that are at most 0 here."""

    def form(self, var: Any) -> Affine | None:
        return form_of(var, self.forms)

    def know(self, variables: Sequence[Any], forms: Sequence[Affine | None]) -> None:
        self.forms.update({v: f for v, f in zip(variables, forms, strict=True) if f is not None})

    def learn(self, eqn: Any) -> None:
        """The form of an elementwise equation's result."""
        if len(eqn.outvars) != 1 or eqn.outvars[0].aval.dtype != np.int32:
            return
        name, out = eqn.primitive.name, eqn.outvars[0]
        if name == "iota":
            n = out.aval.shape[eqn.params["dimension"]]
            self.extents[out] = n
            self.forms[out] = Affine(0, {out: 1} if n > 1 else {})
            return
        forms = [self.form(v) for v in eqn.invars]
        if name in _MOVES and forms[0] is not None:
            self.forms[out] = self._moved(forms[0], out)
        else:
            self.know([out], [combine(name, forms, self.extents.__getitem__)])

    def _moved(self, form: Affine, out: Any) -> Affine:
        coefs = {}
        for atom, c in form.coefs.items():
            new = atom if atom in self.indices else (out, atom)
            self.extents[new] = self.extents[atom]
            coefs[new] = c
        return Affine(form.const, coefs)

    def holds(self, form: Affine | None) -> bool:
        """Whether a form is surely at most 0."""
        if form is None:
            return False
        return form.bounds(self.extents.__getitem__)[1] <= 0 or form in self.assumed

    def compared(self, eqn: Any) -> Affine | None:
        """The form that is at most 0 where a comparison of indices is true."""
        forms = [self.form(v) for v in eqn.invars]
        return compared(eqn.primitive.name, forms, self.extents.__getitem__)

    def edges(self, eqn: Any, view: View) -> Iterator[tuple[Affine | None, Affine | None]]:
        """For each dimension of a load or store the forms that are at most 0 where the tile is not before
        the view's start, and not past its end."""
        loads = eqn.primitive.name == "tile_load"
        extents = eqn.params["shape"] if loads else eqn.invars[1].aval.shape
        starts = eqn.invars[1:-1] if loads else eqn.invars[2:]
        zero = loads and isinstance(eqn.invars[-1], Literal) and not eqn.invars[-1].val
        for var, n, size in zip(starts, extents, view.room if zero else view.shape, strict=True):
            form = self.form(var)
            if form is None:
                yield None, None
            else:
                before = Affine(-form.const, {i: -c for i, c in form.coefs.items()})
                yield before, Affine(form.const + n - size, dict(form.coefs))

    def cuts(self, body: Any, index: Any, views: dict[Any, View]) -> list[Affine]:
        """The tests of a loop's body that its first steps may not need, but its last ones do."""
        found: list[Affine] = []
        for form in self._tests(body.jaxpr, dict(views)):
            if form.coefs.get(index, 0) > 0 and not self.holds(form) and form not in found:
                first = Affine(form.const, {i: c for i, c in form.coefs.items() if i is not index})
                if first.bounds(self.extents.__getitem__)[0] <= 0:
                    found.append(form)
        return found

    def _tests(self, jaxpr: Any, views: dict[Any, View]) -> Iterator[Affine]:
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in ("tile_load", "tile_store"):
                view = views[eqn.invars[0]]
                if name == "tile_store":
                    views[eqn.outvars[0]] = view
                if eqn.params["bounds"] is Bounds.ZERO:
                    yield from (f for pair in self.edges(eqn, view) for f in pair if f is not None)
            elif (body := called(eqn)) is not None:
                inner = body.jaxpr
                self.know(inner.invars, [self.form(v) for v in eqn.invars])
                yield from self._tests(inner, views)
                self.know(eqn.outvars, [self.form(v) for v in inner.outvars])
            elif "body" in eqn.params:
                count = eqn.params["num_views"]
                split = len(eqn.invars) - eqn.params.get("num_carry", 0)
                stored = eqn.invars[split - count : split]
                views.update(zip(eqn.outvars[:count], [views[v] for v in stored], strict=True))
            elif not name.startswith("tile_"):
                if (form := self.compared(eqn)) is not None:
                    yield form
                self.learn(eqn)

    def untested(self, form: Affine, index: Any) -> Any:
        """How many of the first values of `index` surely keep a form at most 0 that grows with it: an int or
        a traced scalar, at least 0."""
        rest, slope = form.const, form.coefs[index]
        for atom, c in form.coefs.items():
            if self.indices.get(atom) is not None:
                rest = rest + np.int32(c) * self.indices[atom]
            elif atom is not index:
                rest = rest + max(c * (self.extents[atom] - 1), 0)
        if isinstance(rest, int):
            return max(-rest // slope + 1, 0)
        return lax.div(jnp.maximum(np.int32(slope) - rest, 0), jnp.int32(slope))
