"""Kernels lowered for NVIDIA GPUs through Triton, without one."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh
from test_triton import interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import lower

S = jax.ShapeDtypeStruct
F32, I32 = np.float32, np.int32
MATRIX = S((64, 1000), F32)
HEADS = S((1, 2, 256, 64), jnp.bfloat16)
ONE = ("copy", "exp", "clamp", "rmsnorm", "row_sum", "row_max", "row_min", "row_abssum", "row_absmax")
ONE += ("cumsum", "cummax", "transpose", "softmax", "layernorm", "softmax_norms")
ARGS = {
    **dict.fromkeys(ONE, (MATRIX,)),
    **dict.fromkeys(("add", "saxpy", "residual_layernorm"), (MATRIX,) * 2),
    "bias_gelu_residual": (MATRIX, S((1000,), F32), MATRIX),
    "row_statistics": (MATRIX,) * 3,
    "gemm": (S((256, 130), jnp.bfloat16), S((130, 200), jnp.bfloat16)),
    "manual_gemm": (S((256, 130), F32), S((130, 200), F32)),
    "sparse_cross_entropy": (MATRIX, S((64,), I32)),
    "flash_attention": (HEADS,) * 3,
    "conv2d": (S((1, 8, 40, 16), F32), S((3, 3, 16, 16), F32)),
    "depthwise_conv_pool": (S((8, 40, 24), F32), S((3, 3, 24), F32)),
    "sobel_median": (S((64, 64), F32),),
    "sort": (S((16, 100), F32),),
    "top_k": (S((16, 100), F32),),
    "segment_sum": (S((3000,), I32), S((3000,), F32)),
    "structured_sum": (S((4, 2, 3, 8), F32),),
}
OPTIONS = {
    "flash_attention": {"causal": True, "block_q": 128, "block_kv": 64},
    "manual_gemm": {"block_m": 64, "block_n": 64, "block_k": 32},
    "segment_sum": {"num_segments": 50},
    "top_k": {"k": 5},
}


def device(kind="NVIDIA H200"):
    """A GPU that is not there."""
    return AbstractDevice(device_kind=kind, num_cores=132, platform="gpu")


def gpu(kind="NVIDIA H200"):
    """A context with one."""
    return use_abstract_mesh(AbstractMesh((), (), abstract_device=device(kind)))


def for_cuda(kernel, *args, num_stages=None, **options):
    """The module of a kernel for it."""
    compiler_params = {} if num_stages is None else {"num_stages": num_stages}
    with gpu():
        traced = tj.jit(kernel, backend="triton", compiler_params=compiler_params).trace(*args, **options)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def product(m, k, n, acc_dtype, out_dtype, **options):
    """A kernel that multiplies two matrices as one tile each."""
    rows, depth, columns = tj.axis("rows", m), tj.axis("depth", k), tj.axis("columns", n)

    def kernel(a, b):
        out, at = tj.output((m, n), out_dtype), tj.coord(0, 0)

        @tj.parallel(1)
        def _(nest):
            left, right = a[at, tj.shape(rows, depth)], b[at, tj.shape(depth, columns)]
            acc = tj.mma(left, right, tj.zeros(tj.shape(rows, columns), acc_dtype), **options)
            out(at, tj.shape(rows, columns)).store(acc.astype(out_dtype))

        return out

    return kernel


def test_every_kernel_is_here():
    assert {*ARGS, "Window"} == {*kernels.__all__}


@pytest.mark.parametrize("name", sorted(ARGS))
def test_every_kernel_is_one_launch(name):
    options = dict(OPTIONS.get(name, {}))
    positional = [options.pop(n) for n in ("k", "num_segments") if n in options]
    text = for_cuda(getattr(kernels, name), *ARGS[name], *positional, **options)
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 1


F8 = ["float8_e4m3fn", "float8_e5m2"]
BYTES = ["int8", "uint8"]


@pytest.mark.parametrize("size", [(64, 64, 64), (65, 33, 17), (1, 40, 3)], ids=str)
@pytest.mark.parametrize(
    ("dtypes", "acc", "outs"),
    [
        *(((d, d), "float32", ["float32", "bfloat16", "float16", d]) for d in F8),
        *(((d, d), "float32", [d]) for d in ("bfloat16", "float16", "float32")),
        *(((a, b), "int32", ["int32", "int8"]) for a in BYTES for b in BYTES),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_products_of_all_dtypes(dtypes, acc, outs, size):
    """By `gemm` where it takes them, and by hand; in order too."""
    m, k, n = size
    args = S((m, k), dtypes[0]), S((k, n), dtypes[1])
    for out in outs:
        texts = [for_cuda(product(m, k, n, acc, out), *args)]
        texts.append(for_cuda(product(m, k, n, acc, out, allow_reassociation=False), *args))
        if dtypes[0] == dtypes[1]:
            texts.append(for_cuda(kernels.gemm, *args, out_dtype=out))
        assert [text.count("custom_call @__gpu$xla.gpu.triton") for text in texts] == [1] * len(texts)


@pytest.mark.parametrize(
    ("n", "k", "dtype"), [(4000, 8, jnp.bfloat16), (32000, 64, F32), (100_003, 6000, F32)]
)
def test_selections_from_long_rows_are_one_launch(n, k, dtype):
    with gpu():
        traced = tj.jit(kernels.top_k, backend="triton").trace(S((16, n), dtype), k)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 1


def spread(x):
    """How far the sorted elements of each row are from their first one."""
    y, n = tj.output_like(x), tj.axis("n", x.shape[1])

    @tj.parallel(x.shape[0])
    def _(nest):
        here = tj.coord(nest.index(), 0), tj.shape(1, n)
        ordered, _ = tj.sort(x[here], n)
        y(*here).store(ordered - tj.min(ordered, n))

    return y


@pytest.mark.parametrize(
    ("kernel", "n", "launches"),
    [(kernels.sort, 5000, 1), (kernels.sort, 8193, 0), (spread, 5000, 1), (spread, 100_003, 1)],
)
def test_sorts_of_long_rows_are_one_launch_or_those_of_xla(kernel, n, launches):
    with gpu():
        traced = tj.jit(kernel, backend="triton").trace(S((2, n), F32))
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == launches


def test_a_gradient_runs_on_the_backend_that_was_asked_for():
    softmax = tj.jit(kernels.softmax, backend="triton")
    loss = jax.grad(lambda x: jnp.sum(softmax(x) ** 2))
    with gpu():
        text = jax.jit(loss).trace(MATRIX).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 2


@pytest.mark.parametrize("backend", ["auto", "triton"])
@pytest.mark.parametrize("name", ["softmax", "top_k", "flash_attention", "conv2d", "segment_sum"])
def test_kernels_of_several_devices(name, backend):
    """Under shard_map, which checks what varies over its devices; and their derivatives."""
    options = dict(OPTIONS.get(name, {}))
    positional = [options.pop(n) for n in ("k", "num_segments") if n in options]
    kernel = tj.jit(getattr(kernels, name), backend=backend)
    mesh = AbstractMesh((1,), ("d",), axis_types=(AxisType.Auto,), abstract_device=device())

    def run(*args):
        out = jax.tree.leaves(kernel(*args, *positional, **options))[0]
        return jax.lax.psum(jnp.sum(out.astype(F32)), "d")

    total = jax.shard_map(run, mesh=mesh, in_specs=P("d"), out_specs=P())
    value_and_grad = jax.value_and_grad(total, argnums=len(ARGS[name]) - 1)
    text = jax.jit(value_and_grad).trace(*ARGS[name]).lower(lowering_platforms=("cuda",)).as_text()
    assert "gpu.triton" in text


def test_for_amd():
    """The same path without NVIDIA's instructions; it has been run nowhere."""
    with gpu():
        traced = tj.jit(kernels.softmax, backend="triton").trace(MATRIX)
        assert "gpu.triton" in traced.lower(lowering_platforms=("rocm",)).as_text()


