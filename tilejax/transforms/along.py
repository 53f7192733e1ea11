"""What reduces or scans along a long dimension: what a piece of it leaves, and what that makes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import Literal

from ..ir import primitives as ir
from ..ir.jaxprs import bind
from ..ir.monoids import COMBINE, identity, is_exact
from ..ir.types import Order


class NotPieces(Exception):
    """The rows have to be held whole."""


@dataclass(frozen=True)
class Piece:
    """The places `start .. start + width - 1` along the long dimension, of `length`."""

    start: Any
    width: int
    length: int
    before: dict[Any, Any]
    """What is before it, of the scans that are known there."""

    def places(self, shape: Sequence[int], dim: int) -> Any:
        """Where in the row the elements of a tile are."""
        return lax.add(lax.broadcasted_iota(np.int32, shape, dim), lax.broadcast(self.start, shape))

    def own(self, tile: Any, dim: int, value: Any) -> Any:
        """The tile with `value` beyond the end of the row."""
        if self.length % self.width == 0:
            return tile
        inside = lax.lt(self.places(tile.shape, dim), lax.full(tile.shape, self.length, np.int32))
        return lax.select(inside, tile, lax.full(tile.shape, value, tile.dtype))


def works_along(eqn: Any, dim: int | None) -> bool:
    """Whether an equation makes one of all pieces along a dimension of its first operand."""
    p = eqn.params
    if dim is None or eqn.primitive.name not in _PARTS:
        return False
    return dim in p["axes"] if "axes" in p else dim == p["axis"]


def left(eqn: Any, dim: int) -> list[tuple[tuple[int, ...], Any]]:
    """The shapes and dtypes of what a piece leaves."""
    tile, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if eqn.primitive.name == "tile_argreduce":
        value = np.dtype(np.int32) if tile.dtype == np.bool_ else tile.dtype
        return [(out.shape, value), (out.shape, np.dtype(np.int32))]
    if eqn.primitive.name == "tile_scan":
        return [((*tile.shape[:dim], *tile.shape[dim + 1 :]), tile.dtype)]
    return [(out.shape, out.dtype)]


def parts(eqn: Any, values: list[Any], dim: int, piece: Piece) -> list[Any]:
    """What a piece leaves; `values` are the operands, in pieces."""
    return _PARTS[eqn.primitive.name](eqn, values, dim, piece)


def combined(eqn: Any, arrays: list[Any], axis: int) -> Any:
    """The result for all pieces, from arrays of what they left, which lie along an axis: of a scan what is
    before each of them."""
    return _COMBINED[eqn.primitive.name](eqn, arrays, axis)


def _reduce(eqn: Any, values: list[Any], dim: int, piece: Piece) -> list[Any]:
    p, (tile,) = eqn.params, values
    if not is_exact(p["op"], tile.dtype) and p["order"] is not Order.UNORDERED_TREE:
        raise NotPieces
    return bind(eqn, [piece.own(tile, dim, identity(p["op"], tile.dtype))])


def _reduced(eqn: Any, arrays: list[Any], axis: int) -> Any:
    return _over_pieces(arrays[0], eqn.params["op"], axis, eqn.params["loc"])


def _over_pieces(array: Any, op: str, axis: int, loc: Any) -> Any:
    return ir.reduce_p.bind(array, op=op, axes=(axis,), order=Order.UNORDERED_TREE, loc=loc)[0]


def _argreduce(eqn: Any, values: list[Any], dim: int, piece: Piece) -> list[Any]:
    """The extremum and its place in the row: beyond the end of the row none comes first."""
    p, (tile,) = eqn.params, values
    tile = lax.convert_element_type(tile, np.int32) if tile.dtype == np.bool_ else tile
    tile = piece.own(tile, dim, identity(p["op"], tile.dtype))
    best = ir.reduce_p.bind(tile, op=p["op"], axes=(dim,), order=Order.UNORDERED_TREE, loc=p["loc"])[0]
    index = ir.argreduce_p.bind(tile, **{**p, "index_dtype": np.dtype(np.int32)})[0]
    return [best, lax.add(index, lax.broadcast(piece.start, index.shape))]


def _argreduced(eqn: Any, arrays: list[Any], axis: int) -> Any:
    p, (best, index) = eqn.params, arrays
    first = ir.argreduce_p.bind(best, op=p["op"], axis=axis, index_dtype=np.dtype(np.int32), loc=p["loc"])[0]
    dims = [d for d in range(index.ndim) if d != axis]
    here = lax.eq(
        lax.broadcasted_iota(np.int32, index.shape, axis), lax.broadcast_in_dim(first, index.shape, dims)
    )
    index = _over_pieces(lax.select(here, index, lax.full(index.shape, 0, np.int32)), "add", axis, p["loc"])
    return lax.convert_element_type(index, p["index_dtype"])


def _fold(eqn: Any, values: list[Any], dim: int, piece: Piece) -> list[Any]:
    tile, *rest = values
    if eqn.params["order"] is not Order.UNORDERED_TREE or not all(
        isinstance(v, Literal) for v in eqn.invars[1:]
    ):
        raise NotPieces
    return bind(eqn, [piece.own(tile, dim, rest[0]), *rest])


def _folded(eqn: Any, arrays: list[Any], axis: int) -> Any:
    rest = [np.asarray(v.val, v.aval.dtype)[()] for v in eqn.invars[1:]]
    return eqn.primitive.bind(arrays[0], *rest, **{**eqn.params, "axes": (axis,)})[0]


def _scan(eqn: Any, values: list[Any], dim: int, piece: Piece) -> list[Any]:
    p, (tile,) = eqn.params, values
    tile = piece.own(tile, dim, identity(p["op"], tile.dtype))
    return ir.reduce_p.bind(tile, op=p["op"], axes=(dim,), order=Order.UNORDERED_TREE, loc=p["loc"])


def _scanned(eqn: Any, arrays: list[Any], axis: int) -> Any:
    p, (array,) = eqn.params, arrays
    through = eqn.primitive.bind(array, **{**p, "axis": axis})[0]
    shift = [(0, 0, 0)] * array.ndim
    shift[axis] = (-1, 1, 0) if p["reverse"] else (1, -1, 0)
    return lax.pad(through, identity(p["op"], array.dtype)[()], shift)


def scanned_piece(eqn: Any, tile: Any, before: Any, dim: int, piece: Piece) -> Any:
    """A scan's piece, from what is before it."""
    op = eqn.params["op"]
    tile = bind(eqn, [piece.own(tile, dim, identity(op, tile.dtype))])[0]
    dims = [d for d in range(tile.ndim) if d != dim]
    before = lax.broadcast_in_dim(before, tile.shape, dims)
    return COMBINE[op](tile, before) if eqn.params["reverse"] else COMBINE[op](before, tile)


_PARTS: dict[str, Callable[..., list[Any]]] = {
    "tile_reduce": _reduce,
    "tile_argreduce": _argreduce,
    "tile_fold": _fold,
    "tile_scan": _scan,
}
_COMBINED: dict[str, Callable[..., Any]] = {
    "tile_reduce": _reduced,
    "tile_argreduce": _argreduced,
    "tile_fold": _folded,
    "tile_scan": _scanned,
}
