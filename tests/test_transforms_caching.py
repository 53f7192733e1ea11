"""One trace for each distinct key, none on a repeat, nothing that grows, in threads and over processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import tilejax as tj
from tests.helpers import normal
from tilejax import _transformations as transformations
from tilejax import kernels
from tilejax.backends import lowering
from tilejax.ir.program import derivative_p, kernel_p
from tilejax.transforms import batching

ROOT = Path(__file__).parent.parent


def counted():
    """A kernel, and the list of the arguments that it was traced with."""
    traces = []

    def scaled(x, factor=2.0, *, block=4):
        traces.append((x.shape, str(x.dtype), factor, block))
        y = tj.output_like(x)

        @tj.parallel(tj.cdiv(x.shape[0], block))
        def _(nest):
            at = tj.coord(nest.index() * block), tj.shape(block)
            y(*at).store((x[at] * factor).astype(y.dtype))

        return y

    return scaled, traces


def test_one_trace_a_key():
    kernel, traces = counted()
    run = tj.jit(kernel, static_argnames=("block",))
    a, b = np.arange(4, dtype=np.float32), np.arange(8, dtype=np.float32)
    calls = [
        lambda: run(a),
        lambda: run(b),
        lambda: run(a.astype(np.int32)),
        lambda: run(a, block=2),
        lambda: run(a, 3.0),
        lambda: run(a, jnp.float32(3)),
    ]
    for _ in range(3):
        for call in calls:
            call()
    assert len(traces) == len(calls)
    np.testing.assert_array_equal(run(a, 5.0), a * 5)  # the value of a dynamic scalar is not in the key
    assert len(traces) == len(calls)


def test_options_backend_and_x64_are_in_the_key():
    kernel, traces = counted()
    runs = [
        tj.jit(kernel),
        tj.jit(kernel, backend="xla"),
        tj.jit(kernel, compiler_params={"temporary_bytes": 2**20}),
    ]
    x = np.arange(6, dtype=np.float64)
    for _ in range(3):
        for run in runs:
            assert run(x).dtype == jnp.float32
            with jax.enable_x64(True):
                assert run(x).dtype == jnp.float64
    assert len(traces) == 6
    assert sorted({dtype for _, dtype, *_ in traces}) == ["float32", "float64"]


def test_transformed_calls_trace_once():
    kernel, traces = counted()
    run = tj.jit(kernel)
    x = normal(3, 8)
    for _ in range(3):
        jax.vmap(run)(x)
        jax.vmap(jax.grad(lambda x: (run(x) ** 2).sum()))(x)
        jax.jvp(run, (x[0],), (x[1],))
        jax.hessian(lambda x: (run(x) ** 2).sum())(x[0])
    assert len(traces) == 1


def _caches():
    """Those of our modules, and those that run a kernel or a derivative outside of jit."""
    functions = [*vars(lowering).values(), *vars(transformations).values(), *vars(batching).values()]
    functions += [cell.cell_contents for p in (kernel_p, derivative_p) for cell in p.impl.__closure__ or ()]
    return {f"{i} {f.__name__}": f.cache_info() for i, f in enumerate(functions) if hasattr(f, "cache_info")}


def test_nothing_grows_over_1000_calls():
    """Neither our caches nor the objects that are alive; nor does any cache miss."""
    x, labels = normal(4, 6), np.int32([1, 2, 0, 5])

    @jax.jit
    def step(x):
        return jax.grad(lambda x: kernels.sparse_cross_entropy(x, labels)[0].sum())(kernels.layernorm(x))

    def eager(x):
        f = jax.checkpoint(lambda x: kernels.gemm(kernels.softmax(kernels.exp(x)), x.T).sum())
        return jax.vmap(jax.grad(f))(x[None]), jax.grad(f)(x)

    def once():
        step(x)
        kernels.softmax(x)
        jax.vmap(kernels.row_max)(x[None])

    for _ in range(20):
        once()
        eager(x)
    gc.collect()
    caches, alive, arrays = _caches(), len(gc.get_objects()), len(jax.live_arrays())
    for i in range(1000):
        once()
        if i % 10 == 0:
            eager(x)
    gc.collect()
    assert len(caches) >= 6
    assert {k: v.currsize for k, v in _caches().items()} == {k: v.currsize for k, v in caches.items()}
    assert {k: v.misses for k, v in _caches().items()} == {k: v.misses for k, v in caches.items()}
    assert len(jax.live_arrays()) == arrays
    assert len(gc.get_objects()) - alive < 200


def test_first_calls_from_16_threads():
    kernel, traces = counted()
    run = tj.jit(kernel, static_argnames=("block",))
    xs = [normal(5 + i % 4, seed=i) for i in range(16)]
    start, got = threading.Barrier(16), [None] * 16

    def work(i):
        start.wait()
        values = run(xs[i]), jax.grad(lambda x: (run(x) ** 2).sum())(xs[i]), jax.vmap(run)(xs[i][None])
        got[i] = values

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, values in zip(xs, got, strict=True):
        assert values is not None
        np.testing.assert_array_equal(values[0], 2 * x)
        np.testing.assert_allclose(values[1], 8 * x, rtol=1e-6)
        np.testing.assert_array_equal(values[2], 2 * x[None])
    seen = len(traces)
    for x in xs:
        run(x)
    assert len(traces) == seen


CHILD = """
    import jax
    import numpy as np
    from jax import monitoring

    events = []
    monitoring.register_event_listener(lambda event, **_: events.append(event))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    from tilejax import kernels

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    run = jax.jit(jax.vmap(jax.grad(lambda x: kernels.softmax(x[None])[0, 0])))
    run(x)
    print(sum(e.endswith("/cache_hits") for e in events), sum(e.endswith("/cache_misses") for e in events))
"""


def test_persistent_compilation_cache_across_processes(tmp_path):
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    counts = []
    for _ in range(2):
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CHILD)],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode == 0, child.stderr
        counts.append(tuple(map(int, child.stdout.split())))
    (hits, misses), again = counts
    assert misses > 0
    assert again == (hits + misses, 0)
