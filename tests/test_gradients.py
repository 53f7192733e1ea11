"""Reverse mode of the kernels that bring their own: the cotangents of all arguments against `jnp` in float64,
rounded once to the dtype of the argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from kernel_cases import FLOATS, close, i32, normal

from tests import jnp_reference as reference
from tilejax import kernels

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Each program runs once: it is the compilation that takes time."""
Function = Callable[..., Any]


def vjp(f: Function, args: Any, cotangents: Any) -> Any:
    """The cotangents of `args`, compiled."""
    return jax.jit(lambda args, ct: jax.vjp(f, *args)[1](ct), compiler_options=QUICK)(args, cotangents)


def f64(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def check(ours: Function, theirs: Function, args: Any, slack: float = 64.0, units: float = 0.0) -> None:
    """Both have the same cotangents. `slack` is in float32 epsilons of the largest magnitude, `units` in
    those of the dtype."""
    out = jax.eval_shape(theirs, *args)
    ct = jax.tree.map(lambda x: normal(*x.shape, dtype=x.dtype, seed=9), out)
    with jax.enable_x64(True):
        want = jax.tree.map(np.asarray, vjp(theirs, f64(args), f64(ct)))
    for got, wanted, x in zip(vjp(ours, args, ct), want, args, strict=True):
        eps = float(ml_dtypes.finfo(x.dtype).eps) / float(np.finfo(np.float32).eps)
        close(got, wanted, x.dtype, (slack + units * eps) * max(np.abs(wanted).max(initial=0), 1.0))


@dataclass(frozen=True)
class Case:
    """A kernel, the same in `jnp`, the shapes of its arguments for a matrix of a shape, and small blocks."""

    kernel: Function
    jnp: Function
    args: Callable[[int, int], list[tuple[int, ...]]]
    blocks: dict[str, int]
    runs: tuple[str, ...]
    """The kernels of its gradient."""


_TILES, _ROWS = {"block_rows": 8, "block_cols": 16}, {"block_rows": 3}
CASES = {
    "gemm": Case(
        kernels.gemm,
        jnp.matmul,
        lambda m, n: [(m, 19), (19, n)],
        {"block_m": 8, "block_n": 16, "block_k": 4},
        ("gemm", "product", "product"),
    ),
    "softmax": Case(
        kernels.softmax, jax.nn.softmax, lambda m, n: [(m, n)], _ROWS, ("softmax", "softmax_backward")
    ),
    "layernorm": Case(
        kernels.layernorm,
        reference.layernorm,
        lambda m, n: [(m, n)],
        _ROWS,
        ("layernorm", "layernorm_backward"),
    ),
    "rmsnorm": Case(
        kernels.rmsnorm, reference.rmsnorm, lambda m, n: [(m, n)], _ROWS, ("rmsnorm", "rmsnorm_backward")
    ),
    "residual_layernorm": Case(
        kernels.residual_layernorm,
        lambda x, residual: reference.layernorm(x + residual),
        lambda m, n: [(m, n), (m, n)],
        _ROWS,
        ("residual_layernorm", "layernorm_backward"),
    ),
    "bias_gelu_residual": Case(
        kernels.bias_gelu_residual,
        reference.bias_gelu_residual,
        lambda m, n: [(m, n), (n,), (m, n)],
        _TILES,
        ("bias_gelu_residual", "bias_gelu_backward"),
    ),
    "cumsum": Case(
        kernels.cumsum,
        lambda x: jnp.cumsum(x, -1),
        lambda m, n: [(m, n)],
        _TILES,
        ("cumsum", "reverse_cumsum"),
    ),
}


def inputs(case: Case, shape: tuple[int, int], dtype: Any) -> list[np.ndarray]:
    return [normal(*s, dtype=dtype, seed=i) for i, s in enumerate(case.args(*shape))]


@pytest.mark.parametrize("name", CASES)
class TestMatrices:
    @pytest.mark.parametrize("shape", [(1, 1), (1, 33), (17, 1), (17, 33)], ids=str)
    def test_shapes(self, name, shape):
        case = CASES[name]
        check(case.kernel, case.jnp, inputs(case, shape, np.float32))

    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    def test_ragged_blocks(self, name, dtype):
        case = CASES[name]
        args = inputs(case, (17, 33), dtype)
        check(lambda *args: case.kernel(*args, **case.blocks), case.jnp, args)

    @pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
    def test_empty(self, name, shape):
        case = CASES[name]
        args = inputs(case, shape, np.float32)
        out = jax.eval_shape(case.kernel, *args)
        for got, x in zip(vjp(case.kernel, args, jnp.ones(out.shape, out.dtype)), args, strict=True):
            np.testing.assert_array_equal(got, np.zeros_like(x))

    def test_runs_its_own_kernels(self, name):
        case = CASES[name]
        assert kernels_of(case.kernel, inputs(case, (17, 33), np.float32)) == sorted(case.runs)


def kernels_of(f: Function, args: Any) -> list[str]:
    """The kernels in the gradient of `f`, by name; and `derivative` for each one that is not a kernel."""

    def loss(*args: Any) -> Any:
        return sum((x**2).sum() for x in jax.tree.leaves(f(*args)) if jnp.issubdtype(x.dtype, jnp.floating))

    smooth = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sorted(_names(jax.make_jaxpr(jax.grad(loss, argnums=smooth))(*args).jaxpr))


def _names(jaxpr: Any) -> list[str]:
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("jit", "pjit"):
            found += _names(eqn.params["jaxpr"].jaxpr)
        elif eqn.primitive.name.startswith("tile_"):
            found.append(eqn.params.get("name", "derivative"))
    return found


@pytest.mark.parametrize("name", ["softmax", "layernorm", "rmsnorm", "cumsum", "bias_gelu_residual"])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)], ids=str)
def test_other_ranks(name, shape):
    case = CASES[name]
    args = [normal(*shape)] if name != "bias_gelu_residual" else [normal(*shape), normal(5), normal(*shape)]
    check(case.kernel, case.jnp, args)


