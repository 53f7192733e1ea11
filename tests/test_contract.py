"""mma: which axes are contracted, batch or free; operand and accumulator dtypes; order and precision."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles
from tilejax import kernels

A, B, C = normal(5, 7), normal(7, 3, seed=1), normal(5, 3, seed=2)


def einsum(spec, *operands):
    return np.einsum(spec, *[x.astype(np.float64) for x in operands])


def test_axes_in_both_operands_but_not_in_acc_are_contracted():
    def fn(a, x, y, c):
        turned = tj.transpose(y, tj.shape(a.n, a.k))
        return {
            "plain": tj.mma(x, y, c),
            "turned": tj.mma(x, turned, c),
            "swapped": tj.mma(y, x, c),
            "acc order": tj.mma(x, y, tj.transpose(c, tj.shape(a.n, a.m))),
            "zeros": tj.mma(x, y, tj.zeros(tj.shape(a.m, a.n))),
        }

    product = einsum("mk,kn->mn", A, B)
    want = dict.fromkeys(["plain", "turned", "swapped"], product + C)
    want |= {"acc order": (product + C).T, "zeros": product}
    want = {k: v.astype(np.float32) for k, v in want.items()}
    tiles("mk,kn,mn", fn, A, B, C, want=want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("a", "b", "acc"),
    [
        ("bmk", "bkn", "bmn"),  # batch
        ("mbk", "nkb", "nbm"),  # batch, all orders turned
        ("mjk", "jkn", "mn"),  # two contracted
        ("bhmk", "bhnk", "bhmn"),  # attention scores
        ("mk", "nk", "mn"),  # both operands row-major
        ("k", "kn", "n"),  # vector by matrix
        ("mk", "k", "m"),  # matrix by vector
        ("k", "k", ""),  # dot product
        ("m", "n", "mn"),  # outer product, nothing contracted
        ("bm", "bm", "bm"),  # elementwise, all batch
        ("bk", "bk", "b"),  # row-wise dot products
        ("mk", "kn", "bmn"),  # broadcast along an axis that only acc has
    ],
)
def test_contraction_batch_and_free_axes(a, b, acc):
    extents = dict(zip("bhmnkj", (2, 3, 4, 5, 6, 7), strict=True))
    x, y, c = (normal(*[extents[i] for i in names], seed=s) for s, names in enumerate([a, b, acc]))
    product = einsum(f"{a},{b}->{acc.replace('b', '') if 'b' not in a else acc}", x, y)
    tiles(
        f"{a},{b},{acc}",
        lambda _, x, y, c: tj.mma(x, y, c),
        x,
        y,
        c,
        want=(product + c).astype(np.float32),
        rtol=1e-5,
        atol=1e-5,
    )


def test_rank_two_positional_operands():
    """(M, K) x (K, N), also when other identities do not fit together."""

    def kernel(a, b):
        outs = [tj.output((5, 3), a.dtype) for _ in range(2)]
        m, k, j, n = (tj.axis(name, e) for name, e in zip("mkjn", (5, 7, 7, 3), strict=True))

        @tj.parallel(1)
        def _(nest):
            x, y = a[tj.coord(0, 0), tj.shape(5, 7)], b[tj.coord(0, 0), tj.shape(7, 3)]
            outs[0](tj.coord(0, 0), tj.shape(5, 3)).store(tj.mma(x, y, tj.zeros(tj.shape(5, 3))))
            x, y = a[tj.coord(0, 0), tj.shape(m, k)], b[tj.coord(0, 0), tj.shape(j, n)]
            outs[1](tj.coord(0, 0), tj.shape(m, n)).store(tj.mma(x, y, tj.zeros(tj.shape(m, n))))

        return outs

    both(kernel, A, B, want=[einsum("mk,kn->mn", A, B).astype(np.float32)] * 2, rtol=1e-5, atol=1e-5)


FLOAT_INPUTS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", FLOAT_INPUTS)
def test_float_inputs_with_a_float32_accumulator(dtype):
    """Products of these inputs are exact in float32 (small integers and quarters), so is their sum."""
    rng = np.random.default_rng(0)
    a = (rng.integers(-8, 9, (5, 33)) / 4).astype(jnp.dtype(dtype))
    b = (rng.integers(-8, 9, (33, 6)) / 4).astype(jnp.dtype(dtype))

    def fn(axes, x, y):
        acc = tj.mma(x, y, tj.ones(tj.shape(axes.m, axes.n)))
        assert acc.dtype == jnp.float32
        return acc

    tiles("mk,kn", fn, a, b, want=(einsum("mk,kn->mn", a, b) + 1).astype(np.float32))


@pytest.mark.parametrize(
    ("left", "right"), [("int8", "int8"), ("uint8", "uint8"), ("int8", "uint8"), ("uint8", "int8")]
)
def test_int8_and_uint8_with_an_int32_accumulator(left, right):
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(np.iinfo(d).min, np.iinfo(d).max + 1, shape).astype(d)
        for d, shape in [(left, (4, 40)), (right, (40, 6))]
    )

    def fn(axes, x, y):
        return tj.mma(x, y, tj.full(tj.shape(axes.m, axes.n), -7, jnp.int32))

    want = a.astype(np.int64) @ b.astype(np.int64) - 7
    tiles("mk,kn", fn, a, b, want=want.astype(np.int32))


def test_float32_is_multiplied_as_float32():
    """tf32 or bf16 products would be off by 1e-3 here."""
    a, b = normal(8, 1024), normal(1024, 8, seed=1)

    def fn(axes, x, y):
        return tj.mma(x, y, tj.zeros(tj.shape(axes.m, axes.n)))

    want = einsum("mk,kn->mn", a, b)
    tiles("mk,kn", fn, a, b, want=want.astype(np.float32), atol=1e-4)


@pytest.mark.parametrize("precision", ["tf32", "highest", "default", "float32", "bfloat16"])
def test_precision_names_are_accepted(precision):
    def fn(axes, x, y):
        return tj.mma(x, y, tj.zeros(tj.shape(axes.m, axes.n)), precision=precision)

    tiles("mk,kn", fn, A, B, want=einsum("mk,kn->mn", A, B).astype(np.float32), rtol=3e-2, atol=3e-2)


def test_without_reassociation_the_sum_is_ascending_bit_for_bit():
    """Products are exact (12-bit factors), sums are not: any other order gives other bits."""
    rng = np.random.default_rng(3)
    a = (rng.integers(1, 2**11, (3, 4, 5)) * 2.0 ** rng.integers(-9, 9, (3, 4, 5))).astype(np.float32)
    b = (rng.integers(1, 2**11, (5, 4, 2)) * 2.0 ** rng.integers(-9, 9, (5, 4, 2))).astype(np.float32)
    c = normal(3, 2)

    def fn(axes, x, y, c):
        return tj.mma(x, y, c, allow_reassociation=False)

    want = c.copy()
    for j, k in np.ndindex(4, 5):  # row-major in a's order
        want = want + a[:, j, k][:, None] * b[k, j]
    tiles("mjk,kjn,mn", fn, a, b, c, want=want)


def test_empty_and_small_contractions():
    for m, n, k in [(1, 1, 1), (2, 1, 3), (3, 4, 8), (17, 2, 1), (4, 3, 0), (0, 3, 2)]:
        a, b = normal(m, k), normal(k, n, seed=1)

        def fn(axes, x, y):
            return tj.mma(x, y, tj.ones(tj.shape(axes.m, axes.n)))

        tiles(
            "mk,kn", fn, a, b, want=(einsum("mk,kn->mn", a, b) + 1).astype(np.float32), rtol=1e-5, atol=1e-6
        )


def test_mma_propagates_nan_and_inf_of_its_operands_only():
    a = np.array([[1, np.inf], [2, 3]], np.float32)
    b = np.array([[1, 2], [np.nan, 4]], np.float32)

    def fn(axes, x, y):
        return tj.mma(x, y, tj.zeros(tj.shape(axes.m, axes.n)))

    tiles("mk,kn", fn, a, b, want=np.array([[np.nan, np.inf], [np.nan, 16]], np.float32))


def test_bytes_are_widened_on_gpus():
    """There XLA's products of int8 matrices may be twice what they should."""

    def kernel(a, b):
        out = tj.output((8, 8), np.int32)
        m, n, k = tj.axis("m", 8), tj.axis("n", 8), tj.axis("k", 16)
        at = tj.coord(0, 0)

        @tj.parallel(1)
        def _(_):
            zeros = tj.zeros(tj.shape(m, n), np.int32)
            out(at, tj.shape(m, n)).store(tj.mma(a[at, tj.shape(m, k)], b[at, tj.shape(k, n)], zeros))

        return out

    bytes_ = jax.ShapeDtypeStruct((8, 16), np.int8), jax.ShapeDtypeStruct((16, 8), np.int8)
    traced = tj.jit(kernel, backend="xla").trace(*bytes_)

    def product(platform):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return next(line for line in text.splitlines() if "stablehlo.dot_general" in line)

    assert "(tensor<8x16xi8>, tensor<16x8xi8>) -> tensor<8x8xi32>" in product("cpu")
    assert "(tensor<8x16xi32>, tensor<16x8xi32>) -> tensor<8x8xi32>" in product("cuda")


def test_gpus_are_told_to_multiply_float32_as_float32():
    """Theirs is TF32 where nothing is asked for, in convolutions too."""
    shapes = {"gemm": [(64, 64), (64, 64)], "conv2d": [(1, 9, 9, 4), (3, 3, 4, 5)]}
    for name, operands in shapes.items():
        kernel = tj.jit(getattr(kernels, name), backend="xla")
        traced = kernel.trace(*(jax.ShapeDtypeStruct(s, np.float32) for s in operands))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        (product,) = (line for line in text.splitlines() if re.search("dot_general|convolution", line))
        assert product.count("HIGHEST") == 2
