"""Reverse mode of FlashAttention: the weights of a block are computed again from the saved log-sum-exp, so
that here too no score ever is in memory.

With `p` the weights and `delta = sum(y * dy)` of a query, a score has the cotangent `p * (dy @ v.T - delta)`.
One nest adds up what queries get, over the blocks of keys; another what keys and values get, over the
blocks of queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from .. import attention
from ..blocks import Size, block_size, on_gpu
from ..checks import check_float


def flash_attention_forward(q: Any, k: Any, v: Any, *, out: None = None, **keywords: Any) -> tuple[Any, Any]:
    """The result, and what reverse mode keeps: it and the log-sum-exp of the scores."""
    y, lse = _forward(q, k, v, **keywords)
    return y, (y, lse)


def flash_attention(
    saved: tuple[Any, Any], dy: Any, q: Any, k: Any, v: Any, *, out: None = None, **keywords: Any
) -> tuple[Any, Any, Any]:
    """`(dq, dk, dv)`."""
    return _backward(q, k, v, *saved, dy, **keywords)


def flash_attention_backward(
    q: tj.TensorView,
    k: tj.TensorView,
    v: tj.TensorView,
    y: tj.TensorView,
    lse: tj.TensorView,
    dy: tj.TensorView,
    *,
    scale: float | None = None,
    causal: bool = False,
    block_q: Size = None,
    block_kv: Size = None,
) -> tuple[tj.TensorView, tj.TensorView, tj.TensorView]:
    """`(dq, dk, dv)` for the result `y` and its cotangent `dy`; `lse` as `flash_attention_residuals` gives
    it. A query that sees no key, and a key that no query sees, get 0."""
    group = attention.group_size(q, k, v)
    (batches, _, queries, channels), (_, kv_heads, keys, values) = q.shape, v.shape
    f32 = check_float("flash_attention", q=q, k=k, v=v)
    block_q = block_size("block_q", block_q, 64 if on_gpu() else 512, queries)
    block_kv = block_size("block_kv", block_kv, 64 if on_gpu() else 512, keys)
    tiles = _Tiles(
        scale=1 / math.sqrt(max(channels, 1)) if scale is None else scale,
        causal=causal,
        dtype=f32,
        q=q,
        k=k,
        v=v,
        dy=dy,
        lse=lse,
        delta=tj.output(lse.shape, f32),
        b=tj.axis("local_batch", 1),
        h=tj.axis("local_head", 1),
        m=tj.axis("query", block_q),
        s=tj.axis("key", block_kv),
        d=tj.axis("channel", channels),
        dv=tj.axis("value_channel", values),
    )
    grid = tj.axis("batch", batches), tj.axis("kv_head", kv_heads), tj.axis("group", group)
    query_blocks = tj.axis("query_blocks", tj.cdiv(queries, block_q))
    key_blocks = tj.axis("key_blocks", tj.cdiv(keys, block_kv))
    _deltas(tiles, grid, query_blocks, y)
    dq = _queries(tiles, grid, query_blocks, key_blocks)
    return dq, *_keys(tiles, grid, query_blocks, key_blocks)


with_gradient(backward=flash_attention, forward=flash_attention_forward)(attention.flash_attention)
_STATIC = ("causal", "block_q", "block_kv")
_forward = jit(attention.flash_attention_residuals, static_argnames=_STATIC)
_backward = jit(flash_attention_backward, static_argnames=_STATIC)


@dataclass(frozen=True)
class _Tiles:
    """The tiles of queries and of keys that meet in a program."""

    scale: Any
    causal: bool
    dtype: Any
    q: tj.TensorView
    k: tj.TensorView
    v: tj.TensorView
    dy: tj.TensorView
    lse: tj.TensorView
    delta: tj.TensorView
    b: tj.Axis
    h: tj.Axis
    m: tj.Axis
    s: tj.Axis
    d: tj.Axis
    dv: tj.Axis

    def of_queries(self, b0: Any, h0: Any, q0: Any) -> tuple[tj.Tile, ...]:
        """The queries, the cotangents of their results, and their `lse` and `delta`."""
        row, rows = tj.coord(b0, h0, q0), tj.shape(self.b, self.h, self.m)
        query = self.q[tj.coord(*row, 0), tj.shape(*rows, self.d)]
        slope = self.dy[tj.coord(*row, 0), tj.shape(*rows, self.dv)]
        return query, slope, self.lse[row, rows], self.delta[row, rows]

    def of_keys(self, b0: Any, h0: Any, k0: Any) -> tuple[tj.Tile, tj.Tile]:
        """The keys and the values."""
        start, rows = tj.coord(b0, h0, k0, 0), (self.b, self.h, self.s)
        return self.k[start, tj.shape(*rows, self.d)], self.v[start, tj.shape(*rows, self.dv)]

    def weights(self, q0: Any, k0: Any, queries: tuple[tj.Tile, ...], keys: tuple[tj.Tile, tj.Tile]) -> Any:
        """The weights, and the cotangents of the products `q @ k.T`."""
        (query, slope, lse, delta), (key, value) = queries, keys
        nothing = tj.zeros(tj.shape(self.b, self.h, self.m, self.s), self.dtype)
        i, j = tj.iota(self.m) + q0, tj.iota(self.s) + k0
        valid = (i < self.q.shape[2]) & (j < self.k.shape[2])
        if self.causal:
            valid = valid & (j <= i)
        score = tj.where(valid, tj.mma(query, key, nothing) * self.scale, -jnp.inf)
        weight = tj.exp(score - lse)
        return weight, weight * (tj.mma(slope, value, nothing) - delta) * self.scale


def _deltas(tiles: _Tiles, grid: tuple[tj.Axis, ...], query_blocks: tj.Axis, y: tj.TensorView) -> None:
    """Stores what the weights of a query have in common: `sum(y * dy)`."""
    t, (batch, kv_head, member) = tiles, grid

    @tj.parallel(batch, kv_head, member, query_blocks)
    def _(nest: tj.Nest):
        h0 = nest.index(kv_head) * member.extent + nest.index(member)
        row = tj.coord(nest.index(batch), h0, nest.index(query_blocks) * t.m.extent)
        here = tj.coord(*row, 0), tj.shape(t.b, t.h, t.m, t.dv)
        product = y[here].astype(t.dtype) * t.dy[here].astype(t.dtype)
        t.delta(row, tj.shape(t.b, t.h, t.m)).store(tj.sum(product, t.dv))


def _queries(
    tiles: _Tiles, grid: tuple[tj.Axis, ...], query_blocks: tj.Axis, key_blocks: tj.Axis
) -> tj.TensorView:
    """`dq`."""
    t, (batch, kv_head, member) = tiles, grid
    dq = tj.output_like(t.q)

    @tj.parallel(batch, kv_head, member, query_blocks)
    def _(nest: tj.Nest):
        b0, kv0, q0 = nest.index(batch), nest.index(kv_head), nest.index(query_blocks) * t.m.extent
        h0 = kv0 * member.extent + nest.index(member)
        queries = t.of_queries(b0, h0, q0)
        shape = tj.shape(t.b, t.h, t.m, t.d)
        stop = tj.cdiv(q0 + t.m.extent, t.s.extent) if t.causal else None

        @nest.pipeline(key_blocks, carry=tj.zeros(shape, t.dtype), stop=stop)
        def result(step, acc):
            k0 = step.index() * t.s.extent
            step.stage("load")
            keys = t.of_keys(b0, kv0, k0)
            step.stage("score")
            _, slope = t.weights(q0, k0, queries, keys)
            step.stage("update")
            return tj.mma(slope.astype(keys[0].dtype), keys[0], acc)

        dq(tj.coord(b0, h0, q0, 0), shape).store(result.astype(dq.dtype))

    return dq


def _keys(
    tiles: _Tiles, grid: tuple[tj.Axis, ...], query_blocks: tj.Axis, key_blocks: tj.Axis
) -> tuple[tj.TensorView, tj.TensorView]:
    """`(dk, dv)`: all heads that share a head of keys add up in one program."""
    t, (batch, kv_head, member) = tiles, grid
    dk, dv = tj.output_like(t.k), tj.output_like(t.v)

    @tj.parallel(batch, kv_head, key_blocks)
    def _(nest: tj.Nest):
        b0, kv0, k0 = nest.index(batch), nest.index(kv_head), nest.index(key_blocks) * t.s.extent
        keys = t.of_keys(b0, kv0, k0)
        shapes = tj.shape(t.b, t.h, t.s, t.d), tj.shape(t.b, t.h, t.s, t.dv)
        # Blocks of queries that are earlier than the first key of this block do not see it.
        start = k0 // t.m.extent if t.causal else 0

        @nest.serial(member, carry=tuple(tj.zeros(shape, t.dtype) for shape in shapes))
        def result(head, so_far):
            h0 = kv0 * member.extent + head.index()

            @head.pipeline(query_blocks, carry=so_far, start=start)
            def result(step, carry):
                q0 = step.index() * t.m.extent
                step.stage("load")
                queries = t.of_queries(b0, h0, q0)
                step.stage("score")
                weight, slope = t.weights(q0, k0, queries, keys)
                step.stage("update")
                return (
                    tj.mma(slope.astype(queries[0].dtype), queries[0], carry[0]),
                    tj.mma(weight.astype(queries[1].dtype), queries[1], carry[1]),
                )

            return result

        for view, shape, tile in zip((dk, dv), shapes, result, strict=True):
            view(tj.coord(b0, kv0, k0, 0), shape).store(tile.astype(view.dtype))

    return dk, dv
