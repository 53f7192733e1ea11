"""Entry points: the traced program, its size, how often a kernel is traced, and what jit takes and gives."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import equations, normal

A, B = normal(70, 50), normal(50, 40, seed=1)


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


def product(a, b):
    return (np.asarray(a, np.float64) @ np.asarray(b, np.float64)).astype(np.float32)


def test_the_gemm_of_the_specification():
    np.testing.assert_allclose(tj.jit(gemm)(A, B), product(A, B), rtol=1e-4, atol=1e-4)
    small = functools.partial(gemm, block_m=16, block_n=8, block_k=8, window=3)
    np.testing.assert_allclose(tj.jit(small)(A, B), product(A, B), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tj.interpret(small)(A, B), product(A, B), rtol=1e-4, atol=1e-4)


def test_the_program_holds_the_tile_primitives_by_name():
    def kernel(x):
        out = tj.update(x)
        steps, r, c = tj.axis("steps", 3), tj.axis("r", 2), tj.axis("c", 4)

        @tj.parallel(3)
        def _(nest):
            at = tj.coord(nest.index() * 2, 0), tj.shape(r, c)
            x_tile = x[at]

            @nest.serial(steps, carry=x_tile)
            def total(step, total):
                scanned = tj.cumsum(total, c)
                return tj.sort(scanned, c)[0] + tj.gather(tj.max(x_tile, r), step.index(), c)

            out(*at).store(tj.exp(total) + tj.argmax(total, c).astype(x.dtype))

        return out

    names = equations(tj.make_jaxpr(kernel)(normal(6, 4)))
    wanted = {"parallel", "serial", "load", "store", "scan", "sort", "gather", "reduce"}
    assert {f"tile_{name}" for name in wanted} <= set(names)
    assert {"exp", "add", "convert_element_type"} <= set(names)
    names = equations(tj.make_jaxpr(gemm)(A, B))
    assert {"tile_parallel", "tile_pipeline", "tile_load", "tile_mma", "tile_store"} <= set(names)
    assert (names.count("tile_load"), names.count("tile_mma"), names.count("tile_store")) == (2, 1, 1)


def test_the_program_prints_what_was_written():
    text = str(tj.make_jaxpr(gemm)(A, B))
    for word in ["tile_parallel", "tile_pipeline", "block_m", "k_tiles", "tile_mma", "window=2"]:
        assert word in text


def structs(blocks):
    n = blocks * 128
    return jax.ShapeDtypeStruct((n, 256), jnp.float32), jax.ShapeDtypeStruct((256, n), jnp.float32)


@pytest.mark.usefixtures("on_cpu")
def test_program_and_stablehlo_do_not_grow_with_the_grid():
    """64 blocks and 65,536 blocks: the same operations."""
    few, many = structs(8), structs(256)
    assert equations(tj.make_jaxpr(gemm)(*few)) == equations(tj.make_jaxpr(gemm)(*many))
    texts = [tj.jit(gemm).lower(*args).as_text() for args in (few, many)]
    operations = [re.findall(r"stablehlo\.\w+", text) for text in texts]
    assert len(operations[0]) == len(operations[1]) > 0
    assert "stablehlo.dot_general" in operations[0]


def counting(fn):
    calls = []

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        calls.append(1)
        return fn(*args, **kwargs)

    return wrapped, calls


def test_one_trace_per_distinct_key_and_none_on_a_repeat():
    kernel, calls = counting(gemm)
    run = tj.jit(kernel)
    for _ in range(20):
        run(A, B)
    assert len(calls) == 1
    run(jnp.asarray(A), jnp.asarray(B))
    run(A + 1, B * 2)
    assert len(calls) == 1
    run(A[:8], B)
    assert len(calls) == 2
    run(A.astype(jnp.bfloat16), B.astype(jnp.bfloat16))
    assert len(calls) == 3
    for _ in range(3):
        run(A, B)
    assert len(calls) == 3


@pytest.mark.usefixtures("on_cpu")
def test_inside_another_jit_it_traces_inline_and_once():
    kernel, calls = counting(gemm)
    run = tj.jit(kernel)

    @jax.jit
    def outer(a, b):
        return run(a * 2, b) + 1

    for _ in range(3):
        np.testing.assert_allclose(outer(A, B), product(2 * A, B) + 1, rtol=1e-4, atol=1e-4)
    assert len(calls) == 1
    assert outer.lower(A, B).as_text().count("func.func") == 1


def test_it_is_what_jax_jit_returns():
    run = tj.jit(gemm)
    shaped = jax.ShapeDtypeStruct((70, 40), jnp.float32)
    assert (run.eval_shape(A, B).shape, run.eval_shape(A, B).dtype) == (shaped.shape, shaped.dtype)
    assert "tile" in str(run.trace(A, B).jaxpr)
    compiled = run.lower(A, B).compile()
    np.testing.assert_allclose(compiled(A, B), product(A, B), rtol=1e-4, atol=1e-4)
    assert run.__name__ == "gemm"
    result = run(A, B)
    assert isinstance(result, jax.Array)
    assert isinstance(tj.interpret(gemm)(A[:4], B), (jax.Array, np.ndarray))


def test_it_runs_under_strict_jax_settings():
    """A kernel broadcasts by its axes and promotes by its own rules, whatever jax.numpy is told."""
    with jax.numpy_rank_promotion("raise"), jax.debug_nans(True):
        np.testing.assert_allclose(tj.jit(lambda a, b: gemm(a, b))(A, B), product(A, B), rtol=1e-4, atol=1e-4)
