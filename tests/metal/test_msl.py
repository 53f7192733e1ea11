"""What `tilejax.metal.source` gives, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_cases import normal

import tilejax as tj
from examples.softmax import softmax
from tilejax import kernels
from tilejax.backends.metal.msl.evaluate import RULES
from tilejax.ir.primitives import PRIMITIVES

A, B = normal(70, 50), normal(50, 40, seed=1)
ATOMS = {"block_m": 16, "block_n": 16, "block_k": 16}


def test_a_kernel_for_a_nest_and_how_to_launch_it():
    source = tj.metal.source(kernels.saxpy)(A, A, block_rows=8, block_cols=16)
    assert str(source) == source.text
    assert source.text.count("kernel void") == 1
    (launch,) = source.launches
    assert (launch.kernel, launch.groups, launch.threads) == ("saxpy_0", 9 * 4, 128)
    assert launch.buffers == ("x_0", "y_1", *source.results)
    assert [(b.role, b.shape, b.dtype) for b in source.buffers] == [
        ("argument", (70, 50), np.float32),
        ("argument", (70, 50), np.float32),
        ("array", (70, 50), np.float32),
    ]
    np.testing.assert_array_equal(source.operands[0], A)
    assert "threadgroup_barrier" not in source.text


def test_captured_arrays_and_scalars_are_operands():
    def kernel(x, scale):
        y, n = tj.output_like(x), tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(x[tj.coord(0), tj.shape(n)] * scale + captured)

        return y

    captured, x = jnp.float32(3), normal(5)
    source = tj.metal.source(kernel)(x, np.float32(2))
    arguments = [b for b in source.buffers if b.role == "argument"]
    assert [b.shape for b in arguments] == [np.shape(o) for o in source.operands] == [(), (), (5,)]
    assert list(map(float, source.operands[:2])) == [3, 2]
    assert "constant float& arg_0 [[buffer(" in source.text
    assert "device const float* x_2 [[buffer(" in source.text


def test_any_name_becomes_one_of_metal():
    def kernel(params):
        y = tj.output((3,), np.float32)
        (x,) = params["größe 2"]

        @tj.parallel(3)
        def _(nest):
            here = tj.coord(nest.index()), tj.shape(1)
            y(*here).store(x[here])

        return y

    kernel.__name__ = "<λ>"
    text = tj.metal.source(kernel)({"größe 2": [normal(3)]}).text
    assert re.search(
        r"kernel void arg_0\(\s+device const float\* params_gr_e_2_0_0 \[\[buffer\(0\)\]\],", text
    )


def test_arguments_may_be_shapes():
    struct = jax.ShapeDtypeStruct((5, 7), jnp.bfloat16)
    assert "device const bfloat* x_0" in tj.metal.source(kernels.softmax)(struct).text


def test_nests_are_launched_in_order_and_outputs_filled_where_they_must():
    def kernel(x):
        y, z, n = tj.output_like(x), tj.output((9,), x.dtype, init=2), tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(x[tj.coord(0), tj.shape(n)] + 1)

        @tj.parallel(1)
        def _(nest):
            z(tj.coord(1), tj.shape(n)).store(y[tj.coord(0), tj.shape(n)] * 2)

        return z

    source = tj.metal.source(kernel)(normal(5))
    names = {b.name: b.shape for b in source.buffers}
    assert [[names[b] for b in launch.buffers] for launch in source.launches] == [
        [(5,), (5,)],  # y is stored whole
        [(9,)],  # the rest of z is 2
        [(5,), (9,)],
    ]


def test_atoms_are_counted():
    gemm = tj.metal.source(kernels.gemm)
    assert gemm(A, B, **ATOMS).matrix_operations == 0
    source = gemm(A, B, cooperative_matrix=True, **ATOMS)
    assert source.matrix_operations == source.text.count("simdgroup_multiply_accumulate(") == 1
    assert "simdgroup_float8x8" in source.text


def product(a, b, **options):
    C, m, n, k = tj.output((16, 16), jnp.float32), tj.axis("m", 16), tj.axis("n", 16), tj.axis("k", 16)

    @tj.parallel(1, scope=options.pop("scope", tj.Scope.GROUP))
    def _(nest):
        left, right = a[tj.coord(0, 0), tj.shape(m, k)], b[tj.coord(0, 0), tj.shape(k, n)]
        C(tj.coord(0, 0), tj.shape(m, n)).store(
            tj.mma(left, right, tj.zeros(tj.shape(m, n), jnp.float32), **options)
        )

    return C


def test_what_is_not_eligible_keeps_the_ordered_loops():
    def atoms(dtype=np.float32, **options):
        a = np.zeros((16, 16), dtype)
        return tj.metal.source(lambda a, b: product(a, b, **options))(
            a, a, cooperative_matrix=True
        ).matrix_operations

    assert atoms() == 1
    assert atoms(allow_reassociation=False) == 0
    assert atoms(np.float16) == atoms(jnp.bfloat16) == 0
    assert atoms(scope=tj.Scope.WORKER) == 0

    q = np.zeros((1, 1, 16, 16), np.float32)
    attention = tj.metal.source(kernels.flash_attention)(q, q, q, cooperative_matrix=True)
    assert attention.matrix_operations == 0  # its tiles have four axes


def test_a_worker_has_a_thread_and_no_barrier():
    source = tj.metal.source(kernels.manual_gemm)(
        A, B, scope=tj.Scope.WORKER, resource=tj.Resource.PRIVATE, block_m=4, block_n=4, block_k=4
    )
    assert "threadgroup " not in source.text
    assert "barrier" not in source.text
    (launch,) = source.launches
    assert launch.groups * launch.threads >= 18 * 10 > (launch.groups - 1) * launch.threads


def threadgroup_bytes(text):
    sizes = {"float": 4, "int": 4, "uint": 4, "half": 2}
    return sum(
        sizes[kind] * int(n) for kind, n in re.findall(r"^    threadgroup (\w+) \w+\[(\d+)\];", text, re.M)
    )


@pytest.mark.parametrize("columns", [64, 2048, 20000])
@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.sort, kernels.cumsum, kernels.layernorm])
def test_threadgroup_memory_is_never_more_than_there_is(kernel, columns):
    """What does not fit is a slice of a device buffer for each program."""
    source = tj.metal.source(kernel)(jax.ShapeDtypeStruct((4, columns), jnp.float32))
    assert threadgroup_bytes(source.text) <= 32 * 1024
    assert all(b.shape[0] == source.launches[-1].groups for b in source.buffers if b.role == "scratch")


def test_offsets_are_wide_where_they_must_be():
    small, large = (jax.ShapeDtypeStruct((n, 2**16), jnp.float32) for n in (2**10, 2**16))
    assert "ulong" not in tj.metal.source(kernels.copy)(small).text
    assert "ulong" in tj.metal.source(kernels.copy)(large).text


def test_too_much_memory_says_both_numbers():
    def kernel(x):
        y, m = tj.output_like(x), tj.axis("m", 10000)

        @tj.parallel(1)
        def _(nest):
            held = tj.memory(tj.shape(m), jnp.float32)
            held.store(x[tj.coord(0), tj.shape(m)])
            y(tj.coord(0), tj.shape(m)).store(held.load())

        return y

    with pytest.raises(
        tj.UnsupportedError, match=r"memory held .* 40000 bytes of SHARED, .* metal has 32768"
    ):
        tj.metal.source(kernel)(normal(10000))


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_arguments_that_metal_lacks(dtype):
    with pytest.raises(
        tj.UnsupportedError, match=f"kernel copy: an argument of {jnp.dtype(dtype).name}: Metal"
    ):
        tj.metal.source(kernels.copy)(jax.ShapeDtypeStruct((3, 4), dtype))


def test_a_dtype_that_metal_lacks_is_named_with_its_operation_and_line():
    def kernel(x):
        y, n = tj.output_like(x), tj.axis("n", 4)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(n)).store(
                x[tj.coord(0), tj.shape(n)].astype(jnp.float8_e4m3fn).astype(x.dtype)
            )

        return y

    with pytest.raises(tj.UnsupportedError, match=r"convert_element_type of float8_e4m3fn") as error:
        tj.metal.source(kernel)(normal(4))
    assert f"{__file__}:" in str(error.value)
    assert error.value.loc.function.endswith("kernel.<locals>._")


def test_float64_is_refused_but_not_python_numbers():
    with jax.enable_x64(True):
        with pytest.raises(tj.UnsupportedError, match="an argument of float64"):
            tj.metal.source(kernels.copy)(np.zeros((3, 4)))
        assert "float" in tj.metal.source(kernels.flash_attention)(*(normal(1, 1, 3, 4),) * 3).text


@pytest.mark.parametrize("scope", [tj.Scope.SUBGROUP, tj.Scope.VECTOR, tj.Scope.DEVICE])
def test_scopes_that_metal_lacks(scope):
    with pytest.raises(tj.UnsupportedError, match=f"scope {scope.name}, which backend metal does not have"):
        tj.metal.source(lambda a, b: product(a, b, scope=scope))(A, A)


def test_every_primitive_has_a_rule():
    assert set(PRIMITIVES) <= set(RULES)


def test_the_documentation_shows_the_text():
    source = tj.metal.source(softmax)(jax.ShapeDtypeStruct((70, 300), jnp.float32), block_rows=1)
    page = (Path(__file__).parents[2] / "docs" / "metal_msl.md").read_text()
    assert f"```metal\n{source.text.rstrip()}\n```\n" in page


def test_launching_says_what_it_needs():
    with pytest.raises(tj.UnsupportedError, match="needs a JAX plugin that takes it, and there is none"):
        tj.metal.source(kernels.saxpy)(A, A).launch()