def test_the_users_number_of_warps():
    with gpu():
        kernel = tj.jit(kernels.softmax, backend="triton", compiler_params={"num_warps": 2})
        text = kernel.trace(MATRIX).lower(lowering_platforms=("cuda",)).as_text()
    assert "num_warps = 2 " in text


@pytest.mark.parametrize(("shape", "wide"), [((70_000, 40_000), True), ((700, 400), False)])
def test_offsets_are_of_64_bits_where_a_view_needs_them(shape, wide):
    traced = kernels.copy.__wrapped__._tilejax_kernel.trace((S(shape, np.int8),), {})
    run = functools.partial(lower.run, traced.program, num_warps=None, num_stages=None)
    launch = jax.make_jaxpr(lambda *operands: run(operands))(*traced.operands)
    assert ("i64[" in str(launch)) == wide


def test_several_threads_at_once():
    """Pallas warns of each lowering, and a warning is an error here."""

    def lowered(n):
        return for_cuda(kernels.softmax, S((n, 100), F32)).count("gpu.triton")

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(lowered, range(1, 65))] == [1] * 64


def test_the_largest_integers():
    """Constants that no signed integer of 64 bits holds: a number, and a cast of one."""

    def kernel(x):
        y, n = tj.output_like(x), tj.axis("n", x.shape[0])
        here = tj.coord(0), tj.shape(n)

        @tj.parallel(1)
        def _(_):
            most, half = np.uint64(2**64 - 1), np.uint64(2**63)
            least = jnp.int32(-3).astype(jnp.uint64)
            tile = tj.where(x[here] == half, most, x[here])
            y(*here).store(tj.where(x[here] == 1, least, tile))

        return y

    with jax.enable_x64(True):
        x = np.array([0, 1, 2**63, 2**63 + 1, 2**64 - 2], np.uint64)
        want = np.array([0, 2**64 - 3, 2**64 - 1, 2**63 + 1, 2**64 - 2], np.uint64)
        np.testing.assert_array_equal(interpreted(kernel, x), want)
        assert "gpu.triton" in for_cuda(kernel, x)


