"""Faults that people reported in tile kernels elsewhere: integers, casts, powers, products."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

NAN = float("nan")


def test_triton_619_division_floors():
    def kernel(n):
        out = tj.output((5, 3), jnp.int32)
        i = tj.axis("i", 5)

        @tj.parallel(i)
        def _(nest):
            k = nest.index() - 7
            for j, value in enumerate([k // 2, k % 2, tj.cdiv(k, 2)]):
                out(tj.coord(nest.index(), j), tj.shape(1, 1)).store(value)

        return out

    k = np.arange(-7, -2)
    both(kernel, np.zeros(1), want=np.stack([k // 2, k % 2, -(-k // 2)], 1).astype(np.int32))
    assert (tj.cdiv(-7, 2), -7 // 2, -7 % 2) == (-3, -4, 1)
    x, y = np.array([-7, 7], np.int32), np.array([2, -2], np.int32)
    want = np.array([-4, -4], np.int32), np.array([1, -1], np.int32)
    tiles("i,i", lambda a, x, y: (x // y, x % y), x, y, want=want)


def test_triton_10930_constants_weak_scalars_and_indices_agree():
    def kernel(x, s, w):
        outs = [tj.output((4,), jnp.int32) for _ in range(4)]

        @tj.parallel(4)
        def _(nest):
            k = nest.index() - 5
            results = [(-5 % 3) + k * 0, s % 3 + k * 0, w % 3 + k * 0, (k - nest.index()) % 3]
            for out, value in zip(outs, results, strict=True):
                out(tj.coord(nest.index()), tj.shape(1)).store(value)

        return outs

    both(kernel, np.zeros(1, np.float32), jnp.int32(-5), -5, want=[np.ones(4, np.int32)] * 4)


def test_openvino_38073_float_to_int_saturates():
    x = np.array([NAN, np.inf, -np.inf, 3e9, -3e9], np.float32)
    y = np.array([-1, 300, NAN], np.float32)
    top = 2**31 - 1

    def fn(a, x, y):
        return x.astype(jnp.int32), y.astype(jnp.uint8), y.astype(jnp.int8)

    want = ([0, top, -top - 1, top, -top - 1], np.int32), ([0, 255, 0], np.uint8), ([-1, 127, 0], np.int8)
    tiles("i,j", fn, x, y, want=tuple(np.array(*w) for w in want))


def test_tilelang_2944_overflow_to_float8():
    x = np.array([np.inf, -np.inf, 1e5, 57344], np.float32)

    def fn(a, x):
        return [x.astype(d).astype(jnp.float32) for d in (jnp.float8_e5m2, jnp.float8_e4m3fn)]

    tiles(
        "i", fn, x, want=[np.array([np.inf, -np.inf, np.inf, 57344], np.float32), np.full(4, NAN, np.float32)]
    )


def test_jax_triton_199_accumulator_dtypes():
    a8, au8 = np.full((2, 4), 100, np.int8), np.full((2, 4), 200, np.uint8)
    half = np.full((2, 4), 200, np.float16)

    def fn(axes, a, u, h):
        def square(x, dtype):
            other = tj.relabel(x, tj.shape(axes.n, axes.k))
            return tj.mma(x, other, tj.zeros(tj.shape(axes.m, axes.n), dtype))

        axes.n = tj.axis("n", 2)
        return square(a, jnp.int32), square(u, jnp.int32), square(h, jnp.float32)

    want = (
        np.full((2, 2), 40000, np.int32),
        np.full((2, 2), 160000, np.int32),
        np.full((2, 2), 160000, np.float32),
    )
    tiles("mk,mk,mk", fn, a8, au8, half, want=want)


def test_triton_5895_float32_is_not_tf32():
    a, b = normal(4, 1024), normal(1024, 4, seed=1)
    want = (a.astype(np.float64) @ b).astype(np.float32)
    tiles("mk,kn", lambda x, a, b: tj.mma(a, b, tj.zeros(tj.shape(x.m, x.n))), a, b, want=want, atol=1e-4)


@pytest.mark.parametrize("m", [1, 2, 3, 4, 8, 17])
def test_triton_10141_mma_of_any_extent(m):
    for k in (1, 3, 17):
        a, b = np.ones((m, k), np.float32) * np.arange(k, dtype=np.float32), np.ones((k, 5), np.float32)
        want = np.full((m, 5), k * (k - 1) / 2, np.float32)
        tiles("mk,kn", lambda x, a, b: tj.mma(a, b, tj.zeros(tj.shape(x.m, x.n))), a, b, want=want)


def test_jax_21928_integer_powers_of_narrow_floats():
    x = np.array([0, 0.5, 2, np.inf, NAN], np.float32)
    dtypes = ["float16", "bfloat16", "float32"]

    def fn(a, x):
        return {f"{d} {n}": x.astype(d) ** n for d in dtypes for n in range(-2, 6)}

    with np.errstate(divide="ignore"):
        want = {
            f"{d} {n}": (x.astype(np.float64) ** n).astype(jnp.dtype(d)) for d in dtypes for n in range(-2, 6)
        }
    tiles("i", fn, x, want=want)
    with pytest.raises(TypeError, match=r"(?s)negative.*test_bugs_values\.py"):
        tiles("i", lambda a, x: x ** (-1), np.array([1, 2], np.int32), want=np.zeros(2, np.int32))
