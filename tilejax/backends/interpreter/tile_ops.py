"""The tile primitives that compute on whole tiles: contraction, reduction, scan, gather, order.

Where the order of a float sum or product is free it is done in float64 and rounded once; where it is fixed,
every step is done in the tile's own dtype.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import jax.numpy as jnp
import numpy as np

from ...ir.types import Order
from .evaluate import Place, evaluate, rule
from .numbers import cast, is_float, widen

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def _identity(op: str, dtype: np.dtype) -> np.ndarray:
    """0, 1, the least or the greatest value of `dtype`."""
    if op in ("add", "or"):
        value: Any = 0
    elif op in ("mul", "and"):
        value = 1
    elif dtype == np.bool_:
        value = op == "min"
    elif is_float(dtype):
        # Not every float has an infinity: the greatest finite value stands for it then.
        greatest = np.asarray(np.inf).astype(dtype)
        value = greatest if np.isinf(widen(greatest)) else jnp.finfo(dtype).max
        value = -value if op == "max" else value
    else:
        value = jnp.iinfo(dtype).min if op == "max" else jnp.iinfo(dtype).max
    return np.asarray(value).astype(dtype)


def _free_order(x: np.ndarray) -> np.ndarray:
    """What a sum or product in any order is computed in."""
    return x.astype(np.float64) if is_float(x.dtype) else x


# Contraction


@rule("tile_mma")
def _mma(eqn: Any, place: Place, a: np.ndarray, b: np.ndarray, acc: np.ndarray) -> np.ndarray:
    of_a, of_b, of_acc = (eqn.params[f"{name}_labels"] for name in ("a", "b", "acc"))
    if eqn.params["allow_reassociation"]:
        wide = np.float64 if is_float(acc.dtype) else np.int64
        kept = [label for label in of_acc if label in of_a or label in of_b]
        letters = dict(zip({*of_a, *of_b}, string.ascii_letters, strict=False))
        in_a, in_b, in_total = ("".join(letters[label] for label in labels) for labels in (of_a, of_b, kept))
        total = np.einsum(f"{in_a},{in_b}->{in_total}", a.astype(wide), b.astype(wide))
        return cast(acc.astype(wide) + _aligned(total, kept, of_acc), acc.dtype)
    contracted = [label for label in of_a if label in of_b and label not in of_acc]
    for point in product(*(range(a.shape[of_a.index(label)]) for label in contracted)):
        at = dict(zip(contracted, point, strict=True))
        of_step, step = [], []
        for tile, labels in ((a, of_a), (b, of_b)):
            of_step.append([label for label in labels if label not in at])
            step.append(cast(tile[tuple(at.get(label, slice(None)) for label in labels)], acc.dtype))
        left, right = (_aligned(x, labels, of_acc) for x, labels in zip(step, of_step, strict=True))
        acc = acc + left * right
    return acc


def _aligned(x: np.ndarray, labels: list[int], target: tuple[int, ...]) -> np.ndarray:
    """`x` with its dimensions in the order of `target`, and 1 for the labels that it lacks."""
    present = [label for label in target if label in labels]
    x = x.transpose([labels.index(label) for label in present])
    return np.expand_dims(x, [i for i, label in enumerate(target) if label not in labels])


# Reduction


@rule("tile_reduce")
def _reduce(eqn: Any, place: Place, tile: np.ndarray) -> np.ndarray:
    op, axes, order = (eqn.params[key] for key in ("op", "axes", "order"))
    ufunc, identity = _UFUNCS[op], _identity(op, tile.dtype)
    if order is Order.UNORDERED_TREE:
        wide = _free_order(tile)
        total = ufunc.reduce(wide, axis=axes, initial=identity.astype(wide.dtype), dtype=wide.dtype)
        return cast(total, tile.dtype)

    def step(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return cast(ufunc(widen(left), widen(right)), tile.dtype)

    elements = _sequence(tile, axes)
    return _fold(step, np.broadcast_to(identity, elements.shape[1:]), list(elements), order)


@rule("tile_fold")
def _tile_fold(
    eqn: Any, place: Place, tile: np.ndarray, identity: np.ndarray, *consts: np.ndarray
) -> np.ndarray:
    def step(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return evaluate(eqn.params["fn"], [*consts, left, right], place)[0]

    elements = _sequence(tile, eqn.params["axes"])
    result = np.empty(elements.shape[1:], tile.dtype)
    for point in np.ndindex(result.shape):
        column = [np.asarray(element[point]) for element in elements]
        result[point] = _fold(step, identity, column, eqn.params["order"])
    return result


def _sequence(tile: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The reduced elements along one first dimension, row-major over `axes` in the order given."""
    kept = [i for i in range(tile.ndim) if i not in axes]
    extents = [tile.shape[i] for i in axes]
    return tile.transpose([*axes, *kept]).reshape([int(np.prod(extents)), *(tile.shape[i] for i in kept)])