def test_rows_longer_than_a_block():
    check(kernels.cumsum, lambda x: jnp.cumsum(x, -1), [normal(2, 9001)], slack=9001)
    check(
        kernels.bias_gelu_residual,
        reference.bias_gelu_residual,
        [normal(300, 200), normal(200), normal(300, 200)],
    )


class TestMixedDtypes:
    """Each argument gets its own dtype, from sums in float32."""

    def test_gemm_with_a_wider_result(self):
        args = [normal(5, 7, dtype=ml_dtypes.bfloat16), normal(7, 3, dtype=ml_dtypes.bfloat16, seed=1)]
        check(
            lambda a, b: kernels.gemm(a, b, out_dtype=jnp.float32),
            lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.promote_types(a.dtype, np.float32)),
            args,
        )

    def test_residual_layernorm(self):
        args = [normal(5, 7), normal(5, 7, dtype=ml_dtypes.bfloat16, seed=1)]
        check(kernels.residual_layernorm, lambda x, r: reference.layernorm(x + r), args)

    def test_bias_gelu_residual(self):
        args = [normal(5, 7, dtype=np.float16), normal(7, seed=1), normal(5, 7, dtype=np.float16, seed=2)]
        check(
            kernels.bias_gelu_residual,
            lambda x, bias, r: reference.bias_gelu_residual(x, bias, r).astype(x.dtype),
            args,
        )

    def test_gemm_of_integers_has_none(self):
        a = np.ones((2, 3), np.int8)
        out, pull = jax.vjp(kernels.gemm, a, a.T)
        assert all(ct.dtype == jax.dtypes.float0 for ct in pull(np.zeros(out.shape, jax.dtypes.float0)))


