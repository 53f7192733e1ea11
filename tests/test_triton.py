"""The bodies of the Triton lowering in Pallas's interpreter, on the CPU."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import oracle
import pytest
from jax.experimental.pallas import triton as plgpu

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import launch, lower
from tilejax.ir.jaxprs import equations

F32 = np.float32
plgpu_store = plgpu.store
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Each kernel runs once: it is the compilation that takes time."""


def interpreted(kernel, *args, **options):
    """The kernel's results from its Pallas bodies, interpreted on the CPU."""
    traced = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel.trace(
        args, options
    )
    run = functools.partial(lower.run, traced.program, num_warps=None, num_stages=None, interpret=True)
    # On a GPU the interpreter's scatters would write an element twice, in any order.
    with jax.default_device(jax.devices("cpu")[0]), mock.patch.object(plgpu, "store", _store):
        out = jax.jit(lambda *operands: run(operands), compiler_options=QUICK)(*traced.operands)
    return jax.tree.unflatten(traced.results, out)


def _store(place, value, *, mask=None):
    """Where the mask is false the interpreter stores what was there, also over what it stores there now: such
    elements go to no place at all."""
    if mask is not None:
        (offsets,) = place.transforms[-1].indices
        place = place.ref.at[jnp.where(mask, offsets, place.ref.size)]
    plgpu_store(place, value)


@pytest.mark.parametrize("name", sorted(kernel_cases.CASES))
def test_matrix_kernels(name):
    case = kernel_cases.CASES[name]
    args = case.args((5, 13), F32)
    want = case.want(*args)
    kernel_cases.close(interpreted(case.body, *args), want, F32, case.slack(*args))


def close(got, want, tolerance=1e-5):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(g, np.float64), w, rtol=tolerance, atol=tolerance)


def test_selection():
    x = kernel_cases.normal(3, 7)
    x[0, 2], x[1, 5] = np.nan, np.inf
    order = np.argsort(x, -1, kind="stable")
    values, indices = interpreted(kernels.sort, x)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    _, best = interpreted(kernels.top_k, x, k=2)
    largest = np.argsort(-np.where(np.isnan(x), np.inf, x), -1, kind="stable")
    np.testing.assert_array_equal(best, largest[:, :2])


def test_windows():
    image, filters = kernel_cases.normal(5, 6, 3), kernel_cases.normal(3, 3, 3, seed=1)
    close(
        interpreted(kernels.depthwise_conv_pool, image, filters), oracle.depthwise_conv_pool(image, filters)
    )
    close(interpreted(kernels.sobel_median, image[..., 0]), oracle.sobel_median(image[..., 0]))


def test_attention_with_ragged_blocks_and_shared_heads():
    q, k, v = (kernel_cases.normal(1, h, 9, d, seed=s) for s, (h, d) in enumerate([(4, 8), (2, 8), (2, 5)]))
    got = interpreted(kernels.flash_attention, q, k, v, causal=True, block_q=4, block_kv=4)
    close(got, oracle.attention(q, k, v, causal=True))


def test_segments_and_losses():
    ids, values = np.array([0, 3, 3, 9, -1, 1], np.int32), kernel_cases.normal(6)
    close(interpreted(kernels.segment_sum, ids, values, 5, block_items=4), oracle.segment_sum(ids, values, 5))
    logits, labels = kernel_cases.normal(4, 11), np.array([0, 10, 3, 3], np.int32)
    close(
        interpreted(kernels.sparse_cross_entropy, logits, labels), oracle.sparse_cross_entropy(logits, labels)
    )


def test_loops_reductions_and_scans_of_the_language():
    r, n = tj.axis("r", 2), tj.axis("n", 5)

    def kernel(x):
        folded, scanned, stored = tj.output((2,), F32), tj.output_like(x), tj.update(x)

        @tj.parallel(1)
        def _(nest: tj.Nest):
            tile = x[tj.coord(0, 0), tj.shape(r, n)]
            reducer = tj.Reducer(lambda a, b: a * 2 + b, 0.0)
            folded(tj.coord(0), tj.shape(r)).store(tj.reduce(tile, n, reducer, order="fold_left"))
            scanned(tj.coord(0, 0), tj.shape(r, n)).store(tj.cumprod(tile, n, reverse=True))

            @nest.serial(4)
            def _(step):
                here = tj.coord(0, step.index()), tj.shape(r, 2)
                stored(*here).store(stored(*here).load() + 1.0)

        return folded, scanned, stored

    x = np.arange(10, dtype=F32).reshape(2, 5) - 3
    folded, scanned, stored = interpreted(kernel, x)
    np.testing.assert_array_equal(folded, x @ (2.0 ** np.arange(5)[::-1]))
    np.testing.assert_array_equal(scanned, np.cumprod(x[:, ::-1], 1)[:, ::-1])
    np.testing.assert_array_equal(stored, x + np.array([1, 2, 2, 2, 1], F32))


