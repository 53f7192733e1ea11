"""What is refused on Metal platforms, and how that is said; platforms, profiles and derivatives."""

from __future__ import annotations

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracle
import pytest
from emulate import PLATFORMS, check_module, emulated, lowered
from jax import export, lax
from kernel_cases import close, normal
from metal_cases import KERNELS

import tilejax as tj
from tilejax import kernels
from tilejax.backends.metal.gate import check_operations
from tilejax.backends.metal.profiles import PROFILES

X = normal(3, 5)


def test_metal_without_a_device_is_an_error():
    """JAX itself would run on the CPU and say nothing."""
    message = r'kernel softmax: backend "metal" needs a device of platform METAL.*for cpu.*\n  at .*:\d+'
    with pytest.raises(tj.UnsupportedError, match=message):
        tj.jit(kernels.softmax, backend="metal")(X)
    for kernel in (_scaled, kernels.copy):  # one without a backward kernel, and one of which only that runs
        fn = jax.jit(jax.grad(lambda x, kernel=kernel: tj.jit(kernel, backend="metal")(x).sum()))
        with pytest.raises(
            tj.UnsupportedError, match='derivative of a kernel: backend "metal" needs a device'
        ):
            fn(X)


def _scaled(x):
    y, (r, c) = tj.output_like(x), (tj.axis("r", 3), tj.axis("c", 5))

    @tj.parallel(1)
    def _(nest):
        y(tj.coord(0, 0), tj.shape(r, c)).store(x[tj.coord(0, 0), tj.shape(r, c)] * 2)

    return y


@pytest.mark.parametrize("backend", ["auto", "metal"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_lowers_without_a_device(platform, backend):
    fn = tj.jit(kernels.cumsum, backend=backend)
    check_module(str(fn.trace(X).lower(lowering_platforms=(platform,)).compiler_ir()))


def test_several_platforms_share_the_metal_form():
    exported, _ = lowered(kernels.cumsum, X, platforms=("cpu", "METAL", "mps"))
    check_module(exported.mlir_module())
    np.testing.assert_allclose(exported.call(X), oracle.cumsum(X), rtol=1e-6, atol=1e-6)
    wide = X.astype(ml_dtypes.bfloat16)
    with pytest.raises(tj.UnsupportedError, match=r'tile_mma .*bfloat16.*"jax-metal"'):
        lowered(kernels.gemm, wide, wide.T, platforms=("mps", "METAL"))  # the stricter of the two


def test_profiles():
    def strict(x, y):
        return tj.jit(kernels.gemm, compiler_params={"profile": "jax-metal"})(x, y)

    wide = X.astype(ml_dtypes.bfloat16)
    with pytest.raises(tj.UnsupportedError, match=r'bfloat16.*"jax-metal"'):
        lowered(strict, wide, wide.T, platforms="mps")
    loose = tj.jit(kernels.softmax, compiler_params={"profile": "mlx"})
    with pytest.raises(tj.UnsupportedError, match=r'profile "mlx" was asked for, but .* platform METAL'):
        lowered(loose, X)


def test_short_operands_are_widened_before_a_product():
    text = lowered(kernels.gemm, X.astype(np.float16), X.T.astype(np.float16))[0].mlir_module()
    dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert dots
    assert not any("f16" in dot for dot in dots)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_refused_at_the_users_line(dtype):
    x = X.astype(dtype)
    message = (
        rf"kernel gemm: tile_load of {dtype}, but .*\n  at .*matmul.py:\d+ in .*, called from {__file__}"
    )
    with pytest.raises(tj.UnsupportedError, match=message):
        export.export(kernels.gemm, platforms=["METAL"])(x, x.T)


def test_float64_is_refused_at_the_users_line():
    with jax.enable_x64(True):
        message = r"kernel softmax: .* of float64, .*has no float64.*\n  at .*:\d+"
        with pytest.raises(tj.UnsupportedError, match=message):
            lowered(kernels.softmax, X.astype(np.float64))
        for name in ("sort", "segment_sum", "flash_attention", "sparse_cross_entropy"):
            KERNELS[name](emulated, np.float32)


def test_operations_without_a_form_are_refused_at_the_users_line():
    def gamma(x, s):
        y = tj.output((1,), x.dtype)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(0), tj.shape(1)).store(tj.full(tj.shape(1), lax.lgamma(s)))

        return y

    line = inspect.getsourcelines(gamma)[1] + 5
    message = rf"kernel gamma: lgamma of float32.*no such operation\n  at {__file__}:{line} in"
    with pytest.raises(tj.UnsupportedError, match=message):
        lowered(tj.jit(gamma), X, np.float32(2))


def test_a_symbolic_batch_is_refused():
    (b,) = export.symbolic_shape("b")
    batch = jax.ShapeDtypeStruct((b, 3, 5), np.float32)
    with pytest.raises(
        tj.UnsupportedError, match="a batch of symbolic size, but Metal's plugins take static"
    ):
        export.export(jax.jit(jax.vmap(kernels.softmax)), platforms=["METAL"])(batch)


def test_scopes_and_memory():
    def scoped(x, scope):
        y, (r, c) = tj.output_like(x), (tj.axis("r", 3), tj.axis("c", 5))

        @tj.parallel(1, scope=scope)
        def _(nest):
            y(tj.coord(0, 0), tj.shape(r, c)).store(x[tj.coord(0, 0), tj.shape(r, c)])

        return y

    run = tj.jit(scoped, static_argnames="scope")
    np.testing.assert_array_equal(emulated(run)(X, scope=tj.Scope.GROUP), X)
    with pytest.raises(tj.UnsupportedError, match="scope VECTOR, which backend metal does not have"):
        lowered(run, X, scope=tj.Scope.VECTOR)
    big = normal(256, 256)
    with pytest.raises(tj.UnsupportedError, match=r"bytes of SHARED, but backend metal has 32768"):
        lowered(kernels.manual_gemm, big, big, block_m=128, block_n=128, block_k=64)


def faults(fn, *args, profile="mlx"):
    """What the gate says of `fn` as JAX itself lowers it."""
    module: Any = jax.jit(fn).trace(*args).lower(lowering_platforms=("METAL",)).compiler_ir()
    with pytest.raises(tj.UnsupportedError) as error:
        check_operations(module.body.operations, module, PROFILES[profile], "a test")
    return str(error.value)


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x.at[np.array([1, 1])].add(1), "stablehlo.scatter of float32, int32 is not in the white"),
        (lambda x: jnp.cumsum(x, 1), "stablehlo.reduce_window of float32 is not in the whitelist"),
        (lax.erf, "chlo.erf of float32 is not in the whitelist"),
        (lambda x: jnp.argmax(x, 1), "stablehlo.reduce of .* reduces more than one array"),
        (lambda x: x[None, None, None].sum((0, 1)), "reduces an array of rank 5"),
        (lambda x: jnp.sort(x), "sorts floats"),
        (lambda x: x[np.array([1, 2]), np.array([2, 3])], "is not of the rows of a matrix"),
        (lambda x: x.astype(jnp.float8_e5m2), "f8E5M2"),
        (lambda x: x + 1j, "complex<f32>"),
    ],
    ids=["scatter", "scan", "chlo", "argmax", "rank 5", "sort", "gather", "float8", "complex"],
)  # fmt: skip
def test_the_gate_on_modules(fn, said):
    assert re.search(said, faults(fn, X))


