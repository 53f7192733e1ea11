"""How JAX's transformations act on kernels.

vmap rewrites the program. The jvp of a kernel is the kernel itself and a derivative: the program as `lax`
on whole arrays, differentiated, as one primitive that is linear in the tangents. That one differentiates
and batches in the same way, and transposes by the rule that its kernel gave, or by reverse mode through the
`lax` program.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from . import _compat
from ._errors import UnsupportedError
from .backends.lowering import check_lowered, compiled, implement, run_arrays
from .backends.registry import choose
from .ir.program import derivative_p, kernel_p, run_derivative, run_kernel
from .transforms.batching import batch


def _kernel_batch(operands: Any, dims: Any, *, program: Any, gradient: Any, **params: Any) -> Any:
    moved, size = _batch_first(operands, dims)
    flags = tuple(d is not None for d in dims)
    if not isinstance(size, int):  # symbolic, under jax.export: a grid has numbers, but the `lax` need not
        if params["options"].backend not in ("auto", "xla"):
            raise UnsupportedError(f"kernel {params['name']}: a symbolic batch size needs backend xla")
        choose(program, params["options"], params["name"], ())  # has it a place for the program's memories?
        closed = compiled(program, params["options"], differentiable=True)
        closed = _mapped(closed, flags, size)
        out = run_derivative(moved, closed=closed, linear=(), options=params["options"])  # linear in nothing
        return out, [0] * len(out)
    mapped = None if gradient is None else gradient.batched(flags, size)
    out = run_kernel(moved, program=batch(program, flags, size), gradient=mapped, **params)
    return out, [0] * len(out)


def _kernel_jvp(primals: Any, tangents: Any, *, gradient: Any, **params: Any) -> Any:
    if gradient is None or gradient.forward is None:
        out, saved = run_kernel(primals, gradient=gradient, **params), None
    else:
        out, saved = gradient.forward(primals)
    kept = jax.tree.leaves(saved)
    active = tuple(i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero))
    smooth = tuple(i for i, x in enumerate(out) if jnp.issubdtype(x.dtype, np.floating))
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    if not active or not smooth:
        return out, zeros
    program = compiled(params["program"], params["options"], differentiable=True)
    avals = tuple(_abstract(x) for x in kept)
    closed = _pushforward(program, avals, active, smooth)
    operands = [*primals, *kept, *(tangents[i] for i in active)]
    linear = tuple(range(len(operands) - len(active), len(operands)))
    backward = None if gradient is None else gradient.backward(saved, len(out), active, smooth)
    moved = run_derivative(
        operands, closed=closed, linear=linear, backward=backward, options=params["options"]
    )
    return out, _place(zeros, smooth, moved)


def _derivative_jvp(
    primals: Any, tangents: Any, *, closed: Any, linear: tuple[int, ...], backward: Any, options: Any
) -> Any:
    out = run_derivative(primals, closed=closed, linear=linear, backward=backward, options=options)
    active = tuple(i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero))
    smooth = tuple(i for i, x in enumerate(out) if jnp.issubdtype(x.dtype, np.floating))
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    if set(active) <= set(linear):  # a linear function is its own derivative
        moved = [ad.instantiate_zeros(tangents[i]) if i in linear else x for i, x in enumerate(primals)]
        return out, run_derivative(moved, closed=closed, linear=linear, backward=backward, options=options)
    operands = [*primals, *(tangents[i] for i in active)]
    moved = run_derivative(
        operands,
        closed=_pushforward(closed, (), active, smooth),
        linear=tuple(range(len(primals), len(operands))),
        options=options,
    )
    return out, _place(zeros, smooth, moved)


def _derivative_batch(
    operands: Any, dims: Any, *, closed: Any, linear: tuple[int, ...], backward: Any, options: Any
) -> Any:
    moved, size = _batch_first(operands, dims)
    flags = tuple(d is not None for d in dims)
    mapped = None if backward is None else backward.batched(flags, size)
    out = run_derivative(
        moved, closed=_mapped(closed, flags, size), linear=linear, backward=mapped, options=options
    )
    return out, [0] * len(out)


def _derivative_transpose(
    cotangents: Any, *operands: Any, closed: Any, linear: tuple[int, ...], backward: Any, options: Any
) -> Any:
    unknown = tuple(i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
    known = [x for i, x in enumerate(operands) if i not in unknown]
    moved: list[Any] = [None]
    if backward is not None and unknown == linear:
        asked = [None if isinstance(ct, ad.Zero) else _there(ct, options) for ct in cotangents]
        moved = backward.fn(known, asked)
    if any(ct is None for ct in moved):  # no rule, or not for all that is asked for
        back = [*known, *map(ad.instantiate_zeros, cotangents)]
        moved = run_derivative(
            back,
            closed=_pullback(closed, unknown),
            linear=tuple(range(len(known), len(back))),
            options=options,
        )
    result: list[Any] = [None] * len(operands)
    for i, ct in zip(unknown, moved, strict=True):
        result[i] = ct
    return result


def _there(x: Any, options: Any) -> Any:
    """`x`, which lowers only where the backend that was asked for runs: a kernel's own backward kernels
    choose theirs by the platform, and nothing but them may be left of it."""
    if options.backend in ("auto", "xla"):
        return x
    (out,) = run_derivative([x], closed=_identity(_abstract(x)), linear=(0,), options=options)
    return out


@functools.lru_cache(maxsize=1024)
def _identity(aval: Any) -> Any:
    return jax.make_jaxpr(lambda x: [x])(aval)


def _batch_first(operands: Any, dims: Any) -> tuple[list[Any], int]:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    return [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)], size


def _place(zeros: list[Any], where: Sequence[int], values: Sequence[Any]) -> list[Any]:
    for i, value in zip(where, values, strict=True):
        zeros[i] = value
    return zeros


def _abstract(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _inputs(closed: Any) -> list[Any]:
    return [_abstract(v.aval) for v in closed.jaxpr.invars]


def _run(closed: Any, operands: Sequence[Any]) -> list[Any]:
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)


@functools.lru_cache(maxsize=1024)
def _pushforward(
    closed: Any, saved: tuple[Any, ...], active: tuple[int, ...], smooth: tuple[int, ...]
) -> Any:
    """`operands, saved, tangents of the active operands -> tangents of the smooth results`; `saved` is for
    the transpose alone."""
    inputs = _inputs(closed)

    def fn(*args: Any) -> list[Any]:
        primals, tangents = args[: len(inputs)], args[len(inputs) + len(saved) :]

        def part(*given: Any) -> list[Any]:
            operands = list(primals)
            for i, x in zip(active, given, strict=True):
                operands[i] = x
            results = _run(closed, operands)
            return [results[i] for i in smooth]

        return jax.jvp(part, [primals[i] for i in active], list(tangents))[1]

    return jax.make_jaxpr(fn)(*inputs, *saved, *(inputs[i] for i in active))


@functools.lru_cache(maxsize=1024)
def _pullback(closed: Any, unknown: tuple[int, ...]) -> Any:
    """`known operands, cotangents of the results -> cotangents of the unknown operands`, in which `closed`
    is linear."""
    inputs = _inputs(closed)
    known = [a for i, a in enumerate(inputs) if i not in unknown]
    outputs = [_abstract(v.aval) for v in closed.jaxpr.outvars]

    def fn(*args: Any) -> Any:
        given, cotangents = args[: len(known)], args[len(known) :]

        def part(*moved: Any) -> list[Any]:
            rest, lin = iter(given), iter(moved)
            return _run(closed, [next(lin) if i in unknown else next(rest) for i in range(len(inputs))])

        zeros = [jnp.zeros(inputs[i].shape, inputs[i].dtype) for i in unknown]
        return jax.vjp(part, *zeros)[1](list(cotangents))

    return jax.make_jaxpr(fn)(*known, *outputs)


def _mapped(closed: Any, flags: tuple[bool, ...], size: Any) -> Any:
    """`closed` over a batch, which is the first dimension of the flagged operands and of all results."""
    if isinstance(size, int):
        return _mapped_once(closed, flags, size)
    return _mapped_once.__wrapped__(closed, flags, size)  # symbols of different exports don't compare


@functools.lru_cache(maxsize=1024)
def _mapped_once(closed: Any, flags: tuple[bool, ...], size: Any) -> Any:
    inputs = [
        jax.ShapeDtypeStruct((size, *a.shape), a.dtype) if b else a
        for a, b in zip(_inputs(closed), flags, strict=True)
    ]
    fn = jax.vmap(
        lambda *args: _run(closed, args), in_axes=tuple(0 if b else None for b in flags), axis_size=size
    )
    return jax.make_jaxpr(fn)(*inputs)


_WHAT = "the derivative of a kernel"


def _evaluate_derivative(
    platforms: tuple[str, ...], *operands: Any, closed: Any, options: Any, **_: Any
) -> list[Any]:
    return run_arrays(platforms, closed, operands, _WHAT, options)


def _check_derivative(platforms: Any, operations: Any, module: Any, *, options: Any, **_: Any) -> None:
    check_lowered(platforms, operations, module, _WHAT, options)


implement(derivative_p)
mlir.register_lowering(derivative_p, _compat.lower_plain(_evaluate_derivative, _check_derivative))
batching.primitive_batchers[kernel_p] = _kernel_batch
batching.primitive_batchers[derivative_p] = _derivative_batch
ad.primitive_jvps[kernel_p] = _kernel_jvp
ad.primitive_jvps[derivative_p] = _derivative_jvp
ad.primitive_transposes[derivative_p] = _derivative_transpose
