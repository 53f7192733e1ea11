"""Pairs of a value and its index, as integers that compare as sorts and selections ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .keys import from_keys, to_keys
from .tiles import full, scalar, wide_types

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Pairs:
    """Those of a row of `count` values, what is first in their order before what is last."""

    dtype: Any
    count: int
    descending: bool

    def keys(self, values: Any, index: Any) -> Any:
        """Integers in the order of the values; from `count` on the greatest."""
        keys = to_keys(values)
        return self._own(~keys if self.descending else keys, index)

    def pack(self, keys: Any, index: Any) -> list[Any]:
        """Arrays whose order is that of the keys and then of the indices."""
        if self._narrow:
            return [self._own((keys << scalar(16, np.int32)) | index, index)]
        if keys.dtype.itemsize == 8:
            return [keys, index]
        with wide_types(np.int64):
            wide = lax.convert_element_type(keys, np.int64) << scalar(32, np.int64)
            return [wide | lax.convert_element_type(index, np.int64)]

    def split(self, arrays: Arrays) -> list[Any]:
        """Keys and indices again."""
        keys, *rest = arrays
        if self._narrow:
            return [keys >> scalar(16, np.int32), keys & scalar(2**16 - 1, np.int32)]
        if rest:
            return [keys, *rest]
        high = lax.convert_element_type(keys >> scalar(32, np.int64), np.int32)
        return [high, lax.convert_element_type(keys, np.int32)]

    def values(self, keys: Any) -> Any:
        """The values of some keys."""
        return from_keys(~keys if self.descending else keys, self.dtype)

    def unpack(self, arrays: Arrays) -> list[Any]:
        """Values and indices."""
        keys, index = self.split(arrays)
        return [self.values(keys), index]

    def _own(self, keys: Any, index: Any) -> Any:
        worst = full(keys.shape, jnp.iinfo(keys.dtype).max, keys.dtype)
        return jnp.where(index < np.int32(self.count), keys, worst)

    @property
    def _narrow(self) -> bool:
        """Whether key and index fit 32 bits."""
        return np.dtype(self.dtype).itemsize <= 2 and self.count <= 2**16
