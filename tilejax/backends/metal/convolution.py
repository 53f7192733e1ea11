"""A convolution as shifted slices and matrix products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.domains import unravel
from .elementwise import NoForm
from .indexing import piece

_UNROLLED = 64
"""Up to so many taps are written out; more are a loop."""
_WIDTH = 128
"""The slices of several taps are put side by side for a product over up to so many channels."""


@dataclass(frozen=True)
class _Windows:
    """Padded images `x` (batch, place, group, channel) and filters `w` (tap, channel, group, feature)."""

    x: Any
    w: Any
    taps: tuple[int, ...]
    places: tuple[int, ...]
    strides: Sequence[int]
    dilations: Sequence[int]

    def slice(self, starts: Sequence[Any]) -> Any:
        """What one tap, of numbers or of traced scalars, sees from every place."""
        reach = [(n - 1) * s + 1 for n, s in zip(self.places, self.strides, strict=True)]
        sizes = (self.x.shape[0], *reach, *self.x.shape[-2:])
        at = [s * np.int32(d) for s, d in zip(starts, self.dilations, strict=True)]
        if all(isinstance(s, (int, np.integer)) for s in at):
            low = [0, *map(int, at), 0, 0]
            high = [a + n for a, n in zip(low, sizes, strict=True)]
            return lax.slice(self.x, low, high, (1, *self.strides, 1, 1))
        zero = np.int32(0)
        seen = lax.dynamic_slice(self.x, (zero, *at, zero, zero), sizes, allow_negative_indices=False)
        return lax.slice(seen, [0] * seen.ndim, seen.shape, (1, *self.strides, 1, 1))

    def product(self, seen: Any, filters: Any) -> Any:
        """(group, batch, place, feature): slices contracted with the filters of their taps."""
        taps, channels = filters.shape[:2]
        filters = lax.reshape(filters, (taps * channels, *filters.shape[2:]))
        last = seen.ndim - 1
        dims = (((last,), (0,)), ((last - 1,), (1,)))
        return lax.dot_general(seen, filters, dims, precision=lax.Precision.HIGHEST)

    def sum(self) -> Any:
        """The products of all taps."""
        count, channels, groups, features = self.w.shape
        out = lax.full((groups, self.x.shape[0], *self.places, features), 0, self.x.dtype)
        if not out.size or not count:
            return out
        if count > _UNROLLED:
            return lax.fori_loop(np.int32(0), np.int32(count), self._step, out)
        together = max(1, _WIDTH // max(1, channels))
        slices = [self.slice(at) for at in itertools.product(*map(range, self.taps))]
        for i in range(0, count, together):
            part = slices[i : i + together]
            seen = lax.concatenate(part, part[0].ndim - 1)
            out = out + self.product(seen, lax.slice_in_dim(self.w, i, i + len(part)))
        return out

    def _step(self, tap: Any, total: Any) -> Any:
        return total + self.product(self.slice(unravel(tap, self.taps)), piece(self.w, tap, 1))


def conv_general_dilated(
    x: Any,
    w: Any,
    *,
    dimension_numbers: Any,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    feature_group_count: int,
    batch_group_count: int,
    preferred_element_type: Any,
    **_: Any,
) -> Any:
    """Each tap's slice of the padded images, contracted over the channels of its group, added up in f32."""
    if batch_group_count != 1:
        raise NoForm("conv_general_dilated with groups of the batch")
    dtype = np.dtype(preferred_element_type or x.dtype)
    wide = np.float32 if jnp.issubdtype(dtype, np.floating) else dtype
    groups, (x_spec, w_spec, out_spec) = feature_group_count, dimension_numbers
    x, w = (lax.convert_element_type(v, wide) for v in (x, w))
    x = lax.transpose(x, (x_spec[0], *x_spec[2:], x_spec[1]))
    edges = [(lo, hi, d - 1) for (lo, hi), d in zip(padding, lhs_dilation, strict=True)]
    x = pad(x, np.asarray(0, wide), [(0, 0, 0), *edges, (0, 0, 0)])
    x = lax.reshape(x, (*x.shape[:-1], groups, x.shape[-1] // groups))
    w = lax.transpose(w, (*w_spec[2:], w_spec[1], w_spec[0]))
    taps, (channels, features) = w.shape[:-2], w.shape[-2:]
    w = lax.reshape(w, (math.prod(taps), channels, groups, features // groups))
    places = tuple(
        max(0, (n - (k - 1) * d - 1) // s + 1)
        for n, k, d, s in zip(x.shape[1:-2], taps, rhs_dilation, window_strides, strict=True)
    )
    out = _Windows(x, w, taps, places, window_strides, rhs_dilation).sum()
    rank = len(taps)
    out = lax.transpose(out, (*range(1, rank + 2), 0, rank + 2))
    out = lax.reshape(out, (*out.shape[: rank + 1], features))
    spots = dict(zip((out_spec[0], *out_spec[2:], out_spec[1]), range(rank + 2), strict=True))
    return lax.convert_element_type(lax.transpose(out, [spots[i] for i in range(rank + 2)]), dtype)


def pad(x: Any, value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """`lax.pad` of which negative padding is a slice."""
    out = lax.pad(x, value, [(max(lo, 0), max(hi, 0), inner) for lo, hi, inner in padding_config])
    low = [max(-lo, 0) for lo, _, _ in padding_config]
    high = [n - max(-hi, 0) for n, (_, hi, _) in zip(out.shape, padding_config, strict=True)]
    if any(low) or tuple(high) != out.shape:
        out = lax.slice(out, low, [max(a, b) for a, b in zip(low, high, strict=True)])
    return out


RULES: dict[str, Callable[..., Any]] = {"conv_general_dilated": conv_general_dilated, "pad": pad}
