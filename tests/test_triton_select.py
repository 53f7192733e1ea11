"""Sorts of long rows and selections from them, in Pallas's interpreter: every value and index, against
NumPy's stable sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_triton import interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import bitonic, launch, merges, sorting
from tilejax.ir.jaxprs import equations

F32 = np.float32


@pytest.fixture
def search(monkeypatch):
    """Rows of any length are searched."""
    monkeypatch.setattr(sorting, "_LONG", 2)
    monkeypatch.setattr(sorting, "_FEW", 1)
    monkeypatch.setattr(bitonic, "selected", _sorted_outside)


@pytest.fixture
def blocks(monkeypatch):
    """Rows of more than 8 are sorted in blocks of 8, and so are those that many are selected from."""
    monkeypatch.setattr(merges, "BLOCK", 8)
    monkeypatch.setattr(sorting, "searches", lambda n, k, streams: False)


@pytest.fixture(params=["held", "in pieces"])
def rows(request, monkeypatch):
    """Rows are held, or go through in pieces of 16, or the test fails."""
    if request.param == "held":
        monkeypatch.setattr(launch, "rows_of", lambda eqn: None)
    else:
        monkeypatch.setattr(launch, "rows_of", _rows_of)
        monkeypatch.setattr(launch, "Kernel", None)


def _sorted_outside(arrays, k):
    """What the network gives: compiling one for a CPU takes minutes."""
    out = jax.lax.sort(arrays, num_keys=len(arrays))
    return [x[..., :k] for x in out]


def _rows_of(eqn):
    tiles = [v.aval.shape for e in equations(eqn.params["body"].jaxpr.eqns) for v in e.outvars]
    return max((n for shape in tiles for n in shape), default=0), 16


def best(x, k, largest=True):
    """Indices of the first `k` along the last axis: NaN is greatest, equal ones go by index."""
    _, ranks = np.unique(np.where(np.isnan(x), np.nan, x) + 0, return_inverse=True)
    ranks = ranks.reshape(x.shape)
    return np.argsort(-ranks if largest else ranks, -1, kind="stable")[..., :k]


def check(got, x, k, largest=True):
    values, indices = map(np.asarray, got)
    if x.dtype.itemsize < 8:
        values, x = values.astype(np.float64), x.astype(np.float64)
    want = best(x, k, largest)
    np.testing.assert_array_equal(indices, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


ROWS = {
    "normal": lambda x: x,
    "ties": np.round,
    "same": np.ones_like,
    "up": lambda x: np.sort(x, -1),
    "down": lambda x: -np.sort(-x, -1),
    "by place": lambda x: np.where(np.arange(x.shape[-1]) % 16 == 3, 100 * np.sign(x) + x, x),  # of pieces
    "far": lambda x: np.where(x > 1, np.inf, np.where(x < -1, -np.inf, np.nan)),
    "zeros": lambda x: np.where(x > 0, 0.0, -0.0),
}


@pytest.mark.usefixtures("search", "rows")
@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_every_kind(largest):
    normal = np.random.default_rng(0).standard_normal((1, 1003))
    x = np.concatenate([make(normal) for make in ROWS.values()]).astype(F32)
    check(interpreted(kernels.top_k, x, k=5, largest=largest, block_rows=1), x, 5, largest)


DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint32, np.int32, np.float16, jnp.bfloat16]


@pytest.mark.usefixtures("search", "rows")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_dtype(dtype):
    x = (np.random.default_rng(1).standard_normal((2, 77)) * 1e9).astype(np.int64).astype(np.int32)
    x = x.view(F32) if jnp.issubdtype(dtype, np.floating) else x
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    for largest in (True, False):
        check(interpreted(kernels.top_k, x, k=4, largest=largest, block_rows=1), x, 4, largest)


@pytest.mark.usefixtures("search", "rows")
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint64])
def test_keys_of_eight_bytes(dtype):
    bits = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, (2, 77))
    bits[:, ::7] = bits[:, 3:4]
    with jax.enable_x64(True):
        x = bits.view(dtype)
        for largest in (True, False):
            check(interpreted(kernels.top_k, x, k=6, largest=largest, block_rows=1), x, 6, largest)


@pytest.mark.usefixtures("search", "rows")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(17, 90), st.integers(0, 16), st.integers(1, 3), st.integers(1, 99), st.booleans())
def test_any_shape(n, k, rows, distinct, largest):
    x = np.random.default_rng(n).integers(0, distinct, (rows, n)).astype(F32)
    check(interpreted(kernels.top_k, x, k=k, largest=largest, block_rows=rows), x, k, largest)


@pytest.mark.usefixtures("search", "rows")
def test_one_and_none():
    x = np.random.default_rng(5).standard_normal((3, 20)).astype(F32)
    check(interpreted(kernels.top_k, x, k=1, block_rows=1), x, 1)
    check(interpreted(kernels.top_k, x, k=0, block_rows=1), x, 0)


@pytest.mark.usefixtures("search")
def test_all_of_a_row():
    x = np.round(np.random.default_rng(3).standard_normal((2, 37))).astype(F32)
    check(interpreted(kernels.top_k, x, k=37), x, 37)


@pytest.mark.usefixtures("search")
def test_of_computed_tiles_in_a_loop():
    """Several leading dimensions, and an axis that is not the last; steps share their scratch memory."""
    a, b, n, k = tj.axis("a", 3), tj.axis("b", 2), tj.axis("n", 40), tj.axis("k", 3)

    def kernel(x, y):
        across, along = tj.output((4, 3, 3, 2), np.int32), tj.output((4, 3, 2, 3), np.int32)

        @tj.parallel(2)
        def _(nest: tj.Nest):
            @nest.serial(2)
            def _(step):
                at = nest.index() * 2 + step.index()
                middle = x[tj.coord(at, 0, 0, 0), tj.shape(1, a, n, b)] * 2.0 - 1.0
                end = y[tj.coord(at, 0, 0, 0), tj.shape(1, a, b, n)] * 2.0 - 1.0
                across(tj.coord(at, 0, 0, 0), tj.shape(1, a, k, b)).store(tj.top_k(middle, n, k)[1])
                along(tj.coord(at, 0, 0, 0), tj.shape(1, a, b, k)).store(tj.top_k(end, n, k)[1])

        return across, along

    x = np.round(np.random.default_rng(4).standard_normal((4, 3, 40, 2)) * 3).astype(F32)
    y = np.ascontiguousarray(np.swapaxes(x, 2, 3))
    across, along = interpreted(kernel, x, y)
    np.testing.assert_array_equal(along, best(y, 3))
    np.testing.assert_array_equal(np.swapaxes(across, 2, 3), best(y, 3))


@pytest.mark.usefixtures("blocks", "rows")
@pytest.mark.parametrize("descending", [False, True])
def test_sorts_of_every_kind(descending):
    normal = np.random.default_rng(0).standard_normal((1, 83))
    x = np.concatenate([make(normal) for make in ROWS.values()]).astype(F32)
    check(interpreted(kernels.sort, x, descending=descending, block_rows=2), x, 83, descending)


@pytest.mark.usefixtures("blocks", "rows")
@pytest.mark.parametrize("n", [9, 16, 17, 64])
def test_sorts_of_every_length(n):
    x = np.random.default_rng(n).integers(-9, 9, (3, n)).astype(np.int8)
    check(interpreted(kernels.sort, x, block_rows=1), x, n, False)


@pytest.mark.usefixtures("blocks", "rows")
@pytest.mark.parametrize("dtype", [np.float64, np.uint64])
def test_sorts_of_eight_bytes(dtype):
    x = np.random.default_rng(2).integers(-(2**63), 2**63 - 1, (2, 40)).view(dtype)
    x[:, ::7] = x[:, 3:4]
    with jax.enable_x64(True):
        check(interpreted(kernels.sort, x, block_rows=1), x, 40, False)


@pytest.mark.usefixtures("blocks", "rows")
@pytest.mark.parametrize("k", [20, 37])
def test_many_of_a_row(k):
    x = np.round(np.random.default_rng(3).standard_normal((3, 37))).astype(F32)
    check(interpreted(kernels.top_k, x, k=k, block_rows=1), x, k)


@pytest.mark.usefixtures("blocks")
def test_two_sorts_in_a_loop():
    """Steps share their scratch memory, and what is sorted goes on to other work."""
    n = tj.axis("n", 40)

    def kernel(x, y):
        out, rank = tj.output_like(x), tj.output(x.shape, np.int32)

        @tj.parallel(1)
        def _(nest: tj.Nest):
            @nest.serial(2)
            def _(step):
                here = tj.coord(step.index(), 0), tj.shape(1, n)
                a, b = (tj.sort(view[here], n) for view in (x, y))
                out(*here).store(a[0] * 100.0 + b[0])
                rank(*here).store(a[1] * 100 + b[1])

        return out, rank

    x, y = np.round(np.random.default_rng(6).standard_normal((2, 2, 40)) * 3).astype(F32)
    a, b = best(x, 40, False), best(y, 40, False)
    out, rank = interpreted(kernel, x, y)
    np.testing.assert_array_equal(rank, a * 100 + b)
    np.testing.assert_array_equal(out, np.take_along_axis(x, a, -1) * 100 + np.take_along_axis(y, b, -1))
