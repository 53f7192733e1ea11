"""Points of the domains of nests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax


def unravel(position: Any, extents: Sequence[int]) -> list[Any]:
    """The int32 indices of the point of a row-major domain that has this number."""
    position = lax.convert_element_type(position, np.int32)  # loops count in int64 under x64
    indices: list[Any] = []
    count = stride = math.prod(extents)
    for n in extents:
        stride //= n
        index = lax.div(position, np.int32(stride)) if stride > 1 else position
        index = lax.rem(index, np.int32(n)) if n * stride < count else index
        indices.append(index if n > 1 else np.int32(0))
    return indices
