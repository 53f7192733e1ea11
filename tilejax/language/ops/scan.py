"""Inclusive scans along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import CarryError, ShapeError, structure
from ...ir import primitives as ir
from .. import trace
from ..axis import Axis, Shape
from ..region import keep_type, trace_function
from ..tile import Tile, as_tile
from . import elementwise as ew
from .elementwise import Operand
from .reduce import position_of


def _named(tile: Operand, axis: Axis, op: str, reverse: bool) -> Tile:
    name = f"cum{ {'add': 'sum', 'mul': 'prod'}.get(op, op) }".replace(" ", "")
    value = as_tile(tile, name)
    result = value.dtype
    if op in ("add", "mul"):
        if result == np.bool_:
            value = ew.cast(value, np.int32)
            result = value.dtype
        elif jnp.issubdtype(result, np.floating) and jnp.finfo(result).bits < 32:
            value = ew.cast(value, np.float32)
    elif result == np.bool_:
        value = ew.cast(value, np.int8)  # JAX has no running maximum of bools
    (scanned,) = ir.scan_p.bind(
        value.value, op=op, axis=position_of(value, axis, name), reverse=bool(reverse), loc=trace.here()
    )
    tile = Tile(scanned, value.axes)
    return tile if tile.dtype == result else ew.cast(tile, result)


def cumsum(tile: Operand, axis: Axis, *, reverse: bool = False) -> Tile:
    """Sums of the elements up to each (from it on, if `reverse`). f16 and bf16 carry f32 and round each
    output; bools count in int32, other dtypes stay.
    """
    return _named(tile, axis, "add", reverse)


def cumprod(tile: Operand, axis: Axis, *, reverse: bool = False) -> Tile:
    """Products of the elements up to each; dtypes as in `cumsum`."""
    return _named(tile, axis, "mul", reverse)


def cummax(tile: Operand, axis: Axis, *, reverse: bool = False) -> Tile:
    """The greatest element up to each; NaN from the first NaN on."""
    return _named(tile, axis, "max", reverse)


def cummin(tile: Operand, axis: Axis, *, reverse: bool = False) -> Tile:
    """The least element up to each; NaN from the first NaN on."""
    return _named(tile, axis, "min", reverse)


def associative_scan(op: Callable[[Any, Any], Any], tiles: Any, axis: Axis, *, reverse: bool = False) -> Any:
    """The inclusive scan of an associative `op(a, b)` along `axis`.

    `tiles` is a pytree of tiles that all have `axis`. `op` gets two such pytrees, `a` the earlier in
    scan direction, and returns a third; in it the tiles are those of one place along the axis, without
    it. It works in the dtypes of the tiles: `CarryError` if it returns other axes or dtypes.
    """
    name = "associative_scan"
    leaves, tree = jax.tree.flatten(tiles)
    values = [as_tile(leaf, name) for leaf in leaves]
    if not values:
        raise ShapeError(f"{name}: there is no tile in {tiles!r}")
    # The axis goes first, so that it has the same place in every tile.
    moved = [_axis_first(v, position_of(v, axis, name)) for v in values]
    element = [(Shape(v.axes[1:]), v.dtype) for v in moved]
    label = f"the operator of {name}"

    def fn(*both: Tile) -> list[Any]:
        n = len(element)
        result = op(jax.tree.unflatten(tree, both[:n]), jax.tree.unflatten(tree, both[n:]))
        out, out_tree = jax.tree.flatten(result)
        if out_tree != tree:
            raise CarryError(
                f"{label}: it must return the structure of its arguments, {structure(tree)}, but "
                f"{structure(out_tree)} came back"
            )
        return [keep_type(o, *e, label) for o, e in zip(out, element, strict=True)]

    jaxpr, consts = trace_function(fn, element * 2, label)
    scanned = ir.associative_scan_p.bind(
        *consts,
        *(v.value for v in moved),
        num_consts=len(consts),
        axis=0,
        reverse=bool(reverse),
        fn=jaxpr,
        loc=trace.here(),
    )
    back = [_axis_to(Tile(s, m.axes), v.axes) for s, m, v in zip(scanned, moved, values, strict=True)]
    return jax.tree.unflatten(tree, back)


def _axis_first(tile: Tile, position: int) -> Tile:
    order = [position, *(i for i in range(tile.ndim) if i != position)]
    return (
        tile if position == 0 else Tile(jax.lax.transpose(tile.value, order), [tile.axes[i] for i in order])
    )


def _axis_to(tile: Tile, axes: Shape) -> Tile:
    position = axes.index(tile.axes[0])
    order = [*range(1, position + 1), 0, *range(position + 1, tile.ndim)]
    return tile if position == 0 else Tile(jax.lax.transpose(tile.value, order), axes)
