"""A contraction over the taps of a window is a convolution, and XLA has one."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .rename import rename
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
        or not a.window.is_zero_outside
        or any(t.dim is None for t in a.window.taps.values())
        or b.stack
        or b.atoms()
        or not jnp.issubdtype(a.dtype, np.floating)
        or a.dtype.itemsize < 2
    ):
        return None
    window = a.window.renamed(dict(enumerate(a_labels)))
    taps = window.taps
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
    label_shape = tuple(extents.get(i, 1) for i in range(max(extents) + 1))
    filters = rename(b, label_shape, dict(enumerate(b_labels)))
    kernel, kernel_spec = _kernel(plan, filters, free, sorted(used), tap_labels)
    source, spec, groups = _source(window.array, rest, batch, channels, list(taps))
    padding = []
    for i, tap in taps.items():
        padding.append((-tap.start, tap.last + 1 - window.array.shape[i]))
    wide = np.float32 if jnp.finfo(acc_dtype).bits < 32 else acc_dtype
    if precision is None and a.dtype == np.float32:
        precision = lax.Precision.HIGHEST
    out = lax.conv_general_dilated(
        source,
        kernel,
        window_strides=[t.stride for t in taps.values()],
        padding=padding,
        rhs_dilation=[t.dilation for t in taps.values()],
        dimension_numbers=lax.ConvDimensionNumbers(spec, kernel_spec, spec),
        precision=precision,
        preferred_element_type=wide,
    )
    # The result's dimensions are the source's, with the filters' free one in place of the channels.
    names: list[Group] = []
    for role, i in groups:
        if role == "batch":
            names.append(rest[i])
        elif role == "channel":
            names.extend((x,) for x in free)
        elif role == "tap":
            names.append(taps[i].group)
    sizes = [plan.length(g, label_shape) for g in names]
    result = Val(label_shape, np.dtype(wide), lax.reshape(out, sizes), tuple(names))
    return rename(result, acc_shape, {label: i for i, label in enumerate(acc_labels)})


def _source(
    array: Any, rest: dict[int, Group], batch: list[int], channels: list[int], taps: list[int]
) -> tuple[Any, tuple[int, ...], list[tuple[str, int]]]:
    """The view as a convolution takes it, which dimension of it is what, and which of the view's dimensions
    the result's are, in order. What has one batch dimension keeps its order: a transpose would be a copy."""
    order = sorted([*batch, *channels, *taps])
    if len(batch) > 1:
        order = [*batch, *channels, *taps]
    array = lax.transpose(array, [*order, *(i for i in range(array.ndim) if i not in order)])
    roles = [("batch" if i in batch else "channel" if i in channels else "tap", i) for i in order]
    sizes = [array.shape[order.index(i)] for i in order]
    kinds = [role for role, _ in roles]
    if len(batch) != 1:
        sizes, kinds = [math.prod(sizes[: len(batch)]), *sizes[len(batch) :]], ["batch", *kinds[len(batch) :]]
    if not channels:
        sizes, kinds = [*sizes, 1], [*kinds, "channel"]
        roles.append(("channel", -1))
    spec = (kinds.index("batch"), kinds.index("channel"), *(d for d, k in enumerate(kinds) if k == "tap"))
    return lax.reshape(array, sizes), spec, roles


def _kernel(plan: Plan, filters: Val, free: list[int], depth: list[int], taps: list[int]) -> Any:
    """The filters as a convolution takes them, and which dimension is what: in their own order if they have
    one dimension of each kind."""
    wanted = [*free, *depth, *(x for x in taps if filters.shape[x] != 1)]
    order = [e for g in filters.groups for e in g if isinstance(e, int)]
    if len(free) > 1 or len(depth) > 1 or sorted(order) != sorted(wanted):
        order = wanted
    array = regroup(plan, filters, tuple((x,) for x in order))
    sizes: list[int] = []
    kinds: list[Any] = []
    for x in order:
        kind = "out" if x in free else "in" if x in depth else x
        if kind in kinds:
            sizes[kinds.index(kind)] *= filters.shape[x]
        else:
            sizes.append(filters.shape[x])
            kinds.append(kind)
    for kind in ("in", "out", *taps):
        if kind not in kinds:
            sizes.append(1)
            kinds.append(kind)
    spec = (kinds.index("out"), kinds.index("in"), *(kinds.index(x) for x in taps))
    return lax.reshape(array, sizes), spec