def test_the_gate_on_products():
    wide = X.astype(ml_dtypes.bfloat16)
    assert "dot_general of bfloat16 is not in the whitelist for bfloat16" in faults(
        lambda x: x @ x.T, wide, profile="jax-metal"
    )


def test_derivatives():
    """Also of a kernel without a backward kernel of its own, in forward and reverse mode, and under vmap."""

    def loss(x):
        return (tj.jit(_square)(x) ** 2).sum()

    want = 4 * X.astype(np.float64) ** 3
    np.testing.assert_allclose(emulated(jax.grad(loss))(X), want, rtol=1e-6)
    np.testing.assert_allclose(
        emulated(lambda x: jax.jvp(loss, (x,), (x,))[1])(X), (want * X).sum(), rtol=1e-5
    )
    both = np.stack([X, -X])
    np.testing.assert_allclose(emulated(jax.vmap(jax.grad(loss)))(both), np.stack([want, -want]), rtol=1e-6)
    ids, values = np.int32([0, 2, 0, 5]), normal(4)
    got = emulated(jax.grad(lambda v: (kernels.segment_sum(ids, v, 3)[0] ** 2).sum()))(values)
    sums = oracle.segment_sum(ids, values, 3)[0]
    close(got, [2 * sums[0], 2 * sums[2], 2 * sums[0], 0], np.float32, 8)


SMOOTH = {
    "exp": np.exp,
    "exp2": lambda x: np.log(2) * 2**x,
    "expm1": np.exp,
    "log": lambda x: 1 / x,
    "log2": lambda x: 1 / (x * np.log(2)),
    "log1p": lambda x: 1 / (1 + x),
    "sqrt": lambda x: 0.5 / np.sqrt(x),
    "rsqrt": lambda x: -0.5 * x**-1.5,
    "tanh": lambda x: 1 - np.tanh(x) ** 2,
    "sin": np.cos,
    "cos": lambda x: -np.sin(x),
    "erf": lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x),
    "sigmoid": lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2,
}


def test_derivatives_of_elementwise_functions():
    """In every version JAX's rules use the primitives that they like."""

    def each(x):
        n = tj.axis("n", x.shape[0])
        outs = [tj.output_like(x) for _ in SMOOTH]

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0), tj.shape(n)]
            for name, out in zip(SMOOTH, outs, strict=True):
                out(tj.coord(0), tj.shape(n)).store(getattr(tj, name)(tile))

        return outs

    x = np.linspace(0.1, 2, 9).astype(np.float32)
    one = np.ones_like(x)
    got = emulated(lambda x: jax.jvp(tj.jit(each), (x,), (one,))[1])(x)

    def gradients(x):
        _, pull = jax.vjp(tj.jit(each), x)
        return [pull([one * (i == j) for j in range(len(SMOOTH))])[0] for i in range(len(SMOOTH))]

    back = emulated(gradients)(x)
    for name, forward, reverse in zip(SMOOTH, got, back, strict=True):
        for found in (forward, reverse):
            np.testing.assert_allclose(found, SMOOTH[name](x.astype(np.float64)), rtol=1e-5, err_msg=name)


def _square(x):
    y, (r, c) = tj.output_like(x), (tj.axis("r", 3), tj.axis("c", 5))

    @tj.parallel(1)
    def _(nest):
        tile = x[tj.coord(0, 0), tj.shape(r, c)]
        y(tj.coord(0, 0), tj.shape(r, c)).store(tile * tile)

    return y


def test_an_ordered_sum_with_64_bits():
    """Its loop counts in int64 then, beside indices in int32."""

    def kernel(x):
        y, r, c = tj.output((2,), x.dtype), tj.axis("r", 2), tj.axis("c", 3)

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0, 0), tj.shape(r, c)]
            y(tj.coord(0), tj.shape(r)).store(tj.reduce(tile, c, tj.add, order="fold_left"))

        return y

    with jax.enable_x64(True):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(emulated(tj.jit(kernel, backend="metal"))(x), [3, 12])
