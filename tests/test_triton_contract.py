"""Contractions of more than two matrices at once in the Triton lowering: batches, and axes of the accumulator
that no operand has."""

import numpy as np
import pytest
from test_triton import interpreted
from test_triton_lowering import for_cuda

import tilejax as tj
from tests.helpers import only
from tilejax._explain import explanation
from tilejax._jit import as_kernel
from tilejax.backends.registry import Options

CASES = {
    "small matrices": ("bmk,bkn->bmn", {"b": 3, "m": 5, "k": 7, "n": 6}, "sums"),
    "matrices": ("bmk,bkn->bmn", {"b": 3, "m": 33, "k": 9, "n": 34}, "dots"),
    "long products": ("bmk,bkn->bmn", {"b": 5, "m": 3, "k": 40, "n": 2}, "dots"),
    "many long products": ("bmk,bkn->bmn", {"b": 40, "m": 3, "k": 20, "n": 2}, "order"),
    "any order of axes": ("mbk,kbn->nbm", {"b": 2, "m": 17, "k": 33, "n": 5}, "dots"),
    "two of a batch, two contracted": ("bchk,bkch->bc", {"b": 3, "c": 2, "h": 5, "k": 7}, "dots"),
    "inner products": ("bk,bk->b", {"b": 9, "k": 13}, "sums"),
    "outer products": ("bm,bn->bmn", {"b": 3, "m": 4, "n": 5}, "sums"),
    "nothing contracted": ("b,b->b", {"b": 5}, "sums"),
    "one with a batch": ("bmk,kn->bmn", {"b": 3, "m": 5, "k": 7, "n": 6}, "one"),
    "more axes of the accumulator": ("mk,kn->xmyn", {"m": 5, "k": 6, "n": 3, "x": 2, "y": 3}, "one"),
    "a batch and more axes": ("bmk,bkn->bxmn", {"b": 3, "m": 5, "k": 7, "n": 6, "x": 2}, "sums"),
}
SAID = {
    "sums": "CUDA cores: sums of products of the columns and rows of small matrices",
    "order": "CUDA cores: multiply and add, one contracted index after another",
    "one": "tensor cores: bfloat16",
}


def product(name, acc_dtype=np.float32, **options):
    """A kernel that adds a contraction to 1, which is a scan here: plain ones are cut anew into matrices."""
    spec, extents, _ = CASES[name]
    axes = {x: tj.axis(x, n) for x, n in extents.items()}
    (left, right), result = spec.split("->")[0].split(","), spec.split("->")[1]

    def at(names):
        return tj.coord(*[0] * len(names)), tj.shape(*(axes[x] for x in names))

    def kernel(a, b):
        out = tj.output(tuple(extents[x] for x in result), acc_dtype)

        @tj.parallel(1)
        def _(nest):
            acc = tj.cummax(tj.ones(at(result)[1], acc_dtype), axes[result[0]])
            out(*at(result)).store(tj.mma(a[at(left)], b[at(right)], acc, **options))

        return out

    return kernel


def operands(name, dtype):
    """Numbers whose products and sums are exact."""
    rng = np.random.default_rng(0)
    spec, extents, _ = CASES[name]
    low = 0 if dtype == "uint8" else -3
    shapes = ([extents[x] for x in names] for names in spec.split("->")[0].split(","))
    return [rng.integers(low, 4, shape).astype(np.float32).astype(dtype) for shape in shapes]


def wanted(name, a, b):
    spec, extents, _ = CASES[name]
    operand, result = spec.split("->")
    own = [x for x in result if x in operand]
    product = np.einsum(f"{operand}->{''.join(own)}", a.astype(np.float64), b.astype(np.float64))
    full = np.reshape(product, [extents[x] if x in own else 1 for x in result]) + 1
    return np.broadcast_to(full, [extents[x] for x in result])


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    for dtype in ("float32", "bfloat16", "uint8"):
        a, b = operands(name, dtype)
        acc = np.int32 if dtype == "uint8" else np.float32
        np.testing.assert_array_equal(interpreted(product(name, acc), a, b), wanted(name, a, b))


@pytest.mark.parametrize("name", ["small matrices", "matrices"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_bytes(name, dtype):
    a, b = operands(name, dtype)
    kernel = product(name, np.int32 if dtype == "int8" else np.float32)
    np.testing.assert_array_equal(interpreted(kernel, a, b), wanted(name, a, b))


def test_bytes_beside_longer_numbers():
    """The matrix units take 32 bytes at least of the depth, but 16 of wider numbers."""

    def kernel(x, y):
        outs = tj.output((2, 2), np.int32), tj.output((2, 2), np.float32)
        (m, n), k = (tj.axis(name, 2) for name in "mn"), tj.axis("k", 4)

        @tj.parallel(1)
        def _(_):
            here = tj.coord(0, 0)
            for out, z in zip(outs, (x, y), strict=True):
                start = tj.zeros(tj.shape(m, n), out.dtype)
                product = tj.mma(z[here, tj.shape(m, k)], z[here, tj.shape(n, k)], start)
                out(here, tj.shape(m, n)).store(product)

        return outs

    x = np.array([[100, -100, 100, 100], [3, 5, 7, 9]], np.int8)
    whole, real = interpreted(kernel, x, x.astype(np.float16))
    wide = x.astype(np.int32)
    np.testing.assert_array_equal(whole, wide @ wide.T)
    np.testing.assert_array_equal(real, wide @ wide.T)


def test_float32_stays_so():
    """The products have 24 bits, and 1 is added to them."""
    a, b = operands("matrices", "float32")
    a[...], b[...] = 0, 0
    a[:, :, 0], b[:, 0] = 2.0**12 + 1, 2.0**11 + 1
    a[:, :, 1], b[:, 1] = 1, 1
    want = np.float32((2.0**12 + 1) * (2.0**11 + 1) + 2)
    np.testing.assert_array_equal(interpreted(product("matrices"), a, b), np.full((3, 33, 34), want))


def test_nan_stays_in_its_pair():
    a, b = operands("matrices", "float32")
    a[1, 2, 3] = np.nan
    want = wanted("matrices", np.nan_to_num(a), b)
    want = np.where(np.isnan(a).any(2)[..., None], np.nan, want)
    np.testing.assert_array_equal(interpreted(product("matrices"), a, b), want)


@pytest.mark.parametrize("name", CASES)
def test_they_are_lowered_and_explained(name):
    for dtype in ("float32", "bfloat16", "int8", "uint8", "float8_e4m3fn"):
        kernel = product(name, np.int32 if "int" in dtype else np.float32)
        text = for_cuda(kernel, *operands(name, dtype))
        assert text.count("custom_call @__gpu$xla.gpu.triton") == 1
    this = as_kernel(product(name), Options.make("triton", None), None, None)
    found = explanation(this.trace(tuple(operands(name, "bfloat16")), {}).program, name, this.options, "gpu")
    _, extents, way = CASES[name]
    count = extents["b"] * extents.get("c", 1) if "b" in extents else 1
    dots = f"tensor cores: bfloat16, for each of {count} pairs of matrices"
    assert only(found.mmas).instruction == SAID.get(way, dots)


def test_ordered_sums_of_a_batch():
    a, b = operands("matrices", "float32")
    got = interpreted(product("matrices", allow_reassociation=False), a, b)
    np.testing.assert_array_equal(got, wanted("matrices", a, b))
