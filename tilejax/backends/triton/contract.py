"""Contractions: products of matrices where they are such, else a sum of products."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from ...ir.domains import unravel
from . import batched
from .products import dots_of, matrices, wide_type
from .tiles import masked, padded, select_sum


def mma(
    a: Any,
    b: Any,
    acc: Any,
    shapes: Sequence[tuple[int, ...]],
    *,
    a_labels,
    b_labels,
    acc_labels,
    allow_reassociation,
    precision,
    loc,
) -> Any:
    """`tile_mma`: dots where it is a product of matrices, or some, padded up to 16 in every extent, else a
    sum of products."""
    names = (a_labels, b_labels, acc_labels)
    extents = {
        x: n for labels, shape in zip(names, shapes, strict=True) for x, n in zip(labels, shape, strict=True)
    }
    if 0 in extents.values():
        return acc
    batch, rows, summed, cols = roles(names)
    wide, how = wide_type(a.dtype), "order"
    if allow_reassociation:
        how = way(names, shapes, dots_of(a.dtype, b.dtype, precision))
    if how == "order":
        return _in_order(a, b, acc, extents, a_labels, b_labels, acc_labels, summed, wide)
    for x in summed:
        a = masked(a, shapes[0], 0, [a_labels.index(x)])
        b = masked(b, shapes[1], 0, [b_labels.index(x)])
    many = [batch] if batch else []
    left = _arranged(a, a_labels, (*many, rows, summed))
    right = _arranged(b, b_labels, (*many, summed, cols))
    multiply = functools.partial(matrices, precision=precision)
    if how == "sums":
        out = batched.sums(left, right, wide)
    else:
        out = batched.dots(left, right, multiply) if batch else multiply(left, right)
    order = [*batch, *rows, *cols]
    full_shape = [padded(extents[x]) for x in order]
    out = lax.reshape(out, tuple(full_shape))
    wanted = [x for x in acc_labels if x in order]
    if wanted != order:
        out = lax.transpose(out, [order.index(x) for x in wanted])
    out = lax.reshape(out, tuple(padded(extents[x]) if x in order else 1 for x in acc_labels))
    return (acc.astype(wide) + out).astype(acc.dtype)


def roles(names: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int], list[int]]:
    """The labels of a batch, of the rows, contracted ones and those of the columns, of which the accumulator
    may have more."""
    a, b, acc = names
    batch = [x for x in a if x in b and x in acc]
    return (
        batch,
        [x for x in a if x not in b],
        [x for x in a if x in b and x not in acc],
        [x for x in b if x not in a],
    )


def way(names: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], each: int) -> str:
    """How a contraction that may be reassociated is had, as `batched.way` says it; a product of two matrices
    is `each` so many dots."""
    extents = {
        x: padded(n) for labels, s in zip(names, shapes, strict=True) for x, n in zip(labels, s, strict=True)
    }
    count, rows, depth, columns = (math.prod(extents[x] for x in labels) for labels in roles(names))
    return batched.way(count, rows, depth, columns, each)


def _in_order(a: Any, b: Any, acc: Any, extents, a_labels, b_labels, acc_labels, summed, wide) -> Any:
    """Products added one contracted index after another, in ascending order; for any labels."""
    count = math.prod(extents[x] for x in summed)

    def member(tile: Any, labels: Sequence[int], at: dict[int, Any]) -> Any:
        """The tile at one contracted index, with the dimensions of the accumulator."""
        tile = tile.astype(wide)
        for x in summed:
            here = lax.broadcasted_iota(np.int32, tile.shape, labels.index(x)) == at[x]
            tile = select_sum(here, tile, labels.index(x))
            labels = [y for y in labels if y != x]
        order = sorted(range(len(labels)), key=lambda i: acc_labels.index(labels[i]))
        tile = lax.transpose(tile, order) if order != list(range(len(labels))) else tile
        ones = [padded(extents[x]) if x in labels else 1 for x in acc_labels]
        return lax.reshape(tile, tuple(ones))

    def step(i: Any, total: Any) -> Any:
        at = dict(zip(summed, unravel(i, [extents[x] for x in summed]), strict=True))
        return total + member(a, list(a_labels), at) * member(b, list(b_labels), at)

    return lax.fori_loop(np.int32(0), np.int32(count), step, acc.astype(wide)).astype(acc.dtype)


def _arranged(tile: Any, labels: Sequence[int], parts: Sequence[Sequence[int]]) -> Any:
    """The tile with a dimension for all labels of each part."""
    order = [labels.index(x) for part in parts for x in part]
    moved = lax.transpose(tile, order) if order != list(range(tile.ndim)) else tile
    return lax.reshape(moved, tuple(math.prod(tile.shape[labels.index(x)] for x in part) for part in parts))
