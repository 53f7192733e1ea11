"""Maximum and minimum over dimensions, to be differentiated: ties share, NaN spreads.

The rule of `lax.reduce_max` multiplies by 0/0 where the maximum is NaN, which XLA simplifies to 0 as soon
as it compiles the whole. This one selects NaN.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax import lax


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def extremum(x: Any, op: str, axes: tuple[int, ...]) -> Any:
    """The `op`, "max" or "min", of floating `x` over `axes`."""
    return (lax.reduce_max if op == "max" else lax.reduce_min)(x, axes)


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
