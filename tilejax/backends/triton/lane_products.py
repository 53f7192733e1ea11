"""Contractions of lanes: a product of matrices whose rows are the lanes, or sums of products."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from .lanes import Lanes, NotLanes, grid, is_short
from .products import least_depth, product, wide_type
from .tiles import masked, padded


def mma(a: Lanes, b: Lanes, acc: Lanes, params: dict[str, Any]) -> Lanes:
    """`tile_mma`: the short contracted dimensions one after another, the long ones by `_long`."""
    names = params["a_labels"], params["b_labels"], params["acc_labels"]
    extents = {
        x: n
        for labels, t in zip(names, (a, b, acc), strict=True)
        for x, n in zip(labels, t.shape, strict=True)
    }
    if not params["allow_reassociation"]:
        raise NotLanes
    short = [[x for x in labels if is_short(extents[x])] for labels in names]
    long = [[x for x in labels if not is_short(extents[x])] for labels in names]
    summed = [x for x in short[0] if x in short[1] and x not in short[2]]
    wide = wide_type(a.dtype)

    def at(place: tuple[int, ...]) -> Any:
        here = dict(zip(short[2], place, strict=True))
        total: Any = None
        for inner in itertools.product(*(range(extents[x]) for x in summed)):
            here.update(zip(summed, inner, strict=True))
            left, right = (t.cells[tuple(here[x] for x in s)] for t, s in zip((a, b), short, strict=False))
            term = _long(left, right, long, extents, wide, params["precision"])
            total = term if total is None else total + term
        start = acc.cells[place]
        return (start.astype(wide) + total).astype(acc.dtype)

    return Lanes(acc.shape, grid(acc.shape, at))


def _long(
    a: Any, b: Any, labels: Sequence[Sequence[Any]], extents: dict[Any, int], wide: Any, precision: Any
) -> Any:
    """The product of two cells, `(lanes or 1, *long extents)` each."""
    ours, theirs, result = labels
    summed = [x for x in ours if x in theirs and x not in result]
    if not summed:
        left, right = (_at(t.astype(wide), own, result) for t, own in ((a, ours), (b, theirs)))
        return left * right
    rows, columns = [x for x in ours if x not in theirs], [x for x in theirs if x not in ours]
    one_sided = a.shape[0] == 1 or b.shape[0] == 1
    if len(summed) != 1 or not one_sided or [*rows, *columns] != list(result) or len(columns) > 1:
        raise NotLanes
    if b.shape[0] > 1 or rows:
        raise NotLanes
    k = summed[0]
    a = masked(a, (a.shape[0], *(extents[x] for x in ours)), 0, [1])
    b = masked(b, (1, *(extents[x] for x in theirs)), 0, [theirs.index(k) + 1])
    right = lax.reshape(b, b.shape[1:])
    right = right if theirs[0] == k else lax.transpose(right, (1, 0))
    if not columns:
        column = lax.reshape(right, (1, padded(extents[k])))
        return jnp.sum(a.astype(wide) * column.astype(wide), 1, dtype=wide)
    if a.shape[0] < 16 or min(right.shape) < least_depth(a.dtype.itemsize):
        raise NotLanes
    return product(a, right, precision)


def _at(array: Any, own: Sequence[Any], result: Sequence[Any]) -> Any:
    """A cell with the dimensions of the result, of extent 1 where it has none."""
    order = [own.index(x) for x in result if x in own]
    moved = lax.transpose(array, [0, *(i + 1 for i in order)])
    sizes = iter(moved.shape[1:])
    return lax.reshape(moved, (array.shape[0], *(next(sizes) if x in own else 1 for x in result)))
