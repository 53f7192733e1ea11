"""Maximum and minimum over dimensions: NaN spreads, and ties share the derivative.

XLA on the CPU gives reductions of `SAFE` elements and more to a library whose maximum drops NaN. An
elementwise `lax.max` keeps it, and so does a reduction by a function that the library does not know.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

SAFE = 4096
"""So many elements are too many for `lax.reduce_max` to keep NaN."""
SLICES = 16


def least_or_greatest(x: Any, op: str, axes: tuple[int, ...]) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`, or of what is left of a row with NaN without it."""
    return (lax.reduce_max if op == "max" else lax.reduce_min)(x, axes)


def exact(x: Any, op: str, axes: tuple[int, ...], witness: Any = None) -> Any:
    """The `op`, "max" or "min", of `x` over `axes`; NaN if there is one. `witness` is an array that is NaN in
    the same places: a quick sum of it says whether a quick maximum may have lost something."""
    if x.size < SAFE or not axes:
        return least_or_greatest(x, op, axes)
    if witness is None and x.dtype.itemsize < 4:
        witness = x
    if witness is not None and witness.shape == x.shape:
        wide = lax.convert_element_type(witness, np.float32) if witness.dtype.itemsize < 4 else witness
        found, suspect = least_or_greatest(x, op, axes), lax.reduce_sum(wide, axes)
        spoiled = lax.reduce_or(lax.ne(suspect, suspect), tuple(range(suspect.ndim)))

        def restored() -> Any:
            lost = lax.reduce_or(lax.ne(witness, witness), axes)
            return lax.select(lost, lax.full(found.shape, np.nan, found.dtype), found)

        return lax.cond(spoiled, restored, lambda: found)
    combine, beats = (lax.max, lax.gt) if op == "max" else (lax.min, lax.lt)
    longest = max(axes, key=lambda d: x.shape[d])
    width = 16 * -(-x.shape[longest] // (16 * SLICES))
    if width < x.shape[longest]:
        # Slices of one length, the last of which may overlap, are combined in vector instructions.
        starts = [min(i, x.shape[longest] - width) for i in range(0, x.shape[longest], width)]
        parts = [lax.slice_in_dim(x, i, i + width, axis=longest) for i in starts]
        x = in_pairs(combine, parts)

    def pick(a: Any, b: Any) -> Any:
        return lax.select(lax.bitwise_or(beats(a, b), lax.ne(a, a)), a, b)

    return lax.reduce(x, np.asarray(-math.inf if op == "max" else math.inf, x.dtype), pick, axes)


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
