"""`tile_mma` of all programs at once: one `dot_general`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .convolution import convolve
from .elementwise import convert
from .rename import rename
from .stack import unstack
from .value import Atom, Entry, Group, Plan, Val, regroup, split_entries, unify


def mma(
    plan: Plan,
    a: Val,
    b: Val,
    acc: Val,
    *,
    a_labels,
    b_labels,
    acc_labels,
    allow_reassociation,
    precision,
    **_: Any,
) -> Val:
    """`acc + a * b`."""
    if not allow_reassociation:
        plan.note("ordered")
        return _ordered(plan, a, b, acc, a_labels, b_labels, acc_labels)
    product = contract(plan, a, b, acc.shape, acc.dtype, a_labels, b_labels, acc_labels, precision, ())
    return add(plan, acc, product)


def add(plan: Plan, acc: Val, value: Val) -> Val:
    """`acc + value` in the wider of the dtypes, rounded to that of `acc`; nothing is added to zeros."""
    value = unstack(plan, value)
    if (acc.const is not None and acc.const == 0) or (
        acc.affine is not None and acc.affine.const == 0 and not acc.entries() and acc.affine.base is None
    ):
        groups = value.groups
        return Val(
            acc.shape, acc.dtype, convert(plan, value.array, acc.dtype), groups, zero_tail=value.zero_tail
        )
    acc = unstack(plan, acc)
    groups = unify([acc, value])
    x, y = regroup(plan, acc, groups), regroup(plan, value, groups)
    return Val(acc.shape, acc.dtype, convert(plan, convert(plan, x, y.dtype) + y, acc.dtype), groups)


def contract(
    plan: Plan,
    a: Val,
    b: Val,
    acc_shape: tuple[int, ...],
    acc_dtype: Any,
    a_labels,
    b_labels,
    acc_labels,
    precision: Any,
    steps: Sequence[Atom],
) -> Val:
    """The product contracted over the labels that `acc` lacks and over the atoms `steps`, as a tile of the
    shape of `acc`."""
    convolution = convolve(plan, a, b, acc_shape, acc_dtype, a_labels, b_labels, acc_labels, precision)
    if convolution is not None and not steps:
        plan.note("convolution")
        return convolution
    plan.note("dot")
    a, b = unstack(plan, a), unstack(plan, b)
    a, b, shape = _in_labels(a, b, acc_shape, a_labels, b_labels, acc_labels)
    summed = {x for x in a_labels if x in b_labels and x not in acc_labels and shape[x] != 1}
    gone: set[Entry] = {*summed, *steps}
    in_a, in_b = set(a.entries()), set(b.entries())

    def kind(entry: Entry) -> int:
        return 0 if entry in gone else 1 if entry in in_a and entry in in_b else 2 if entry in in_a else 3

    groups: list[Group] = []
    for g in (*unify([a, b]), *((e,) for e in gone if e not in in_a | in_b)):
        groups.extend([g] if len({kind(e) for e in g}) == 1 else [(e,) for e in g])
    shared, batch, free_a, free_b = (tuple(g for g in groups if kind(g[0]) == k) for k in range(4))
    for g in shared:
        if not (g in a.zero_tail and g in b.zero_tail):
            plan.full(g, shape)
    (x, sums_a), (y, sums_b) = (
        _laid(plan, *v) for v in ((a, batch, free_a, shared), (b, batch, free_b, shared))
    )
    wide = _accumulator(acc_dtype)
    plan.fit(batch + free_a + free_b, shape, np.dtype(wide).itemsize)
    x, y = _operands(x, y, plan.doubles_bytes)
    if precision is None and x.dtype == np.float32:
        precision = lax.Precision.HIGHEST
    batches = tuple(range(len(batch)))
    dims = ((sums_a, sums_b), (batches, batches))
    out = lax.dot_general(x, y, dims, precision=precision, preferred_element_type=wide)
    result = Val(shape, np.dtype(wide), out, batch + free_a + free_b)
    return rename(result, acc_shape, {label: i for i, label in enumerate(acc_labels)})


def _laid(
    plan: Plan, val: Val, batch: tuple[Group, ...], free: tuple[Group, ...], shared: tuple[Group, ...]
) -> tuple[Any, tuple[int, ...]]:
    """An operand as an array, and which of its dimensions are contracted: the last, unless it has them before
    the others anyway. Of bfloat16 that is transposed first, XLA on the CPU multiplies float32."""
    at = {g: i for i, g in enumerate(val.groups)}
    early = any(at.get(s, -1) < at.get(f, -1) for s in shared for f in free)
    order, first = (shared + free, 0) if early else (free + shared, len(free))
    first += len(batch)
    return regroup(plan, val, batch + order), tuple(range(first, first + len(shared)))


def _in_labels(
    a: Val, b: Val, acc_shape: tuple[int, ...], a_labels, b_labels, acc_labels
) -> tuple[Val, Val, tuple[int, ...]]:
    """Both operands as tiles of one shape, whose dimensions are the labels."""
    extents = dict(zip(acc_labels, acc_shape, strict=True))
    extents.update(zip(a_labels, a.shape, strict=True))
    extents.update(zip(b_labels, b.shape, strict=True))
    shape = tuple(extents.get(i, 1) for i in range(max(extents, default=-1) + 1))
    return rename(a, shape, dict(enumerate(a_labels))), rename(b, shape, dict(enumerate(b_labels))), shape


def _accumulator(dtype: Any) -> Any:
    short = jnp.issubdtype(dtype, np.floating) and jnp.finfo(dtype).bits < 32
    return np.float32 if short else dtype


def _operands(x: Any, y: Any, widen: bool) -> tuple[Any, Any]:
    """Operands that `dot_general` takes on every platform: mixed bytes widen to int32, eight-bit floats to
    f32, both exactly. Bytes of one kind stay bytes, for which there are instructions, unless they are to be
    widened too."""
    out = []
    for v in (x, y):
        narrow = jnp.issubdtype(v.dtype, np.integer) and v.dtype.itemsize < 4
        if narrow and (widen or x.dtype != y.dtype or v.dtype.itemsize == 2):
            v = lax.convert_element_type(v, np.int32)
        elif jnp.issubdtype(v.dtype, np.floating) and v.dtype.itemsize == 1:
            v = lax.convert_element_type(v, np.float32)
        out.append(v)
    return out[0], out[1]


def _ordered(plan: Plan, a: Val, b: Val, acc: Val, a_labels, b_labels, acc_labels) -> Val:
    """`((acc + a0*b0) + a1*b1) ...`, a loop over the contracted index."""
    wide = _accumulator(acc.dtype)
    a, b, acc = unstack(plan, a), unstack(plan, b), unstack(plan, acc)
    left, right, shape = _in_labels(a, b, acc.shape, a_labels, b_labels, acc_labels)
    summed = [x for x in a_labels if x in b_labels and x not in acc_labels and shape[x] != 1]
    count = math.prod(shape[x] for x in summed)
    start = rename(acc, shape, dict(enumerate(acc_labels)))
    columns = []
    for v in (left, right):
        v = split_entries(plan, v, [*summed, *v.entries()])
        rest = tuple(g for g in v.groups if g[0] not in summed)
        array = regroup(plan, v, (*((x,) for x in summed), *rest))
        columns.append((lax.reshape(array, [count, *array.shape[len(summed) :]]), rest))
    if start.array is None or start.merged():
        start = split_entries(plan, start, start.entries())
    groups = unify([start, *(Val(shape, np.dtype(wide), None, rest) for _, rest in columns)])

    def step(i: Any, total: Any) -> Any:
        terms = []
        for array, rest in columns:
            term = lax.convert_element_type(lax.dynamic_index_in_dim(array, i, 0, keepdims=False), wide)
            terms.append(regroup(plan, Val(shape, np.dtype(wide), term, rest), groups))
        return total + terms[0] * terms[1]

    total = convert(plan, regroup(plan, start, groups), wide)
    total = lax.fori_loop(np.int32(0), np.int32(count), step, total) if count else total
    result = Val(shape, acc.dtype, convert(plan, total, acc.dtype), groups)
    return rename(result, acc.shape, {label: i for i, label in enumerate(acc_labels)})
