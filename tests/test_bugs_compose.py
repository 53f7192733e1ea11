"""Faults that people reported in tile kernels elsewhere: grids, captures, caches, x64, empty arrays."""

import jax
import jax.numpy as jnp
import numpy as np

import tilejax as tj
from tests.helpers import both, normal, tiles

NAN = float("nan")


def doubled(x):
    out = tj.output_like(x)
    blocks = tj.axis("blocks", tj.cdiv(x.shape[0], 8))

    @tj.parallel(blocks)
    def _(nest):
        at = tj.coord(nest.index() * 8), tj.shape(8)
        out(*at).store(x[at] * 2 + nest.index())

    return out


def test_jax_40847_one_kernel_on_several_grids():
    for tiles_ in (2, 5, 3, 4, 2):
        x = normal(8 * tiles_)
        both(doubled, x, want=x * 2 + np.repeat(np.arange(tiles_, dtype=np.float32), 8))


def test_jax_22746_captured_constants():
    table = np.arange(4, dtype=np.float32)

    def make(number, device):
        def kernel(x, s):
            out = tj.output_like(x)

            @tj.parallel(2)
            def _(nest):
                at = tj.coord(nest.index() * 2), tj.shape(2)
                out(*at).store(x[at] * number + tj.view(table)[at] + tj.view(device)[at] * s)

            return out

        return tj.jit(kernel)

    x = normal(4)
    got = make(2.0, jnp.asarray(table) * 10)(x, 3.0)
    np.testing.assert_array_equal(got, x * 2 + table + table * 30)

    @jax.jit
    def outer(x, traced, scalar):
        return make(scalar, traced)(x, scalar)

    np.testing.assert_array_equal(outer(x, table * 10, jnp.float32(3)), x * 3 + table + table * 30)


def test_jax_18847_index_dtypes_under_x64():
    with jax.enable_x64(True):
        x = np.array([1.0, 5.0, 5.0], np.float32)

        def fn(a, x):
            index = a.nest.index()
            assert index.dtype == jnp.int32
            return tj.argmax(x, a.i), tj.argmin(x, a.i), tj.sum(x > 2, a.i), tj.iota(a.i) + index

        want = np.int64(1), np.int64(0), np.int64(2), np.arange(3, dtype=np.int32)
        tiles("i", fn, x, want=want)
        y = np.arange(24, dtype=np.float64)
        both(doubled, y, want=y * 2 + np.repeat(np.arange(3.0), 8))


def test_jax_38432_empty_arrays_and_arrays_smaller_than_a_tile():
    for n in (0, 3):
        both(doubled, np.arange(n, dtype=np.float32), want=np.arange(n, dtype=np.float32) * 2)


def test_triton_1242_every_distinct_key_has_its_own_kernel():
    traces = []

    def kernel(x, *, block, bias=0):
        traces.append(block)
        out = tj.output_like(x)

        @tj.parallel(tj.cdiv(x.shape[0], block))
        def _(nest):
            at = tj.coord(nest.index() * block), tj.shape(block)
            out(*at).store((x[at] * 2 + bias).astype(x.dtype))

        return out

    run = tj.jit(kernel, static_argnames=("block", "bias"))
    f32, i32 = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.int32)
    for _ in range(3):
        for x in (f32, i32, f32[:4]):
            for block in (2, 4):
                for bias in (0, 1):
                    np.testing.assert_array_equal(run(x, block=block, bias=bias), x * 2 + bias)
    assert len(traces) == 12
    for _ in range(100):
        run(f32, block=2, bias=0)
    assert len(traces) == 12