@pytest.mark.usefixtures("on_cpu")
def test_a_cpu_is_refused():
    with pytest.raises(tj.UnsupportedError, match="needs an NVIDIA GPU, but the kernel is compiled for cpu"):
        tj.jit(kernels.copy, backend="triton")(np.zeros((2, 3), F32))


def test_small_programs_are_lanes_of_one():
    """The last axis of the grid has more programs than lanes, and they do not divide it."""
    image = kernel_cases.normal(5, 33)
    image[2, 3] = np.nan
    close(interpreted(kernels.sobel_median, image), oracle.sobel_median(image))
    x, w = kernel_cases.normal(1, 2, 18, 17), kernel_cases.normal(1, 2, 17, 20, seed=1)
    close(interpreted(kernels.conv2d, x, w, relu=True), oracle.conv2d(x, w, relu=True), 1e-4)
    ids, values = np.arange(90, dtype=np.int32) % 23 - 1, kernel_cases.normal(90, 3)
    close(interpreted(kernels.segment_sum, ids, values, 21), oracle.segment_sum(ids, values, 21))
    rows = kernel_cases.normal(40, 7)
    close(interpreted(kernels.softmax, rows, block_rows=1), oracle.softmax(rows))


@pytest.fixture
def pieces(monkeypatch):
    """Rows of more than 32 elements go through a program in pieces of 16, or the test fails."""

    def rows_of(eqn):
        tiles = [v.aval.shape for e in equations(eqn.params["body"].jaxpr.eqns) for v in e.outvars]
        return max(n for shape in tiles for n in shape), 16

    monkeypatch.setattr(launch, "rows_of", rows_of)
    monkeypatch.setattr(launch, "Kernel", None)


@pytest.mark.usefixtures("pieces")
def test_long_rows_go_through_in_pieces():
    x, y = kernel_cases.normal(3, 45), kernel_cases.normal(3, 45, seed=1)
    close(interpreted(kernels.layernorm, x, block_rows=2), oracle.layernorm(x))
    probability = np.abs(np.tanh(x))
    got = interpreted(kernels.row_statistics, x, y, probability, block_rows=1)
    close(got, oracle.row_statistics(x, y, probability))
    labels = np.array([3, 44, -1], np.int32)
    got = interpreted(kernels.sparse_cross_entropy, x, labels, block_rows=1)
    close(got, oracle.sparse_cross_entropy(x, labels))
    x[1, 7] = np.nan
    np.testing.assert_array_equal(interpreted(kernels.row_max, x, block_rows=1), x.max(-1))


def test_long_rows_that_have_to_be_held_whole(monkeypatch):
    """A row at places that another row names."""
    monkeypatch.setattr(launch, "rows_of", lambda eqn: (45, 16))
    n = tj.axis("n", 45)

    def kernel(x, at):
        out = tj.output_like(x)

        @tj.parallel(1)
        def _(_):
            row = x[tj.coord(0), tj.shape(n)] * 2
            out(tj.coord(0), tj.shape(n)).store(tj.gather(row, at[tj.coord(0), tj.shape(n)], n))

        return out

    x, at = kernel_cases.normal(45), np.arange(45, dtype=np.int32) * 8 % 46 - 1
    want = np.where((at < 0) | (at > 44), 0, 2 * x[np.clip(at, 0, 44)])
    np.testing.assert_array_equal(interpreted(kernel, x, at), want)


@pytest.mark.usefixtures("pieces")
def test_the_best_of_a_long_row():
    x = kernel_cases.normal(2, 45)
    x[0, 30], x[1, 40] = np.nan, x[1, 2]
    order = np.argsort(-np.where(np.isnan(x), np.inf, x), -1, kind="stable")[:, :5]
    values, indices = interpreted(kernels.top_k, x, 5, block_rows=1)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_blocks_that_no_test_needs_come_first():
    """K is not a multiple of its blocks, and the causal limit cuts some blocks of keys."""
    a, b = kernel_cases.normal(20, 37), kernel_cases.normal(37, 18, seed=1)
    got = interpreted(kernels.gemm, a, b, block_m=16, block_n=16, block_k=16)
    close(got, oracle.gemm(a, b), 1e-4)
    q, k, v = (kernel_cases.normal(1, 1, 21, 4, seed=s) for s in range(3))
    close(
        interpreted(kernels.flash_attention, q, k, v, causal=True, block_q=8, block_kv=4),
        oracle.attention(q, k, v, causal=True),
    )


