"""The named operations of reductions: what combines two values, and the identity."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

COMBINE = {
    "add": lax.add,
    "mul": lax.mul,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def is_exact(op: str, dtype: Any) -> bool:
    """Whether a named operation rounds nothing, so that its terms may be taken in any order."""
    return op in ("max", "min", "and", "or") or jnp.issubdtype(dtype, np.integer)


def identity(op: str, dtype: Any) -> Any:
    """The neutral element of a named operation."""
    dtype = np.dtype(dtype)
    if op in ("max", "min"):
        return np.asarray(_extreme(dtype, greatest=op == "min"), dtype)
    return np.asarray(op in ("mul", "and"), dtype)


def _extreme(dtype: Any, *, greatest: bool) -> Any:
    if jnp.issubdtype(dtype, np.floating):  # some floats of eight bits have no infinity, but a NaN instead
        most = np.inf if not np.isnan(np.asarray(np.inf, dtype)) else float(jnp.finfo(dtype).max)
        return most if greatest else -most
    if dtype == np.bool_:
        return greatest
    info = jnp.iinfo(dtype)
    return info.max if greatest else info.min
