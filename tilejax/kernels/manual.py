"""Matrix multiplication through explicit memory, for those who place their tiles themselves."""

from __future__ import annotations

import tilejax as tj

from ..language import Resource, Scope
from .blocks import Size, block_size
from .checks import accumulator, check_product
from .window import View, destination


def manual_gemm(
    a: tj.TensorView,
    b: tj.TensorView,
    *,
    scope: Scope = Scope.AUTOMATIC,
    resource: Resource = Resource.AUTO,
    block_m: Size = None,
    block_n: Size = None,
    block_k: Size = None,
    window: Size = None,
    out: View | None = None,
) -> View:
    """`a @ b` of `(M, K)` and `(K, N)`; each step stores its tiles to memories and multiplies what it loads.

    Rows of `a` are padded by an element, so that a column lies in different banks; `b` lies column by
    column. The default blocks need 16.5 KiB of float32.
    """
    check_product("manual_gemm", a, b)
    C = destination(out, (a.shape[0], b.shape[1]), a.dtype)
    block_m = block_size("block_m", block_m, 64, a.shape[0])
    block_n = block_size("block_n", block_n, 64, b.shape[1])
    block_k = block_size("block_k", block_k, 32, a.shape[1])
    gm = tj.axis("block_m", tj.cdiv(a.shape[0], block_m))
    gn = tj.axis("block_n", tj.cdiv(b.shape[1], block_n))
    kt = tj.axis("k_tiles", tj.cdiv(a.shape[1], block_k))
    m, n, k = tj.axis("m", block_m), tj.axis("n", block_n), tj.axis("k", block_k)

    @tj.parallel(gm, gn, scope=scope)
    def _(nest: tj.Nest):
        m0, n0 = nest.index(gm) * block_m, nest.index(gn) * block_n
        left = tj.memory(tj.layout(tj.shape(m, k), (block_k + 1, 1)), a.dtype, resource)
        right = tj.memory(tj.layout(tj.shape(k, n), (1, block_k)), b.dtype, resource)

        @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n), accumulator(a.dtype)), window=window or 0)
        def acc(step, acc):
            k0 = step.index() * block_k
            step.stage("load")
            left.store(a[tj.coord(m0, k0), tj.shape(m, k)])
            right.store(b[tj.coord(k0, n0), tj.shape(k, n)])
            step.stage("compute")
            return tj.mma(left.load(), right.load(), acc)

        C(tj.coord(m0, n0), tj.shape(m, n)).store(acc.astype(C.dtype))

    return C
