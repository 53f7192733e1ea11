"""`mma`: the contraction of two tiles into an accumulator."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import DtypeError, ShapeError
from ...ir import primitives as ir
from .. import trace
from ..axis import extent_of, labels
from ..tile import Tile, as_tile

# What JAX calls "tensorfloat32": TF32 where the device has it, f32 elsewhere.
_PRECISIONS = {"tf32": jax.lax.Precision.HIGH}


def mma(a: Tile, b: Tile, acc: Tile, *, allow_reassociation: bool = True, precision: Any = None) -> Tile:
    """`acc` plus the contraction of `a` and `b`, with the axes and dtype of `acc`.

    Axes in both `a` and `b` but not in `acc` are contracted; axes in all three are batch. If the
    identities don't fit, rank-2 tiles multiply by position, (M,K) x (K,N). Operands are f16, bf16, f8 or
    f32 with an f32 accumulator (or wider), or int8/uint8 with int32. f32 operands are multiplied as f32
    unless `precision` ("tf32", or a name that JAX takes) asks for less. `allow_reassociation=False` adds
    in ascending order of the contracted index.

    Raises `ShapeError` for axes that do not fit and `DtypeError` for dtypes that do not.
    """
    a, b, acc = as_tile(a, "mma: a"), as_tile(b, "mma: b"), as_tile(acc, "mma: acc")
    _check_dtypes(a, b, acc)
    names = _by_identity(a, b, acc) or _by_position(a, b, acc)
    if names is None:
        raise ShapeError(
            f"mma: a of {a.axes}, b of {b.axes}, acc of {acc.axes}: every axis of a and b must be in the "
            "other or in acc, "
            f"with equal extents, or all three be (M,K), (K,N), (M,N) by position; {_misfit(a, b, acc)}"
        )
    (value,) = ir.mma_p.bind(
        a.value,
        b.value,
        acc.value,
        a_labels=names[0],
        b_labels=names[1],
        acc_labels=names[2],
        allow_reassociation=bool(allow_reassociation),
        precision=_precision(precision),
        loc=trace.here(),
    )
    return Tile(value, acc.axes)


def _by_identity(a: Tile, b: Tile, acc: Tile) -> tuple[tuple[int, ...], ...] | None:
    la, lb, lc = (labels(t.axes) for t in (a, b, acc))
    extents: dict[Any, int] = {}
    for tile, own in ((a, la), (b, lb), (acc, lc)):
        for label, dim in zip(own, tile.axes, strict=True):
            if extents.setdefault(label, extent_of(dim)) != extent_of(dim):
                return None
    if any(x not in lb and x not in lc for x in la) or any(x not in la and x not in lc for x in lb):
        return None
    number = {label: i for i, label in enumerate(extents)}
    return tuple(tuple(number[x] for x in own) for own in (la, lb, lc))


def _by_position(a: Tile, b: Tile, acc: Tile) -> tuple[tuple[int, ...], ...] | None:
    if a.ndim == b.ndim == acc.ndim == 2:
        (m, k), (k2, n) = a.shape, b.shape
        if k == k2 and acc.shape == (m, n):
            return (0, 1), (1, 2), (0, 2)
    return None


def _misfit(a: Tile, b: Tile, acc: Tile) -> str:
    la, lb, lc = (labels(t.axes) for t in (a, b, acc))
    for mine, other, tile, name in ((la, lb, a, "a"), (lb, la, b, "b")):
        for label, dim in zip(mine, tile.axes, strict=True):
            if label not in other and label not in lc:
                return f"axis {dim!r} of {name} is in neither"
    return "the extents of a positional axis differ"


def _check_dtypes(a: Tile, b: Tile, acc: Tile) -> None:
    given = f"mma: a is {a.dtype}, b is {b.dtype}, acc is {acc.dtype}"
    both_bytes = a.dtype in (np.int8, np.uint8) and b.dtype in (np.int8, np.uint8)
    if a.dtype != b.dtype and not both_bytes:
        raise DtypeError(f"{given}: the operands must have one dtype (int8 and uint8 may mix); use astype")
    if a.dtype == np.bool_:
        raise DtypeError(f"{given}: bools are not multiplied; use astype")
    floats = [jnp.issubdtype(t.dtype, np.floating) for t in (a, acc)]
    if floats[0] != floats[1]:
        raise DtypeError(
            f"{given}: the accumulator must be a float for float operands and an integer for integer ones"
        )
    if acc.dtype.itemsize < (4 if acc.dtype != a.dtype or both_bytes else 2):
        raise DtypeError(f"{given}: accumulate in {'float32' if floats[0] else 'int32'}, then use astype")
    if not both_bytes and (
        acc.dtype.itemsize < a.dtype.itemsize
        if floats[0]
        else jnp.promote_types(a.dtype, acc.dtype) != acc.dtype
    ):
        raise DtypeError(f"{given}: the accumulator is narrower than the operands")


def _precision(precision: Any) -> Any:
    if precision is None or not isinstance(precision, str):
        return precision
    if precision in _PRECISIONS:
        return _PRECISIONS[precision]
    try:
        return jax.lax.Precision(precision)
    except ValueError:
        pass
    try:
        return jax.lax.DotAlgorithmPreset[precision.upper()]
    except KeyError:
        raise DtypeError(
            f'mma: unknown precision {precision!r}; it is None, "tf32" or a name that jax.lax.dot_general '
            "takes"
        ) from None
