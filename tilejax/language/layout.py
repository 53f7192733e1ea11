"""Layouts: where each element of a memory lies, as integer arithmetic on its coordinates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from .._errors import LayoutError, ShapeError
from ..ir.pointmap import Op, PointMap
from ..ir.types import Proofs
from ..transforms import proofs
from .axis import Shape, as_shape


class Index:
    """A coordinate, or an integer computed from coordinates, while the function of a map runs."""

    __slots__ = ("number", "ops")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ops: dict[Op, int], op: Op):
        self.ops = ops
        self.number = ops.setdefault(op, len(ops))

    def __repr__(self) -> str:
        return "<index>"

    def __bool__(self) -> bool:
        raise LayoutError("an index of a map has no truth value: a map is arithmetic, without branches")

    def _with(self, kind: str, other: Any, swap: bool = False) -> Any:
        if not isinstance(other, Index):
            try:
                other = Index(self.ops, Op("const", operator.index(other)))
            except TypeError:
                return NotImplemented
        if other.ops is not self.ops:
            raise LayoutError("an index of another map: the function of a map may use its own only")
        a, b = (other, self) if swap else (self, other)
        return Index(self.ops, Op(kind, a.number, b.number))

    def __add__(self, other: Any) -> Index:
        return self._with("+", other)

    def __radd__(self, other: Any) -> Index:
        return self._with("+", other, True)

    def __sub__(self, other: Any) -> Index:
        return self._with("-", other)

    def __rsub__(self, other: Any) -> Index:
        return self._with("-", other, True)

    def __mul__(self, other: Any) -> Index:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> Index:
        return self._with("*", other, True)

    def __floordiv__(self, other: Any) -> Index:
        return self._with("//", other)

    def __rfloordiv__(self, other: Any) -> Index:
        return self._with("//", other, True)

    def __mod__(self, other: Any) -> Index:
        return self._with("%", other)

    def __rmod__(self, other: Any) -> Index:
        return self._with("%", other, True)

    def __xor__(self, other: Any) -> Index:
        return self._with("^", other)

    def __rxor__(self, other: Any) -> Index:
        return self._with("^", other, True)

    def __and__(self, other: Any) -> Index:
        return self._with("&", other)

    def __rand__(self, other: Any) -> Index:
        return self._with("&", other, True)

    def __lshift__(self, other: Any) -> Index:
        return self._with("<<", other)

    def __rlshift__(self, other: Any) -> Index:
        return self._with("<<", other, True)

    def __rshift__(self, other: Any) -> Index:
        return self._with(">>", other)

    def __rrshift__(self, other: Any) -> Index:
        return self._with(">>", other, True)


class IndexMap:
    """A map from the elements of a shape to an address, or to the elements of another shape.

    `domain` is a shape, `codomain` an int or a shape. Arithmetic is signed 64-bit and floors. Equal maps
    compute the same in the same way."""

    __slots__ = ("codomain", "domain", "points")

    def __init__(self, domain: Shape, codomain: int | Shape, points: PointMap):
        self.domain, self.codomain, self.points = domain, codomain, points

    def __repr__(self) -> str:
        return f"IndexMap({self.points})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexMap) and self.domain == other.domain and self.points == other.points

    def __hash__(self) -> int:
        return hash(self.points)

    @staticmethod
    def identity(shape: Any) -> IndexMap:
        """Every element to itself."""
        domain = as_shape(shape, "IndexMap.identity")
        return _build(domain, lambda *index: index, domain)

    @staticmethod
    def strided(shape: Any, strides: Sequence[int], *, offset: int = 0, codomain: Any = None) -> IndexMap:
        """The address `offset + sum(index * stride)`. The codomain is the largest address + 1 unless given.

        Raises `ShapeError` unless there is one stride a dimension."""
        domain = as_shape(shape, "IndexMap.strided")
        steps = _ints(strides, "IndexMap.strided: strides")
        (first,) = _ints((offset,), "IndexMap.strided: offset")
        if len(steps) != len(domain):
            raise ShapeError(f"strides {steps} for {domain}: there must be one a dimension")
        if codomain is None:
            reach = sum(max(s, 0) * (n - 1) for s, n in zip(steps, domain.extents, strict=True))
            codomain = max(first + reach + 1, 0) if 0 not in domain.extents else 0

        def address(*index: Index) -> Any:
            total: Any = first
            for i, step in zip(index, steps, strict=True):
                part = i if step == 1 else i * step
                total = part if isinstance(total, int) and total == 0 else total + part
            return total

        return _build(domain, address, codomain)

    @staticmethod
    def permute(shape: Any, order: Sequence[int]) -> IndexMap:
        """The coordinates in another order: coordinate `i` of the image is coordinate `order[i]`.

        Raises `ShapeError` if `order` is not a permutation."""
        domain = as_shape(shape, "IndexMap.permute")
        places = _ints(order, "IndexMap.permute: order")
        if sorted(places) != list(range(len(domain))):
            raise ShapeError(f"order {places} is not a permutation of the dimensions of {domain}")
        return _build(domain, lambda *index: [index[p] for p in places], Shape(domain[p] for p in places))

    @staticmethod
    def reshape(shape: Any, new_shape: Any) -> IndexMap:
        """The coordinates in `new_shape` of the same row-major position. `ShapeError` if the sizes differ."""
        domain = as_shape(shape, "IndexMap.reshape")
        target = as_shape(new_shape, "IndexMap.reshape")
        if math.prod(domain.extents) != math.prod(target.extents):
            raise ShapeError(f"reshape from {domain} to {target}: the sizes differ")

        def split(*index: Index) -> Any:
            position: Any = 0
            for i, n in zip(index, domain.extents, strict=True):
                position = i if isinstance(position, int) else position * n + i
            digits: list[Any] = []
            for n in reversed(target.extents[1:]):
                digits.append(position % max(n, 1))
                position = position // max(n, 1)
            return [position, *reversed(digits)][: len(target)]

        return _build(domain, split, target)

    @staticmethod
    def from_function(shape: Any, fn: Callable[..., Any], codomain: Any) -> IndexMap:
        """The map `fn(i, j, ...)`, of `+ - * // % ^ & << >>` on coordinates and constants; a tuple for a
        codomain of several dimensions.

        Raises `LayoutError` for anything else in `fn`, `ShapeError` if the codomain does not fit it."""
        return _build(as_shape(shape, "IndexMap.from_function"), fn, codomain)

    def compose(self, inner: IndexMap) -> IndexMap:
        """`self` after `inner`, whose codomain must have the extents of this domain (else `ShapeError`)."""
        if inner.points.codomain != self.points.extents:
            raise ShapeError(
                f"compose: the inner map goes to {list(inner.points.codomain)}, the outer one takes "
                f"{list(self.points.extents)}"
            )

        ops: dict[Op, int] = {}
        index = [Index(ops, Op("index", d)) for d in range(len(inner.domain))]
        images = _replay(self.points, ops, _replay(inner.points, ops, index))
        outputs = tuple(image.number for image in images)
        points = PointMap(inner.points.extents, self.points.codomain, tuple(ops), outputs)
        return IndexMap(inner.domain, self.codomain, points)

    def __call__(self, *coords: int) -> Any:
        """The image of one element: an int, or a tuple where the codomain has several dimensions.

        Raises `LayoutError` outside the domain and where the arithmetic is not defined."""
        point = _ints(coords, "an index map's coordinates")
        extents = self.points.extents
        if len(point) != len(extents) or not all(0 <= i < n for i, n in zip(point, extents, strict=True)):
            raise LayoutError(f"{point} is not an element of {self.domain}")
        image = self.points.at(point)
        if image is None:
            raise LayoutError(
                f"{self!r} is not defined at {point}: a division by zero, a shift count outside 0..63 or a "
                "value that does not fit signed 64 bits"
            )
        return image[0] if len(image) == 1 else image

    def prove(self, max_fallback: int = 2**20) -> Proofs:
        """Whether the map is total, in bounds, injective and surjective: by its structure, at any size, or
        by visiting all of at most `max_fallback` elements. No verdict is ever wrong."""
        return proofs.prove(self.points, max_fallback)


def layout(shape: Any, strides: Sequence[int]) -> IndexMap:
    """Element `index` at the address `sum(index * stride)`: `IndexMap.strided`."""
    return IndexMap.strided(shape, strides)


def _build(domain: Shape, fn: Callable[..., Any], codomain: Any) -> IndexMap:
    """The map that `fn` computes from symbolic coordinates."""
    ops: dict[Op, int] = {}
    index = [Index(ops, Op("index", d)) for d in range(len(domain))]
    try:
        result = fn(*index)
    except TypeError as error:
        raise LayoutError(
            f"the function of an index map takes {len(domain)} coordinates and uses + - * // % ^ & << >> on "
            f"them and on ints: {error}"
        ) from error
    target = codomain if isinstance(codomain, (int, Shape)) else as_shape(codomain, "an index map's codomain")
    extents = as_shape(target, "an index map's codomain").extents
    images = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(images) != len(extents):
        raise ShapeError(f"an index map to {list(extents)} gives {len(extents)} values, not {len(images)}")
    outputs = tuple(_number(ops, image) for image in images)
    return IndexMap(domain, target, PointMap(domain.extents, extents, tuple(ops), outputs))


def _number(ops: dict[Op, int], value: Any) -> int:
    if isinstance(value, Index):
        if value.ops is not ops:
            raise LayoutError("the function of an index map returns an index of another map")
        return value.number
    (constant,) = _ints((value,), "the result of an index map's function")
    return ops.setdefault(Op("const", constant), len(ops))


def _replay(points: PointMap, ops: dict[Op, int], coords: Sequence[Index]) -> list[Index]:
    """The outputs of a map at symbolic coordinates."""
    values: list[Index] = []
    for kind, left, right in points.ops:
        if kind == "index":
            values.append(coords[left])
        elif kind == "const":
            values.append(Index(ops, Op(kind, left)))
        else:
            values.append(Index(ops, Op(kind, values[left].number, values[right].number)))
    return [values[i] for i in points.outputs]


def _ints(values: Sequence[Any], what: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(v) for v in values)
    except TypeError:
        raise LayoutError(f"{what} must be ints, got {values!r}") from None
