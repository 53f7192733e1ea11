"""Integer linear algebra on maps: each subexpression as a linear form of unknowns, and whether two points of
the domain can differ while all outputs agree.

The unknowns are the coordinates and, for what is not linear, *atoms*: a quotient `q` and a remainder `r` by a
constant, tied by `x == d * q + r`, or any other operator's result, of which only the range is known.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..ir.pointmap import PointMap, compute
from ..ir.types import Proof
from .proofs_ranges import Range

_PRIME = 2**61 - 1
_MAX_ROUNDS = 64
_MAX_TRIES = 2000


@dataclass(frozen=True)
class Form:
    """`const + sum(coefficient * unknown)`; no coefficient is 0."""

    coefs: tuple[tuple[int, int], ...] = ()
    const: int = 0

    @property
    def as_dict(self) -> dict[int, int]:
        return dict(self.coefs)


@dataclass
class Linear:
    """The forms of a total map's ops."""

    layout: PointMap
    unknowns: list[Range] = field(default_factory=list)
    """The range of each; the coordinates come first."""
    forms: list[Form] = field(default_factory=list)
    divisions: dict[tuple[Form, int], tuple[int, int]] = field(default_factory=dict)
    """The unknowns that are quotient and remainder of a form by a constant."""
    _atoms: dict[Hashable, int] = field(default_factory=dict)

    @classmethod
    def of(cls, layout: PointMap, ranges: Sequence[Range]) -> Linear:
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

    def _ties(self) -> list[Form]:
        """Forms that are 0 everywhere."""
        return [_add(rest, Form(((q, -d), (r, -1)))) for (rest, d), (q, r) in self.divisions.items()]

    def differences(self) -> list[int]:
        """How far apart each unknown can be at two points with the same image: 0 where it must agree.

        Each round tightens the greatest distance of an unknown by what the others can make up for, and the
        stride of its distances by the divisors that the others share."""
        span = [r.hi - r.lo for r in self.unknowns]
        stride = [1] * len(span)
        rows = [f.as_dict for f in (*self.outputs, *self._ties())]
        for _ in range(_MAX_ROUNDS):
            before = list(span)
            for row in rows:
                for i, c in row.items():
                    if not span[i]:
                        continue
                    others = {j: b for j, b in row.items() if j != i and span[j]}
                    reach = sum(abs(b) * span[j] for j, b in others.items())
                    if divisor := math.gcd(*(b * stride[j] for j, b in others.items())):
                        stride[i] = math.lcm(stride[i], divisor // math.gcd(divisor, c))
                    most = min(span[i], reach // abs(c))
                    span[i] = most - most % stride[i]
            if span == before:
                break
        return span

    def injective(self, span: Sequence[int]) -> Proof:
        """Whether the map is injective, where the forms can tell; `span` are the `differences`."""
        dims = [i for i, n in enumerate(self.layout.extents) if n > 1]
        left = [i for i in dims if span[i]]
        if not left:
            return Proof.PROVEN
        unknowns = left if self.affine else [i for i, n in enumerate(span) if n]
        rows = self.outputs if self.affine else self.outputs + self._ties()
        if _rank(rows, unknowns) == len(unknowns):
            return Proof.PROVEN
        if not self.affine:
            return Proof.UNKNOWN
        if any(self._collide(i, j) for i in dims for j in dims if i <= j):
            return Proof.DISPROVEN
        if len(left) == 2:  # every collision is a multiple of the one that was tried
            return Proof.PROVEN
        return self._search(sorted(left, key=self._weight), span)

    def _weight(self, unknown: int) -> int:
        return -max(abs(form.as_dict.get(unknown, 0)) for form in self.outputs)

    def _search(self, dims: Sequence[int], span: Sequence[int]) -> Proof:
        """Tries differences of `dims`, small ones first, that bring all outputs back to where they were."""
        columns = [[form.as_dict.get(i, 0) for form in self.outputs] for i in dims]
        reach = [[0] * len(self.outputs)]
        for i, column in zip(reversed(dims), reversed(columns), strict=True):
            reach.insert(0, [r + abs(c) * span[i] for r, c in zip(reach[0], column, strict=True)])
        tries = 0

        def collides(place: int, sums: list[int], moved: bool) -> bool:
            nonlocal tries
            if place == len(dims):
                return moved
            low, high = -span[dims[place]], span[dims[place]]
            for s, c, r in zip(sums, columns[place], reach[place + 1], strict=True):
                if c:
                    ends = (-r - s, r - s) if c > 0 else (s - r, s + r)
                    low, high = max(low, -(-ends[0] // abs(c))), min(high, ends[1] // abs(c))
                elif abs(s) > r:
                    return False
            least = max(low, -high, 0)
            for size in range(least, max(-low, high) + 1):
                for d in {size, -size}:
                    tries += 1
                    if tries > _MAX_TRIES:
                        return False
                    after = [s + c * d for s, c in zip(sums, columns[place], strict=True)]
                    if low <= d <= high and collides(place + 1, after, moved or d != 0):
                        return True
            return False

        found = collides(0, [0] * len(self.outputs), False)
        return Proof.DISPROVEN if found else Proof.PROVEN if tries <= _MAX_TRIES else Proof.UNKNOWN

    def _collide(self, i: int, j: int) -> bool:
        """Whether two points that differ only in the coordinates `i` and `j` (may be one) have one image."""
        columns = [(row.get(i, 0), row.get(j, 0)) for row in (f.as_dict for f in self.outputs)]
        if i == j:
            return not any(a for a, _ in columns)
        first = next(((a, b) for a, b in columns if a or b), None)
        if first is None:
            return True
        divisor = math.gcd(*first)
        p, q = first[1] // divisor, -first[0] // divisor
        fits = abs(p) < self.layout.extents[i] and abs(q) < self.layout.extents[j]
        return fits and all(a * p + b * q == 0 for a, b in columns)

    def surjective(self, codomain: Sequence[int]) -> Proof:
        """Whether an affine map takes every value of its codomain, where its strides can tell."""
        verdicts = [self._covers(form, extent) for form, extent in zip(self.outputs, codomain, strict=True)]
        if Proof.DISPROVEN in verdicts:
            return Proof.DISPROVEN
        used = [i for form in self.outputs for i, _ in form.coefs]
        independent = len(used) == len(set(used))
        return Proof.PROVEN if independent and set(verdicts) <= {Proof.PROVEN} else Proof.UNKNOWN

    def _covers(self, form: Form, extent: int) -> Proof:
        """Whether the values of an affine form include `range(extent)`, which is not empty."""
        lo, hi = self.range(form)
        if lo > 0 or hi < extent - 1:
            return Proof.DISPROVEN
        reach = 0
        for i, c in sorted(form.coefs, key=lambda term: abs(term[1])):
            if abs(c) > reach + 1:
                break
            reach += abs(c) * self.unknowns[i].hi
        else:
            return Proof.PROVEN
        shared = math.gcd(*(c for _, c in form.coefs))
        return Proof.DISPROVEN if extent > 1 and shared > 1 else Proof.UNKNOWN

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


def _rank(forms: Sequence[Form], unknowns: Sequence[int]) -> int:
    """The rank of the coefficients modulo a prime, which is at most their rank."""
    rows = [[f.as_dict.get(i, 0) % _PRIME for i in unknowns] for f in forms]
    rank = 0
    for column in range(len(unknowns)):
        pivot = next((r for r in range(rank, len(rows)) if rows[r][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        inverse = pow(rows[rank][column], -1, _PRIME)
        for r in range(rank + 1, len(rows)):
            factor = rows[r][column] * inverse % _PRIME
            if factor:
                rows[r] = [(a - factor * b) % _PRIME for a, b in zip(rows[r], rows[rank], strict=True)]
        rank += 1
    return rank