def test_the_last_bits_of_a_sum_are_kept():
    """4096 times 1 in bfloat16 stops at 256 if the sum is rounded on the way."""
    x, ones = np.zeros((4096, 1), ml_dtypes.bfloat16), np.ones((4096, 1), ml_dtypes.bfloat16)
    _, dbias, _ = vjp(kernels.bias_gelu_residual, [x, np.zeros(1, ml_dtypes.bfloat16), x], ones)
    assert float(dbias[0]) == 2048
    da, _ = vjp(
        kernels.gemm, [ones.T, np.ones((1, 4096), ml_dtypes.bfloat16).T], np.ones((1, 1), ml_dtypes.bfloat16)
    )
    assert np.all(np.asarray(da) == 1)
    (dx,) = vjp(kernels.cumsum, [x.T], ones.T)
    assert float(dx[0, 0]) == 4096


class TestCrossEntropy:
    LABELS = i32([3, 0, -1, 8, 7, 2**31 - 1, 5])

    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    @pytest.mark.parametrize("blocks", [{}, {"block_rows": 3}], ids=["default", "ragged"])
    def test_losses_and_gradient(self, dtype, blocks):
        check(
            lambda x: kernels.sparse_cross_entropy(x, self.LABELS, **blocks),
            lambda x: reference.sparse_cross_entropy(x, self.LABELS),
            [normal(7, 8, dtype=dtype)],
        )

    @pytest.mark.parametrize("part", [0, 1], ids=["losses", "gradient"])
    def test_one_of_them(self, part):
        check(
            lambda x: kernels.sparse_cross_entropy(x, self.LABELS)[part],
            lambda x: reference.sparse_cross_entropy(x, self.LABELS)[part],
            [normal(7, 8)],
        )

    def test_a_label_outside_gets_zero(self):
        logits = normal(7, 8)
        logits[2] = np.nan
        (dx,) = vjp(
            lambda x: kernels.sparse_cross_entropy(x, self.LABELS),
            [logits],
            (np.ones(7, np.float32), logits * 0 + 1),
        )
        np.testing.assert_array_equal(np.asarray(dx)[[2, 3, 5]], np.zeros((3, 8)))
        assert np.isfinite(np.delete(dx, 2, 0)).all()

    @pytest.mark.parametrize("shape", [(0, 5), (3, 0), (1, 1)], ids=str)
    def test_small(self, shape):
        (dx,) = vjp(
            lambda x: kernels.sparse_cross_entropy(x, np.zeros(shape[0], np.int32))[0],
            [np.ones(shape, np.float32)],
            np.ones(shape[0], np.float32),
        )
        np.testing.assert_array_equal(dx, np.zeros(shape))

    def test_runs_its_own_kernel(self):
        found = kernels_of(kernels.sparse_cross_entropy, [normal(7, 8), self.LABELS])
        assert found == ["sparse_cross_entropy", "sparse_cross_entropy_backward"]


class TestSegments:
    IDS = i32([1, 0, 3, 1, -1, 6, 0, 2**31 - 1])

    @pytest.mark.parametrize("features", [(), (3,), (2, 3)], ids=str)
    @pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
    def test_values(self, features, dtype):
        check(
            lambda v: kernels.segment_sum(self.IDS, v, 6, block_items=3)[0],
            lambda v: reference.segment_sum(self.IDS, v, 6)[0],
            [normal(8, *features, dtype=dtype)],
            slack=0,
        )

    def test_what_counts_nowhere_gets_exactly_zero(self):
        """Also where the cotangent of a segment, empty or not, is NaN."""
        ct = np.full((6, 2), np.nan, np.float32)
        ct[[0, 1, 3]] = 1
        (dv,) = vjp(lambda v: kernels.segment_sum(self.IDS, v, 6)[0], [normal(8, 2)], ct)
        want = np.ones((8, 2))
        want[[4, 5, 7]] = 0
        np.testing.assert_array_equal(dv, want)

    @pytest.mark.parametrize(("items", "segments"), [(0, 3), (3, 0), (0, 0)], ids=str)
    def test_empty(self, items, segments):
        ids = np.zeros(items, np.int32)
        (dv,) = vjp(
            lambda v: kernels.segment_sum(ids, v, segments)[0],
            [normal(items, 2)],
            np.ones((segments, 2), np.float32),
        )
        np.testing.assert_array_equal(dv, np.zeros((items, 2)))

    def test_runs_its_own_kernel(self):
        found = kernels_of(lambda ids, v: kernels.segment_sum(ids, v, 6), [self.IDS, normal(8, 2)])
        assert found == ["segment_sum", "take_segments"]


