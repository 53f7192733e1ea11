"""Reductions, contractions, scans and sorts in the plugins' terms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.monoids import identity
from ..xla.selection import float_bits, float_keys
from .elementwise import NoForm, full

_BLOCK = 128
"""The extent along which a scan goes step by step; longer ones are scans of blocks."""


def _reduce(primitive: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction of a rank that the plugins take: a longer array is made a matrix first, to be reduced along
    its rows."""

    def rule(x: Any, *, axes: Sequence[int], **_: Any) -> Any:
        if x.ndim <= 4:
            return primitive(x, tuple(axes))
        kept = [d for d in range(x.ndim) if d not in axes]
        sizes = [x.shape[d] for d in kept]
        rows = lax.transpose(x, (*kept, *axes))
        rows = lax.reshape(rows, (math.prod(sizes), math.prod(x.shape[d] for d in axes)))
        return lax.reshape(primitive(rows, (1,)), sizes)

    return rule


def _arg(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """The first NaN, else the first extremum: the least index of the places that hold one."""

    def rule(x: Any, *, axes: Sequence[int], index_dtype: Any) -> Any:
        (axis,) = axes
        kept = tuple(d for d in range(x.ndim) if d != axis)
        peak = lax.broadcast_in_dim(_reduce(reduce)(x, axes=(axis,)), x.shape, kept)
        here = lax.eq(x, peak)
        if jnp.issubdtype(x.dtype, np.floating):
            here = here | (lax.ne(x, x))  # the peak is NaN then, which equals nothing
        place = lax.broadcasted_iota(index_dtype, x.shape, axis)
        place = lax.select(here, place, full(place, x.shape[axis]))
        return _reduce(lax.reduce_min)(place, axes=(axis,))

    return rule


def _scan(join: Callable[[Any, Any], Any], unit: str) -> Callable[..., Any]:
    """An inclusive scan: within blocks by doubling steps, then of the blocks' totals, in the same way."""

    def along(x: Any) -> Any:
        """Along the last of two dimensions."""
        rows, n = x.shape
        if n > _BLOCK:
            count = -(-n // _BLOCK)
            padded = lax.pad(x, identity(unit, x.dtype), ((0, 0, 0), (0, count * _BLOCK - n, 0)))
            blocks = along(lax.reshape(padded, (rows * count, _BLOCK)))
            totals = lax.reshape(lax.slice_in_dim(blocks, _BLOCK - 1, _BLOCK, axis=1), (rows, count))
            before = shifted(along(totals), 1)
            before = lax.broadcast_in_dim(before, (rows, count, _BLOCK), (0, 1))
            out = lax.reshape(
                join(before, lax.reshape(blocks, (rows, count, _BLOCK))), (rows, count * _BLOCK)
            )
            return lax.slice_in_dim(out, 0, n, axis=1)
        step = 1
        while step < n:
            x = join(shifted(x, step), x)
            step *= 2
        return x

    def shifted(x: Any, step: int) -> Any:
        first = lax.full((x.shape[0], step), identity(unit, x.dtype), x.dtype)
        return lax.concatenate([first, lax.slice_in_dim(x, 0, x.shape[1] - step, axis=1)], 1)

    def rule(x: Any, *, axis: int, reverse: bool, **_: Any) -> Any:
        if not x.size:
            return x
        order = [d for d in range(x.ndim) if d != axis] + [axis]
        moved = lax.transpose(x, order)
        flat = lax.reshape(moved, (math.prod(moved.shape[:-1]), moved.shape[-1]))
        flat = lax.rev(flat, (1,)) if reverse else flat
        out = along(flat)
        out = lax.rev(out, (1,)) if reverse else out
        return lax.transpose(lax.reshape(out, moved.shape), np.argsort(order))

    return rule


def ordered_key(x: Any) -> Any:
    """Integers in the order of `x`: NaN is greatest, zeros tie. So a plugin need not know how floats sort."""
    if jnp.issubdtype(x.dtype, np.floating):
        return float_keys(x)
    return lax.convert_element_type(x, np.int32) if x.dtype == np.bool_ else x


def from_key(key: Any, dtype: Any) -> Any:
    """The inverse of `ordered_key`, but for the sign of zero and the bits of NaN."""
    if jnp.issubdtype(dtype, np.floating):
        key = lax.bitcast_convert_type(float_bits(key), np.float32)
    return lax.convert_element_type(key, dtype)


def _sorted(operands: tuple[Any, ...], axis: int) -> Sequence[Any]:
    """All operands in the order of the first, of integers."""
    return lax.sort(operands, dimension=axis, is_stable=True, num_keys=1)


def sort(*operands: Any, dimension: int, num_keys: int, **_: Any) -> list[Any]:
    """A stable sort by the first operand."""
    first = operands[0]
    if num_keys != 1:
        raise NoForm(f"sort by {num_keys} keys")
    key, *others = _sorted((ordered_key(first), *operands[1:]), dimension)
    return [from_key(key, first.dtype), *others]


def top_k(x: Any, *, k: int, axis: int, **_: Any) -> list[Any]:
    """The first `k` of a stable descending sort."""
    key = ~ordered_key(x)
    place = lax.broadcasted_iota(np.int32, x.shape, axis)
    key, place = _sorted((key, place), axis)
    key, place = (lax.slice_in_dim(v, 0, k, axis=axis) for v in (key, place))
    return [from_key(~key, x.dtype), place]


def dot_general(x: Any, y: Any, *, dimension_numbers: Any, preferred_element_type: Any, **_: Any) -> Any:
    """A contraction whose operands have the dtype of its result: what a plugin rounds to in between, where
    they are shorter, is not known. Integers of eight bits are multiplied as floats, exactly."""
    dtype = np.dtype(preferred_element_type or jnp.promote_types(x.dtype, y.dtype))
    if jnp.issubdtype(dtype, np.floating):
        x, y = (lax.convert_element_type(v, dtype) for v in (x, y))
        return lax.dot_general(
            x, y, dimension_numbers, precision=lax.Precision.HIGHEST, preferred_element_type=dtype
        )
    if any(v.dtype.itemsize > 1 for v in (x, y)):
        raise NoForm(f"dot_general of {x.dtype} and {y.dtype}")
    return _integers(x, y, dimension_numbers, dtype)


def _integers(x: Any, y: Any, dimension_numbers: Any, dtype: Any) -> Any:
    """Products of bytes in f32, so few at a time that their sums are below 2**24."""
    few = 256
    (cx, cy), (bx, by) = dimension_numbers
    sizes = [x.shape[d] for d in bx]
    free = [[d for d in range(v.ndim) if d not in (*c, *b)] for v, c, b in ((x, cx, bx), (y, cy, by))]
    count = math.prod(x.shape[d] for d in cx)
    blocks = -(-count // few)
    parts = []
    for v, c, b, f in zip((x, y), (cx, cy), (bx, by), free, strict=True):
        v = lax.convert_element_type(lax.transpose(v, (*b, *c, *f)), np.float32)
        v = lax.reshape(v, (math.prod(sizes), count, math.prod(v.shape[len(b) + len(c) :])))
        v = lax.pad(v, np.float32(0), ((0, 0, 0), (0, blocks * few - count, 0), (0, 0, 0)))
        parts.append(lax.reshape(v, (v.shape[0], blocks, few, v.shape[2])))
    dims = (((2,), (2,)), ((0, 1), (0, 1)))
    out = lax.dot_general(parts[0], parts[1], dims, precision=lax.Precision.HIGHEST)
    out = lax.reduce_sum(lax.convert_element_type(out, dtype), (1,))
    shape = [*sizes, *(x.shape[d] for d in free[0]), *(y.shape[d] for d in free[1])]
    return lax.reshape(out, shape)


RULES: dict[str, Callable[..., Any]] = {
    "reduce_sum": _reduce(lax.reduce_sum),
    "reduce_prod": _reduce(lax.reduce_prod),
    "reduce_max": _reduce(lax.reduce_max),
    "reduce_min": _reduce(lax.reduce_min),
    "reduce_and": _reduce(lax.reduce_and),
    "reduce_or": _reduce(lax.reduce_or),
    "argmax": _arg(lax.reduce_max),
    "argmin": _arg(lax.reduce_min),
    "cumsum": _scan(lax.add, "add"),
    "cumprod": _scan(lax.mul, "mul"),
    "cummax": _scan(lax.max, "max"),
    "cummin": _scan(lax.min, "min"),
    "sort": sort,
    "top_k": top_k,
    "dot_general": dot_general,
}
