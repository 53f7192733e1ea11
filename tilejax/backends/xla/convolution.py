"""A contraction over the taps of a window is a convolution, and XLA has one."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .rename import rename
from .stack import Tap
from .value import Group, Plan, Val, regroup


def convolve(
    plan: Plan, a: Val, b: Val, acc_shape, acc_dtype, a_labels, b_labels, acc_labels, precision
) -> Val | None:
    """`a * b` as one convolution, if `a` is a window of a view and `b` filters that are the same for all
    programs; else None.

    All taps and one more dimension, the channels, are contracted; what else `a` varies along is the batch,
    and `b` has one free dimension.
    """
    if (
        a.window is None
        or b.stack
        or b.atoms()
        or not jnp.issubdtype(a.dtype, np.floating)
        or a.dtype.itemsize < 2
    ):
        return None
    window = a.window.renamed(dict(enumerate(a_labels)))
    taps = {i: d for i, d in enumerate(window.dims) if isinstance(d, Tap)}
    summed = {x for x in a_labels if x in b_labels and x not in acc_labels}
    extents = {**dict(zip(a_labels, a.shape, strict=True)), **dict(zip(b_labels, b.shape, strict=True))}
    rest = {i: d for i, d in enumerate(window.dims) if i not in taps and d}
    channels = [i for i, g in rest.items() if set(g) <= summed]
    batch = [i for i, g in rest.items() if not set(g) & summed]
    tap_labels = [t.dim for t in taps.values()]
    used = {x for i in channels for x in rest[i]}
    free = [x for x in b_labels if x not in summed and extents[x] != 1]
    if (
        len(channels) > 1
        or len(batch) + len(channels) < len(rest)
        or {x for x in summed if extents[x] != 1} - set(tap_labels) != used
        or any(x in a_labels for x in free)
        or not set(tap_labels) <= summed | {x for x in tap_labels if extents[x] == 1}
    ):
        return None
    source = lax.transpose(window.array, [*batch, *channels, *taps, *_ones(window, taps, rest)])
    count = len(batch)
    lead = source.shape[:count]
    depth = source.shape[count] if channels else 1
    spatial = source.shape[count + len(channels) : count + len(channels) + len(taps)]
    source = lax.reshape(source, [int(np.prod(lead, dtype=np.int64)), depth, *spatial])
    label_shape = tuple(extents.get(i, 1) for i in range(max(extents) + 1))
    filters = rename(b, label_shape, dict(enumerate(b_labels)))
    order: tuple[Group, ...] = tuple(
        (x,) for x in [*free, *sorted(used), *(x for x in tap_labels if extents[x] != 1)]
    )
    kernel = regroup(plan, filters, order)
    width = int(np.prod([extents[x] for x in free], dtype=np.int64))
    kernel = lax.reshape(kernel, [width, depth, *(t.count for t in taps.values())])
    padding = []
    for tap, size in zip(taps.values(), spatial, strict=True):
        last = tap.start + (tap.length - 1) * tap.stride + (tap.count - 1) * tap.dilation
        padding.append((-tap.start, last + 1 - size))
    wide = np.float32 if jnp.finfo(acc_dtype).bits < 32 else acc_dtype
    if precision is None and a.dtype == np.float32:
        precision = lax.Precision.HIGHEST
    out = lax.conv_general_dilated(
        source,
        kernel,
        window_strides=[t.stride for t in taps.values()],
        padding=padding,
        rhs_dilation=[t.dilation for t in taps.values()],
        precision=precision,
        preferred_element_type=wide,
    )
    groups = [*(rest[i] for i in batch), *((x,) for x in free), *(t.group for t in taps.values())]
    sizes = [*lead, *(extents[x] for x in free), *(t.length for t in taps.values())]
    result = Val(label_shape, np.dtype(wide), lax.reshape(out, sizes), tuple(groups))
    return rename(result, acc_shape, {label: i for i, label in enumerate(acc_labels)})


def _ones(window: Any, taps: dict[int, Any], rest: dict[int, Any]) -> list[int]:
    return [i for i in range(len(window.dims)) if i not in taps and i not in rest]
