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
_LARGE, _LONG, _LONGEST = 2**16, 128, 4096
"""Of fewer elements in all, or in a row, slices take longer than a second pass, which is quicker still for
rows of bfloat16 that are there, if they are no longer than the last."""


def least_or_greatest(x: Any, op: str, axes: tuple[int, ...]) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`, or of what is left of a row with NaN without it."""
    return (lax.reduce_max if op == "max" else lax.reduce_min)(x, axes)


def exact(x: Any, op: str, axes: tuple[int, ...], computed: bool = True) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`; NaN if there is one. `computed` says whether `x` is not
    in memory yet."""
    if x.size < SAFE or not axes:
        return least_or_greatest(x, op, axes)
    longest, short = max(axes, key=lambda d: x.shape[d]), x.dtype == jnp.bfloat16
    few = x
    if x.size >= _LARGE and x.shape[longest] >= (_LONGEST if short and not computed else _LONG):
        # What is sliced up to 15 times XLA computes in the slices, as the float32 of bfloat16; what is
        # sliced more often it puts into memory.
        few = _fewer(x, op, longest, 15 if short or computed else 16)
    wide = lax.convert_element_type(few, jnp.promote_types(few.dtype, np.float32))
    squares = lax.reduce_sum(wide * wide, axes)
    found = lax.convert_element_type(least_or_greatest(few, op, axes), x.dtype)
    return lax.select(lax.ne(squares, squares), lax.full(found.shape, np.nan, x.dtype), found)


def _fewer(x: Any, op: str, dim: int, count: int) -> Any:
    """About `count` slices of `x` along `dim`, combined element by element: NaN where one of them is."""
    beats = lax.gt if op == "max" else lax.lt
    width = 16 * -(-x.shape[dim] // (16 * count))
    # They have one length, so that the last may overlap the one before it.
    starts = [min(i, x.shape[dim] - width) for i in range(0, x.shape[dim], width)]
    parts = [lax.slice_in_dim(x, i, i + width, axis=dim) for i in starts]
    if x.dtype.itemsize < 4:
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
