"""Maximum and minimum over dimensions: NaN spreads, and ties share the derivative.

XLA on the CPU gives reductions of `SAFE` elements and more to a library whose maximum drops NaN. Its sums
keep it, so a sum of squares beside the maximum says where one was: that is NaN for no other reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SAFE = 4096
"""So many elements are too many for `lax.reduce_max` to keep NaN."""
_LONG, _LARGE = 128, 2**16
"""Of fewer elements a row, or in all, slices take longer than a second pass; in bfloat16, for which XLA makes
no vector instructions of its own, they always do."""


def least_or_greatest(x: Any, op: str, axes: tuple[int, ...]) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`, or of what is left of a row with NaN without it."""
    return (lax.reduce_max if op == "max" else lax.reduce_min)(x, axes)


def exact(x: Any, op: str, axes: tuple[int, ...], witness: Any = None) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`; NaN if there is one. `witness` is an array that is there
    anyway, and NaN in the same places."""
    if x.size < SAFE or not axes:
        return least_or_greatest(x, op, axes)
    suspect, dtype = x, x.dtype
    there = witness is not None and witness.shape == x.shape
    longest = max(axes, key=lambda d: x.shape[d])
    if dtype != jnp.bfloat16 and x.size >= _LARGE and x.shape[longest] >= _LONG:
        # XLA computes in each slice what it is of, but for more than 15 keeps that in memory instead.
        suspect = x = _fewer(x, op, longest, 16 if there and witness is x else 15)
    elif there and witness is not x:
        # Behind a barrier: its float32 and that of what `x` was made of would be one array in memory.
        suspect = lax.optimization_barrier(witness)
    suspect = lax.convert_element_type(suspect, jnp.promote_types(suspect.dtype, np.float32))
    squares = lax.reduce_sum(suspect * suspect, axes)
    found = lax.convert_element_type(least_or_greatest(x, op, axes), dtype)
    return lax.select(lax.ne(squares, squares), lax.full(found.shape, np.nan, dtype), found)


def _fewer(x: Any, op: str, dim: int, count: int) -> Any:
    """About `count` slices of `x` along `dim`, combined element by element: NaN where one of them is."""
    beats = lax.gt if op == "max" else lax.lt
    width = 16 * -(-x.shape[dim] // (16 * count))
    # They have one length, so that the last may overlap the one before it.
    starts = [min(i, x.shape[dim] - width) for i in range(0, x.shape[dim], width)]
    parts = [lax.slice_in_dim(x, i, i + width, axis=dim) for i in starts]
    if x.dtype == np.float16:
        parts = [lax.convert_element_type(part, np.float32) for part in parts]
    # A comparison and a selection are one vector instruction, `lax.max` is six.
    most = in_pairs(lambda a, b: lax.select(beats(a, b), a, b), parts)
    lost = in_pairs(lax.bitwise_or, [lax.ne(part, part) for part in parts])
    return lax.select(lost, lax.full(most.shape, np.nan, most.dtype), most)


def in_pairs(combine: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """The combination of all parts, neighbours first."""
    while len(parts) > 1:
        pairs = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def extremum(x: Any, op: str, axes: tuple[int, ...]) -> Any:
    """`exact`, to be differentiated. The rule of `lax.reduce_max` multiplies by 0/0 where the maximum is NaN,
    which XLA simplifies to 0 as soon as it compiles the whole. This one selects NaN."""
    return exact(x, op, axes)


@extremum.defjvp
def _jvp(op: str, axes: tuple[int, ...], primals: Any, tangents: Any) -> tuple[Any, Any]:
    ((x,), (tangent,)) = primals, tangents
    out = extremum(x, op, axes)
    kept = tuple(d for d in range(x.ndim) if d not in axes)

    def spread(value: Any) -> Any:
        return lax.broadcast_in_dim(value, x.shape, kept)

    here = lax.eq(x, spread(out)).astype(x.dtype)
    share = here / spread(lax.reduce_sum(here, axes))
    share = lax.select(spread(lax.ne(out, out)), np.full(x.shape, np.nan, x.dtype), share)
    return out, lax.reduce_sum(tangent * share, axes)
