"""Intervals: the least and greatest value that each subexpression of a map can have, and so whether all of
them fit."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from ..ir.pointmap import INT64, MAX_SHIFT, PointMap
from ..ir.types import Proof


class Range(NamedTuple):
    lo: int
    hi: int

    @property
    def constant(self) -> bool:
        return self.lo == self.hi

    def inside(self, extent: int) -> bool:
        """Whether all of it is in `range(extent)`."""
        return self.lo >= 0 and self.hi < extent


_FITS = Range(int(INT64.min), int(INT64.max))


def ranges(layout: PointMap) -> tuple[list[Range], Proof]:
    """A range for each op, right where the map is defined, and whether it is total. The domain has points.

    The ranges are of integers without limits, so that an overflow shows."""
    out: list[Range] = []
    total = Proof.PROVEN
    for kind, left, right in layout.ops:
        if kind == "const":
            found = Range(left, left)
        elif kind == "index":
            found = Range(0, layout.extents[left] - 1)
        else:
            a, b = out[left], out[right]
            defined = _defined(kind, b)
            found = _RULES[kind](a, b) if defined is not Proof.DISPROVEN else Range(0, 0)
            total = _worse(total, defined)
        if not (_FITS.lo <= found.lo and found.hi <= _FITS.hi):
            total = _worse(total, Proof.UNKNOWN if _overlaps(found, _FITS) else Proof.DISPROVEN)
            found = Range(*(min(max(v, _FITS.lo), _FITS.hi) for v in found))
        out.append(found)
    return out, total


def corners(layout: PointMap) -> list[tuple[int, ...]]:
    """Points worth a look: the corners of the domain, at most 64 of them. Affine maps have their extremes
    there."""
    ends = [sorted({0, n - 1}) for n in layout.extents]
    return [*itertools.islice(itertools.product(*ends), 64), tuple(n - 1 for n in layout.extents)]


def _worse(a: Proof, b: Proof) -> Proof:
    order = [Proof.PROVEN, Proof.UNKNOWN, Proof.DISPROVEN]
    return max(a, b, key=order.index)


def _overlaps(a: Range, b: Range) -> bool:
    return a.lo <= b.hi and b.lo <= a.hi


def _defined(kind: str, b: Range) -> Proof:
    """Whether an operator is defined for right operands of this range."""
    if kind in ("//", "%"):
        bad, good = _overlaps(b, Range(0, 0)), b != Range(0, 0)
    elif kind in ("<<", ">>"):
        bad, good = b.lo < 0 or b.hi > MAX_SHIFT, _overlaps(b, Range(0, MAX_SHIFT))
    else:
        return Proof.PROVEN
    return Proof.PROVEN if not bad else Proof.UNKNOWN if good else Proof.DISPROVEN


def _hull(*values: int) -> Range:
    return Range(min(values), max(values))


def _multiply(a: Range, b: Range) -> Range:
    return _hull(*(x * y for x in a for y in b))


def _divide(a: Range, b: Range) -> Range:
    # A quotient is monotone in both operands where the divisor keeps its sign.
    ends = {y for y in (b.lo, b.hi, -1, 1) if y and b.lo <= y <= b.hi}
    return _hull(*(x // y for x in a for y in ends))


def _remainder(a: Range, b: Range) -> Range:
    if b.lo > 0 and a.inside(b.lo):
        return a
    if b.constant and b.lo > 0 and a.lo // b.lo == a.hi // b.lo:
        return Range(a.lo % b.lo, a.hi % b.lo)
    return Range(min(b.lo + 1, 0), max(b.hi - 1, 0))


def _and(a: Range, b: Range) -> Range:
    bounds = [r.hi for r in (a, b) if r.lo >= 0]
    return Range(0, min(bounds)) if bounds else Range(-_power(a, b), _power(a, b) - 1)


def _xor(a: Range, b: Range) -> Range:
    top = _power(a, b)
    return Range(0 if a.lo >= 0 and b.lo >= 0 else -top, top - 1)


def _power(a: Range, b: Range) -> int:
    """The least power of two such that all values are in `range(-power, power)`."""
    return 1 << max((v if v >= 0 else ~v).bit_length() for v in (*a, *b))


def _shift_left(a: Range, b: Range) -> Range:
    return _multiply(a, Range(1 << max(b.lo, 0), 1 << min(b.hi, MAX_SHIFT)))


def _shift_right(a: Range, b: Range) -> Range:
    return _hull(*(x >> s for x in a for s in (max(b.lo, 0), min(b.hi, MAX_SHIFT))))


_RULES = {
    "+": lambda a, b: Range(a.lo + b.lo, a.hi + b.hi),
    "-": lambda a, b: Range(a.lo - b.hi, a.hi - b.lo),
    "*": _multiply,
    "//": _divide,
    "%": _remainder,
    "^": _xor,
    "&": _and,
    "<<": _shift_left,
    ">>": _shift_right,
}
