"""Elementwise primitives and changes of shape, on values of all programs at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...transforms.affine import Affine, combine, compared, wrap
from . import onehot
from .access import as_affine
from .rename import rename
from .stack import mapped, unstack
from .value import Plan, Val, constant, extent_of, regroup, split_entries, unify

ELEMENTWISE = frozenset(
    """
    abs add and atan2 ceil clamp convert_element_type cos div eq erf exp exp2 expm1 floor ge gt
    integer_pow is_finite le log log1p log2 logistic lt max min mul ne neg nextafter not or pow
    reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
    sign sin sqrt square sub tan tanh xor
    """.split()  # noqa: SIM905
)
_KEEP_ZERO = frozenset(
    """
    abs ceil convert_element_type erf expm1 floor log1p neg round sign sin sqrt tanh integer_pow
    square
    """.split()  # noqa: SIM905
)


def apply(
    plan: Plan, primitive: Any, params: dict[str, Any], vals: list[Val], shape: tuple[int, ...], dtype: Any
) -> Val:
    """A primitive that works element by element, on operands of tile shape `shape` or rank 0."""
    name = primitive.name
    if dtype == np.int32 and (form := _affine(name, vals, shape)) is not None:
        return Val(shape, np.dtype(np.int32), affine=form)
    if name == "convert_element_type" and (known := _constant(vals[0], shape, dtype)) is not None:
        return known
    vals = [replace(v, shape=shape) for v in vals]

    def cast(val: Val) -> Val:
        return apply(plan, primitive, params, [val], shape, dtype)

    if dtype == np.bool_ and (known := _decided(name, vals, shape)) is not None:
        return known
    if (symbolic := onehot.elementwise(name, vals, dtype, cast)) is not None:
        return symbolic
    vals = [unstack(plan, v) if v.onehot is not None else v for v in vals]
    if any(v.stack for v in vals):
        parts = mapped(plan, vals, lambda each: apply(plan, primitive, params, each, shape, dtype))
        if parts is not None:
            return parts
        vals = [unstack(plan, v) for v in vals]
    groups = unify(vals)
    arrays = [regroup(plan, v, groups) for v in vals]
    if name == "convert_element_type":
        out = convert(plan, arrays[0], params["new_dtype"])
    else:
        (out,) = [primitive.bind(*arrays, **params)]
        out = out[0] if primitive.multiple_results else out
    tails = _zero_tail(name, params, vals)
    cut = name == "convert_element_type" and _folded(plan, arrays[0].dtype, dtype)
    bare = lax.convert_element_type(arrays[0], dtype) if cut else None
    return Val(shape, np.dtype(dtype), out, groups, computed=True, bare=bare, zero_tail=tails)


def _decided(name: str, vals: list[Val], shape: tuple[int, ...]) -> Val | None:
    """A comparison of indices whose ranges decide it, or a conjunction with something true."""
    if name == "and":
        for val, other in (vals, vals[::-1]):
            if val.const is not None and val.const:
                return other
    form = compared(name, [v.affine for v in vals], lambda entry: extent_of(entry, shape))
    if form is None:
        return None
    least, most = form.bounds(lambda entry: extent_of(entry, shape))
    return constant(most <= 0, np.bool_, shape) if most <= 0 or least > 0 else None


def _constant(val: Val, shape: tuple[int, ...], dtype: Any) -> Val | None:
    """A constant that another dtype holds exactly."""
    if val.const is None and (val.affine is None or not val.affine.is_constant):
        return None
    value: Any = val.const if val.affine is None else np.int32(wrap(val.affine.const))
    cast = np.asarray(value).astype(dtype)[()]
    return constant(cast, dtype, shape) if abs(float(value)) <= 2**8 and cast == value else None


def _zero_tail(name: str, params: dict[str, Any], vals: list[Val]) -> frozenset[Any]:
    """Where zeros beyond the trimmed end stay zeros."""
    tails = [v.zero_tail for v in vals if v.array is not None and v.groups]
    if not tails or (name == "integer_pow" and params["y"] <= 0):
        return frozenset()
    uniform = [v for v in vals if v.array is None or not v.groups]
    if (name in ("add", "sub", "mul") and not uniform) or name in _KEEP_ZERO:
        # A value that lacks a group is the same along it, and need not be zero there.
        shared = frozenset.intersection(*tails)
        return frozenset(g for g in shared if all(g in v.groups for v in vals))
    if (
        name == "mul"
        and all(v.const is not None and np.isfinite(v.const) for v in uniform)
        and len(tails) == 1
    ):
        return tails[0]
    return frozenset()


def convert(plan: Plan, array: Any, dtype: Any) -> Any:
    """A cast that rounds: XLA may otherwise fold a narrowing float cast with a widening one after it."""
    source, target = jnp.dtype(array.dtype), jnp.dtype(dtype)
    if source == target:
        return array
    if not _folded(plan, source, target):
        return lax.convert_element_type(array, dtype)
    info = jnp.finfo(target)
    if target == jnp.bfloat16 and info.nexp <= jnp.finfo(source).nexp:
        return lax.convert_element_type(lax.reduce_precision(array, info.nexp, info.nmant), dtype)
    # That would lose what is subnormal in the target, so XLA is to believe that the bits are something else.
    bits = np.dtype(f"uint{info.bits}")
    nan = np.asarray(np.nan, target).view(bits)[()]
    rounded = lax.bitcast_convert_type(lax.convert_element_type(array, dtype), bits)
    rounded = lax.select(lax.eq(array, array), rounded, lax.full_like(rounded, nan))
    return lax.bitcast_convert_type(rounded, dtype)


def _folded(plan: Plan, source: Any, target: Any) -> bool:
    """Whether a cast is one that XLA may fold away."""
    if plan.folds and jnp.issubdtype(source, np.floating) and jnp.issubdtype(target, np.floating):
        return jnp.finfo(target).bits <= jnp.finfo(source).bits
    return target == jnp.bfloat16 and source in (np.float32, np.float64)


def _affine(name: str, vals: list[Val], shape: tuple[int, ...]) -> Affine | None:
    """The result as an affine form, if the operands have such forms and one of them is symbolic."""
    forms = [as_affine(v) if v.dtype == np.int32 else None for v in vals]
    if all(v.affine is None for v in vals):
        return None
    if name == "convert_element_type":
        return forms[0]
    return combine(name, forms, lambda entry: extent_of(entry, shape))


def broadcast_in_dim(plan: Plan, val: Val, *, shape, broadcast_dimensions, **_: Any) -> Val:
    return rename(val, tuple(shape), dict(enumerate(broadcast_dimensions)))


def transpose(plan: Plan, val: Val, *, permutation) -> Val:
    return rename(val, tuple(val.shape[i] for i in permutation), {p: i for i, p in enumerate(permutation)})


def squeeze(plan: Plan, val: Val, *, dimensions) -> Val:
    kept = [i for i in range(len(val.shape)) if i not in dimensions]
    return rename(val, tuple(val.shape[i] for i in kept), {p: i for i, p in enumerate(kept)})


def iota(plan: Plan, *, dtype, shape, dimension, **_: Any) -> Val:
    form = Val(
        tuple(shape), np.dtype(np.int32), affine=Affine(0, {dimension: 1} if shape[dimension] != 1 else {})
    )
    if dtype == np.int32:
        return form
    groups = unify([form])
    array = lax.iota(dtype, shape[dimension]) if groups else jnp.zeros((), dtype)
    return Val(tuple(shape), np.dtype(dtype), array, groups)


def reshape(plan: Plan, val: Val, *, new_sizes, **_: Any) -> Val:
    new = tuple(new_sizes)
    old_kept = [i for i, n in enumerate(val.shape) if n != 1]
    new_kept = [i for i, n in enumerate(new) if n != 1]
    if [val.shape[i] for i in old_kept] == [new[i] for i in new_kept]:
        return rename(val, new, dict(zip(old_kept, new_kept, strict=True)))
    if not val.entries():
        return replace(val, shape=new)
    if val.stack and (parts := _reshape_stack(val, new, old_kept, new_kept)) is not None:
        return parts
    val = split_entries(plan, unstack(plan, val), old_kept)
    atoms = [g for g in val.groups if not isinstance(g[0], int)]
    array = regroup(plan, val, (*atoms, *((i,) for i in old_kept)))
    sizes = list(array.shape[: len(atoms)])
    if math.prod(new) == 0:
        array = jnp.zeros([*sizes, *(new[i] for i in new_kept)], val.dtype)
    else:
        array = lax.reshape(array, [*sizes, *(new[i] for i in new_kept)])
    return Val(new, val.dtype, array, (*atoms, *((i,) for i in new_kept)))


def _reshape_stack(val: Val, new: tuple[int, ...], old_kept: list[int], new_kept: list[int]) -> Val | None:
    """A reshape of just the unrolled dimensions, neighbours: the parts stay, in the same order."""
    first = old_kept.index(val.stack[0])
    after = len(old_kept) - first - len(val.stack)
    places = dict(zip(old_kept[:first], new_kept, strict=False))
    places.update(zip(old_kept[first + len(val.stack) :], new_kept[len(new_kept) - after :], strict=True))
    if list(val.stack) != old_kept[first : first + len(val.stack)] or len(new_kept) < first + after:
        return None
    if any(val.shape[d] != new[to] for d, to in places.items()):
        return None
    stack = tuple(new_kept[first : len(new_kept) - after])
    parts = tuple(rename(p, new, places) for p in val.parts)
    return replace(val, shape=new, stack=stack, parts=parts, window=None)


def generic(
    plan: Plan, primitive: Any, params: dict[str, Any], vals: list[Val], avals: list[Any]
) -> list[Val]:
    """Any other primitive: mapped with `vmap` over the atoms that its operands depend on."""
    atoms = list(dict.fromkeys(a for v in vals for a in v.atoms()))

    def call(*arrays: Any) -> list[Any]:
        out = primitive.bind(*arrays, **params)
        return list(out) if primitive.multiple_results else [out]

    arrays, fn = [], call
    for val in vals:
        kept = tuple((i,) for i, n in enumerate(val.shape) if n != 1)
        own = tuple((a,) for a in atoms if a in val.atoms())
        split = split_entries(plan, val, val.entries())
        array = regroup(plan, split, (*own, *kept))
        arrays.append(lax.reshape(array, [*array.shape[: len(own)], *val.shape]))
    # The first atom is mapped last: by then it is the leading dimension of every operand that has it.
    for atom in reversed(atoms):
        fn = jax.vmap(fn, in_axes=[0 if atom in v.atoms() else None for v in vals])
    out = fn(*arrays)
    results = []
    for array, aval in zip(out, avals, strict=True):
        kept = [i for i, n in enumerate(aval.shape) if n != 1]
        array = lax.reshape(array, [*array.shape[: len(atoms)], *(aval.shape[i] for i in kept)])
        results.append(
            Val(
                tuple(aval.shape),
                np.dtype(aval.dtype),
                array,
                (*((a,) for a in atoms), *((i,) for i in kept)),
            )
        )
    return results
