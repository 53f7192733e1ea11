"""Linear algebra over GF(2): subexpressions each bit of which is an exclusive or of bits of the coordinates.

A bit is an int: its lowest bit is a constant, the others say which input bits it adds up. A value is the
tuple of its bits, lowest first, in two's complement. An operator has bits only where its structure says so:
trying basis vectors would take `x ^ ((x & (x >> 1)) << 1)` for linear, which it is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..ir.pointmap import PointMap
from ..ir.types import Proof
from .proofs_ranges import Range

_MAX_BOXES = 1024

Value = tuple[int, ...]


@dataclass(frozen=True)
class Bits:
    """The bits of a total map's ops, and where each coordinate's bits are among the inputs."""

    layout: PointMap
    values: list[Value | None]
    inputs: list[range]
    """For each coordinate the numbers of its bits, lowest first; number 0 is the constant."""

    @classmethod
    def of(cls, layout: PointMap, ranges: Sequence[Range]) -> Bits:
        inputs: list[range] = []
        for n in layout.extents:
            start = inputs[-1].stop if inputs else 1
            inputs.append(range(start, start + (n - 1).bit_length()))
        width = 1 + max((max(abs(r.lo), abs(r.hi)).bit_length() for r in ranges), default=0)
        values: list[Value | None] = []
        for (kind, left, right), found in zip(layout.ops, ranges, strict=True):
            if found.constant:
                values.append(_constant(found.lo, width))
            elif kind == "index":
                bits = tuple(1 << i for i in inputs[left])
                values.append(bits + (0,) * (width - len(bits)))
            else:
                a, b = values[left], values[right]
                value = None
                if a is not None:
                    value = _apply(kind, a, b, ranges[left], ranges[right])
                if value is None and kind == "*" and b is not None:
                    value = _apply(kind, b, a, ranges[right], ranges[left])
                values.append(value)
        return cls(layout, values, inputs)

    @property
    def outputs(self) -> list[Value] | None:
        """The bits of the outputs, if all have them."""
        found = [v for v in (self.values[i] for i in self.layout.outputs) if v is not None]
        return found if len(found) == len(self.layout.outputs) else None

    @property
    def whole(self) -> bool:
        """Whether the domain is all that its bits can say."""
        return all(n & (n - 1) == 0 for n in self.layout.extents)

    def injective(self, agreeing: Sequence[int], known: Sequence[int]) -> Proof:
        """Whether the map is injective. `agreeing` are ops, and `known` coordinates, that have one value at
        points with one image.

        If all outputs have bits, a difference in the kernel is a collision in every domain: one of its points
        has of each coordinate's difference the highest bit alone, the other one the rest."""
        unknown = [b for d, bits in enumerate(self.inputs) if d not in known for b in bits]
        facts = [v for v in (self.values[i] for i in (*agreeing, *self.layout.outputs)) if v is not None]
        mask = sum(1 << b for b in unknown)
        if _rank(bit & mask for value in facts for bit in value) == len(unknown):
            return Proof.PROVEN
        return Proof.UNKNOWN if self.outputs is None else Proof.DISPROVEN

    def in_bounds(self, codomain: Sequence[int]) -> Proof:
        """Whether the outputs stay in the codomain: exact, over the boxes of free low bits that make up the
        domain."""
        outputs = self.outputs
        if outputs is None or math.prod(n.bit_count() for n in self.layout.extents) > _MAX_BOXES:
            return Proof.UNKNOWN
        for value, extent in zip(outputs, codomain, strict=True):
            for fixed, free in self._boxes():
                lo, hi = _extremes(value, fixed, free)
                if lo < 0 or hi >= extent:
                    return Proof.DISPROVEN
        return Proof.PROVEN

    def _boxes(self) -> Iterator[tuple[int, list[int]]]:
        """Disjoint boxes whose union is the domain: the input bits that are 1 (bit 0, the constant, is), and
        those that are free."""
        each = []
        for n, bits in zip(self.layout.extents, self.inputs, strict=True):
            parts = []
            for p in range(n.bit_length()):
                if n >> p & 1:
                    prefix = n >> (p + 1) << (p + 1)
                    ones = sum(1 << bits[i] for i in range(len(bits)) if prefix >> i & 1)
                    parts.append((ones, list(bits[:p])))
            each.append(parts)
        for combination in itertools.product(*each):
            yield 1 + sum(ones for ones, _ in combination), [b for _, free in combination for b in free]

    def surjective(self, codomain: Sequence[int]) -> Proof:
        """Whether the image covers the codomain, which is not empty.

        The image of all that the input bits can say is an affine space. It has the codomain in it if it has
        0 and the powers of two of each extent, of which the codomain has all."""
        outputs = self.outputs
        if outputs is None:
            return Proof.UNKNOWN
        width = len(outputs[0]) if outputs else 0
        columns = [_column(outputs, b) for b in range(self.inputs[-1].stop if self.inputs else 1)]
        basis = _basis(columns[1:])
        wanted = [columns[0]]
        for i, extent in enumerate(codomain):
            length = (extent - 1).bit_length()
            if length > width:
                return Proof.DISPROVEN
            wanted += [1 << (i * width + t) for t in range(length)]
        if any(_reduce(basis, w) for w in wanted):
            return Proof.DISPROVEN
        return Proof.PROVEN if self.whole else Proof.UNKNOWN


