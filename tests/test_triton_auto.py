"""Which backend `"auto"` takes on a GPU: Triton where one is there and takes the kernel, else XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from test_triton_lowering import gpu

import tilejax as tj
from tilejax import kernels

X = jax.ShapeDtypeStruct((64, 128), np.float32)


def launches(fn, *args, platforms=("cuda",)):
    """How often the module of a function calls Triton."""
    return jax.jit(fn).trace(*args).lower(lowering_platforms=platforms).as_text().count("gpu.triton")


def test_on_a_gpu_that_is_there():
    with gpu():
        assert launches(tj.jit(kernels.softmax), X) == 1
        assert launches(tj.jit(kernels.softmax, backend="xla"), X) == 0
        assert launches(jax.grad(lambda x: tj.jit(kernels.softmax)(x).sum()), X) == 1
    assert launches(tj.jit(kernels.softmax), X) == (jax.default_backend() == "gpu")


def test_a_module_for_several_platforms_is_xla():
    with gpu():
        assert launches(tj.jit(kernels.softmax), X, platforms=("cpu", "cuda")) == 0


def test_what_is_exported_is_xla():
    """JAX promises that for XLA's own operations alone; the module for the GPU runs on the CPU as well."""
    b = export.symbolic_shape("b")[0]
    with gpu():
        plain = export.export(tj.jit(kernels.softmax), platforms=["cuda"])(X)
        batch = jax.ShapeDtypeStruct((b, 4, 8), np.float32)
        symbolic = export.export(jax.jit(jax.vmap(tj.jit(kernels.softmax))), platforms=["cuda"])(batch)
    assert "gpu.triton" not in plain.mlir_module() + symbolic.mlir_module()
    assert export.deserialize(plain.serialize()).platforms == ("cuda",)


def vector_scope(x):
    """A kernel with a scope that Triton has none for."""
    out = tj.output_like(x)
    rows, columns = tj.axis("rows", x.shape[0]), tj.axis("columns", x.shape[1])
    here = tj.coord(0, 0), tj.shape(rows, columns)

    @tj.parallel(1, scope=tj.Scope.VECTOR)
    def _(_):
        out(*here).store(x[here] + 1)

    return out


def too_large(x):
    """A kernel with a memory that is larger than what programs share."""
    out = tj.output_like(x)
    rows, columns = tj.axis("rows", x.shape[0]), tj.axis("columns", x.shape[1])
    here = tj.coord(0, 0), tj.shape(rows, columns)

    @tj.parallel(1)
    def _(_):
        held = tj.memory(tj.shape(rows, columns), x.dtype)
        held.store(x[here])
        out(*here).store(held.load())

    return out


def array_inside(x):
    """A kernel that computes with a whole array inside of a nest."""
    out, columns = tj.output_like(x), tj.axis("columns", x.shape[1])

    @tj.parallel(x.shape[0])
    def _(nest):
        row = tj.view(jnp.sort(jnp.arange(x.shape[1], dtype=x.dtype) * nest.index()))
        at = tj.coord(nest.index(), 0), tj.shape(1, columns)
        out(*at).store(x[at] + row[tj.coord(0), tj.shape(columns)])

    return out


@pytest.mark.parametrize(
    ("kernel", "shape"), [(vector_scope, (8, 16)), (too_large, (512, 512)), (array_inside, (8, 16))]
)
def test_what_triton_refuses_is_xla(kernel, shape):
    x = jax.ShapeDtypeStruct(shape, np.float32)
    with gpu():
        assert launches(tj.jit(kernel), x) == 0
        with pytest.raises(tj.UnsupportedError):
            launches(tj.jit(kernel, backend="triton"), x)


def test_a_batch_of_symbolic_size_is_refused_by_triton():
    b = export.symbolic_shape("b")[0]
    batch = jax.ShapeDtypeStruct((b, 4, 8), jnp.float32)
    mapped = jax.jit(jax.vmap(tj.jit(kernels.softmax, backend="triton")))
    with gpu(), pytest.raises(tj.UnsupportedError, match="symbolic batch size"):
        export.export(mapped, platforms=["cuda"])(batch)


def test_no_tracer_outlives_its_trace():
    with jax.checking_leaks(), gpu():
        assert launches(tj.jit(kernels.layernorm), X) == 1
