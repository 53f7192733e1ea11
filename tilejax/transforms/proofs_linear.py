"""Integer linear algebra on maps: whether two points of the domain can differ while all outputs agree, and
whether strides reach everything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.types import Proof
from .proofs_forms import Form, Forms

_PRIME = 2**61 - 1
_MAX_ROUNDS = 64
_MAX_TRIES = 2000


def differences(forms: Forms) -> list[int]:
    """How far apart each unknown can be at two points with the same image: 0 where it must agree.

    Each round tightens the greatest distance of an unknown by what the others can make up for, and the
    stride of its distances by the divisors that the others share."""
    span = [r.hi - r.lo for r in forms.unknowns]
    stride = [1] * len(span)
    rows = [f.as_dict for f in (*forms.outputs, *forms.ties())]
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


def injective(forms: Forms, span: Sequence[int]) -> Proof:
    """Whether the map is injective, where the forms can tell; `span` are the `differences`."""
    dims = [i for i, n in enumerate(forms.layout.extents) if n > 1]
    left = [i for i in dims if span[i]]
    if not left:
        return Proof.PROVEN
    unknowns = left if forms.affine else [i for i, n in enumerate(span) if n]
    rows = forms.outputs if forms.affine else forms.outputs + forms.ties()
    if _rank(rows, unknowns) == len(unknowns):
        return Proof.PROVEN
    if not forms.affine:
        return Proof.UNKNOWN
    if any(_collide(forms, i, j) for i in dims for j in dims if i <= j):
        return Proof.DISPROVEN
    if len(left) == 2:  # every collision is a multiple of the one that was tried
        return Proof.PROVEN
    heaviest_first = sorted(left, key=lambda i: -max(abs(f.as_dict.get(i, 0)) for f in forms.outputs))
    return _search(forms, heaviest_first, span)


def _search(forms: Forms, dims: Sequence[int], span: Sequence[int]) -> Proof:
    """Tries differences of `dims`, small ones first, that bring all outputs back to where they were."""
    columns = [[form.as_dict.get(i, 0) for form in forms.outputs] for i in dims]
    reach = [[0] * len(forms.outputs)]
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

    found = collides(0, [0] * len(forms.outputs), False)
    return Proof.DISPROVEN if found else Proof.PROVEN if tries <= _MAX_TRIES else Proof.UNKNOWN


def _collide(forms: Forms, i: int, j: int) -> bool:
    """Whether two points that differ only in the coordinates `i` and `j` (may be one) have one image."""
    columns = [(row.get(i, 0), row.get(j, 0)) for row in (f.as_dict for f in forms.outputs)]
    if i == j:
        return not any(a for a, _ in columns)
    first = next(((a, b) for a, b in columns if a or b), None)
    if first is None:
        return True
    divisor = math.gcd(*first)
    p, q = first[1] // divisor, -first[0] // divisor
    fits = abs(p) < forms.layout.extents[i] and abs(q) < forms.layout.extents[j]
    return fits and all(a * p + b * q == 0 for a, b in columns)


def surjective(forms: Forms, codomain: Sequence[int]) -> Proof:
    """Whether an affine map takes every value of its codomain, where its strides can tell."""
    verdicts = [_covers(forms, form, extent) for form, extent in zip(forms.outputs, codomain, strict=True)]
    if Proof.DISPROVEN in verdicts:
        return Proof.DISPROVEN
    used = [i for form in forms.outputs for i, _ in form.coefs]
    independent = len(used) == len(set(used))
    return Proof.PROVEN if independent and set(verdicts) <= {Proof.PROVEN} else Proof.UNKNOWN


def _covers(forms: Forms, form: Form, extent: int) -> Proof:
    """Whether the values of an affine form include `range(extent)`, which is not empty."""
    lo, hi = forms.range(form)
    if lo > 0 or hi < extent - 1:
        return Proof.DISPROVEN
    reach = 0
    for i, c in sorted(form.coefs, key=lambda term: abs(term[1])):
        if abs(c) > reach + 1:
            break
        reach += abs(c) * forms.unknowns[i].hi
    else:
        return Proof.PROVEN
    shared = math.gcd(*(c for _, c in form.coefs))
    return Proof.DISPROVEN if extent > 1 and shared > 1 else Proof.UNKNOWN


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
