"""The only file that knows JAX versions."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend import core as jex
from jax.extend.mlir import ir
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

Jaxpr = jex.Jaxpr
ClosedJaxpr = jex.ClosedJaxpr


def trace(fn: Callable, avals: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The open jaxpr of `fn` at `avals` and the values that it captured, one a constvar. Tiles know no mesh:
    in one, as under shard_map, `jnp` would place them on it."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        closed = jax.make_jaxpr(fn)(*avals)
    return closed.jaxpr, list(closed.consts)


def trace_of(value: Any) -> Any:
    """The trace that a tracer belongs to; None for other values. JAX has no public way to ask, and this
    one only makes a better message: without it a value that escapes is JAX's own error."""
    return getattr(value, "_trace", None)


def close(jaxpr: Any, num_first: int, order: Sequence[Any], last: Sequence[Any] = ()) -> Any:
    """The closed jaxpr without consts whose inputs are the first `num_first` inputs of `jaxpr`, the
    variables of `order` (constvars of `jaxpr`, as `last` are), its other inputs, then `last`."""
    invars = [*jaxpr.invars[:num_first], *order, *jaxpr.invars[num_first:], *last]
    return rebuild(jaxpr, invars, jaxpr.outvars, jaxpr.eqns)


def rebuild(jaxpr: Any, invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """`jaxpr` with other inputs, results and equations, closed without consts."""
    return closed(invars, outvars, eqns, jaxpr.effects)


def closed(
    invars: Sequence[Any], outvars: Sequence[Any], eqns: Sequence[Any], effects: Any = frozenset()
) -> Any:
    """A closed jaxpr without consts."""
    info = jex.DebugInfo("tilejax", "body", ("",) * len(invars), ("",) * len(outvars))
    return jex.ClosedJaxpr(jex.Jaxpr((), list(invars), list(outvars), list(eqns), effects, info), ())


def trace_closed(fn: Callable, avals: Sequence[Any]) -> Any:
    """`fn` at `avals` as a closed jaxpr without consts: it captures nothing."""
    jaxpr, consts = trace(fn, avals)
    if consts:
        raise AssertionError(f"a transform captured {consts}")
    return close(jaxpr, 0, ())


def result_aval(shape: tuple[int, ...], dtype: Any, operands: Sequence[Any]) -> Any:
    """The type of a result of `operands` (avals): under shard_map it varies over the mesh axes that they
    do."""
    varying = next((a for a in operands if a.manual_axis_type.varying), None)
    if varying is None:
        return ShapedArray(shape, dtype)
    sharding = NamedSharding(varying.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return varying.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


def same_varying(operands: Sequence[Any]) -> list[Any]:
    """The operands cast to vary over all mesh axes over which any of them does: what a primitive under
    shard_map takes."""
    axes = [jax.typeof(x).manual_axis_type.varying for x in operands]
    union = frozenset().union(*axes)
    return [
        x if a == union else jax.lax.pcast(x, tuple(union - a), to="varying")
        for x, a in zip(operands, axes, strict=True)
    ]


def frames(eqn: Any) -> list[tuple[str, int, str]]:
    """Where an equation was traced: file, line and function of each frame, the innermost first."""
    traceback = eqn.source_info.traceback
    return [(f.file_name, f.line_num, f.function_name) for f in traceback.frames] if traceback else []


_QUIET = threading.RLock()
"""Warnings are filtered for all threads at once."""


def lower_plain(fn: Callable, check: Callable[..., None]) -> Callable:
    """A lowering rule from `fn(platforms, *operands, exported=..., **params)`, traced as outside of
    shard_map: inside, a value's varying axes don't concern it. `exported` says whether the module is to be
    kept and run elsewhere. `check(platforms, operations, module, **params)` sees what it made."""

    def lower(ctx: Any, *args: Any, **params: Any) -> Any:
        platforms = tuple(ctx.platforms or ctx.module_context.platforms)
        exported = ctx.module_context.lowering_parameters.for_export
        rule = mlir.lower_fun(functools.partial(fn, platforms, exported=exported), multiple_results=True)
        here: Any = ir.InsertionPoint.current
        block = here.block
        before = len(block.operations)
        plain = [[ShapedArray(a.shape, a.dtype) for a in avals] for avals in (ctx.avals_in, ctx.avals_out)]
        with _QUIET, warnings.catch_warnings():
            # From 0.11 Pallas announces the end of its Triton path at every lowering.
            warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*Triton")
            out = rule(ctx.replace(avals_in=plain[0], avals_out=plain[1]), *args, **params)
        check(platforms, list(block.operations)[before:], ctx.module_context.module, **params)
        return out

    return lower
