"""What jit, interpret and make_jaxpr take: static and donated arguments, pytrees, numbers, other kernels."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import equations, normal


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
        donated = jnp.asarray(X) + 0
        place = donated.unsafe_buffer_pointer()
        result = tj.jit(kernel, **options)(donated)
        np.testing.assert_array_equal(result, want)
        assert donated.is_deleted()
        assert result.unsafe_buffer_pointer() == place


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


def test_kernels_compose_with_scan_and_cond():
    def body(carry, x):
        return tj.jit(scaled)(carry, x), carry.sum()

    end, _ = jax.lax.scan(body, jnp.asarray(X), jnp.array([2.0, 3.0]))
    np.testing.assert_array_equal(end, X * 2 * 3)
    branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: tj.jit(scaled)(x, 2.0), lambda x: x, x))
    np.testing.assert_array_equal(branch(True, X), X * 2)
    np.testing.assert_array_equal(branch(False, X), X)


def test_arrays_made_inside_a_kernel():
    """By jax.numpy from captured arrays, by another kernel, outside a nest or from a nest's index."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    weights = jnp.asarray(x[1])

    def kernel(x):
        y = tj.output_like(x)
        rows, columns = tj.axis("rows", x.shape[0]), tj.axis("columns", x.shape[1])
        doubled = tj.view(tj.jit(scaled)(weights, 2.0))

        @tj.parallel(rows)
        def _(nest):
            sort = tj.view(jnp.sort(weights * (nest.index() - 1)))
            row = tj.view(tj.jit(scaled)(weights + nest.index(), 3.0))
            origin, shape = tj.coord(nest.index() - 1), tj.shape(columns)
            tile = sort[origin, shape] + doubled[origin, shape] + row[tj.coord(0), shape]
            y(tj.coord(nest.index(), 0), tj.shape(1, columns)).store(tile)

        return y

    def shifted(values, by):
        return np.pad(values, (1, len(x)))[by : by + len(values)]

    want = [
        shifted(np.sort(x[1] * np.float32(i - 1)), i) + shifted(x[1] * 2, i) + (x[1] + i) * 3
        for i in range(len(x))
    ]
    for run in (tj.jit, tj.interpret):
        np.testing.assert_allclose(run(kernel)(x), want, rtol=1e-6)


def test_no_tracer_outlives_its_trace():
    x, factor = jnp.asarray(X), jnp.float32(2)
    with jax.checking_leaks():
        np.testing.assert_array_equal(tj.jit(lambda x, s: scaled(x, s))(x, factor), X * 2)
        gradient = jax.grad(lambda x, s: tj.jit(lambda x, s: scaled(x, s))(x, s).sum())(x, factor)
        many = jax.vmap(tj.jit(lambda x, s: scaled(x, s)), (0, None))(x[None], factor)
    np.testing.assert_array_equal(gradient, np.full_like(X, 2))
    np.testing.assert_array_equal(many, X[None] * 2)


def test_kernels_are_traced_in_several_threads_at_once():
    def run(factor):
        def kernel(x):
            out = tj.output_like(x)
            steps = tj.axis("steps", 3)

            @tj.parallel(x.shape[0])
            def _(nest):
                at = tj.coord(nest.index()), tj.shape(1)

                @nest.serial(steps, carry=x[at])
                def end(step, end):
                    return end * factor

                out(*at).store(end)

            return out

        return np.asarray(tj.jit(kernel)(X))

    with ThreadPoolExecutor(8) as pool:
        for factor, got in zip(range(1, 9), pool.map(run, range(1, 9)), strict=True):
            np.testing.assert_allclose(got, X * factor**3, rtol=1e-6)
