"""Sorts: each element counts those that come before it, which is where it goes. Stable, in one step."""

from __future__ import annotations

from typing import Any

from .block import Block
from .evaluate import Frame, Value, rule
from .storage import Tile, stored
from .types import INT32, is_float, widened


@rule("tile_sort")
def _sort(frame: Frame, eqn: Any, tile: Tile) -> list[Value]:
    axis = eqn.params["axis"]
    return _ranked(frame, eqn, tile, axis, tile.shape[axis], eqn.params["descending"])


@rule("tile_top_k")
def _top_k(frame: Frame, eqn: Any, tile: Tile) -> list[Value]:
    return _ranked(frame, eqn, tile, eqn.params["axis"], eqn.params["k"], eqn.params["largest"])


def _ranked(frame: Frame, eqn: Any, tile: Tile, axis: int, count: int, descending: bool) -> list[Value]:
    """The first `count` values of the order, and their indices."""
    kernel = frame.kernel
    assert kernel is not None
    length = tile.shape[axis]
    shape = (*tile.shape[:axis], count, *tile.shape[axis + 1 :])
    tile = frame.near(tile) if length > 1 else tile
    wanted = [v in frame.last for v in eqn.outvars]
    storages = [
        kernel.allocate(v.aval.dtype, v.aval.size, frame) if w else None
        for v, w in zip(eqn.outvars, wanted, strict=True)
    ]
    results: list[Value] = [
        stored(s, shape) if s else Tile(shape, INT32, lambda block, index: "0") for s in storages
    ]
    if not all(shape):
        return results
    with kernel.each(tile.shape) as (block, index):
        value = block.get(tile, index)
        rank = block.variable("uint", "0u")
        with block.count(length) as (inner, number):
            other = inner.get(tile, (*index[:axis], number, *index[axis + 1 :]))
            texts = widened(value, tile.dtype), widened(other, tile.dtype)
            before = _before(inner, *texts, index[axis], number, is_float(tile.dtype), descending)
            inner.add(f"{rank} += {before} ? 1u : 0u;")
        with block.inner(f"if ({rank} < {count}u)") as inside:
            place = inside.flatten((*index[:axis], "0u" if count == 1 else rank, *index[axis + 1 :]), shape)
            for storage, text in zip(storages, (value, f"int({index[axis]})"), strict=True):
                if storage:
                    inside.write(storage, place, text, None)
    return results


def _before(
    block: Block, value: str, other: str, index: str, number: str, floating: bool, descending: bool
) -> str:
    """Whether `other` comes before `value`: NaN counts as greatest, equals keep their order."""
    x, y = (value, other) if descending else (other, value)  # x < y
    less, equal = f"{x} < {y}", f"{other} == {value}"
    if floating:
        less = f"(isnan({y}) ? !isnan({x}) : {less})"
        equal = f"({equal} || (isnan({other}) && isnan({value})))"
    return block.define("bool", f"{less} || ({equal} && {number} < {index})")
