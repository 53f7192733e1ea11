"""Entry points: the traced program, its size, how often a kernel is traced, and what jit takes and gives."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import normal

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


def equations(jaxpr: Any) -> list[str]:
    """The names of all primitives, those of inner jaxprs included."""
    names = []
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        names.append(eqn.primitive.name)
        for param in eqn.params.values():
            for value in param if isinstance(param, (tuple, list)) else [param]:
                if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                    names += equations(value)
    return names


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


def scaled(x, factor, *, block=4):
    """x * factor."""
    out = tj.output_like(x)

    @tj.parallel(tj.cdiv(x.shape[0], block))
    def _(nest):
        at = tj.coord(nest.index() * block), tj.shape(block)
        out(*at).store(x[at] * factor)

    return out


X = normal(10)


def test_decorators_bare_and_with_keywords():
    @tj.jit
    def bare(x, factor):
        return scaled(x, factor)

    @tj.jit(static_argnames="block", donate_argnums=0)
    def keyed(x, factor, block):
        return scaled(x, factor, block=block)

    np.testing.assert_array_equal(bare(X, 2.0), X * 2)
    np.testing.assert_array_equal(keyed(jnp.asarray(X), 2.0, block=3), X * 2)


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnames": "block"},
        {"static_argnames": ("block", "factor")},
        {"static_argnames": ["block"], "backend": "xla"},
        {"static_argnames": "block", "compiler_params": {"temporary_bytes": 2**20}},
    ],
)
def test_static_arguments_by_name(options):
    run = tj.jit(scaled, **options)
    np.testing.assert_array_equal(run(X, factor=3, block=2), X * 3)
    np.testing.assert_array_equal(run(X, factor=3), X * 3)


def test_static_arguments_by_position():
    def kernel(x, block, factor):
        assert isinstance(block, int)
        return scaled(x, factor, block=block)

    np.testing.assert_array_equal(tj.jit(kernel, static_argnums=1)(X, 2, 3.0), X * 3)
    np.testing.assert_array_equal(tj.jit(kernel, static_argnums=(1, 2))(X, 5, 0.5), X * np.float32(0.5))
    np.testing.assert_array_equal(tj.interpret(kernel, static_argnums=1)(X, 2, 3.0), X * 3)
    assert "tile_parallel" in equations(tj.make_jaxpr(functools.partial(kernel, block=2, factor=3.0))(X))


def test_block_sizes_bound_by_partial_or_closure():
    np.testing.assert_array_equal(tj.jit(functools.partial(scaled, block=3))(X, 2.0), X * 2)
    np.testing.assert_array_equal(tj.jit(lambda x: scaled(x, 2.0, block=7))(X), X * 2)


def test_interpret_takes_what_jit_takes():
    @tj.interpret(static_argnames="block", donate_argnums=0, backend="xla", compiler_params={"num_warps": 4})
    def keyed(x, factor, block):
        assert isinstance(block, int)
        return scaled(x, factor, block=block)

    @tj.interpret
    def bare(x):
        return scaled(x, 2.0)

    x = jnp.asarray(X)
    np.testing.assert_array_equal(keyed(x, 2.0, block=3), X * 2)
    np.testing.assert_array_equal(bare(x), X * 2)


def test_donation_is_accepted_and_updates_in_place():
    def kernel(x):
        y = tj.update(x)

        @tj.parallel(2)
        def _(nest):
            at = tj.coord(nest.index()), tj.shape(1)
            y(*at).store(y[at] + 1)

        return y

    want = X.copy()
    want[:2] += 1
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}):
        donated = jnp.asarray(X)
        np.testing.assert_array_equal(tj.jit(kernel, **options)(donated), want)
        assert donated.is_deleted()


def test_inputs_of_every_kind():
    run = tj.jit(lambda x, s: scaled(x, s))
    for x in (X, jnp.asarray(X), np.asfortranarray(X)):
        for s in (2.0, np.float32(2), jnp.float32(2), 2):
            np.testing.assert_array_equal(run(x, s), X * 2)
    strided = np.stack([X, X], 1)[:, 0]
    np.testing.assert_array_equal(run(strided, 2.0), X * 2)


def test_lists_of_arrays_and_none():
    def kernel(arrays, options):
        assert options["none"] is None
        return [scaled(x, options["factor"]) for x in arrays]

    results = tj.jit(kernel)([X, jnp.asarray(X) + 1], {"none": None, "factor": 3.0})
    assert isinstance(results, list)
    for got, want in zip(results, [X * 3, (X + 1) * 3], strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_kernel_given_to_jit_twice_is_the_kernel_inside():
    np.testing.assert_array_equal(tj.jit(tj.jit(scaled, static_argnames="block"))(X, 2.0, block=3), X * 2)
    np.testing.assert_array_equal(tj.interpret(tj.jit(scaled))(X, 2.0), X * 2)
    assert "tile_load" in equations(tj.make_jaxpr(tj.jit(scaled))(X, 2.0))


def test_python_scalars_are_weak_and_rank_zero_arrays_are_not():
    half = X.astype(np.float16)
    assert tj.jit(scaled).eval_shape(half, 2.0).dtype == jnp.float16
    with pytest.raises(tj.DtypeError, match=r"float32.*float16"):
        tj.jit(scaled)(half, jnp.float32(2))


def test_it_runs_under_strict_jax_settings():
    """A kernel broadcasts by its axes and promotes by its own rules, whatever jax.numpy is told."""
    with jax.numpy_rank_promotion("raise"), jax.debug_nans(True):
        np.testing.assert_allclose(tj.jit(lambda a, b: gemm(a, b))(A, B), product(A, B), rtol=1e-4, atol=1e-4)


def test_kernels_compose_with_scan_and_cond():
    def body(carry, x):
        return tj.jit(scaled)(carry, x), carry.sum()

    end, _ = jax.lax.scan(body, jnp.asarray(X), jnp.array([2.0, 3.0]))
    np.testing.assert_array_equal(end, X * 2 * 3)
    branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: tj.jit(scaled)(x, 2.0), lambda x: x, x))
    np.testing.assert_array_equal(branch(True, X), X * 2)
    np.testing.assert_array_equal(branch(False, X), X)
