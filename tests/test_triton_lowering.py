"""Kernels lowered for NVIDIA GPUs through Triton, without one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import tilejax as tj
from tilejax import kernels

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


def lowered(name, **options):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    static = {**OPTIONS.get(name, {}), **options}
    names = [n for n in ("k", "num_segments") if n in static]
    positional = [static.pop(n) for n in names]
    fn = functools.partial(tj.jit(getattr(kernels, name), backend="triton").trace, **static)
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        return fn(*ARGS[name], *positional).lower(lowering_platforms=("cuda",)).as_text()


def test_every_kernel_is_here():
    assert {*ARGS, "Window"} == {*kernels.__all__}


@pytest.mark.parametrize("name", sorted(ARGS))
def test_every_kernel_is_one_launch(name):
    assert lowered(name).count("custom_call @__gpu$xla.gpu.triton") == 1


def test_a_gradient_runs_on_the_backend_that_was_asked_for():
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    softmax = tj.jit(kernels.softmax, backend="triton")
    loss = jax.grad(lambda x: jnp.sum(softmax(x) ** 2))
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        text = jax.jit(loss).trace(MATRIX).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 2


def test_loads_that_do_not_fit_shared_memory():
    message = r"needs 262144 bytes of shared memory for the loads of 4 steps, but\s+the device has 232448"
    with pytest.raises(tj.UnsupportedError, match=message):
        _too_large()


def _too_large():
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    gemm = tj.jit(kernels.gemm, backend="triton", compiler_params={"num_stages": 4})
    a = S((1024, 1024), jnp.bfloat16)
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        gemm.trace(a, a, block_m=256, block_n=256, block_k=64).lower(lowering_platforms=("cuda",))


def test_a_tile_that_does_not_fit_registers():
    n = tj.axis("n", 2**21)

    def kernel(x):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(tj.cumsum(x[tj.coord(0), tj.shape(n)], n))

        return y

    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with (
        use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
        pytest.raises(
            tj.UnsupportedError, match="has 2097152 elements in registers, but backend triton takes 1048576"
        ),
    ):
        tj.jit(kernel, backend="triton").trace(S((2**21,), F32)).lower(lowering_platforms=("cuda",))


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
        device = AbstractDevice(device_kind=kind, num_cores=40, platform="gpu")
        with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
            traced = tj.jit(kernel, backend="triton").trace(S((nbytes // 4,), F32))
            return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "__gpu$xla.gpu.triton" in lower(limit)
    with pytest.raises(tj.UnsupportedError, match=rf"held.* {limit + 4} bytes of SHARED.* has {limit}"):
        lower(limit + 4)