def _fold(step: Callable, identity: np.ndarray, elements: list[np.ndarray], order: Order) -> np.ndarray:
    if order is Order.FOLD_RIGHT:
        result = identity
        for element in reversed(elements):
            result = step(element, result)
        return result
    if order is Order.ORDERED_TREE:
        level = [step(identity, elements[0]), *elements[1:]] if elements else [identity]
        while len(level) > 1:
            paired = [step(left, right) for left, right in zip(level[0::2], level[1::2], strict=False)]
            level = paired + level[2 * len(paired) :]
        return level[0]
    result = identity
    for element in elements:
        result = step(result, element)
    return result


@rule("tile_argreduce")
def _argreduce(eqn: Any, place: Place, tile: np.ndarray) -> np.ndarray:
    """NumPy's argmax and argmin take the first NaN, else the first extremum, as JAX's do."""
    find = np.argmax if eqn.params["op"] == "max" else np.argmin
    return find(widen(tile), axis=eqn.params["axis"]).astype(eqn.params["index_dtype"])


# Scan


@rule("tile_scan")
def _scan(eqn: Any, place: Place, tile: np.ndarray) -> np.ndarray:
    axis, wide = eqn.params["axis"], _free_order(tile)
    flip = (lambda x: np.flip(x, axis)) if eqn.params["reverse"] else (lambda x: x)
    ufunc = _UFUNCS[eqn.params["op"]]
    return cast(flip(ufunc.accumulate(flip(wide), axis=axis, dtype=wide.dtype)), tile.dtype)


@rule("tile_associative_scan")
def _associative_scan(eqn: Any, place: Place, *operands: np.ndarray) -> list[np.ndarray]:
    params = eqn.params
    consts, tiles = operands[: params["num_consts"]], operands[params["num_consts"] :]
    results = [np.array(tile) for tile in tiles]
    along = [np.moveaxis(result, params["axis"], 0) for result in results]
    steps = list(range(along[0].shape[0]))
    if params["reverse"]:
        steps.reverse()
    for before, here in pairwise(steps):
        elements = [*(x[before] for x in along), *(x[here] for x in along)]
        for x, value in zip(along, evaluate(params["fn"], [*consts, *elements], place), strict=True):
            x[here] = value
    return results


# Gather


@rule("tile_gather")
def _gather(eqn: Any, place: Place, tile: np.ndarray, *coords_and_fallback: np.ndarray) -> np.ndarray:
    *coords, fallback = coords_and_fallback
    shape, dims = eqn.params["shape"], eqn.params["dims"]
    result = np.full(shape, fallback, tile.dtype)
    given = iter(zip(coords, eqn.params["coord_dims"], strict=True))
    index, inside = [], np.ones(shape, bool)
    for extent, matched in zip(tile.shape, dims, strict=True):
        coord, placed = next(given) if matched is None else (np.arange(extent), (matched,))
        coord = np.broadcast_to(_aligned(coord, list(placed), tuple(range(len(shape)))), shape)
        index.append(coord)
        inside &= (coord >= 0) & (coord < extent)
    result[inside] = tile[tuple(coord[inside] for coord in index)]
    return result


# Order


@rule("tile_sort")
def _sort(eqn: Any, place: Place, tile: np.ndarray) -> list[np.ndarray]:
    return _sorted(tile, eqn.params["axis"], eqn.params["descending"])


@rule("tile_top_k")
def _top_k(eqn: Any, place: Place, tile: np.ndarray) -> list[np.ndarray]:
    axis = eqn.params["axis"]
    first = (slice(None),) * axis + (slice(eqn.params["k"]),)
    return [x[first] for x in _sorted(tile, axis, descending=eqn.params["largest"])]


def _sorted(tile: np.ndarray, axis: int, descending: bool) -> list[np.ndarray]:
    """Values and indices. NumPy's stable sort puts NaN last and ties -0.0 with 0.0.

    A descending one is the ascending one of the reversed tile, read backwards: equals keep their order."""
    keys = widen(tile)
    if descending:
        last = tile.shape[axis] - 1
        indices = last - np.flip(np.argsort(np.flip(keys, axis), axis=axis, kind="stable"), axis)
    else:
        indices = np.argsort(keys, axis=axis, kind="stable")
    return [np.take_along_axis(tile, indices, axis), indices.astype(np.int32)]
