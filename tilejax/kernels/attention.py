"""FlashAttention: online softmax over blocks of keys, so that no score ever is in memory."""

from __future__ import annotations

import math

import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, block_size, on_gpu
from .checks import check_float, check_rank
from .window import View, destination


def flash_attention(
    q: tj.TensorView,
    k: tj.TensorView,
    v: tj.TensorView,
    *,
    scale: float | None = None,
    causal: bool = False,
    block_q: Size = None,
    block_kv: Size = None,
    out: View | None = None,
) -> View:
    """`softmax(q @ k.T * scale) @ v` for each batch and head, in the dtype of `q`.

    `q` is `(batch, heads, queries, channels)`, `k` `(batch, kv_heads, keys, channels)` and `v` `(batch,
    kv_heads, keys, value_channels)`. `heads` is a multiple of `kv_heads`: neighbouring heads share one.
    `scale` is `1/sqrt(channels)` by default. `causal` lets query `i` see the keys `j <= i` only.
    A query that sees no key gives 0.

    The softmax is in float32; its weights are rounded to the dtype of `v` for the second product.
    """
    return _attention(q, k, v, scale, causal, block_q, block_kv, out, None)


def flash_attention_residuals(
    q: tj.TensorView,
    k: tj.TensorView,
    v: tj.TensorView,
    *,
    scale: float | None = None,
    causal: bool = False,
    block_q: Size = None,
    block_kv: Size = None,
) -> tuple[View, View]:
    """`(flash_attention(...), lse)`: also the logarithm of the sum of the exponentials of each query's
    scores, `(batch, heads, queries)` in float32, from which the weights can be had again. It is 0 for a
    query that sees no key."""
    lse = tj.output(q.shape[:3], check_float("flash_attention", q=q, k=k, v=v))
    return _attention(q, k, v, scale, causal, block_q, block_kv, None, lse), lse


def _attention(
    q: tj.TensorView,
    k: tj.TensorView,
    v: tj.TensorView,
    scale: float | None,
    causal: bool,
    block_q: Size,
    block_kv: Size,
    out: View | None,
    lse: View | None,
) -> View:
    check_rank("flash_attention", 4, q=q, k=k, v=v)
    f32 = check_float("flash_attention", q=q, k=k, v=v)
    group = group_size(q, k, v)
    (batches, heads, queries, channels), keys = q.shape, k.shape[2]
    scale = 1 / math.sqrt(max(channels, 1)) if scale is None else scale
    y = destination(out, (batches, heads, queries, v.shape[3]), q.dtype)
    block_q = block_size("block_q", block_q, 128 if on_gpu() else 512, queries)
    block_kv = block_size("block_kv", block_kv, 64 if on_gpu() else 512, keys)

    batch, kv_head = tj.axis("batch", batches), tj.axis("kv_head", k.shape[1])
    member = tj.axis("group", group)
    query_blocks = tj.axis("query_blocks", tj.cdiv(queries, block_q))
    key_blocks = tj.axis("key_blocks", tj.cdiv(keys, block_kv))
    b, h = tj.axis("local_batch", 1), tj.axis("local_head", 1)
    m, s = tj.axis("query", block_q), tj.axis("key", block_kv)
    d, dv = tj.axis("channel", channels), tj.axis("value_channel", v.shape[3])

    @tj.parallel(batch, kv_head, member, query_blocks)
    def _(nest: tj.Nest):
        b0, kv0 = nest.index(batch), nest.index(kv_head)
        h0, q0 = kv0 * group + nest.index(member), nest.index(query_blocks) * block_q
        query = q[tj.coord(b0, h0, q0, 0), tj.shape(b, h, m, d)]
        start = (
            tj.full(tj.shape(b, h, m), -jnp.inf, f32),
            tj.zeros(tj.shape(b, h, m), f32),
            tj.zeros(tj.shape(b, h, m, dv), f32),
        )
        # Blocks of keys that are later than the last query of this block are not visited.
        stop = tj.cdiv(q0 + block_q, block_kv) if causal else None

        @nest.pipeline(key_blocks, carry=start, stop=stop)
        def result(step, carry):
            row_max, row_sum, acc = carry
            k0 = step.index() * block_kv
            step.stage("load")
            key = k[tj.coord(b0, kv0, k0, 0), tj.shape(b, h, s, d)]
            value = v[tj.coord(b0, kv0, k0, 0), tj.shape(b, h, s, dv)]

            step.stage("score")
            score = tj.mma(query, key, tj.zeros(tj.shape(b, h, m, s), f32)) * scale
            valid = tj.iota(s) + k0 < keys
            if causal:
                valid = valid & (tj.iota(m) + q0 >= tj.iota(s) + k0)
            score = tj.where(valid, score, -jnp.inf)
            peak = tj.maximum(row_max, tj.max(score, s))
            # While nothing is visible the peak is -inf: subtract 0 then, for exp(-inf) is the wanted 0.
            offset = tj.where(peak == -jnp.inf, 0.0, peak)
            weight = tj.exp(score - offset)
            decay = tj.exp(row_max - offset)

            step.stage("update")
            row_sum = row_sum * decay + tj.sum(weight, s)
            return peak, row_sum, tj.mma(weight.astype(v.dtype), value, acc * decay)

        row_max, row_sum, acc = result
        seen = row_sum != 0.0
        total = tj.where(seen, row_sum, 1.0)
        mean = acc / total
        y(tj.coord(b0, h0, q0, 0), tj.shape(b, h, m, dv)).store(mean.astype(y.dtype))
        if lse is not None:
            lse(tj.coord(b0, h0, q0), tj.shape(b, h, m)).store(tj.where(seen, row_max, 0.0) + tj.log(total))

    return y


def group_size(q: tj.TensorView, k: tj.TensorView, v: tj.TensorView) -> int:
    """How many query heads share a head of keys and values."""
    shapes = f"q has shape {q.shape}, k {k.shape} and v {v.shape}"
    if not q.dtype == k.dtype == v.dtype:
        raise tj.DtypeError(f"flash_attention: q is {q.dtype}, k {k.dtype} and v {v.dtype}; they must agree")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise tj.ShapeError(f"flash_attention: {shapes}; the batches and channels of q and k must agree")
    if k.shape[:3] != v.shape[:3]:
        raise tj.ShapeError(f"flash_attention: {shapes}; k and v may differ in their channels only")
    if q.shape[1] % max(k.shape[1], 1) or (q.shape[1] and not k.shape[1]):
        raise tj.ShapeError(
            f"flash_attention: {shapes}; the heads of q must be a multiple of those of k and v"
        )
    return q.shape[1] // max(k.shape[1], 1)
