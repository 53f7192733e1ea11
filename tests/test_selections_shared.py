"""Selections of few programs, shared between more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from test_triton import interpreted
from test_triton_select import ROWS, best, check
from test_triton_splits import traced

import tilejax as tj
from tilejax import kernels
from tilejax.backends import interpreter
from tilejax.backends.triton import lower
from tilejax.ir.verify import verify
from tilejax.transforms.selections import share_selections
from tilejax.transforms.simplify import simplify

F32 = np.float32


def parts(count, n):
    return lambda nest, eqn: count if eqn.invars[0].aval.shape[eqn.params["axis"]] == n else 1


def shared(kernel, *args, count, n, **options):
    """The kernel's results in the interpreter, its selection from `n` in parts: it must be shared."""
    program = traced(kernel, *args, **options)
    plain = simplify(program.program)
    rewritten = share_selections(plain, parts(count, n))
    assert rewritten is not plain
    verify(rewritten)
    return jax.tree.unflatten(program.results, interpreter.run(rewritten, program.operands))


def is_left(kernel, *args, n):
    plain = simplify(traced(kernel, *args).program)
    return share_selections(plain, parts(2, n)) is plain


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("k", "count", "block_rows"), [(1, 5, 1), (7, 4, 3), (12, 5, 2)])
def test_rows_of_every_kind(k, count, block_rows, largest):
    normal = np.random.default_rng(0).standard_normal((1, 60))
    x = np.concatenate([make(normal) for make in ROWS.values()]).astype(F32)
    got = shared(kernels.top_k, x, k=k, largest=largest, block_rows=block_rows, count=count, n=60)
    check(got, x, k, largest)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32, jnp.bfloat16])
def test_every_dtype(dtype):
    x = np.random.default_rng(1).integers(0, 9, (3, 24)).astype(dtype)
    check(shared(kernels.top_k, x, k=4, count=3, n=24), x, 4)


def masked(x, length):
    """Computed rows, of which only some places count, on a grid of two axes; the axis is not the last."""
    n, c, k = tj.axis("n", 24), tj.axis("c", 2), tj.axis("k", 3)
    out, index = tj.output((2, 3, 3, 2), F32), tj.output((2, 3, 3, 2), np.int32)

    rows, cols = tj.axis("rows", 2), tj.axis("cols", 3)

    @tj.parallel(rows, cols)
    def _(nest: tj.Nest):
        i, j = map(nest.index, (rows, cols))
        row = x[tj.coord(i, j, 0, 0), tj.shape(1, 1, n, c)] * 2.0
        stop = tj.lowlevel.load(length, j)
        kept = tj.where(tj.iota(n) < stop, row, -np.inf)
        values, places = tj.top_k(kept, n, k)
        there = tj.coord(i, j, 0, 0), tj.shape(1, 1, k, c)
        out(*there).store(values + stop.astype(F32))
        index(*there).store(places)

    return out, index


def test_of_computed_tiles():
    x = np.round(np.random.default_rng(2).standard_normal((2, 3, 24, 2)) * 3).astype(F32)
    length = np.array([2, 24, 13], np.int32)
    rows = np.swapaxes(np.where(np.arange(24)[:, None] < length[:, None, None], x * 2, -np.inf), 2, 3)
    order = best(rows, 3)
    for run in (shared(masked, x, length, count=4, n=24), interpreted(masked, x, length)):
        values, places = (np.swapaxes(a, 2, 3) for a in run)
        np.testing.assert_array_equal(places, order)
        np.testing.assert_array_equal(
            values, np.take_along_axis(rows, order, -1) + length[None, :, None, None]
        )


def test_through_triton(monkeypatch):
    monkeypatch.setattr(lower, "shares", parts(4, 60))
    x = np.round(np.random.default_rng(3).standard_normal((3, 60))).astype(F32)
    check(interpreted(kernels.top_k, x, k=3, block_rows=1), x, 3)


def test_what_has_to_see_whole_rows_is_left():
    n, k = tj.axis("n", 24), tj.axis("k", 3)

    def normal(x):
        out = tj.output((3, 3), F32)

        @tj.parallel(3)
        def _(nest: tj.Nest):
            row = x[tj.coord(nest.index(), 0), tj.shape(1, n)]
            out(tj.coord(nest.index(), 0), tj.shape(1, k)).store(tj.top_k(row - tj.max(row, n), n, k)[0])

        return out

    def stored(x):
        y, out = tj.update(x), tj.output((3, 3), F32)

        @tj.parallel(3)
        def _(nest: tj.Nest):
            here = y(tj.coord(nest.index(), 0), tj.shape(1, n))
            here.store(here.load() + 1.0)
            out(tj.coord(nest.index(), 0), tj.shape(1, k)).store(tj.top_k(here.load(), n, k)[0])

        return y, out

    x = np.zeros((3, 24), F32)
    assert is_left(normal, x, n=24)
    assert is_left(stored, x, n=24)


@pytest.mark.parametrize(("rows", "n", "launches"), [(8, 10**6, 2), (64, 131072, 2), (1024, 32000, 1)])
def test_few_long_rows_are_two_launches(rows, n, launches):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = tj.jit(kernels.top_k, backend="triton").trace(jax.ShapeDtypeStruct((rows, n), F32), 64)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @__gpu$xla.gpu.triton") == launches
