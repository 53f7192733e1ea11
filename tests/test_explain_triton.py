"""What ``explain`` says of the Triton backend, here without a GPU. On an H200 the PTX of such kernels had
cp.async where loads are said to run ahead, and wgmma or mma where tensor cores are said to multiply."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_triton_prefetch import X, running

import tilejax as tj
from tests.helpers import only
from tilejax import kernels
from tilejax._explain import explanation
from tilejax._jit import as_kernel
from tilejax.backends.registry import Options


def explain(kernel, *args, num_stages=None, **options):
    compiler_params = {} if num_stages is None else {"num_stages": num_stages}
    this = as_kernel(kernel, Options.make("triton", compiler_params), None, None)
    return explanation(this.trace(args, options).program, this.name, this.options, "gpu")


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


BLOCKS = {"block_m": 64, "block_n": 64, "block_k": 32}


@pytest.mark.parametrize("stages", [None, 1, 2])
def test_what_dots_multiply_is_copied_ahead(stages):
    found = explain(kernels.gemm, array(256, 256), array(256, 256), num_stages=stages, **BLOCKS)
    assert found.backend == "triton"
    pipeline = only(found.pipelines)
    if stages == 1:
        assert (pipeline.overlapped, pipeline.reason) == (False, "num_stages=1 asks for no overlap")
        return
    assert pipeline.overlapped
    ahead = 3 if stages is None else 1
    assert pipeline.reason.startswith("the loads of a (matmul.py:")
    assert pipeline.reason.endswith(f"run up to {ahead} steps ahead, by cp.async (num_stages={ahead + 1})")
    assert only(found.mmas).instruction == "tensor cores: bfloat16"
    assert only(found.stores).proved == "inside the view: no mask"


def test_ragged_stores_are_masked():
    found = explain(kernels.gemm, array(250, 256), array(256, 250), **BLOCKS)
    assert only(found.stores).proved == "it may reach over the view's edge: masked there"


def test_memories_are_values():
    left, right = explain(kernels.manual_gemm, array(256, 256), array(256, 256), **BLOCKS).memories
    assert (left.resource, left.nbytes) == (tj.Resource.SHARED, (63 * 33 + 32) * 2)
    assert (right.resource, right.nbytes) == (tj.Resource.SHARED, 64 * 32 * 2)
    assert left.place == "a value in registers, whatever its layout"


@pytest.mark.parametrize(
    ("dtype", "options", "instruction"),
    [
        (jnp.float16, {}, "tensor cores: float16"),
        (jnp.float8_e4m3fn, {}, "tensor cores: float16, to which float8_e4m3fn widens"),
        (jnp.int8, {}, "tensor cores: int8"),
        (jnp.uint8, {}, "tensor cores: int8, 4 products for the eighth bits of uint8"),
        (jnp.float32, {}, "tensor cores: bfloat16, six products of float32 in three parts"),
        (jnp.float32, {"precision": "tf32"}, "tensor cores: tf32"),
        (jnp.float32, {"precision": "highest"}, "CUDA cores: float32"),
        (
            jnp.bfloat16,
            {"allow_reassociation": False},
            "CUDA cores: multiply and add, one contracted index after another",
        ),
    ],
)
def test_instructions(dtype, options, instruction):
    m, n, k = tj.axis("m", 64), tj.axis("n", 64), tj.axis("k", 32)
    acc_dtype = jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else jnp.float32

    def kernel(a, b):
        out = tj.output((64, 64), acc_dtype)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            left, right = a[at, tj.shape(m, k)], b[at, tj.shape(k, n)]
            result = tj.mma(left, right, tj.zeros(tj.shape(m, n), acc_dtype), **options)
            out(at, tj.shape(m, n)).store(result)

        return out

    found = explain(kernel, array(64, 32, dtype=dtype), array(32, 64, dtype=dtype))
    if "allow_reassociation" in options:
        pieces = "; 8 summed a step, if both factors are loads"
    else:
        pieces = "; 32 summed a step, loaded up to 2 steps ahead"
    assert only(found.mmas).instruction == instruction + pieces


def test_blocks_are_those_of_the_machine():
    """A convolution of single pixels; 100 pixels, 64 a program."""
    found = explain(kernels.conv2d, array(1, 12, 12, 80), array(3, 3, 80, 32))
    assert only(found.mmas).instruction.endswith("bfloat16; 64 summed a step, loaded up to 2 steps ahead")
    where = only(found.stores).proved
    assert where == "64 x 32 elements a program, whatever the nest's own blocks: masked at the last ones"


def test_a_batch_of_products_is_one_for_tensor_cores_if_it_is_large():
    def instruction(size):
        b, m, n, k = (tj.axis(name, size) for name in "bmnk")

        def kernel(x, y):
            out = tj.output((size,) * 3, jnp.float32)

            @tj.parallel(1)
            def _(nest):
                at = tj.coord(0, 0, 0)
                left, right = x[at, tj.shape(b, m, k)], y[at, tj.shape(b, k, n)]
                out(at, tj.shape(b, m, n)).store(tj.mma(left, right, tj.zeros(tj.shape(b, m, n))))

            return out

        return only(explain(kernel, *(array(size, size, size),) * 2).mmas).instruction

    assert instruction(16).startswith("tensor cores: bfloat16")
    assert instruction(8).startswith("CUDA cores: sums of products")


def test_attention_copies_keys_and_values_ahead():
    q = array(1, 2, 256, 64)
    found = explain(kernels.flash_attention, q, q, q, causal=True, block_q=64, block_kv=64)
    pipeline = only(found.pipelines)
    assert pipeline.overlapped
    assert "the loads of k (attention.py:" in pipeline.reason
    assert ", v (attention.py:" in pipeline.reason
    assert "up to 2 steps ahead" in pipeline.reason


@pytest.mark.parametrize(
    ("trips", "window", "reason"),
    [
        (5, 0, r"the loads of x \(test_triton_prefetch\.py:\d+\), run one step ahead into registers"),
        (5, 1, "one loop; window=1 asks for no overlap"),
        (1, 0, "it has no second step"),
    ],
)
def test_a_carry_without_dots(trips, window, reason):
    found = explain(running(trips, window=window), X, np.zeros((2, 2), np.int32))
    pipeline = only(found.pipelines)
    assert pipeline.overlapped == ("registers" in reason)
    assert re.fullmatch(reason, pipeline.reason)
    assert found.mmas == ()


def test_what_an_earlier_step_stores_is_not_loaded_ahead():
    t, s, k = tj.axis("t", 64), tj.axis("s", 64), tj.axis("k", 64)

    def kernel(x, w):
        y = tj.update(x)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("steps", 8))
            def _(step):
                old = y[tj.coord(step.index() * 64, 0), tj.shape(k, s)]
                new = tj.mma(w[tj.coord(0, 0), tj.shape(t, k)], old, tj.zeros(tj.shape(t, s)))
                y(tj.coord((step.index() + 2) * 64, 0), tj.shape(t, s)).store(new)

        return y

    f32 = jnp.float32
    for stages, overlapped in ((None, False), (2, True), (3, False)):
        found = explain(kernel, array(640, 64, dtype=f32), array(64, 64, dtype=f32), num_stages=stages)
        pipeline = only(found.pipelines)
        assert pipeline.overlapped == overlapped
        assert ("may read what the store" in pipeline.reason) != overlapped


def test_programs_that_run_as_lanes_of_one(monkeypatch):
    monkeypatch.setattr("tilejax.backends.triton.explain.lanes_of", lambda nest: (0, 8))
    pipeline = only(explain(running(5), X, np.zeros((2, 2), np.int32)).pipelines)
    assert not pipeline.overlapped
    assert pipeline.reason == "one loop for all programs that run as lanes of one"


def test_steps_that_several_programs_share():
    reason = only(explain(kernels.gemm, array(64, 65536), array(65536, 64), **BLOCKS).pipelines).reason
    assert reason.endswith("(num_stages=4); 132 programs share its steps")
