"""Reverse mode of GEMM: products with one factor or both transposed, whose reverse mode is again such
products."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import tilejax as tj

from ..._gradient import with_gradient
from ..._jit import jit
from ...language import Resource, Scope
from .. import manual, matmul
from ..blocks import Size, block_size, on_gpu
from ..checks import accumulator

Factor = tuple[Any, bool]
"""A matrix, and whether the product takes it transposed."""


def gemm(
    saved: None,
    dc: Any,
    a: Any,
    b: Any,
    out_dtype: Any = None,
    acc_dtype: Any = None,
    precision: Any = None,
    *,
    block_m: Size = None,
    block_n: Size = None,
    block_k: Size = None,
    window: Size = None,
    out: None = None,
) -> tuple[Any, Any]:
    """`(dc @ b.T, a.T @ dc)`."""
    blocks = block_m, block_n, block_k
    return _factors(dc, (a, False), (b, False), acc_dtype, precision, blocks)


def manual_gemm(
    saved: None,
    dc: Any,
    a: Any,
    b: Any,
    *,
    scope: Scope = Scope.AUTOMATIC,
    resource: Resource = Resource.AUTO,
    block_m: Size = None,
    block_n: Size = None,
    block_k: Size = None,
    window: Size = None,
    out: None = None,
) -> tuple[Any, Any]:
    """That of `gemm`: a cotangent need not lie where the product's tiles did."""
    return _factors(dc, (a, False), (b, False), None, None, (block_m, block_n, block_k))


def product(
    a: tj.TensorView,
    b: tj.TensorView,
    transposed: tuple[bool, bool],
    out_dtype: Any,
    acc_dtype: Any,
    precision: Any,
    blocks: tuple[Size, Size, Size],
) -> tj.TensorView:
    """`a @ b`, in which `transposed` says of each factor whether it stands for its transpose.

    The factors are multiplied in the dtype that JAX promotes them to.
    """
    dtype = jnp.promote_types(a.dtype, b.dtype)
    acc_dtype = acc_dtype or accumulator(dtype)
    rows, depth = a.shape[::-1] if transposed[0] else a.shape
    columns = b.shape[0 if transposed[1] else 1]
    C = tj.output((rows, columns), out_dtype)
    block_m = block_size("block_m", blocks[0], 128, rows)
    block_n = block_size("block_n", blocks[1], 128, columns)
    block_k = block_size("block_k", blocks[2], 128 // dtype.itemsize if on_gpu() else 512, depth)
    gm, gn = tj.axis("block_m", tj.cdiv(rows, block_m)), tj.axis("block_n", tj.cdiv(columns, block_n))
    kt = tj.axis("k_tiles", tj.cdiv(depth, block_k))
    m, n, k = tj.axis("m", block_m), tj.axis("n", block_n), tj.axis("k", block_k)

    @tj.parallel(gm, gn)
    def _(nest: tj.Nest):
        m0, n0 = nest.index(gm) * block_m, nest.index(gn) * block_n

        @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n), acc_dtype))
        def acc(step, acc):
            k0 = step.index() * block_k
            step.stage("load")
            # The axes say what is contracted: a transposed factor only is read in another order.
            left = (
                a[tj.coord(k0, m0), tj.shape(k, m)] if transposed[0] else a[tj.coord(m0, k0), tj.shape(m, k)]
            )
            right = (
                b[tj.coord(n0, k0), tj.shape(n, k)] if transposed[1] else b[tj.coord(k0, n0), tj.shape(k, n)]
            )
            step.stage("compute")
            return tj.mma(left.astype(dtype), right.astype(dtype), acc, precision=precision)

        C(tj.coord(m0, n0), tj.shape(m, n)).store(acc.astype(C.dtype))

    return C


def _product_backward(
    saved: None,
    dc: Any,
    a: Any,
    b: Any,
    transposed: tuple[bool, bool],
    out_dtype: Any,
    acc_dtype: Any,
    precision: Any,
    blocks: tuple[Size, Size, Size],
) -> tuple[Any, Any]:
    return _factors(dc, (a, transposed[0]), (b, transposed[1]), acc_dtype, precision, blocks)


with_gradient(backward=gemm)(matmul.gemm)
with_gradient(backward=manual_gemm)(manual.manual_gemm)
with_gradient(backward=_product_backward)(product)
_product = jit(product, static_argnums=(2, 3, 4, 5, 6))


def _factors(
    dc: Any, a: Factor, b: Factor, acc_dtype: Any, precision: Any, blocks: tuple[Size, Size, Size]
) -> tuple[Any, Any]:
    """The cotangents of the matrices of a product."""
    block_m, block_n, block_k = blocks

    def multiply(of: Factor, left: Factor, right: Factor, blocks: tuple[Size, Size, Size]) -> Any:
        transposed = left[1], right[1]
        return _product(left[0], right[0], transposed, of[0].dtype, acc_dtype, precision, blocks)

    da_blocks, db_blocks = (block_m, block_k, block_n), (block_k, block_n, block_m)
    if a[1]:
        da = multiply(a, b, (dc, True), (block_k, block_m, block_n))
    else:
        da = multiply(a, (dc, False), (b[0], not b[1]), da_blocks)
    if b[1]:
        db = multiply(b, (dc, True), a, (block_n, block_k, block_m))
    else:
        db = multiply(b, (a[0], not a[1]), (dc, False), db_blocks)
    return da, db
