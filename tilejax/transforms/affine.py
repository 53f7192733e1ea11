"""Index analysis: int32 values as affine forms of indices, which say where an access goes without data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Affine:
    """The int32 value `const + base + sum(coefficient * index)`; `base` is a traced scalar in `[lo, hi]`."""

    const: int = 0
    coefs: dict[Any, int] = field(default_factory=dict)
    base: Any = None
    lo: int = 0
    hi: int = 0

    @property
    def is_constant(self) -> bool:
        return not self.coefs and self.base is None

    def bounds(self, extent: Callable[[Any], int]) -> tuple[int, int]:
        """The least and greatest value, if nothing overflows, of indices in `[0, extent(index))`."""
        lo, hi = self.const + self.lo, self.const + self.hi
        for index, c in self.coefs.items():
            span = c * max(extent(index) - 1, 0)
            lo, hi = lo + min(span, 0), hi + max(span, 0)
        return lo, hi

    def at(self, point: dict[Hashable, int]) -> int:
        """The value at the given indices; those not given are 0, and so must be `base`."""
        return self.const + sum(c * point.get(index, 0) for index, c in self.coefs.items())


def combine(name: str, forms: Sequence[Affine | None], extent: Callable[[Any], int]) -> Affine | None:
    """The form of a JAX primitive's result from those of its int32 operands, if it is affine and its
    symbolic part can't overflow."""
    if None in forms or name not in ("add", "sub", "mul", "neg"):
        return None
    first = forms[0]
    assert first is not None
    if name == "neg":
        form = _scale(first, -1)
    else:
        second = forms[1]
        assert second is not None
        if name == "mul":
            if not first.is_constant and not second.is_constant:
                return None
            form = _scale(second, first.const) if first.is_constant else _scale(first, second.const)
        else:
            form = _add(first, second if name == "add" else _scale(second, -1))
    lo, hi = replace(form, base=None, lo=0, hi=0).bounds(extent)
    if not INT32.min <= lo <= hi <= INT32.max:
        return None
    lo, hi = form.bounds(extent)
    if form.base is not None and not INT32.min <= lo <= hi <= INT32.max:
        # The traced part may wrap around, as data does: of its range nothing is known then.
        base = form.base + np.int32(wrap(form.const))
        return Affine(0, form.coefs, base, int(INT32.min), int(INT32.max))
    return form


def compared(name: str, forms: Sequence[Affine | None], extent: Callable[[Any], int]) -> Affine | None:
    """The form that is at most 0 just where a comparison of two int32 values is true; None if it is none, or
    not of affine forms."""
    if name not in ("lt", "le", "gt", "ge"):
        return None
    a, b = reversed(forms) if name in ("gt", "ge") else forms
    difference = combine("sub", (a, b), extent)
    return difference if name in ("le", "ge") else combine("add", (difference, Affine(1)), extent)


def range_of(coefs: dict[Any, int], extent: Callable[[Any], int]) -> tuple[list[Any], int, int] | None:
    """The indices of a form, outermost first, its innermost coefficient and how many values it takes, if
    these follow one another at that distance, each once."""
    indices = sorted(coefs, key=lambda index: -coefs[index])
    if not indices or coefs[indices[-1]] < 1:
        return None
    count = 1
    for index in reversed(indices):
        if coefs[index] != coefs[indices[-1]] * count:
            return None
        count *= extent(index)
    return indices, coefs[indices[-1]], count


def _scale(form: Affine, factor: int) -> Affine:
    if factor == 0:
        return Affine()
    base = None if form.base is None else form.base * np.int32(factor)
    lo, hi = sorted((form.lo * factor, form.hi * factor))
    return Affine(form.const * factor, {e: c * factor for e, c in form.coefs.items()}, base, lo, hi)


def _add(a: Affine, b: Affine) -> Affine:
    coefs = {e: a.coefs.get(e, 0) + b.coefs.get(e, 0) for e in {**a.coefs, **b.coefs}}
    base = a.base if b.base is None else b.base if a.base is None else a.base + b.base
    return Affine(a.const + b.const, {e: c for e, c in coefs.items() if c}, base, a.lo + b.lo, a.hi + b.hi)


def wrap(value: int) -> int:
    """The int32 that `value` overflows to."""
    return (value + 2**31) % 2**32 - 2**31
