"""A maximum or minimum with a NaN is NaN, however large and wherever it goes: a library that XLA uses on the
CPU drops it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.test_structure import operations
from tilejax import kernels

SHAPES = [(1, 4095), (1, 4096), (4, 1024), (4096, 1), (3, 5000), (64, 64), (1000, 5), (2, 70_001)]


def spoiled(shape: tuple[int, int], dtype: str = "float32") -> tuple[jax.Array, np.ndarray]:
    """Numbers with a NaN of each sign in some rows, and which rows they are."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    rows = np.zeros(shape[0], bool)
    for sign in (1.0, -1.0):
        row, column = rng.integers(shape[0]), rng.integers(shape[1])
        x[row, column] = np.copysign(np.nan, sign)
        rows[row] = True
    return jnp.asarray(x, dtype), rows


def extrema(x: tj.TensorView, axes: str, op: str, steps: int = 1) -> tj.TensorView:
    """The maximum over rows, columns or both, in one reduction or folded over steps of columns."""
    rows, width = x.shape[0], tj.cdiv(x.shape[1], steps)
    r, c = tj.axis("r", rows), tj.axis("c", width)
    gone = {"columns": tj.shape(c), "rows": tj.shape(r), "both": tj.shape(r, c)}[axes]
    kept = tuple(a for a in (r, c) if a not in gone)
    y = tj.output(tuple(a.extent for a in kept) or (1,), x.dtype)
    combine, reduce = (tj.maximum, tj.max) if op == "max" else (tj.minimum, tj.min)
    worst = -jnp.inf if op == "max" else jnp.inf

    @tj.parallel(1)
    def _(nest):
        @nest.pipeline(tj.axis("steps", steps), carry=tj.full(tj.shape(*kept), worst, x.dtype))
        def found(step, found):
            tile = x(tj.coord(0, step.index() * width), tj.shape(r, c)).load(worst)
            return combine(found, reduce(tile, gone))

        shape = tj.shape(*kept) if kept else tj.shape(tj.axis("one", 1))
        y(tj.coord(*(0 for _ in y.shape)), shape).store(tj.broadcast_to(found, shape))

    return y


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("axes", ["columns", "rows", "both"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extrema_keep_nan(shape, axes, op):
    x, _ = spoiled(shape)
    want = getattr(np, op)(np.asarray(x), {"columns": 1, "rows": 0, "both": None}[axes])
    call = tj.jit(extrema, static_argnums=(1, 2, 3))
    np.testing.assert_array_equal(call(x, axes, op), np.reshape(want, -1))
    if axes == "columns":
        np.testing.assert_array_equal(call(x, axes, op, 2), want)


@pytest.mark.parametrize("width", [300, 2000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kernel", ["row_max", "row_min", "row_absmax", "softmax"])
def test_kernels_keep_nan(kernel, dtype, width):
    x, rows = spoiled((40, width), dtype)
    got = np.isnan(np.asarray(getattr(kernels, kernel)(x), np.float32)).reshape(40, -1)
    np.testing.assert_array_equal(got, np.broadcast_to(rows[:, None], got.shape))


@pytest.mark.parametrize("width", [300, 2000])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_infinities_make_no_nan(dtype, width):
    """Nor do elements whose sum of squares is beyond the greatest float."""
    x = np.array(jnp.asarray(np.random.default_rng(0).standard_normal((40, width)), dtype))
    x[::2, 7], x[::3, 8], x[::5], x[1::5] = np.inf, -np.inf, -np.inf, -jnp.finfo(dtype).max
    wide = x.astype(np.float64)
    for kernel, want in (("row_max", wide), ("row_min", -wide), ("row_absmax", abs(wide))):
        got = np.asarray(getattr(kernels, kernel)(jnp.asarray(x)), np.float64)
        np.testing.assert_array_equal(-got if kernel == "row_min" else got, want.max(1))


def test_with_64_bits():
    with jax.enable_x64(True):
        x = np.asarray(spoiled((8, 1000))[0], np.float64)
        call = tj.jit(extrema, static_argnums=(1, 2, 3))
        np.testing.assert_array_equal(call(x, "columns", "max"), x.max(1))


def rowwise(body):
    """A kernel of square tiles, a row block a program, that stores `body(tile, rows, columns)`."""

    def kernel(x):
        n, y = x.shape[1], tj.output_like(x)
        g, r, c = tj.axis("g", x.shape[0] // n), tj.axis("r", n), tj.axis("c", n)

        @tj.parallel(g)
        def _(nest):
            at = tj.coord(nest.index() * n, 0), tj.shape(r, c)
            y(*at).store(tj.broadcast_to(body(x[at], r, c), tj.shape(r, c)))

        return y

    return kernel


def of_rows(x, f):
    """`f(tile)` of each square tile, in NumPy."""
    n = x.shape[1]
    with np.errstate(all="ignore"):
        return np.concatenate([np.broadcast_to(f(t), t.shape) for t in np.split(x, x.shape[0] // n)])


def up(t):
    return t.max(1, keepdims=True)


USES = {
    "alone": (lambda t, r, c: tj.max(t, c), up),
    "difference": (lambda t, r, c: t - tj.max(t, c), lambda t: t - up(t)),
    "exponential": (lambda t, r, c: tj.exp(t - tj.max(t, c)), lambda t: np.exp(t - up(t))),
    "another": (lambda t, r, c: tj.exp(2 * t - tj.max(t, c)), lambda t: np.exp(2 * t - up(t))),
    "softmax": (
        lambda t, r, c: (e := tj.exp(t - tj.max(t, c))) / tj.sum(e, c),
        lambda t: np.exp(t - up(t)) / np.exp(t - up(t)).sum(1, keepdims=True),
    ),
    "logsumexp": (
        lambda t, r, c: tj.log(tj.sum(tj.exp(t - (m := tj.max(t, c))), c)) + m,
        lambda t: np.log(np.exp(t - up(t)).sum(1, keepdims=True)) + up(t),
    ),
    "masked": (
        lambda t, r, c: (e := tj.where(t > 0, tj.exp(t - tj.max(t, c)), 0)) / tj.sum(e, c),
        lambda t: (e := np.where(t > 0, np.exp(t - up(t)), 0)) / e.sum(1, keepdims=True),
    ),
    "wrong axis": (
        lambda t, r, c: (e := tj.exp(t - tj.max(t, c))) / tj.sum(e, r),
        lambda t: np.exp(t - up(t)) / np.exp(t - up(t)).sum(0, keepdims=True),
    ),
    "relabelled": (
        lambda t, r, c: t - tj.relabel(tj.max(t, c), tj.shape(c)),
        lambda t: t - t.max(1)[None, :],
    ),
    "transposed": (
        lambda t, r, c: tj.relabel(tj.transpose(t, tj.shape(c, r)), tj.shape(r, c)) - tj.max(t, c),
        lambda t: t.T - up(t),
    ),
    "both ways": (
        lambda t, r, c: tj.exp(t - tj.max(t, c)) / tj.sum(tj.exp(t - tj.max(t, r)), r),
        lambda t: np.exp(t - up(t)) / np.exp(t - t.max(0)).sum(0),
    ),
    "compared": (lambda t, r, c: tj.where(t == tj.max(t, c), 1.0, 0.0), lambda t: np.where(t == up(t), 1, 0)),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_made_of_a_maximum(use):
    body, formula = USES[use]
    x, _ = spoiled((192, 64))
    got = tj.jit(rowwise(body))(x)
    want = of_rows(np.asarray(x), formula)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_softmax_takes_the_quick_maximum():
    """Its sum has the NaN anyway: two plain reductions, nothing else."""
    found = operations(kernels.softmax, (128, 256))
    assert found["reduce"] == 2
    assert not set(found) & {"slice", "select", "compare"}
