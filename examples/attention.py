"""Causal attention with online softmax: the scores never exist as a whole matrix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import tilejax as tj
from examples.timing import warm


# --8<-- [start:attention]
@tj.jit(static_argnames=("block_q", "block_kv"))
def attention(Q, K, V, *, block_q=256, block_kv=256):
    """Causal attention of (heads, length, dim) arrays."""
    heads, length, dim = Q.shape
    result = tj.output_like(Q)
    head = tj.axis("head", heads)
    query_blocks = tj.axis("query_blocks", tj.cdiv(length, block_q))
    key_blocks = tj.axis("key_blocks", tj.cdiv(length, block_kv))
    h, q, s, d = tj.axis("h", 1), tj.axis("query", block_q), tj.axis("key", block_kv), tj.axis("d", dim)

    @tj.parallel(head, query_blocks)
    def _(nest: tj.Nest):
        h0, q0 = nest.index(head), nest.index(query_blocks) * block_q
        query = Q[tj.coord(h0, q0, 0), tj.shape(h, q, d)] * (dim**-0.5)
        row = tj.shape(h, q)
        empty = tj.full(row, -jnp.inf, jnp.float32), tj.zeros(row), tj.zeros(tj.shape(h, q, d))
        stop = tj.cdiv(q0 + block_q, block_kv)  # no key block past the diagonal is touched

        @nest.pipeline(key_blocks, carry=empty, stop=stop)
        def state(step, state):
            peak, total, acc = state
            k0 = step.index() * block_kv
            step.stage("load")
            key = K[tj.coord(h0, k0, 0), tj.shape(h, s, d)]
            value = V[tj.coord(h0, k0, 0), tj.shape(h, s, d)]
            step.stage("score")
            score = tj.mma(query, key, tj.zeros(tj.shape(h, q, s)))
            score = tj.where(k0 + tj.iota(s) <= q0 + tj.iota(q), score, -jnp.inf)
            step.stage("update")
            new_peak = tj.maximum(peak, tj.max(score, s))
            rescale, weight = tj.exp(peak - new_peak), tj.exp(score - new_peak)
            total = total * rescale + tj.sum(weight, s)
            return new_peak, total, tj.mma(weight, value, acc * rescale)

        _, total, acc = state
        result(tj.coord(h0, q0, 0), tj.shape(h, q, d)).store(acc / total)

    return result


# --8<-- [end:attention]


def reference(q, k, v):
    """The same in `jnp`, with the whole matrix of scores, and as exact on GPUs too."""
    product = functools.partial(jnp.einsum, precision="float32")
    scores = product("hqd,hsd->hqs", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return product("hqs,hsd->hqd", jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)), v)


def main(heads=8, length=2048, dim=64) -> float:
    """Print both times; return the largest difference."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((heads, length, dim), np.float32) for _ in range(3))
    difference = float(np.abs(attention(q, k, v) - reference(q, k, v)).max())
    tile, whole = warm(attention, q, k, v), warm(jax.jit(reference), q, k, v)
    print(
        f"causal attention, {heads} heads, {length} x {dim}: "
        f"tile {tile * 1e3:.0f} ms, whole scores in jnp {whole * 1e3:.0f} ms"
    )
    print(f"largest difference {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
