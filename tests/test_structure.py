"""What kernels become: claims about the lowered module, which hold on any machine as a timing would not."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from benchmarks.cases import cases
from benchmarks.run import nameless
from tests import oracle
from tests.helpers import normal
from tilejax import kernels

pytestmark = pytest.mark.usefixtures("on_cpu")
BUDGET = 2**25
"""The default of `temporary_bytes`."""
LAYOUT = {"reshape", "transpose", "pad", "slice", "concatenate", "reverse"}
LOOPS = {"while", "case", "if"}
INDEXED = {"gather", "scatter", "dynamic_slice", "dynamic_update_slice", "dynamic_gather"}


def lower(kernel: Any, *args: Any, **options: Any) -> Any:
    """`kernel` lowered for the CPU at arrays, or at shapes of float32."""
    specs = [jax.ShapeDtypeStruct(a, jnp.float32) if isinstance(a, tuple) else a for a in args]
    with jax.default_device(jax.devices("cpu")[0]):
        return getattr(kernel, "lower", tj.jit(kernel).lower)(*specs, **options)


def operations(kernel: Any, *args: Any, **options: Any) -> Counter[str]:
    """How often each operation is in the lowered module, constants and their broadcasts left out."""
    names = re.findall(r"(?:stablehlo|chlo)\.(\w+)", lower(kernel, *args, **options).as_text())
    return Counter(n for n in names if n not in ("constant", "return", "broadcast_in_dim"))


def temporaries(kernel: Any, *args: Any, **options: Any) -> int:
    """Bytes that the compiled module needs beside its arguments and results."""
    return lower(kernel, *args, **options).compile().memory_analysis().temp_size_in_bytes


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


ELEMENTWISE = {
    "copy": (kernels.copy, 1),
    "exp": (kernels.exp, 1),
    "clamp": (kernels.clamp, 1),
    "add": (kernels.add, 2),
    "saxpy": (kernels.saxpy, 2),
}
BLOCKS = [{}, {"block_rows": 1}, {"block_rows": 8, "block_cols": 32}, {"block_rows": 7, "block_cols": 13}]
"""The kernel's choice, single rows, blocks that divide the array, and ragged ones."""


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kernels_move_nothing(name, blocks):
    kernel, arity = ELEMENTWISE[name]
    found = operations(kernel, *[(64, 96)] * arity, **blocks)
    assert not set(found) & (LAYOUT | LOOPS | INDEXED)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_a_bias_is_one_broadcast(blocks):
    found = operations(kernels.bias_gelu_residual, (64, 96), (96,), (64, 96), **blocks)
    assert not set(found) & ((LAYOUT - {"reshape", "pad"}) | LOOPS | INDEXED)


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
def test_transpose_is_one_transpose(blocks):
    assert operations(kernels.transpose, (64, 96), **blocks) == {"transpose": 1}


ROW_BLOCKS = [{}, {"block_rows": 1}, {"block_rows": 8}, {"block_rows": 7}]


@pytest.mark.parametrize("blocks", ROW_BLOCKS, ids=str)
@pytest.mark.parametrize("name", ["row_sum", "row_max", "row_min", "row_abssum", "row_absmax"])
def test_row_reductions_are_one_reduce(name, blocks):
    found = operations(getattr(kernels, name), (32, 96), **blocks)
    assert found["reduce"] == 1
    assert set(found) <= {"reduce", "add", "maximum", "minimum", "abs"}


@pytest.mark.parametrize(("name", "slices"), [("row_max", 16), ("row_min", 16), ("row_absmax", 15)])
def test_large_extrema_are_combined_slices_and_a_sum(name, slices):
    """XLA's reduction drops NaN there, and a sum beside it says where. XLA keeps in memory what more than 15
    slices are of."""
    found = operations(getattr(kernels, name), (80, 1024), block_rows=7)
    assert found["reduce"] == 2
    assert 8 <= found["slice"] <= slices
    assert not set(found) & (LOOPS | INDEXED | {"pad", "concatenate", "transpose", "reshape"})
    small = operations(getattr(kernels, name), (128, 256))
    assert (small["reduce"], small["slice"]) == (2, 0)