def _constant(value: int, width: int) -> Value:
    return tuple(value >> k & 1 for k in range(width))


def _apply(kind: str, a: Value, b: Value | None, of_a: Range, of_b: Range) -> Value | None:
    """An operator's bits from those of its operands, if it is linear in them."""
    width = len(a)
    if kind in ("^", "&", "+", "-"):
        return None if b is None else _BITWISE[kind](a, b)
    if not of_b.constant:
        return None
    c = of_b.lo
    if kind == "*":
        return _multiply(a, c)
    if kind in ("//", "%") and of_a.inside(c):
        return a if kind == "%" else _constant(0, width)
    if kind == "<<":
        return (0,) * min(c, width) + a[: max(width - c, 0)]
    if kind in ("//", "%") and (c <= 0 or c & (c - 1)):
        return None
    shift = c if kind == ">>" else c.bit_length() - 1
    if kind == "%":
        return a[:shift] + (0,) * (width - shift)
    return a[shift:] + (a[-1],) * min(shift, width)


def _xor(a: Value, b: Value) -> Value:
    return tuple(x ^ y for x, y in zip(a, b, strict=True))


def _and(a: Value, b: Value) -> Value | None:
    out = []
    for x, y in zip(a, b, strict=True):
        if 0 in (x, y) or x == y ^ 1:
            out.append(0)
        elif x in (1, y):
            out.append(y)
        elif y == 1:
            out.append(x)
        else:
            return None
    return tuple(out)


def _sum(a: Value, b: Value, carry: int = 0) -> Value | None:
    """A ripple adder: of three bits, two that are equal or opposite make the sum and the carry linear."""
    out = []
    for x, y in zip(a, b, strict=True):
        trio = (x, y, carry)
        for first, second, third in (trio, (x, carry, y), (y, carry, x)):
            if first == second or first == second ^ 1:
                out.append(first ^ second ^ third)
                carry = first if first == second else third
                break
        else:
            return None
    return tuple(out)


def _difference(a: Value, b: Value) -> Value | None:
    return _sum(a, tuple(x ^ 1 for x in b), 1)


def _multiply(a: Value, factor: int) -> Value | None:
    width = len(a)
    total: Value | None = (0,) * width
    for k in range(abs(factor).bit_length()):
        if abs(factor) >> k & 1 and total is not None:
            total = _sum(total, (0,) * min(k, width) + a[: max(width - k, 0)])
    return _difference((0,) * width, total) if factor < 0 and total is not None else total


_BITWISE = {"^": _xor, "&": _and, "+": _sum, "-": _difference}


def _column(values: Sequence[Value], b: int) -> int:
    """What input bit `b` adds to all bits of all values, as one int."""
    bits = itertools.chain.from_iterable(values)
    return sum((bit >> b & 1) << place for place, bit in enumerate(bits))


def _basis(vectors: Sequence[int]) -> dict[int, int]:
    """A basis of the span, by highest bit."""
    basis: dict[int, int] = {}
    for vector in vectors:
        reduced = _reduce(basis, vector)
        if reduced:
            basis[reduced.bit_length()] = reduced
    return basis


def _reduce(basis: dict[int, int], vector: int) -> int:
    """The vector less what the basis can take off it, from the top; 0 if it is in the span."""
    for top in sorted(basis, reverse=True):
        if vector >> (top - 1) & 1:
            vector ^= basis[top]
    return vector


def _rank(vectors: Iterable[int]) -> int:
    return len(_basis([v for v in vectors if v]))


def _extremes(value: Value, fixed: int, free: Sequence[int]) -> tuple[int, int]:
    """The least and greatest value over a box of inputs."""
    width = len(value)
    sign = 1 << (width - 1)  # with the sign bit turned, two's complement is in the order of its bits
    start = sum(((bit & fixed).bit_count() & 1) << k for k, bit in enumerate(value)) ^ sign
    basis = _basis([sum((bit >> b & 1) << k for k, bit in enumerate(value)) for b in free])
    lo = hi = start
    for top in sorted(basis, reverse=True):
        lo, hi = min(lo, lo ^ basis[top]), max(hi, hi ^ basis[top])
    return lo - sign, hi - sign
