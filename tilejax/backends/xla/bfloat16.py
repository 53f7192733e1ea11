"""bfloat16 on the CPU, where XLA computes nothing in it, not even slices: it makes float32, and rounds.

So it makes float32 of a whole array to slice it, and in each step of a loop again of one that is updated.
What changes no bits is done on the bits instead, and what only chooses among some arrays in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .value import Plan


def slice_at(plan: Plan, array: Any, starts: Sequence[Any], shape: Sequence[int]) -> Any:
    """The part of `shape` at `starts`, which are not negative."""
    part = lax.dynamic_slice(bits(plan, array), starts, shape, allow_negative_indices=False)
    return numbers(part, array.dtype)


def update_at(plan: Plan, array: Any, block: Any, starts: Sequence[Any]) -> Any:
    """The array with `block` at `starts`, which are not negative."""
    dtype = array.dtype
    if not all(isinstance(start, np.integer) for start in starts):  # those hardly are in loops
        array, block = bits(plan, array), bits(plan, block)
    return numbers(lax.dynamic_update_slice(array, block, starts, allow_negative_indices=False), dtype)


def bits(plan: Plan, array: Any) -> Any:
    """What to keep of an array: its bits, if it is bfloat16 and nobody wants a derivative."""
    if array.dtype != jnp.bfloat16 or plan.differentiable or not plan.widens:
        return array
    return lax.bitcast_convert_type(array, np.uint16)


def numbers(kept: Any, dtype: Any) -> Any:
    """The array of which something was kept."""
    return kept if kept.dtype == dtype else lax.bitcast_convert_type(kept, dtype)


def compared(plan: Plan, arrays: list[Any]) -> list[Any]:
    """Arrays of which one or the other is taken: as float32 if they are bfloat16, to which XLA on the CPU
    would round what is taken each time."""
    if arrays[0].dtype != jnp.bfloat16 or not plan.widens:
        return arrays
    return [lax.convert_element_type(array, np.float32) for array in arrays]
