"""vmap of a program: one more axis on the grid of every parallel nest, one kernel.

A batched array has the batch first. Views that depend on the batch get a leading start, the batch's index;
other batched operands of a nest are loaded at that index where they are used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from .. import _compat
from ..ir import primitives as ir
from ..ir.jaxprs import bind, literal
from ..ir.types import Bounds, Scope

_LOOPS = ("tile_serial", "tile_pipeline")


@dataclass(frozen=True)
class _Value:
    array: Any
    batched: bool = False


@functools.lru_cache(maxsize=1024)
def batch(program: Any, batched: tuple[bool, ...], size: int) -> Any:
    """The program for a batch of `size`, which is the first dimension of all results and of the operands
    that `batched` says; the others are the same for all of the batch.
    """
    inputs = [v.aval for v in program.jaxpr.invars]

    def run(*arrays: Any) -> list[Any]:
        env = {v: _Value(a, b) for v, a, b in zip(program.jaxpr.invars, arrays, batched, strict=True)}
        for eqn in program.jaxpr.eqns:
            results = _outer(eqn, [_read(env, v) for v in eqn.invars], size)
            env.update(zip(eqn.outvars, results, strict=True))
        return [_whole(_read(env, v), size).array for v in program.jaxpr.outvars]

    lead = [(size,) if b else () for b in batched]
    avals = [
        jax.ShapeDtypeStruct((*n, *a.shape), a.dtype, weak_type=a.weak_type)
        for n, a in zip(lead, inputs, strict=True)
    ]
    return _compat.trace_closed(run, avals)


def _whole(value: _Value, size: int) -> _Value:
    return value if value.batched else _Value(lax.broadcast(value.array, (size,)), True)


def _read(env: dict[Any, _Value], var: Any) -> _Value:
    return _Value(literal(var)) if isinstance(var, Literal) else env[var]


def _outer(eqn: Any, vals: list[_Value], size: int) -> list[_Value]:
    """An equation outside the nests."""
    if not any(v.batched for v in vals):
        return [_Value(a) for a in bind(eqn, [v.array for v in vals])]
    if eqn.primitive is ir.parallel_p:
        return _parallel(eqn, vals, size)
    if eqn.primitive.name in ir.PRIMITIVES:
        return _lifted(eqn, vals, size)
    mapped = jax.vmap(
        lambda *arrays: bind(eqn, arrays), in_axes=tuple(0 if v.batched else None for v in vals)
    )
    return [_Value(a, True) for a in mapped(*(v.array for v in vals))]


def _parallel(eqn: Any, vals: list[_Value], size: int) -> list[_Value]:
    p = eqn.params
    split = len(vals) - p["num_views"]
    views = [_whole(v, size) for v in vals[split:]]
    operands = [*vals[:split], *views]
    count = len(p["extents"])
    body = _body(p["body"], count, operands, extra=0)
    params = {**p, "names": ("batch", *p["names"]), "extents": (size, *p["extents"]), "body": body}
    return [_Value(a, True) for a in ir.parallel_p.bind(*(v.array for v in operands), **params)]


def _lifted(eqn: Any, vals: list[_Value], size: int) -> list[_Value]:
    """A tile operation outside the nests, in a nest of its own over the batch."""
    loc = eqn.params["loc"]
    outs = [v.aval for v in eqn.outvars]
    places = [lax.full((size, *a.shape), np.zeros((), a.dtype), a.dtype) for a in outs]

    def body(index: Any, *arrays: Any) -> list[Any]:
        inner = [_Value(a, v.batched) for a, v in zip(arrays, vals, strict=False)]
        results = _inner(eqn, inner, index)
        held = [_Value(a, True) for a in arrays[len(vals) :]]
        return [
            _store(h, r.array, [np.int32(0)] * r.array.ndim, index, Bounds.ASSUME, "batch", loc)
            for h, r in zip(held, results, strict=True)
        ]

    index = jax.ShapeDtypeStruct((), np.int32)
    arrays = [*(v.array for v in vals), *places]
    traced = _compat.trace_closed(
        body, [index, *(jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in arrays)]
    )
    out = ir.parallel_p.bind(
        *arrays,
        names=("batch",),
        extents=(size,),
        scope=Scope.AUTOMATIC,
        num_views=len(places),
        body=traced,
        loc=loc,
    )
    return [_Value(a, True) for a in out]


def _body(body: Any, count: int, operands: Sequence[_Value], extra: int, state: Sequence[_Value] = ()) -> Any:
    """The body of a nest, retraced for batched operands.

    Its inputs are the batch's index, the `count` indices, the operands and the carry (`state`). In a loop
    (`extra` is 1) the batch's index comes after the loop's own indices, as a const.
    """
    jaxpr = body.jaxpr

    def run(*arrays: Any) -> list[Any]:
        if extra:
            indices, (index, *rest) = arrays[:count], arrays[count:]
        else:
            (index, *indices), rest = arrays[: count + 1], arrays[count + 1 :]
        values = [_Value(a, v.batched) for a, v in zip(rest, [*operands, *state], strict=True)]
        env = dict(zip(jaxpr.invars, [*map(_Value, indices), *values], strict=True))
        for eqn in jaxpr.eqns:
            results = _inner(eqn, [_read(env, v) for v in eqn.invars], index)
            env.update(zip(eqn.outvars, results, strict=True))
        return [_read(env, v).array for v in jaxpr.outvars]

    avals = [jax.ShapeDtypeStruct((), np.int32)] * (count + 1)
    avals += [jax.ShapeDtypeStruct(np.shape(v.array), jax.typeof(v.array).dtype) for v in (*operands, *state)]
    return _compat.trace_closed(run, avals)


def _inner(eqn: Any, vals: list[_Value], index: Any) -> list[_Value]:
    """An equation inside a nest, for the member `index` of the batch."""
    name, p = eqn.primitive.name, eqn.params
    if name == "tile_load" and vals[0].batched:
        view, *rest = vals
        *starts, fallback = (_member(v, index, p["loc"]) for v in rest)
        return [_Value(_load(view, starts, fallback, p["shape"], index, p["bounds"], p["name"], p["loc"]))]
    if name == "tile_store" and vals[0].batched:
        view, tile, *starts = vals
        values = [_member(v, index, p["loc"]) for v in (tile, *starts)]
        return [_Value(_store(view, values[0], values[1:], index, p["bounds"], p["name"], p["loc"]), True)]
    if "body" in p:
        return _nest(eqn, vals, index)
    loc = p.get("loc") if name in ir.PRIMITIVES else None
    return [_Value(a) for a in bind(eqn, [_member(v, index, loc) for v in vals])]


def _nest(eqn: Any, vals: list[_Value], index: Any) -> list[_Value]:
    """A nest inside a nest: batched operands stay so, carries and bounds are the member's own."""
    p = eqn.params
    num_bounds, num_views, num_carry = p.get("num_bounds", 0), p["num_views"], p.get("num_carry", 0)
    bounds = [_member(v, index, p["loc"]) for v in vals[:num_bounds]]
    operands = vals[num_bounds : len(vals) - num_carry]
    carry = [_Value(_member(v, index, p["loc"])) for v in vals[len(vals) - num_carry :]] if num_carry else []
    body = _body(p["body"], len(p["extents"]), operands, 1, carry)
    arrays = [v.array for v in (*operands, *carry)]
    out = eqn.primitive.bind(*bounds, index, *arrays, **{**p, "body": body})
    return [_Value(a, i < num_views) for i, a in enumerate(out)]


def _member(value: _Value, index: Any, loc: Any) -> Any:
    """The part of a batched value that belongs to `index`."""
    if not value.batched:
        return value.array
    shape = value.array.shape[1:]
    return _load(
        value,
        [np.int32(0)] * len(shape),
        np.zeros((), value.array.dtype)[()],
        shape,
        index,
        Bounds.ASSUME,
        "batch",
        loc,
    )


def _load(
    view: _Value,
    starts: Sequence[Any],
    fallback: Any,
    shape: Any,
    index: Any,
    bounds: Bounds,
    name: str,
    loc: Any,
) -> Any:
    (tile,) = ir.load_p.bind(
        view.array, index, *starts, fallback, shape=(1, *shape), bounds=bounds, name=name, loc=loc
    )
    return lax.reshape(tile, shape)


def _store(
    view: _Value, tile: Any, starts: Sequence[Any], index: Any, bounds: Bounds, name: str, loc: Any
) -> Any:
    (new,) = ir.store_p.bind(
        view.array, lax.expand_dims(tile, (0,)), index, *starts, bounds=bounds, name=name, loc=loc
    )
    return new
