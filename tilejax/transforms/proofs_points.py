"""Verdicts by visiting every point."""

from __future__ import annotations

import math

import numpy as np

from ..ir.pointmap import INT64, MAX_SHIFT, OPERATORS, PointMap
from ..ir.types import Proof, Proofs


def enumerate_points(layout: PointMap, total: bool) -> Proofs:
    """What all points of the domain say; `total` if the map is known to be.

    Where it is undefined it says nothing, so that only a total map is in bounds or injective."""
    if total:
        images, defined = layout.images(), np.ones(layout.size, np.bool_)
    else:
        images, defined = _checked(layout)
    images = [image[defined].astype(np.int64) for image in images]
    total = bool(defined.all())
    count = int(defined.sum())
    inside = np.ones(count, np.bool_)
    for image, extent in zip(images, layout.codomain, strict=True):
        inside &= (image >= 0) & (image < extent)
    distinct = _distinct(images, np.ones(count, np.bool_))
    reached = _distinct(images, inside)
    return Proofs(
        Proof.PROVEN if total else Proof.DISPROVEN,
        _verdict(bool(inside.all()), total),
        _verdict(distinct == count, total),
        Proof.PROVEN if reached == layout.codomain_size else _verdict(False, True, total),
        layout.size,
    )


def _verdict(holds: bool, surely: bool, refutes: bool = True) -> Proof:
    if holds:
        return Proof.PROVEN if surely else Proof.UNKNOWN
    return Proof.DISPROVEN if refutes else Proof.UNKNOWN


def _distinct(images: list[np.ndarray], where: np.ndarray) -> int:
    """How many different points there are."""
    columns = [image[where] for image in images]
    if not columns or not len(columns[0]):
        return int(where.any())
    order = np.lexsort(columns)
    new = np.zeros(len(order) - 1, np.bool_)
    for column in columns:
        ordered = column[order]
        new |= ordered[1:] != ordered[:-1]
    return 1 + int(new.sum())


def _checked(layout: PointMap) -> tuple[list[np.ndarray], np.ndarray]:
    """The outputs on integers without limits, and where every subexpression is defined and fits."""
    defined = np.ones(layout.size, np.bool_)
    places = np.unravel_index(np.arange(math.prod(layout.extents)), layout.extents)
    values: list[np.ndarray] = []
    for kind, left, right in layout.ops:
        if kind == "const":
            value = np.full(layout.size, left, object)
        elif kind == "index":
            value = places[left].astype(object)
        else:
            a, b = values[left], values[right]
            if kind in ("//", "%"):
                ok = b != 0
            elif kind in ("<<", ">>"):
                ok = (b >= 0) & (b <= MAX_SHIFT)
            else:
                ok = np.ones(layout.size, np.bool_)
            ok = ok.astype(np.bool_)
            defined &= ok
            value = OPERATORS[kind](a, np.where(ok, b, 1))
        fits = ((value >= int(INT64.min)) & (value <= int(INT64.max))).astype(np.bool_)
        defined &= fits
        values.append(np.where(fits, value, 0))
    return [values[i] for i in layout.outputs], defined
