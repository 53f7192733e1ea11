"""Matrix multiplication: a program an output block, a pipeline along K."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, block_size, on_gpu
from .checks import accumulator, check_product
from .window import View, destination


def gemm(
    a: tj.TensorView,
    b: tj.TensorView,
    out_dtype: Any = None,
    acc_dtype: Any = None,
    precision: Any = None,
    *,
    block_m: Size = None,
    block_n: Size = None,
    block_k: Size = None,
    window: Size = None,
    out: View | None = None,
) -> View:
    """`a @ b` of `(M, K)` and `(K, N)`.

    Accumulates in float32, integers in int32, unless `acc_dtype` says otherwise. The result has the dtype of
    `a`, for operands of one byte that of the accumulator, unless `out_dtype` says otherwise. `precision` is
    that of `tj.mma`: float32 operands are multiplied as float32 by default.
    """
    check_product("gemm", a, b)
    acc_dtype = acc_dtype or (jnp.int32 if jnp.issubdtype(a.dtype, jnp.integer) else accumulator(a.dtype))
    C = destination(
        out, (a.shape[0], b.shape[1]), out_dtype or (acc_dtype if a.dtype.itemsize == 1 else a.dtype)
    )

    rows, columns, depth = _blocks(a, b)
    block_m = block_size("block_m", block_m, rows, a.shape[0])
    block_n = block_size("block_n", block_n, columns, b.shape[1])
    block_k = block_size("block_k", block_k, depth, a.shape[1])
    gm = tj.axis("block_m", tj.cdiv(a.shape[0], block_m))
    gn = tj.axis("block_n", tj.cdiv(b.shape[1], block_n))
    kt = tj.axis("k_tiles", tj.cdiv(a.shape[1], block_k))
    m, n, k = tj.axis("m", block_m), tj.axis("n", block_n), tj.axis("k", block_k)

    @tj.parallel(gm, gn)
    def _(nest: tj.Nest):
        m0, n0 = nest.index(gm) * block_m, nest.index(gn) * block_n

        @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n), acc_dtype), window=window or 0)
        def acc(step, acc):
            k0 = step.index() * block_k
            step.stage("load")
            left = a[tj.coord(m0, k0), tj.shape(m, k)]
            right = b[tj.coord(k0, n0), tj.shape(k, n)]
            step.stage("compute")
            return tj.mma(left, right, acc, precision=precision)

        C(tj.coord(m0, n0), tj.shape(m, n)).store(acc.astype(C.dtype))

    return C


_CORES = 132
"""The multiprocessors of an H200."""
_COSTS = {(128, 256, 128): 1.0, (128, 128, 128): 0.56, (64, 128, 128): 0.36, (64, 64, 256): 0.24}
"""Blocks, K in bytes, and what a step of one costs there, beside one of the largest."""


def _blocks(a: tj.TensorView, b: tj.TensorView) -> tuple[int, int, int]:
    """The default sizes of M, N and K: on a GPU those with which the multiprocessor with most to do is done
    first; where the result is small, several share a long K."""
    if not on_gpu():
        return 128, 128, 512
    if a.dtype.itemsize >= 4:
        return 64, 128, 32

    def cost(sizes: tuple[int, int, int]) -> float:
        programs = tj.cdiv(a.shape[0], sizes[0]) * tj.cdiv(b.shape[1], sizes[1])
        return tj.cdiv(programs, _CORES) * _COSTS[sizes]

    shared = a.shape[1] >= 8192 and a.shape[0] * b.shape[1] <= 2**19
    rows, columns, width = (128, 128, 128) if shared else min(_COSTS, key=cost)
    return rows, columns, width // a.dtype.itemsize
