"""What can be proved of a map between points: total, in bounds, injective, surjective.

Four ways, cheapest first, each of which only ever adds to what is known: intervals, integer linear algebra,
linear algebra over GF(2), and a visit to every point if they are few enough. Counting joins them: a map into
a codomain of the domain's size is injective if and only if it is surjective.
"""

from __future__ import annotations

import functools

from ..ir.pointmap import PointMap
from ..ir.types import Proof, Proofs
from . import proofs_linear as linear
from .proofs_bits import Bits
from .proofs_forms import Forms
from .proofs_points import enumerate_points
from .proofs_ranges import corners, ranges

_P, _D, _U = Proof.PROVEN, Proof.DISPROVEN, Proof.UNKNOWN


@functools.lru_cache(maxsize=4096)
def prove(layout: PointMap, max_fallback: int = 2**20) -> Proofs:
    """The verdicts, visiting every point only if the domain has at most `max_fallback`.

    None is ever wrong. Of a map that is not total, only what is so for its defined points is claimed."""
    if not layout.size:
        return Proofs(_P, _P, _P, _D if layout.codomain_size else _P, 0)
    found = _structure(layout)
    verdicts = found.total, found.in_bounds, found.injective, found.surjective
    if _U in verdicts and layout.size <= max_fallback:
        visited = enumerate_points(layout, found.total is _P)
        total, in_bounds, injective, surjective = (
            a if a is not _U else b for a, b in zip(verdicts, visited[:4], strict=True)
        )
        return Proofs(total, in_bounds, injective, surjective, layout.size)
    return found


def _structure(layout: PointMap) -> Proofs:
    """What the map's structure says; its domain is not empty."""
    known, total = ranges(layout)
    in_bounds = injective = surjective = _U
    images = [layout.at(point) for point in corners(layout)] if total is not _D else []
    if None in images:
        total = _D
    if any(image is not None and not _inside(image, layout.codomain) for image in images):
        in_bounds = _D
    if total is _P:
        forms, bits = Forms.of(layout, known), Bits.of(layout, known)
        if in_bounds is _U and all(
            known[i].inside(n) or forms.range(forms.forms[i]).inside(n)
            for i, n in zip(layout.outputs, layout.codomain, strict=True)
        ):
            in_bounds = _P
        if in_bounds is _U:
            in_bounds = bits.in_bounds(layout.codomain)
        injective = _injective(layout, forms, bits)
        if layout.codomain_size:
            surjective = bits.surjective(layout.codomain)
            if surjective is _U and forms.affine:
                surjective = linear.surjective(forms, layout.codomain)
            if surjective is _U and forms.image_size() < layout.codomain_size:
                surjective = _D
    return _count(layout, total, in_bounds, injective, surjective)


def _injective(layout: PointMap, forms: Forms, bits: Bits) -> Proof:
    if forms.image_size() < layout.size:
        return _D
    span = linear.differences(forms)
    verdict = linear.injective(forms, span)
    if verdict is not _U:
        return verdict
    known = [i for i in range(len(layout.extents)) if not span[i]]
    agreeing = [i for i, form in enumerate(forms.forms) if all(not span[u] for u, _ in form.coefs)]
    return bits.injective(agreeing, known)


def _inside(image: tuple[int, ...], codomain: tuple[int, ...]) -> bool:
    return all(0 <= value < extent for value, extent in zip(image, codomain, strict=True))


def _count(layout: PointMap, total: Proof, in_bounds: Proof, injective: Proof, surjective: Proof) -> Proofs:
    """The verdicts, and what the sizes of domain and codomain add to them."""
    size, room = layout.size, layout.codomain_size
    if not room:
        surjective = _P
        in_bounds = _D if total is _P else in_bounds
    elif size < room:
        surjective = _D
    if size > room:
        in_bounds = _D if injective is _P else in_bounds
        injective = _D if in_bounds is _P else injective
    if total is _P and size == room:
        if _D in (in_bounds, injective):
            surjective = _D
        elif surjective is _P:
            in_bounds = injective = _P
        elif in_bounds is _P and injective is _P:
            surjective = _P
        elif in_bounds is _P and surjective is _D:
            injective = _D
        elif injective is _P and surjective is _D:
            in_bounds = _D
    return Proofs(total, in_bounds, injective, surjective, 0)
