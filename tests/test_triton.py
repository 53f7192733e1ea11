"""The Triton lowering without a GPU: bodies in Pallas's interpreter, and kernels lowered for CUDA."""

import functools

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import oracle
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import lower

F32 = np.float32


def interpreted(kernel, *args, **options):
    """The kernel's results from its Pallas bodies, interpreted on the CPU."""
    traced = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel.trace(
        args, options
    )
    # On a GPU the interpreter's scatters would write an element twice, in any order.
    with jax.default_device(jax.devices("cpu")[0]):
        out = lower.run(traced.program, traced.operands, num_warps=None, num_stages=None, interpret=True)
    return jax.tree.unflatten(traced.results, out)


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
    x = kernel_cases.normal(3, 13)
    x[0, 2], x[1, 5] = np.nan, np.inf
    order = np.argsort(x, -1, kind="stable")
    values, indices = interpreted(kernels.sort, x)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    _, best = interpreted(kernels.top_k, x, k=4)
    np.testing.assert_array_equal(
        best[0], np.argsort(-np.where(np.isnan(x[0]), np.inf, x[0]), kind="stable")[:4]
    )


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


S = jax.ShapeDtypeStruct
HEADS = S((1, 2, 256, 64), jnp.bfloat16)
LOWERED = {
    "copy": (S((64, 1000), F32),),
    "softmax": (S((64, 1000), jnp.bfloat16),),
    "gemm": (S((256, 130), jnp.bfloat16), S((130, 200), jnp.bfloat16)),
    "cumsum": (S((64, 5000), F32),),
    "transpose": (S((64, 1000), F32),),
    "sort": (S((16, 100), F32),),
    "sparse_cross_entropy": (S((64, 1000), F32), S((64,), np.int32)),
    "row_statistics": (S((64, 1000), F32),) * 3,
    "conv2d": (S((1, 8, 8, 16), F32), S((3, 3, 16, 16), F32)),
    "sobel_median": (S((64, 64), F32),),
    "flash_attention": (HEADS, HEADS, HEADS),
}


@pytest.mark.parametrize("name", sorted(LOWERED))
def test_kernels_lower_for_cuda(name):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    options = {"causal": True, "block_q": 128, "block_kv": 64} if name == "flash_attention" else {}
    fn = functools.partial(tj.jit(getattr(kernels, name), backend="triton").trace, **options)
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        text = fn(*LOWERED[name]).lower(lowering_platforms=("cuda",)).as_text()
    assert "triton" in text
    assert "tilejax" in text


def test_a_cpu_is_refused():
    with pytest.raises(tj.UnsupportedError, match="needs an NVIDIA GPU, but the kernel is compiled for cpu"):
        tj.jit(kernels.copy, backend="triton")(np.zeros((2, 3), F32))
