"""Points of a nest: every index that an element of the result needs, as an affine form of where it is stored.

An element of what a parallel nest stores determines the program that makes it and the place in that program's
tile. So a nest whose elements do not need each other may be cut anew, into whatever blocks suit the machine:
its own blocks are `place // extent` and `place % extent`, and mostly cancel out.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax import lax

from ...transforms.affine import Affine, wrap
from .tiles import as_index, scalar

Point = tuple[Affine, ...]
"""The coordinates of an element of a tile."""
ZERO = Affine()


def coordinate(atom: Any, extent: int) -> Affine:
    """The form of an index."""
    return Affine(0, {atom: 1} if extent > 1 else {})


def key(point: Point) -> Any:
    """What tells points apart."""
    return tuple((p.const, frozenset(p.coefs.items())) for p in point)


class NotPoints(Exception):
    """The nest has to run as it was cut."""


Link = tuple[Any, int]
"""An atom and how far apart its values are in the whole that it is a part of."""


@dataclass
class Places:
    """The atoms of forms: the indices of the nest, places in a tile and contracted indices are parts of
    wholes, `whole = sum(part * distance)`, each part less than the next one's distance."""

    extents: dict[Any, int] = field(default_factory=dict)
    """How many values an atom has."""
    wholes: dict[Any, list[Link]] = field(default_factory=dict)
    """The parts of each whole, the nearest first."""
    owners: dict[Any, Link] = field(default_factory=dict)
    """The whole of each part, and its distance there."""

    def compose(self, whole: Any, size: int, parts: Sequence[Link]) -> None:
        self.extents[whole] = size
        self.wholes[whole] = list(parts)
        self.owners.update({part: (whole, distance) for part, distance in parts})

    def simplest(self, form: Affine) -> Affine:
        """The form with wholes in place of their parts."""
        for whole, parts in reversed(self.wholes.items()):  # a part may have been taken apart later
            if parts and (times := form.coefs.get(parts[0][0], 0)):
                coefs = dict(form.coefs)
                for part, distance in parts:
                    coefs[part] = coefs.get(part, 0) - times * distance
                coefs[whole] = coefs.get(whole, 0) + times
                form = replace(form, coefs={a: c for a, c in coefs.items() if c})
        return form

    def split(self, form: Affine, n: int) -> tuple[Affine, Affine]:
        """The remainder of a form by `n`, and the quotient."""
        far = {a: c for a, c in form.coefs.items() if c % n == 0}
        near = Affine(form.const % n, {a: c for a, c in form.coefs.items() if a not in far})
        quotient = Affine(form.const // n, {a: c // n for a, c in far.items()})
        low, high = near.bounds(self.extents.__getitem__)
        if low >= 0 and high < n:
            return near, quotient
        if (
            near.const
            or len(near.coefs) > 1
            or not all(self._takes_apart(a, c, n) for a, c in near.coefs.items())
        ):
            raise NotPoints
        (atom,) = near.coefs
        return Affine(0, {(atom, "%", n): 1}), Affine(quotient.const, {**quotient.coefs, (atom, "//", n): 1})

    def _takes_apart(self, atom: Any, factor: int, n: int) -> bool:
        """Whether an atom is `n` times a part, and another part; they are there then."""
        rest, more, size = (atom, "%", n), (atom, "//", n), self.extents[atom]
        parts = [(rest, 1), (more, n)]
        if factor != 1 or size % n or self.wholes.get(atom, parts) != parts:
            return False
        self.extents.update({rest: n, more: size // n})
        self.compose(atom, size, parts)
        return True

    def owner(self, atom: Any) -> Any:
        """The whole that an atom is, or is a part of."""
        while atom in self.owners:
            atom, _ = self.owners[atom]
        return atom

    def bounds(self, form: Affine) -> tuple[int, int]:
        """The least and greatest value, of the form as it is or with wholes: what either knows."""
        extent = self.extents.__getitem__
        (low, high), (least, most) = form.bounds(extent), self.simplest(form).bounds(extent)
        return max(low, least), min(high, most)


@dataclass(eq=False)
class Frame:
    """Where a matrix of points is: an array for each whole, `()`, `(rows, 1)` or `(1, columns)`."""

    places: Places
    wholes: dict[Any, Any] = field(default_factory=dict)
    mask: Any = None
    """Which points there are; None if all are."""
    inner: bool = False
    """Whether it is a frame of a product's operand."""
    used: set[Any] | None = None
    """In a frame that has no arrays: the atoms that were asked for."""
    made: dict[Any, Any] = field(default_factory=dict)
    """Values of variables at points."""

    def index(self, form: Affine, dtype: Any = np.int32) -> Any:
        """The values of a form; None in a frame without arrays."""
        form = self.places.simplest(form)
        if self.used is not None:
            self.used.update(form.coefs)
            return None
        parts: dict[Any, Any] = {}
        for atom, factor in form.coefs.items():
            term = as_index(self._atom(atom), dtype)
            term = term * scalar(factor, dtype) if factor != 1 else term
            parts[term.shape] = parts[term.shape] + term if term.shape in parts else term
        terms = [parts[shape] for shape in sorted(parts, key=np.prod)]
        const = wrap(form.const) if dtype == np.int32 else form.const
        if not terms:
            return scalar(const, dtype)
        if const:  # a compiler finds `x - 1 + 1`, but not always `x + (-1) + 1`
            terms[0] = terms[0] + scalar(const, dtype) if const > 0 else terms[0] - scalar(-const, dtype)
        return functools.reduce(operator.add, terms)

    def _atom(self, atom: Any) -> Any:
        if atom not in self.wholes:
            whole, distance = self.places.owners[atom]
            value = self._atom(whole)
            value = lax.div(value, np.int32(distance)) if distance > 1 else value
            outermost = atom == self.places.wholes[whole][-1][0]
            n = np.int32(self.places.extents[atom])
            self.wholes[atom] = value if outermost else lax.rem(value, n)
        return self.wholes[atom]
