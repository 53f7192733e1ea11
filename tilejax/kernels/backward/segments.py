"""Reverse mode of the sums by segment: each item takes what its segment has, whose reverse mode is again
the sums by segment."""

from __future__ import annotations

from typing import Any

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import segments
from ..blocks import Size
from ..checks import int32_ids


def segment_sum(
    saved: None,
    cotangents: Any,
    ids: Any,
    values: Any,
    num_segments: int,
    *,
    block_items: Size = None,
    out: None = None,
) -> tuple[None, Any]:
    """The cotangent of an item's segment, 0 for one that counts nowhere."""
    dsums, _ = cotangents
    return None, _take(ids, dsums)


def take_segments(ids: tj.TensorView, rows: tj.TensorView) -> tj.TensorView:
    """`rows[ids]` of `(items,)` integers and `(segments, ...)`; 0 for an id that is no segment."""
    result = tj.output((*ids.shape, *rows.shape[1:]), rows.dtype)
    item, one = tj.axis("item", ids.shape[0]), tj.axis("local_item", 1)
    features = tuple(tj.axis("feature", extent) for extent in rows.shape[1:])
    none = (0,) * len(features)

    @tj.parallel(item)
    def _(nest: tj.Nest):
        id = tj.reshape(int32_ids(ids[tj.coord(nest.index()), tj.shape(one)], rows.shape[0]), tj.shape())
        row = rows[tj.coord(id, *none), tj.shape(one, *features)]  # that of id -1 is outside, so it is 0
        result(tj.coord(nest.index(), *none), tj.shape(one, *features)).store(row)

    return result


def _take_segments_backward(saved: None, dy: Any, ids: Any, rows: Any) -> tuple[None, Any]:
    return None, _segment_sum(ids, dy, rows.shape[0])[0]


with_gradient(backward=segment_sum)(segments.segment_sum)
with_gradient(backward=_take_segments_backward)(take_segments)
_take = jit(take_segments)
_segment_sum = jit(segments.segment_sum, static_argnums=2)
