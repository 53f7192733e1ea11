"""A program of a nest that is products of matrices: a block of rows and columns of what it stores. What is
summed goes through it in pieces that are loaded straight from the views, a tap of a filter or a part of the
channels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...ir.domains import unravel
from .order import grouped
from .points import Frame, Point, key
from .pointwise import Pointwise
from .products import product, wide_type
from .recut import Matrices
from .tiles import full, scalar


def run(plan: Matrices, position: Any, given: Sequence[Any]) -> None:
    """Program number `position`, with the values of the nest's operands."""
    position = lax.convert_element_type(position, np.int32)
    _, down, across = plan.grid
    plane = np.int32(down * across)
    wholes: dict[Any, Any] = {d: scalar(0, np.int32) for d in range(len(plan.nest.element))}
    wholes.update(_unravelled(plan, plan.outer, lax.div(position, plane)))
    mask: Any = None
    blocks = zip(
        (plan.rows, plan.columns),
        grouped(lax.rem(position, plane), down, across),
        (plan.blocks.rows, plan.blocks.columns),
        strict=True,
    )
    for axis, (dims, block, width) in enumerate(blocks):
        places, size = block * np.int32(width) + _line(axis, width), plan.count(dims)
        if size % width:
            inside = places < np.int32(size)
            mask = inside if mask is None else mask & inside
            places = jnp.minimum(places, np.int32(size - 1))  # what is beyond is computed, but not stored
        wholes.update(_unravelled(plan, dims, places))
    frame, target = Frame(plan.nest.places, wholes), Frame(plan.nest.places, wholes, mask)
    operands = plan.nest.jaxpr.invars[len(plan.nest.indices) :]
    known = {**plan.nest.indices, **dict(zip(operands, given, strict=True))}

    def contract(evaluator: Pointwise, eqn: Any, point: Point, frame: Frame) -> Any:
        return _contract(plan, evaluator, eqn, point, frame)

    views = frozenset(e.invars[0] for e in plan.nest.stores)
    evaluator = Pointwise(plan.nest.jaxpr, plan.nest.places, known, views, contract, plan.nest.element)
    values = [evaluator.array(e.invars[1], plan.nest.tile, frame) for e in plan.nest.stores]
    shape = plan.blocks.rows, plan.blocks.columns
    for eqn, value in zip(plan.nest.stores, values, strict=True):
        evaluator.store(known[eqn.invars[0]], value, target, shape)


def _contract(plan: Matrices, evaluator: Pointwise, eqn: Any, point: Point, frame: Frame) -> Any:
    """A `tile_mma` at the points of a frame."""
    out, (rows, columns, width) = eqn.outvars[0], (plan.blocks.rows, plan.blocks.columns, plan.blocks.depth)
    this, count = plan.sums[out], plan.nest.places.extents.__getitem__
    factors = this.factors(eqn, point)
    factors = [*reversed(factors)] if (out, key(point)) in plan.turned else factors
    depth = count(this.depth)
    steps = [*map(count, this.steps), -(-depth // width)]
    wide = wide_type(eqn.invars[0].aval.dtype)

    def step(position: Any, total: Any) -> Any:
        *taps, piece = unravel(position, steps)

        def side(var: Any, at: Point, axis: int, shape: tuple[int, int]) -> Any:
            places = piece * np.int32(width) + _line(axis, width)
            own = places < np.int32(depth) if depth % width else None
            wholes = {**frame.wholes, this.depth: places, **dict(zip(this.steps, taps, strict=True))}
            inner = Frame(plan.nest.places, wholes, own, inner=True)
            tile = jnp.broadcast_to(evaluator.array(var, at, inner), shape)
            if own is None or _is_zero_outside(evaluator, var):
                return tile
            return jnp.where(own, tile, full(shape, 0, tile.dtype))

        left, right = side(*factors[0], 1, (rows, width)), side(*factors[1], 0, (width, columns))
        return total + product(left, right, eqn.params["precision"])

    total = lax.fori_loop(0, int(np.prod(steps)), step, full((rows, columns), 0, wide))
    start = evaluator.array(eqn.invars[2], point, frame)
    return (start.astype(wide) + total).astype(eqn.outvars[0].aval.dtype)


def _is_zero_outside(evaluator: Pointwise, var: Any) -> bool:
    """Whether a factor is 0 where a frame's mask is false, being loaded so."""
    eqn = evaluator.makers.get(var)
    fallback = None if eqn is None or eqn.primitive.name != "tile_load" else eqn.invars[-1]
    return isinstance(fallback, Literal) and not fallback.val


def _line(axis: int, n: int) -> Any:
    return lax.broadcasted_iota(np.int32, (n, 1) if axis == 0 else (1, n), axis)


def _unravelled(plan: Matrices, dims: Sequence[Any], position: Any) -> dict[Any, Any]:
    """The wholes that a number in row-major order stands for."""
    return dict(zip(dims, unravel(position, [plan.nest.places.extents[d] for d in dims]), strict=True))