def test_loads_that_do_not_fit_shared_memory():
    message = r"needs 262144 bytes of shared memory for the loads of 4 steps, but\s+the device has 232448"
    a = S((1024, 1024), jnp.bfloat16)
    with pytest.raises(tj.UnsupportedError, match=message):
        for_cuda(kernels.gemm, a, a, block_m=256, block_n=256, block_k=64, num_stages=4)


def test_a_tile_that_does_not_fit_registers():
    n = tj.axis("n", 2**21)

    def kernel(x):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(tj.associative_scan(tj.add, x[tj.coord(0), tj.shape(n)], n))

        return y

    message = "has 2097152 elements in registers, but backend triton takes 1048576"
    with pytest.raises(tj.UnsupportedError, match=message):
        for_cuda(kernel, S((2**21,), F32))


@pytest.mark.parametrize(
    ("kind", "limit"), [("NVIDIA H200", 232448), ("NVIDIA A100-SXM4-80GB", 166912), ("Tesla T4", 65536)]
)
def test_the_capacity_of_a_device_that_is_not_there(kind, limit):
    """Explicit memories, padding counted, against the shared memory of the abstract device."""

    def kernel(x):
        y, n = tj.output_like(x), tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            held = tj.memory(tj.shape(n), x.dtype)
            held.store(x[tj.coord(0), tj.shape(n)])
            y(tj.coord(0), tj.shape(n)).store(held.load())

        return y

    def lower(nbytes):
        with gpu(kind):
            traced = tj.jit(kernel, backend="triton").trace(S((nbytes // 4,), F32))
            return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "__gpu$xla.gpu.triton" in lower(limit)
    with pytest.raises(tj.UnsupportedError, match=rf"held.* {limit + 4} bytes of SHARED.* has {limit}"):
        lower(limit + 4)


def test_constants_that_a_loop_gives_or_raises_to_a_power():
    def kernel(x):
        out, powers = tj.output((1,), F32), tj.output((3,), I32)

        @tj.parallel()
        def _(nest):
            @nest.serial(3, carry=(0, x[tj.coord(0), tj.shape(1)]))
            def last(step, carry):
                power = tj.full(tj.shape(), 3, I32) ** 2
                powers(tj.coord(step.index()), tj.shape(1)).store(power)
                return 7, carry[1] + carry[0]

            out(tj.coord(0), tj.shape(1)).store(last[1] * last[0])

        return out, powers

    assert for_cuda(kernel, S((1,), F32)).count("custom_call @__gpu$xla.gpu.triton") == 1
    total, powers = interpreted(kernel, np.ones(1, F32))
    np.testing.assert_array_equal(total, [(1 + 0 + 7 + 7) * 7])
    np.testing.assert_array_equal(powers, [9] * 3)
