"""Linear forms: each subexpression of a map as an integer combination of unknowns.

The unknowns are the coordinates and, for what is not linear, *atoms*: a quotient `q` and a remainder `r` by a
constant, tied by `x == d * q + r`, or any other operator's result, of which only the range is known.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..ir.pointmap import PointMap, compute
from .proofs_ranges import Range


@dataclass(frozen=True)
class Form:
    """`const + sum(coefficient * unknown)`; no coefficient is 0."""

    coefs: tuple[tuple[int, int], ...] = ()
    const: int = 0

    @property
    def as_dict(self) -> dict[int, int]:
        return dict(self.coefs)


@dataclass
class Forms:
    """The forms of a total map's ops."""

    layout: PointMap
    unknowns: list[Range] = field(default_factory=list)
    """The range of each; the coordinates come first."""
    forms: list[Form] = field(default_factory=list)
    divisions: dict[tuple[Form, int], tuple[int, int]] = field(default_factory=dict)
    """The unknowns that are quotient and remainder of a form by a constant."""
    _atoms: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: PointMap, ranges: Sequence[Range]) -> Forms:
        self = cls(layout, [Range(0, n - 1) for n in layout.extents])
        for number, (kind, left, right) in enumerate(layout.ops):
            if kind == "const":
                form = Form((), left)
            elif kind == "index":
                form = Form(((left, 1),)) if layout.extents[left] > 1 else Form()
            else:
                form = self._apply(kind, self.forms[left], self.forms[right]) or self._atom(
                    number, ranges[number]
                )
            self.forms.append(form)
        return self

    @property
    def outputs(self) -> list[Form]:
        return [self.forms[i] for i in self.layout.outputs]

    @property
    def affine(self) -> bool:
        """Whether the outputs are linear in the coordinates alone."""
        return all(i < len(self.layout.extents) for form in self.outputs for i, _ in form.coefs)

    def range(self, form: Form) -> Range:
        """The form's range; exact if its unknowns are independent, as the coordinates are."""
        lo = hi = form.const
        for i, c in form.coefs:
            ends = c * self.unknowns[i].lo, c * self.unknowns[i].hi
            lo, hi = lo + min(ends), hi + max(ends)
        return Range(lo, hi)

    def _atom(self, key: Hashable, found: Range) -> Form:
        if found.constant:
            return Form((), found.lo)
        if key not in self._atoms:
            self._atoms[key] = len(self.unknowns)
            self.unknowns.append(found)
        return Form(((self._atoms[key], 1),))

    def _apply(self, kind: str, a: Form, b: Form) -> Form | None:
        if not a.coefs and not b.coefs:
            value = compute(kind, a.const, b.const)
            return None if value is None else Form((), value)
        if kind in ("+", "-"):
            return self._join(_add(a, b if kind == "+" else _scale(b, -1)))
        if kind == "*" and not a.coefs:
            return _scale(b, a.const)
        if b.coefs:
            return None
        c = b.const
        if kind == "*":
            return _scale(a, c)
        if kind == "<<":
            return _scale(a, 1 << c)
        if kind in ("//", ">>"):
            return self._divmod(a, c if kind == "//" else 1 << c)[0]
        if kind == "%":
            return self._divmod(a, c)[1]
        if kind == "&" and c >= 0 and c & (c + 1) == 0:
            return self._divmod(a, c + 1)[1]
        return None

    def _divmod(self, x: Form, d: int) -> tuple[Form | None, Form | None]:
        """`x // d` and `x % d`. Multiples of `d` in `x` leave the quotient exactly."""
        if d <= 0:
            return None, None
        whole = Form(tuple((i, c // d) for i, c in x.coefs if c % d == 0), x.const // d)
        rest = Form(tuple((i, c) for i, c in x.coefs if c % d), x.const % d)
        lo, hi = self.range(rest)
        if lo // d == hi // d:
            return _add(whole, Form((), lo // d)), _add(rest, Form((), -d * (lo // d)))
        quotient = self._atom(("//", rest, d), Range(lo // d, hi // d))
        remainder = self._atom(("%", rest, d), Range(0, d - 1))
        self.divisions[rest, d] = quotient.coefs[0][0], remainder.coefs[0][0]
        return _add(whole, quotient), remainder

    def _join(self, form: Form) -> Form:
        """The form with `d * quotient + remainder` put together again."""
        for (rest, d), (q, r) in self.divisions.items():
            c = form.as_dict.get(r, 0)
            if c and form.as_dict.get(q, 0) == c * d:
                form = _add(form, _scale(_add(rest, Form(((q, -d), (r, -1)))), c))
        return form

    def ties(self) -> list[Form]:
        """Forms that are 0 everywhere."""
        return [_add(rest, Form(((q, -d), (r, -1)))) for (rest, d), (q, r) in self.divisions.items()]

    def image_size(self) -> int:
        """No fewer than the points of the image."""
        count = 1
        for form in self.outputs:
            lo, hi = self.range(form)
            count *= (hi - lo) // (math.gcd(*(c for _, c in form.coefs)) or 1) + 1
        return count


def _add(a: Form, b: Form) -> Form:
    coefs = a.as_dict
    for i, c in b.coefs:
        coefs[i] = coefs.get(i, 0) + c
    return Form(tuple(sorted((i, c) for i, c in coefs.items() if c)), a.const + b.const)


def _scale(form: Form, factor: int) -> Form:
    return Form(tuple((i, c * factor) for i, c in form.coefs if factor), form.const * factor)
