"""Maps between points, as data: the integer arithmetic that gives each element of a memory its address."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

INT64 = np.iinfo(np.int64)
MAX_SHIFT = 63

OPERATORS: dict[str, Any] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "^": operator.xor,
    "&": operator.and_,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
"""On Python's ints and on NumPy's int64 they agree, floor division and arithmetic right shift included."""


class Op(NamedTuple):
    """`index` (of dimension `left`), `const` (the value `left`), or an operator on the results of two
    earlier ops."""

    kind: str
    left: int
    right: int = 0


@dataclass(frozen=True)
class PointMap:
    """From the points of the box `extents` to points, by `ops` in order, of which `outputs` are the results.

    The images should lie in the box `codomain`; whether they do is for `transforms.proofs` to say."""

    extents: tuple[int, ...]
    codomain: tuple[int, ...]
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many points the domain has."""
        return math.prod(self.extents)

    @property
    def codomain_size(self) -> int:
        """How many points the codomain has: a memory's elements, padding counted."""
        return math.prod(self.codomain)

    def at(self, point: tuple[int, ...]) -> tuple[int, ...] | None:
        """The image of a point; None if a subexpression there is undefined or leaves 64 bits."""
        values: list[int] = []
        for kind, left, right in self.ops:
            if kind == "const":
                value = left if INT64.min <= left <= INT64.max else None
            elif kind == "index":
                value = point[left]
            else:
                value = compute(kind, values[left], values[right])
            if value is None:
                return None
            values.append(value)
        return tuple(values[i] for i in self.outputs)

    def images(self) -> list[np.ndarray]:
        """Each output, int64, flat over the row-major domain. The map must be total."""
        count = len(self.extents)
        values: list[np.ndarray] = []
        for kind, left, right in self.ops:
            if kind == "const":
                values.append(np.array(left, np.int64))
            elif kind == "index":
                shape = [-1 if d == left else 1 for d in range(count)]
                values.append(np.arange(self.extents[left], dtype=np.int64).reshape(shape))
            else:
                values.append(OPERATORS[kind](values[left], values[right]))
        return [np.broadcast_to(values[i], self.extents).reshape(-1) for i in self.outputs]

    def __str__(self) -> str:
        text = ", ".join(map(self._text, self.outputs))
        if len(text) > 80:
            text = text[:77] + "..."
        return f"{list(self.extents)} -> {list(self.codomain)}: {text}"

    __repr__ = __str__

    def _text(self, number: int, depth: int = 0) -> str:
        kind, left, right = self.ops[number]
        if kind == "const":
            return str(left)
        if kind == "index":
            return f"i{left}"
        if depth > 8:
            return "..."
        text = f"{self._text(left, depth + 1)} {kind} {self._text(right, depth + 1)}"
        return f"({text})" if depth else text


def compute(kind: str, a: int, b: int) -> int | None:
    """An operator on two ints; None where it is undefined or leaves 64 bits."""
    if (kind in ("//", "%") and b == 0) or (kind in ("<<", ">>") and not 0 <= b <= MAX_SHIFT):
        return None
    value = OPERATORS[kind](a, b)
    return value if INT64.min <= value <= INT64.max else None


@functools.lru_cache(maxsize=64)
def addresses(layout: PointMap) -> np.ndarray:
    """The row-major position in the codomain of each element of the domain, in the domain's shape."""
    flat = np.zeros(layout.size, np.int64)
    for image, extent in zip(layout.images(), layout.codomain, strict=True):
        flat = flat * extent + image
    return flat.reshape(layout.extents)