def test_float32_products_keep_infinities_and_exact_results():
    a = np.array([[2.0**12 + 1, 3.0], [np.inf, 1.0], [np.nan, 1.0]], F32)
    b = np.array([[2.0**11 + 1, 0.5], [1.0, -1.0]], F32)
    want = [[(2.0**12 + 1) * (2.0**11 + 1) + 3, (2.0**12 + 1) / 2 - 3], [np.inf] * 2, [np.nan] * 2]
    np.testing.assert_array_equal(interpreted(kernels.gemm, a, b), want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_products_of_bytes(dtype):
    a, b = np.full((3, 1), 200).astype(dtype), np.full((1, 2), 100, dtype)
    np.testing.assert_array_equal(interpreted(kernels.gemm, a, b), a.astype(int) @ b.astype(int))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_products_of_eight_bit_floats(dtype):
    numbers = np.random.default_rng(0).integers(-4, 5, (19 + 23, 37)).astype(F32).astype(dtype)
    a, b = numbers[:19], numbers[19:].T
    want = a.astype(np.float64) @ b.astype(np.float64)
    for out in ("float32", "bfloat16", "float16"):
        got = interpreted(kernels.gemm, a, b, out_dtype=out, block_m=16, block_n=16, block_k=32)
        assert got.dtype == out
        np.testing.assert_array_equal(np.asarray(got, np.float64), want.astype(out).astype(np.float64))


def test_tile_operations_outside_of_nests():
    n = tj.axis("n", 5)

    def kernel(x):
        y = tj.update(x)
        total = tj.sum(x[tj.coord(0), tj.shape(n)], n)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(x[tj.coord(0), tj.shape(n)] - total)

        return y

    x = np.arange(5, dtype=F32)
    np.testing.assert_array_equal(interpreted(kernel, x), x - 10)


@pytest.mark.parametrize("bounds", [(0, 0), (-3, 5), (2, 30)])
def test_gathers_of_what_was_loaded(bounds):
    """A few elements of a tile that hangs out of its view are read from memory again: what is outside of the
    view is the load's 0, what is outside of the tile the gather's fallback."""
    x = kernel_cases.normal(3, 64).astype(np.float16)
    at = np.array([0, 63, -1, 64, 7, 61, 2], np.int32)
    top, left = bounds

    def kernel(x, at):
        out = tj.output((2, at.shape[0], 3), np.float32)
        rows, columns = tj.axis("rows", 3), tj.axis("columns", 64)
        some, two = tj.axis("some", at.shape[0]), tj.axis("two", 2)

        @tj.parallel(two)
        def _(nest):
            tile = x[tj.coord(top, left), tj.shape(rows, columns)].astype(np.float32)
            index = at[tj.coord(0), tj.shape(some)] + nest.index()
            picked = tj.gather(tile, index, columns, fallback=-1.0)
            out(tj.coord(nest.index(), 0, 0), tj.shape(tj.axis("one", 1), some, rows)).store(picked)

        return out

    whole = np.zeros((3, 64), np.float32)
    for r in range(3):
        for c in range(64):
            if 0 <= r + top < 3 and 0 <= c + left < 64:
                whole[r, c] = x[r + top, c + left]
    want = np.full((2, 7, 3), -1.0, np.float32)
    for i in range(2):
        for j, k in enumerate(at + i):
            if 0 <= k < 64:
                want[i, j] = whole[:, k]
    np.testing.assert_array_equal(interpreted(kernel, x, at), want)


def test_grids_without_axes_and_with_an_axis_of_one():
    """Programs along the other axis are lanes, and an index that is always 0 is where they load from."""
    x = np.arange(60, dtype=np.int32).reshape(3, 20)
    one, n = tj.axis("one", 1), tj.axis("n", 3)

    def kernel(x):
        out, whole = tj.output((20, 3), x.dtype), tj.output((3,), x.dtype)
        unit, lanes = tj.axis("unit", 1), tj.axis("lanes", 20)

        @tj.parallel(unit, lanes)
        def _(nest):
            first = nest.index(unit)

            @nest.pipeline(4, carry=tj.zeros(tj.shape(n), np.int32))
            def last(step, total):
                return total * 2 + tj.reshape(x[tj.coord(first, 0), tj.shape(one, n)], tj.shape(n))

            out(tj.coord(nest.index(lanes), first), tj.shape(one, n)).store(last + nest.index(lanes))

        @tj.parallel()
        def _(_):
            column = tj.sum(x[tj.coord(0, 0), tj.shape(n, tj.axis("all", 20))], n)
            third = tj.reindex(column, tj.shape(n), lambda e: tj.coord(e.index() * 7))
            whole(tj.coord(0), tj.shape(n)).store(third)

        return out, whole

    out, whole = interpreted(kernel, x)
    np.testing.assert_array_equal(out, 15 * x[0, :3] + np.arange(20)[:, None])
    np.testing.assert_array_equal(whole, x.sum(0)[[0, 7, 14]])


def test_a_reindex_that_only_transposes_a_tile_of_lanes():
    x = np.arange(60, dtype=np.int32).reshape(3, 20)
    rows, columns = tj.axis("rows", 3), tj.axis("columns", 4)

    def kernel(x):
        out = tj.output((16, 4, 3), x.dtype)

        @tj.parallel(16)
        def _(nest):
            tile = x[tj.coord(0, nest.index()), tj.shape(rows, columns)]
            turned = tj.reindex(
                tile, tj.shape(columns, rows), lambda e: tj.coord(e.index(rows), e.index(columns))
            )
            out(tj.coord(nest.index(), 0, 0), tj.shape(1, columns, rows)).store(turned)

        return out

    np.testing.assert_array_equal(interpreted(kernel, x), [x[:, i : i + 4].T for i in range(16)])


def test_a_product_that_is_sorted():
    """It is no product of matrices: what is stored is not made of its elements one by one."""
    a, b = np.arange(12, dtype=F32).reshape(3, 4), kernel_cases.normal(4, 2)
    m, n, k = tj.axis("m", 3), tj.axis("n", 2), tj.axis("k", 4)

    def kernel(a, b):
        out = tj.output((3, 2), F32)

        @tj.parallel(1)
        def _(_):
            left, right = a[tj.coord(0, 0), tj.shape(m, k)], b[tj.coord(0, 0), tj.shape(k, n)]
            both = tj.sort(tj.mma(left, right, tj.zeros(tj.shape(m, n))), n)
            out(tj.coord(0, 0), tj.shape(m, n)).store(both[0])

        return out

    close(interpreted(kernel, a, b), np.sort(a.astype(np.float64) @ b, -1))


def test_stores_that_hang_out_of_their_view():
    """What is dropped has the address of something else that is stored at once."""
    x = np.arange(12, dtype=F32).reshape(3, 4)
    rows, columns = tj.axis("rows", 3), tj.axis("columns", 4)

    def kernel(x):
        out = tj.output((4, 3), F32)

        @tj.parallel(1)
        def _(_):
            out(tj.coord(0, -1), tj.shape(rows, columns)).store(x[tj.coord(0, 0), tj.shape(rows, columns)])

        return out

    np.testing.assert_array_equal(interpreted(kernel, x), [*x[:, 1:], [0, 0, 0]])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_sorts_along_any_axis(axis, dtype):
    x = np.random.default_rng(0).integers(-9, 9, (3, 13, 5)).astype(dtype)

    def kernel(x):
        out, axes = tj.output_like(x), [tj.axis(f"d{i}", n) for i, n in enumerate(x.shape)]
        here = tj.coord(0, 0, 0), tj.shape(*axes)

        @tj.parallel(1)
        def _(_):
            out(*here).store(tj.sort(x[here], axes[axis])[0])

        return out

    np.testing.assert_array_equal(interpreted(kernel, x), np.sort(x, axis))


def test_lanes_of_empty_tiles():
    """Programs with a tile of nothing run one by one."""
    x = kernel_cases.normal(9, 3)

    def kernel(x):
        out, n, none = tj.output((9,), np.float32), tj.axis("n", 3), tj.axis("none", 0)

        @tj.parallel(9)
        def _(nest):
            row = x[tj.coord(nest.index(), 0), tj.shape(1, n)]
            nothing = tj.zeros(tj.shape(none), np.float32)
            total = (
                tj.sum(row, n)
                + tj.reduce(nothing, none, tj.add, order="ordered_tree")
                + tj.sum(nothing, none)
            )
            out(tj.coord(nest.index()), tj.shape(1)).store(total)

        return out

    np.testing.assert_allclose(interpreted(kernel, x), x.sum(1), rtol=1e-6)
