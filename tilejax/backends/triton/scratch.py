"""Global memory of a program's own: Triton has no scatter within registers, so what an operation moves to
places that it computed goes through it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from .keys import key_type
from .tiles import as_index, full, scalar


def output(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """An output of a launch: Pallas wants to know under shard_map that it varies no more than its arguments,
    which are traced as outside of that."""
    return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=jax.typeof(0.0).manual_axis_type)


@dataclass(frozen=True)
class Need:
    """What an equation wants: so many pairs of a key and an index in each program."""

    eqn: Any
    size: int

    def arrays(self, programs: int) -> list[jax.ShapeDtypeStruct]:
        """The outputs of a launch that hold them."""
        keys = key_type(self.eqn.invars[0].aval.dtype)
        return [output((programs * self.size,), dtype) for dtype in (keys, np.int32)]


@dataclass(frozen=True)
class Scratch:
    """The pairs of the running program."""

    refs: Sequence[Any]
    start: Any
    interpret: bool

    def store(self, places: Any, keys: Any, index: Any, mask: Any = None) -> None:
        for ref, array in zip(self.refs, (keys, index), strict=True):
            plgpu.store(ref.at[self._offsets(places)], array, mask=mask)

    def load(self, places: Any, mask: Any = None) -> tuple[Any, Any]:
        """The pairs at some places, the greatest where the mask is false."""

        def one(ref: Any) -> Any:
            other = None if mask is None else full(mask.shape, jnp.iinfo(ref.dtype).max, ref.dtype)
            return plgpu.load(ref.at[self._offsets(places)], mask=mask, other=other)

        return one(self.refs[0]), one(self.refs[1])

    def barrier(self) -> None:
        """Between stores and loads of the same places, whichever come first."""
        if not self.interpret:
            plgpu.debug_barrier()

    def _offsets(self, places: Any) -> Any:
        return self.start + as_index(places, self.start.dtype)


def given(needs: Iterable[Need], refs: Sequence[Any], interpret: bool) -> dict[Any, Scratch]:
    """The scratch of the running program, by the first result of the equations that want it."""
    out = {}
    for i, need in enumerate(needs):
        pair = refs[2 * i : 2 * i + 2]
        wide = math.prod(pair[0].shape) > 2**31 - 1
        dtype = np.dtype(np.int64 if wide else np.int32)
        start = as_index(pl.program_id(0), dtype) * scalar(need.size, dtype)
        out[need.eqn.outvars[0]] = Scratch(pair, start, interpret)
    return out


def rows_at(shape: Sequence[int], size: int) -> Any:
    """Where the `size` pairs of each row begin."""
    start: Any = np.int32(0)
    for d in reversed(range(len(shape) - 1)):
        start = start + lax.broadcasted_iota(np.int32, shape, d) * np.int32(size)
        size *= shape[d]
    return start
