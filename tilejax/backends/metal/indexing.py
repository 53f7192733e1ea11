"""Gathers and dynamic slices in the plugins' terms, every index clamped before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .elementwise import NoForm, full

FILL = lax.GatherScatterMode.FILL_OR_DROP


def dynamic_slice(x: Any, *starts: Any, slice_sizes: Sequence[int]) -> Any:
    """A slice that stays inside by its own clamp."""
    inner = clamped(starts, x.shape, slice_sizes)
    return lax.dynamic_slice(x, inner, slice_sizes, allow_negative_indices=False)


def dynamic_update_slice(x: Any, update: Any, *starts: Any) -> Any:
    """An update that stays inside by its own clamp."""
    inner = clamped(starts, x.shape, update.shape)
    return lax.dynamic_update_slice(x, update, inner, allow_negative_indices=False)


def clamped(starts: Sequence[Any], shape: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    """The starts of a slice, moved to the nearest that keeps it inside, as int32."""
    moved = (_within(s, n - size) for s, n, size in zip(starts, shape, sizes, strict=True))
    return [lax.convert_element_type(s, np.int32) for s in moved]


def _within(i: Any, last: int) -> Any:
    """Indices, each moved to the nearest of `0 ... last`."""
    if isinstance(i, (np.ndarray, np.generic)):
        return np.clip(i.astype(np.int64), 0, last).astype(np.int32)
    i = _wide(i)
    return lax.clamp(np.asarray(0, i.dtype), i, np.asarray(last, i.dtype))


def _wide(i: Any) -> Any:
    """An index of at least 32 bits, which holds every extent."""
    return i if i.dtype.itemsize >= 4 else int32(i)


def piece(x: Any, start: Any, size: int) -> Any:
    """`size` rows of `x` from one that the caller knows to be inside."""
    return lax.dynamic_slice_in_dim(x, start, size, allow_negative_indices=False)


def gather(
    x: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    **_: Any,
) -> Any:
    """Any gather as one of rows of a matrix, by the flat index of each row."""
    dims, batch = dimension_numbers, indices.shape[:-1]
    batched = dict(zip(dims.operand_batching_dims, dims.start_indices_batching_dims, strict=True))
    place = dict(zip(dims.start_index_map, range(indices.shape[-1]), strict=True))
    start = {d: column(indices, i) for d, i in place.items()}
    valid = inside(start, x.shape, slice_sizes) if mode == FILL else None
    x = lax.slice(
        x, [0] * x.ndim, [n if d in start or d in batched else slice_sizes[d] for d, n in enumerate(x.shape)]
    )
    indexed = [d for d in range(x.ndim) if d in batched or (d in start and slice_sizes[d] < x.shape[d])]
    windows = [d for d in indexed if slice_sizes[d] > 1]
    rest = [d for d in range(x.ndim) if d not in indexed]
    space = (*batch, *(slice_sizes[d] for d in windows))
    flat = lax.full(space, 0, np.int32)
    for d in indexed:
        if d in batched:
            along = lax.broadcasted_iota(np.int32, space, batched[d])
        else:
            along = int32(_within(start[d], x.shape[d] - slice_sizes[d]))
            along = lax.broadcast_in_dim(along, space, range(len(batch)))
        if d in windows:
            along = along + lax.broadcasted_iota(np.int32, space, len(batch) + windows.index(d))
        flat = flat * full(flat, x.shape[d]) + along
    rows = take_rows(lax.transpose(x, (*indexed, *rest)), len(indexed), flat)
    # Those have batch, windows, rest; the result has the slice's dimensions, in order, at `offset_dims`.
    held = [d for d in range(x.ndim) if d not in dims.collapsed_slice_dims and d not in batched]
    order = [d for d in (*windows, *rest) if d in held]
    rows = lax.reshape(rows, (*batch, *(slice_sizes[d] for d in order)))
    single = [d for d in held if d not in order]  # an indexed dimension, of which a slice has one element
    rows = lax.expand_dims(rows, range(rows.ndim, rows.ndim + len(single)))
    at = {d: len(batch) + i for i, d in enumerate(order + single)}
    offsets = dict(zip(dims.offset_dims, held, strict=True))
    rank, plain = len(batch) + len(held), iter(range(len(batch)))
    out = lax.transpose(rows, [at[offsets[i]] if i in offsets else next(plain) for i in range(rank)])
    if valid is None:
        return out
    spread = [i for i in range(rank) if i not in offsets]
    return lax.select(
        lax.broadcast_in_dim(valid, out.shape, spread), out, full(out, _fill(fill_value, out.dtype))
    )


def take_rows(x: Any, lead: int, flat: Any) -> Any:
    """The rows of `x`, whose first `lead` dimensions count them, that `flat` (of any shape) names."""
    count, row = math.prod(x.shape[:lead]), x.shape[lead:]
    shape = (*flat.shape, *row)
    if 0 in shape:
        return lax.full(shape, 0, x.dtype)
    if count >= 2**31:
        raise NoForm(f"gather from {count} rows, more than int32 counts")
    matrix = lax.reshape(x, (count, math.prod(row)))
    dims = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
    taken = lax.gather(
        matrix,
        lax.reshape(flat, (flat.size, 1)),
        dims,
        (1, matrix.shape[1]),
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    return lax.reshape(taken, shape)


def column(indices: Any, i: int) -> Any:
    """Of index vectors along the last dimension, the `i`-th entries."""
    entries = _wide(lax.slice_in_dim(indices, i, i + 1, axis=indices.ndim - 1))
    return lax.squeeze(entries, (indices.ndim - 1,))


def int32(i: Any) -> Any:
    return lax.convert_element_type(i, np.int32)


def inside(start: dict[int, Any], shape: Sequence[int], sizes: Sequence[int]) -> Any:
    """Where no slice reaches outside; None if there is no index."""
    valid = None
    for d, s in start.items():
        here = lax.ge(s, full(s, 0)) & lax.le(s, full(s, shape[d] - sizes[d]))
        valid = here if valid is None else valid & here
    return valid


def _fill(value: Any, dtype: Any) -> Any:
    """What JAX fills with if nothing was asked for: NaN, else the least or greatest value."""
    if value is not None:
        return value
    if jnp.issubdtype(dtype, np.floating):
        return np.nan
    if dtype == np.bool_:
        return True
    info = jnp.iinfo(dtype)
    return info.min if info.min else info.max


def stack(*operands: Any, axis: int) -> Any:
    """The operands along a new axis."""
    return lax.concatenate([lax.expand_dims(x, (axis,)) for x in operands], axis)


def unstack(x: Any, *, axis: int) -> list[Any]:
    """The inverse of `stack`."""
    return [lax.squeeze(lax.slice_in_dim(x, i, i + 1, axis=axis), (axis,)) for i in range(x.shape[axis])]


RULES: dict[str, Callable[..., Any]] = {
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "stack": stack,
    "unstack": unstack,
}