GEOMETRIES = [
    {},
    {"padding": 1},
    {"stride": 2, "padding": (2, 1)},
    {"dilation": (2, 1), "padding": 2},
    {"stride": (3, 2), "padding": 1, "dilation": 2, "relu": True},
    {"padding": 3, "stride": 4},
]


def conv(x, w, bias=None, *, stride=1, padding=0, dilation=1, relu=False):
    def two(v):
        return v if isinstance(v, tuple) else (v, v)

    y = jax.lax.conv_general_dilated(
        x,
        w,
        two(stride),
        [(p, p) for p in two(padding)],
        rhs_dilation=two(dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    y = y if bias is None else y + bias
    return jax.nn.relu(y) if relu else y


class TestConvolution:
    @pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
    @pytest.mark.parametrize("blocks", [{}, {"block_rows": 2, "block_cols": 3}], ids=["default", "ragged"])
    def test_geometry(self, geometry, blocks):
        args = [normal(2, 9, 8, 3), normal(3, 2, 3, 4, seed=1), normal(4, seed=2)]
        check(lambda *a: kernels.conv2d(*a, **geometry, **blocks), lambda *a: conv(*a, **geometry), args)

    @pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda d: np.dtype(d).name)
    def test_dtypes(self, dtype):
        args = [
            normal(2, 5, 6, 3, dtype=dtype),
            normal(3, 3, 3, 4, dtype=dtype, seed=1),
            normal(4, dtype=dtype),
        ]
        check(lambda *a: kernels.conv2d(*a, padding=1), lambda *a: conv(*a, padding=1), args)

    @pytest.mark.parametrize(
        ("x", "w"),
        [((1, 1, 1, 1), (1, 1, 1, 1)), ((1, 4, 4, 1), (4, 4, 1, 1)), ((3, 5, 1, 2), (2, 1, 2, 1))],
        ids=str,
    )
    def test_small_without_bias(self, x, w):
        check(kernels.conv2d, conv, [normal(*x), normal(*w, seed=1)])

    @pytest.mark.parametrize(
        ("x", "w"),
        [
            ((0, 4, 4, 2), (2, 2, 2, 3)),
            ((2, 1, 1, 2), (3, 3, 2, 3)),
            ((1, 4, 4, 0), (2, 2, 0, 3)),
            ((1, 4, 4, 2), (2, 2, 2, 0)),
        ],
        ids=["no image", "no place", "no input channel", "no output channel"],
    )
    def test_empty(self, x, w):
        args = [normal(*x), normal(*w), normal(w[3])]
        out = jax.eval_shape(kernels.conv2d, *args)
        dx, dw, dbias = vjp(kernels.conv2d, args, jnp.ones(out.shape, out.dtype))
        np.testing.assert_array_equal(dx, np.zeros(x))
        np.testing.assert_array_equal(dw, np.zeros(w))
        np.testing.assert_array_equal(dbias, np.full(w[3], np.prod(out.shape[:3])))

    def test_relu_has_no_slope_at_zero(self):
        """As `jax.nn.relu`, in forward mode too."""
        x, w = np.zeros((1, 2, 2, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
        relu = lambda x: kernels.conv2d(x, w, relu=True)  # noqa: E731
        np.testing.assert_array_equal(vjp(relu, [x], x + 1)[0], np.zeros_like(x))
        np.testing.assert_array_equal(jax.jvp(relu, (x,), (x + 1,))[1], np.zeros_like(x))

    def test_runs_its_own_kernels(self):
        args = [normal(2, 5, 6, 3), normal(3, 3, 3, 4), normal(4)]
        three = ["column_sum", "conv2d", "conv2d_filters_backward", "conv2d_image_backward"]
        assert kernels_of(lambda *a: kernels.conv2d(*a, stride=2), args) == three
        assert kernels_of(lambda *a: kernels.conv2d(*a, relu=True), args) == sorted([*three, "relu_backward"])