NORMS = {"softmax": (1, 2), "layernorm": (1, 2), "rmsnorm": (1, 1), "residual_layernorm": (2, 2)}
"""The number of arguments, and of reductions."""


@pytest.mark.parametrize("blocks", ROW_BLOCKS, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_norms_are_whole_array_fusions(name, blocks):
    arity, reductions = NORMS[name]
    found = operations(getattr(kernels, name), *[(64, 96)] * arity, **blocks)
    assert found["reduce"] == reductions
    assert not set(found) & (LAYOUT | LOOPS | INDEXED)


def test_softmax_of_a_large_array_keeps_no_array():
    assert temporaries(kernels.softmax, (4096, 2048)) < 2**18


def test_several_results_of_a_row_share_one_pass():
    found = operations(kernels.softmax_norms, (64, 96))
    assert found["reduce"] == 5
    assert not set(found) & (LAYOUT | LOOPS | INDEXED)
    found = operations(kernels.row_statistics, *[(64, 96)] * 3)
    assert found["reduce"] == 9
    assert not set(found) & (LOOPS | INDEXED)


GEMM_BLOCKS = [{}, {"block_m": 32, "block_n": 16, "block_k": 8}, {"block_m": 33, "block_n": 7, "block_k": 13}]


@pytest.mark.parametrize("blocks", GEMM_BLOCKS, ids=str)
@pytest.mark.parametrize("window", [1, 3])
def test_gemm_is_one_dot_general(blocks, window):
    assert operations(kernels.gemm, (64, 96), (96, 32), window=window, **blocks) == {"dot_general": 1}


def test_gemm_of_bfloat16_multiplies_bfloat16_into_float32():
    text = lower(kernels.gemm, bf16(64, 96), bf16(96, 32)).as_text()
    (line,) = [line for line in text.splitlines() if "dot_general" in line]
    assert line.endswith(": (tensor<64x96xbf16>, tensor<96x32xbf16>) -> tensor<64x32xf32>")
    lowered = lower(kernels.gemm, bf16(64, 96), bf16(96, 32)).compile().as_text()
    assert "reduce-precision" not in lowered  # the result leaves the program, so nothing can fold its cast


def product(x, y, *, stored="mk,kn->mn", epilogue=None, two=False, swapped=False, batches=0, size=16):
    """A user's product: other axis names, other storage, an epilogue, two results, a batch."""
    left, right, out = re.split(",|->", stored)
    extents = dict(zip(left + right, x.shape[-2:] + y.shape[-2:], strict=True))
    grid = {a: tj.axis(f"tiles of {a}", tj.cdiv(extents[a], size)) for a in "mnk"}
    tile = {a: tj.axis(f"within {a}", size) for a in "mnk"}
    batch = [tj.axis("example", batches)] * bool(batches)
    lead = [tj.axis("one example", 1)] * bool(batches)
    shape = (*[batches] * bool(batches), *(extents[a] for a in out))
    results = [tj.output(shape, x.dtype) for _ in range(1 + two)]

    @tj.parallel(*batch, *((grid["n"], grid["m"]) if swapped else (grid["m"], grid["n"])))
    def _(nest):
        start = {a: nest.index(grid[a]) * size for a in "mn"}
        first = [nest.index(a) for a in batch]

        def here(names):
            return tj.coord(*first, *(start[a] for a in names)), tj.shape(*lead, *(tile[a] for a in names))

        zero = tj.zeros(tj.shape(*lead, tile["m"], tile["n"]), jnp.float32)

        @nest.pipeline(grid["k"], carry=zero)
        def total(step, total):
            start["k"] = step.index() * size
            return tj.mma(x[here(left)], y[here(right)], total)

        for result, f in zip(results, (epilogue or (lambda t: t), lambda t: -t), strict=False):
            result(*here(out)).store(f(total).astype(result.dtype))

    return tuple(results)


X, Y = normal(48, 80), normal(80, 64, seed=1)
VARIANTS: dict[str, tuple[dict[str, Any], Any, Any, Any, set[str]]] = {
    "other names and blocks": ({"size": 8}, X, Y, X @ Y, set()),
    "ragged blocks": ({"size": 13}, X, Y, X @ Y, set()),
    "columns before rows": ({"swapped": True}, X, Y, X @ Y, set()),
    "x stored transposed": ({"stored": "km,kn->mn"}, X.T, Y, X @ Y, set()),
    "y stored transposed": ({"stored": "mk,nk->mn"}, X, Y.T, X @ Y, set()),
    "both stored transposed": ({"stored": "km,nk->mn"}, X.T, Y.T, X @ Y, set()),
    "result transposed": ({"stored": "mk,kn->nm"}, X, Y, (X @ Y).T, {"transpose", "copy"}),
    "epilogue": ({"epilogue": lambda t: tj.maximum(t, 0.0) * 2}, X, Y, np.maximum(X @ Y, 0) * 2, set()),
    "batch": ({"batches": 3}, np.stack([X] * 3), np.stack([Y] * 3), np.stack([X @ Y] * 3), set()),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("two", [False, True], ids=["one result", "two results"])
def test_a_users_gemm_is_one_dot_general(name, two):
    options, x, y, want, layout = VARIANTS[name]
    kernel = partial(product, two=two, **options)
    found = operations(kernel, x, y)
    assert found["dot_general"] == 1
    # What is stored transposed is contracted as it lies.
    assert set(found) & (LAYOUT | LOOPS | INDEXED) <= layout & {"transpose"}
    compiled = set(re.findall(r" ([\w-]+)\(", lower(kernel, x, y).compile().as_text()))
    assert compiled & {"transpose", "copy", "pad", "slice", "reshape", "while", "gather"} <= layout
    first, *second = tj.jit(kernel)(x, y)
    np.testing.assert_allclose(first, want, rtol=1e-4, atol=1e-4)
    for result in second:
        plain = tj.jit(partial(product, **{**options, "epilogue": None}))(x, y)[0]
        np.testing.assert_allclose(result, -plain, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_users_row_kernel_with_two_results(rows):
    def kernel(data):
        peaks, shares = tj.output((data.shape[0],), data.dtype), tj.output_like(data)
        group, member = tj.axis("group", tj.cdiv(data.shape[0], rows)), tj.axis("member", rows)
        entry = tj.axis("entry", data.shape[1])

        @tj.parallel(group)
        def _(nest):
            row = nest.index() * rows
            x = data[tj.coord(row, 0), tj.shape(member, entry)]
            peak = tj.max(x, entry)
            e = tj.exp(x - peak)
            peaks(tj.coord(row), tj.shape(member)).store(peak)
            shares(tj.coord(row, 0), tj.shape(member, entry)).store(e / tj.sum(e, entry))

        return peaks, shares

    x = normal(21, 33)
    found = operations(kernel, x)
    assert found["reduce"] == 2
    assert not set(found) & (LAYOUT | LOOPS | INDEXED)
    peaks, shares = tj.jit(kernel)(x)
    np.testing.assert_array_equal(peaks, x.max(1))
    np.testing.assert_allclose(shares, jax.nn.softmax(x), rtol=1e-5)


def buffers(text: str) -> set[tuple[int, ...]]:
    """The shapes of all arrays of a module."""
    return {tuple(map(int, dims.split("x")[:-1])) for dims in re.findall(r"tensor<(\d[^<>]*)>", text)}


@pytest.mark.parametrize("blocks", [{}, {"block_q": 128, "block_kv": 256}], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_attention_holds_no_scores(causal, blocks):
    """No array has a dimension for all queries and one for all keys, split or not."""
    queries, keys = 4096, 8192
    shapes = (1, 2, queries, 64), (1, 2, keys, 64), (1, 2, keys, 64)
    text = lower(kernels.flash_attention, *shapes, causal=causal, **blocks).as_text()
    assert max(map(math.prod, buffers(text))) < 2 * queries * keys / 4


def test_attention_of_bfloat16_multiplies_bfloat16():
    """Keys are contracted as they lie: XLA would transpose them as float32, and multiply that."""
    text = lower(kernels.flash_attention, *[bf16(1, 2, 256, 64)] * 3, causal=True).as_text()
    assert "stablehlo.transpose" not in text
    products = re.findall(r"stablehlo.dot_general[^\n]*: \(([^)]*)\)", text)
    assert len(products) == 2
    assert all(operands.count("bf16") == 2 for operands in products)


def test_temporaries_of_causal_attention_do_not_grow():
    sizes = [
        temporaries(kernels.flash_attention, *[(1, 8, length, 64)] * 3, causal=True)
        for length in (1024, 2048, 4096)
    ]
    assert sizes[0] == sizes[1] == sizes[2] < BUDGET


def test_a_smaller_budget_takes_less():
    shapes = [(1, 8, 2048, 64)] * 3
    small = tj.jit(kernels.flash_attention, compiler_params={"temporary_bytes": 2**22})
    default, less = (temporaries(k, *shapes, causal=True) for k in (kernels.flash_attention, small))
    assert less < 0.6 * default


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": 1, "relu": True}], ids=str)
def test_conv2d_is_one_convolution(options):
    found = operations(kernels.conv2d, (2, 12, 14, 5), (3, 3, 5, 7), (7,), **options)
    assert found["convolution"] == 1
    assert not set(found) & (LOOPS | INDEXED | {"dot_general"})


def test_depthwise_convolution_is_shifted_slices():
    found = operations(kernels.depthwise_conv_pool, (12, 14, 8), (3, 3, 8))
    assert not set(found) & (LOOPS | INDEXED | {"convolution", "dot_general", "reduce_window"})
    assert (found["multiply"], found["add"], found["maximum"]) == (9, 8, 8)


def test_sobel_and_median_are_shifted_slices_and_a_network():
    found = operations(kernels.sobel_median, (24, 40))
    assert not set(found) & (LOOPS | INDEXED | {"sort", "convolution", "reduce_window"})


@pytest.mark.parametrize("shape", [(96, 96), (3, 5000), (1, 2**17)], ids=str)
def test_a_running_sum_is_products_with_a_triangle(shape):
    found = operations(kernels.cumsum, shape)
    assert found["dot_general"] == math.ceil(math.log(shape[1], 32))
    assert found["case"] == 1  # rows that are not finite
    assert not set(found) & {"while", "gather", "scatter"}


@pytest.mark.parametrize("shape", [(96, 96), (3, 5000), (1, 2**17)], ids=str)
def test_a_running_maximum_steps_through_the_places_of_all_blocks(shape):
    """One loop; what is before each block is XLA's own scan of one element a block."""
    found = operations(kernels.cummax, shape)
    assert (found["while"], found["reduce_window"]) == (1, 1)
    assert not set(found) & {"gather", "scatter", "sort"}


def test_sort_is_one_sort():
    found = operations(kernels.sort, (64, 96))
    assert found["sort"] == 1
    assert not set(found) & (LOOPS | INDEXED)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_top_k_sorts_no_row(dtype):
    found = operations(kernels.top_k, jax.ShapeDtypeStruct((64, 256), dtype), 8)
    assert "sort" not in found
    assert found["top_k"] == 1


def test_cross_entropy_is_one_pass():
    labels = jax.ShapeDtypeStruct((64,), jnp.int32)
    found = operations(kernels.sparse_cross_entropy, (64, 96), labels)
    assert found["reduce"] == 2
    assert not set(found) & (LOOPS | {"scatter"})
    many = jax.ShapeDtypeStruct((512,), jnp.int32)
    assert temporaries(kernels.sparse_cross_entropy, (512, 8192), many) < 2**18


SAME = "copy exp clamp add saxpy transpose row_sum row_abssum softmax layernorm"
SAME += " rmsnorm softmax_norms residual_layernorm bias_gelu_residual gemm sort"


@pytest.mark.parametrize("size", ["small", "ragged"])
@pytest.mark.parametrize("name", SAME.split())
def test_kernels_that_compile_to_what_jnp_compiles_to(name, size):
    """In float32 XLA makes the same module of the kernel as of plain `jnp`: no faster, and never slower."""
    (case,) = (case for case in cases([name], ["float32"]) if case.size == size)
    args = case.args()
    rival = jax.jit(case.rivals["jnp"], static_argnames=tuple(case.options))
    ours, theirs = (nameless(f.lower(*args).compile().as_text()) for f in (case.ours, rival))
    assert ours == theirs


def test_a_serial_sum_of_sums_is_a_reduction_added_in_order():
    """The pipeline inside may be reassociated, the serial axis not: its terms are added one by one."""
    found = operations(kernels.structured_sum, (8, 5, 4, 16))
    assert not set(found) & (LOOPS | INDEXED)
    assert found["reduce"] == 2
    assert found["add"] >= 4


@pytest.mark.parametrize("start", [0.0, -0.0, 3.0])
def test_a_serial_sum_keeps_its_order(start):
    terms = np.array([2.0**24, 1, -(2.0**24), 3, -2, 2.0**25, 1, 1], np.float32)

    def kernel(x):
        y, one = tj.output((1,), x.dtype), tj.axis("one", 1)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(tj.axis("steps", len(terms)), carry=tj.full(tj.shape(one), start, x.dtype))
            def total(step, total):
                return total + x[tj.coord(step.index()), tj.shape(one)] * 1.0

            y(tj.coord(0), tj.shape(one)).store(total)

        return y

    want = np.float32(start)
    for term in terms:
        want = np.float32(want + term)
    assert not set(operations(kernel, jnp.asarray(terms))) & LOOPS
    assert tj.jit(kernel)(terms)[0] == want == tj.interpret(kernel)(terms)[0]


def test_statistics_of_a_large_array_stream():
    """Temporaries over the budget that are reduced to little are made a piece at a time."""
    shape = (4096, 4096)
    assert temporaries(kernels.row_statistics, shape, shape, shape) < BUDGET
    small = operations(kernels.row_statistics, *[(64, 4096)] * 3)
    assert small["while"] == 0


@pytest.mark.parametrize("rows", [256, 250, 251])
def test_streamed_statistics_are_right(rows):
    x, target = normal(rows, 96), normal(rows, 96, seed=1)
    probability = np.random.default_rng(2).random((rows, 96), np.float32)
    streamed = tj.jit(kernels.row_statistics, compiler_params={"temporary_bytes": 2**16})
    lowered = operations(streamed, *map(jnp.asarray, (x, target, probability)))
    assert lowered["while"] == 1
    whole = oracle.row_statistics(x, target, probability)
    for got, want in zip(streamed(x, target, probability), whole, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8])
def test_a_product_of_bytes_stays_one(dtype):
    matrix = jax.ShapeDtypeStruct((64, 64), dtype)
    assert operations(kernels.gemm, matrix, matrix) == {"dot_general": 1}


LOOPED = {
    "cumsum": ((64, 300),),
    "cummax": ((64, 300),),
    "flash_attention": ((1, 2, 64, 16),) * 3,
}


@pytest.mark.parametrize("name", LOOPED)
def test_loops_keep_bfloat16_as_bits(name):
    """XLA on the CPU would make float32 of all of it, and in each step again of what the loop stores to."""
    kernel, options = getattr(kernels, name), {}
    if name == "flash_attention":
        options = {"causal": True, "block_q": 16, "block_kv": 16}
    args = [jnp.asarray(normal(*shape, seed=i), jnp.bfloat16) for i, shape in enumerate(LOOPED[name])]
    tight = tj.jit(kernel, compiler_params={"temporary_bytes": 2**14}, static_argnames=tuple(options))
    text = lower(tight, *args, **options).compile().as_text()
    whole = ",".join(map(str, args[0].shape))
    assert " while(" in text
    assert f"u16[{whole}]" in text
    assert f"f32[{whole}]" not in text
    np.testing.assert_array_equal(tight(*args, **options), kernel(*args, **options))


def test_a_derivative_of_a_loop_over_bfloat16():
    x = jnp.asarray(normal(64, 300), jnp.bfloat16)
    tight = tj.jit(kernels.cumsum, compiler_params={"temporary_bytes": 2**14})
    gradient = jax.grad(lambda x: tight(x).astype(jnp.float32).sum())(x)
    np.testing.assert_array_equal(gradient.astype(np.float32)[:, 0], 300)
