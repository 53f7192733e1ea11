"""Matrix multiplication: a parallel nest over output blocks, a pipeline over slabs of k."""

import jax.numpy as jnp
import numpy as np

import tilejax as tj


# --8<-- [start:gemm]
@tj.jit(static_argnames=("block_m", "block_n", "block_k", "window"))
def gemm(A, B, *, block_m=128, block_n=128, block_k=32, window=2):
    C = tj.output((A.shape[0], B.shape[1]), A.dtype)
    gm = tj.axis("block_m", tj.cdiv(A.shape[0], block_m))
    gn = tj.axis("block_n", tj.cdiv(B.shape[1], block_n))
    kt = tj.axis("k_tiles", tj.cdiv(A.shape[1], block_k))
    m, n, k = tj.axis("m", block_m), tj.axis("n", block_n), tj.axis("k", block_k)

    @tj.parallel(gm, gn)
    def _(nest):
        m0, n0 = nest.index(gm) * block_m, nest.index(gn) * block_n

        @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n), jnp.float32), window=window)
        def acc(step, acc):
            k0 = step.index() * block_k
            step.stage("load")
            a = A[tj.coord(m0, k0), tj.shape(m, k)]
            b = B[tj.coord(k0, n0), tj.shape(k, n)]
            step.stage("compute")
            return tj.mma(a, b, acc)

        C(tj.coord(m0, n0), tj.shape(m, n)).store(acc.astype(C.dtype))

    return C


# --8<-- [end:gemm]


def main(sizes=((512, 512, 512), (1000, 777, 301), (1, 1, 5))) -> dict[tuple[int, int, int], float]:
    """Multiply at each (m, n, k), ragged ones too; print and return the largest errors."""
    rng = np.random.default_rng(0)
    errors = {}
    for m, n, k in sizes:
        a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
        c = np.asarray(gemm(a, b))
        errors[m, n, k] = float(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max())
        print(f"({m}, {k}) x ({k}, {n}): largest error against float64 {errors[m, n, k]:.1e}")
    return errors


if __name__ == "__main__":
    main()
