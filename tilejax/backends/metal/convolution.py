"""A convolution as shifted slices and matrix products."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .elementwise import NoForm
from .indexing import piece

_UNROLLED = 64
"""Up to so many taps are written out; more are a loop."""


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
    """Each tap's slice of the padded images, contracted over the channels of its group, added up."""
    if batch_group_count != 1:
        raise NoForm("conv_general_dilated with groups of the batch")
    dtype = np.dtype(preferred_element_type or x.dtype)
    wide = np.float32 if jnp.issubdtype(dtype, np.floating) else dtype
    groups, (x_spec, w_spec, out_spec) = feature_group_count, dimension_numbers
    # Images as (batch, place, group, channel), filters as (tap, group, channel, feature).
    x = lax.transpose(x, (x_spec[0], *x_spec[2:], x_spec[1]))
    x = pad(
        x,
        [(0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in zip(padding, lhs_dilation, strict=True)), (0, 0, 0)],
    )
    x = lax.reshape(x, (*x.shape[:-1], groups, x.shape[-1] // groups))
    w = lax.transpose(w, (*w_spec[2:], w_spec[1], w_spec[0]))
    taps, (channels, features) = w.shape[:-2], w.shape[-2:]
    w = lax.reshape(w, (math.prod(taps), channels, groups, features // groups))
    x, w = (lax.convert_element_type(v, wide) for v in (x, w))
    places = [
        max(0, (n - (k - 1) * d - 1) // s + 1)
        for n, k, d, s in zip(x.shape[1:-2], taps, rhs_dilation, window_strides, strict=True)
    ]
    reach = [(n - 1) * s + 1 for n, s in zip(places, window_strides, strict=True)]
    shape = (groups, x.shape[0], *places, features // groups)
    rank = len(taps)

    def term(tap: Any, starts: Sequence[Any]) -> Any:
        spatial = [lax.mul(s, np.int32(d)) for s, d in zip(starts, rhs_dilation, strict=True)]
        zero = np.int32(0)
        sizes = [x.shape[0], *reach, *x.shape[-2:]]
        seen = lax.dynamic_slice(x, [zero, *spatial, zero, zero], sizes, allow_negative_indices=False)
        seen = lax.slice(seen, [0] * seen.ndim, seen.shape, [1, *window_strides, 1, 1])
        return contract(seen, piece(w, tap, 1))

    def static_term(tap: int, starts: Sequence[int]) -> Any:
        low = [s * d for s, d in zip(starts, rhs_dilation, strict=True)]
        high = [a + r for a, r in zip(low, reach, strict=True)]
        seen = lax.slice(x, [0, *low, 0, 0], [x.shape[0], *high, *x.shape[-2:]], [1, *window_strides, 1, 1])
        return contract(seen, lax.slice_in_dim(w, tap, tap + 1, axis=0))

    def contract(seen: Any, filters: Any) -> Any:
        dims = (((rank + 2,), (0,)), ((rank + 1,), (1,)))
        return lax.dot_general(seen, lax.squeeze(filters, (0,)), dims, precision=lax.Precision.HIGHEST)

    out = lax.full(shape, 0, wide)
    if out.size and math.prod(taps) > _UNROLLED:

        def step(tap: Any, total: Any) -> Any:
            starts, stride = [], math.prod(taps)
            for k in taps:
                stride //= k
                starts.append(lax.rem(lax.div(tap, np.int32(stride)), np.int32(k)))
            return total + term(tap, starts)

        out = lax.fori_loop(np.int32(0), np.int32(math.prod(taps)), step, out)
    elif out.size and x.size:
        out = (
            sum(static_term(i, at) for i, at in enumerate(itertools.product(*map(range, taps))))
            if math.prod(taps)
            else out
        )
    # (group, batch, place, feature) to the order asked for.
    out = lax.transpose(out, (1, *range(2, rank + 2), 0, rank + 2))
    out = lax.reshape(out, (*out.shape[: rank + 1], features))
    spots = dict(zip((out_spec[0], *out_spec[2:], out_spec[1]), range(rank + 2), strict=True))
    return lax.convert_element_type(lax.transpose(out, [spots[i] for i in range(rank + 2)]), dtype)


def pad(x: Any, config: Sequence[tuple[int, int, int]], value: Any = 0) -> Any:
    """`lax.pad` of which negative padding is a slice."""
    out = lax.pad(
        x, jnp.asarray(value, x.dtype), [(max(lo, 0), max(hi, 0), inner) for lo, hi, inner in config]
    )
    low = [max(-lo, 0) for lo, _, _ in config]
    high = [n - max(-hi, 0) for n, (_, hi, _) in zip(out.shape, config, strict=True)]
    if any(low) or tuple(high) != out.shape:
        out = lax.slice(out, low, [max(a, b) for a, b in zip(low, high, strict=True)])
    return out


RULES: dict[str, Callable[..., Any]] = {
    "conv_general_dilated": conv_general_dilated,
    "pad": lambda x, value, *, padding_config: pad(x, padding_config, value),
}
