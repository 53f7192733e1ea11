"""Sums of items by segment: a program a segment, so that no two ever add to one place."""

from __future__ import annotations

import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, block_size
from .checks import accumulator, check_integer, check_rank, check_shape, int32_ids
from .window import View


def segment_sum(
    ids: tj.TensorView,
    values: tj.TensorView,
    num_segments: int,
    *,
    block_items: Size = None,
    out: tuple[View, View] | None = None,
) -> tuple[View, View]:
    """`(sums, counts)`: the sum of the `values` whose id is the segment's, and how many they are (int32).

    `ids` is `(items,)` integers; an item with an id outside `0 .. num_segments - 1` counts nowhere. `values`
    is `(items,)` or `(items, features)`; the sums keep its dtype, f16 and bf16 add up in f32.
    """
    check_rank("segment_sum", 1, ids=ids)
    check_rank("segment_sum", 1, more=True, values=values)
    check_integer("segment_sum", ids=ids)
    check_shape("segment_sum", (*ids.shape, *values.shape[1:]), "one value for each id", values=values)
    sums, counts = out or (
        tj.output((num_segments, *values.shape[1:]), values.dtype),
        tj.output((num_segments,), jnp.int32),
    )
    items, acc_dtype = ids.shape[0], accumulator(values.dtype)
    block_items = block_size("block_items", block_items, 1024, items)
    segment, blocks = tj.axis("segment", num_segments), tj.axis("item_blocks", tj.cdiv(items, block_items))
    here, item = tj.axis("local_segment", 1), tj.axis("item", block_items)
    features = tuple(tj.axis("feature", extent) for extent in values.shape[1:])
    none = (0,) * len(features)

    @tj.parallel(segment)
    def _(nest: tj.Nest):
        start = tj.zeros(tj.shape(here, *features), acc_dtype), tj.zeros(tj.shape(here), jnp.int32)

        @nest.pipeline(blocks, carry=start)
        def totals(step, carry):
            first = step.index() * block_items
            step.stage("load")
            id = ids[tj.coord(first), tj.shape(item)]
            # An int32 that is no segment equals none; a wider one might, cut to 32 bits.
            id = id if id.dtype == jnp.int32 else int32_ids(id, num_segments)
            value = values[tj.coord(first, *none), tj.shape(item, *features)].astype(acc_dtype)
            step.stage("add")
            member = (id == nest.index(segment)) & (tj.iota(item) + first < items)
            # A select, not a product with 0: a NaN of another segment must not come in.
            partial = tj.sum(tj.where(member, value, 0), item).astype(acc_dtype)
            return carry[0] + partial, carry[1] + tj.sum(member, item).astype(jnp.int32)

        sums(tj.coord(nest.index(), *none), tj.shape(here, *features)).store(totals[0].astype(sums.dtype))
        counts(tj.coord(nest.index()), tj.shape(here)).store(totals[1])

    return sums, counts
