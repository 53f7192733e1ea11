"""Causal attention over a sequence that no device holds whole: parts of the keys travel around a ring.

Each device keeps its part of the queries and meets every part of the keys once. A tile kernel attends to one
part and hands on the running (maximum, sum, accumulator) of its rows; `ppermute` moves the keys meanwhile.

    python -m examples.ring_attention                  # four CPU devices
    python -m examples.ring_attention --processes 2 --process 0 &  # two processes of one host, or of two
    python -m examples.ring_attention --processes 2 --process 1

On a host with several GPUs one process takes them all; give each of several its own by CUDA_VISIBLE_DEVICES.
"""

import argparse
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import P as Spec
from jax import lax

import tilejax as tj
from examples.attention import reference
from examples.timing import warm


# --8<-- [start:ring]
@tj.jit(static_argnames=("block_q", "block_kv"))
def attend(Q, K, V, peaks, totals, accs, q_start, k_start, *, block_q=128, block_kv=128):
    """The state of the online softmax after also meeting `K` and `V`, which start at `k_start` of the whole
    sequence; the queries start at `q_start`. Arrays are (heads, length, dim), the state without `dim`."""
    heads, length, dim = Q.shape
    out = tj.output_like(peaks), tj.output_like(totals), tj.output_like(accs)
    block_q, block_kv = min(block_q, length), min(block_kv, K.shape[1])
    head, query_blocks = tj.axis("head", heads), tj.axis("query_blocks", tj.cdiv(length, block_q))
    key_blocks = tj.axis("key_blocks", tj.cdiv(K.shape[1], block_kv))
    h, q, s, d = tj.axis("h", 1), tj.axis("query", block_q), tj.axis("key", block_kv), tj.axis("d", dim)

    @tj.parallel(head, query_blocks)
    def _(nest: tj.Nest):
        h0, q0 = nest.index(head), nest.index(query_blocks) * block_q
        rows, whole = (tj.coord(h0, q0), tj.shape(h, q)), (tj.coord(h0, q0, 0), tj.shape(h, q, d))
        query = Q[whole] * (dim**-0.5)
        stop = tj.cdiv(q_start + q0 + block_q - k_start, block_kv)  # no block that is wholly in the future

        @nest.pipeline(key_blocks, carry=(peaks[rows], totals[rows], accs[whole]), stop=stop)
        def state(step, state):
            peak, total, acc = state
            k0 = step.index() * block_kv
            step.stage("load")
            key, value = (x[tj.coord(h0, k0, 0), tj.shape(h, s, d)] for x in (K, V))
            step.stage("score")
            score = tj.mma(query, key, tj.zeros(tj.shape(h, q, s)))
            local = k0 + tj.iota(s)
            seen = (local < K.shape[1]) & (k_start + local <= q_start + q0 + tj.iota(q))
            score = tj.where(seen, score, -jnp.inf)
            step.stage("update")
            new_peak = tj.maximum(peak, tj.max(score, s))
            offset = tj.where(new_peak == -jnp.inf, 0.0, new_peak)  # nothing seen yet: exp(-inf) is the 0
            rescale, weight = tj.exp(peak - offset), tj.exp(score - offset)
            return new_peak, total * rescale + tj.sum(weight, s), tj.mma(weight, value, acc * rescale)

        for view, part, place in zip(out, state, (rows, rows, whole), strict=True):
            view(*place).store(part)

    return out


def ring_attention(mesh):
    """Causal attention of (heads, length, dim) arrays whose `length` is spread over the devices of `mesh`."""
    ring = [(i, (i + 1) % mesh.size) for i in range(mesh.size)]

    @partial(jax.shard_map, mesh=mesh, in_specs=Spec(None, "ring"), out_specs=Spec(None, "ring"))
    def run(q, k, v):
        me, length = lax.axis_index("ring"), q.shape[1]
        empty = jnp.full(q.shape[:2], -jnp.inf), jnp.zeros(q.shape[:2]), jnp.zeros(q.shape)

        def step(carry, turn):
            state, keys = carry
            source = (me - turn) % mesh.size
            state = attend(q, *keys, *state, me * length, source * length)
            return (state, lax.ppermute(keys, "ring", ring)), None

        start = lax.pcast(empty, ("ring",), to="varying"), (k, v)
        ((_, total, acc), _), _ = lax.scan(step, start, jnp.arange(mesh.size))
        return acc / total[..., None]

    return run


# --8<-- [end:ring]


def furthest(shards, want) -> float:
    """The largest difference of the shards that this process has from the whole array `want`."""
    return max(float(np.abs(s.data - want[s.index]).max()) for s in shards.addressable_shards)


def main(heads=4, length=2048, dim=32) -> tuple[float, float]:
    """Print the size of a device's part, times and differences; return those of the result and gradients."""
    mesh = jax.make_mesh((jax.device_count(),), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = jax.NamedSharding(mesh, Spec(None, "ring"))
    rng = np.random.default_rng(0)
    whole = [rng.standard_normal((heads, length, dim), np.float32) for _ in range(4)]
    shards = [jax.make_array_from_callback(x.shape, placed, x.__getitem__) for x in whole]

    @jax.jit
    def run(q, k, v, ct):
        out, pull = jax.vjp(ring_attention(mesh), q, k, v)
        return out, pull(ct)

    @jax.jit
    def alone(q, k, v, ct):
        out, pull = jax.vjp(reference, q, k, v)
        return out, pull(ct)

    (out, gradients), (want, wanted) = run(*shards), jax.device_get(alone(*whole))
    difference = furthest(out, want)
    gradient = max(furthest(g, w) for g, w in zip(gradients, wanted, strict=True))
    part, seconds = length // mesh.size, warm(run, *shards)
    memory: Any = run.lower(*shards).compile().memory_analysis()
    if jax.process_index() == 0:
        print(
            f"causal attention and its gradients, {heads} heads, {length} x {dim}, in {seconds * 1e3:.0f} ms"
        )
        print(f"  on {mesh.size} devices of {jax.process_count()} process(es), {part} positions each")
        scores, temporaries = heads * length * length * 4, memory.temp_size_in_bytes
        print(f"  {temporaries / 2**20:.1f} MiB of temporaries a device; all scores {scores / 2**20:.0f} MiB")
    print(f"  largest difference from one device {difference:.1e}, of the gradients {gradient:.1e}")
    return difference, gradient


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ring attention over all devices of all processes.")
    parser.add_argument("--coordinator", default="127.0.0.1:12321", help="address of process 0")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0, help="which of them this is")
    parser.add_argument(
        "--cpu-devices", type=int, default=4, help="devices a process has where it has no GPU"
    )
    parser.add_argument("--length", type=int, default=2048)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    main(length=options.length)
