"""What outputs and updates hold, which arrays are views, arguments and results."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

X = normal(6, 7)
V = np.arange(1, 6, dtype=np.float32)


def test_outputs_hold_init_where_no_program_stores():
    init = normal(3, 4)

    def kernel(x):
        outs = {
            "zero": tj.output((3, 4), jnp.float32),
            "nan": tj.output((3, 4), jnp.float32, init=float("nan")),
            "int": tj.output((3, 4), jnp.int8, init=-3),
            "bool": tj.output((3, 4), jnp.bool_, init=True),
            "array": tj.output((3, 4), jnp.float32, init=init),
            "jax": tj.output((3, 4), jnp.float32, init=jnp.asarray(init)),
            "like": tj.output_like(x),
        }

        @tj.parallel(2)
        def _(nest):
            for out in outs.values():
                value = tj.full(tj.shape(1, 2), 1, out.dtype)
                out(tj.coord(nest.index(), 1), tj.shape(1, 2)).store(value)

        return outs, tj.output((2,), jnp.int32, init=9)

    def stored(base):
        base = np.array(base)
        base[:2, 1:3] = 1
        return base

    want = {
        "zero": stored(np.zeros((3, 4), np.float32)),
        "nan": stored(np.full((3, 4), np.nan, np.float32)),
        "int": stored(np.full((3, 4), -3, np.int8)),
        "bool": stored(np.ones((3, 4), np.bool_)),
        "array": stored(init),
        "jax": stored(init),
        "like": stored(np.zeros((5, 6), np.uint8)),
    }
    both(kernel, np.full((5, 6), 7, np.uint8), want=(want, np.array([9, 9], np.int32)))


def test_update_is_a_changed_copy_and_the_argument_stays():
    def kernel(x):
        y = tj.update(x)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(1), tj.shape(2)).store(x[tj.coord(0), tj.shape(2)] * 10)

        return y

    x = V.copy()
    both(kernel, x, want=np.array([1, 10, 20, 4, 5], np.float32))
    np.testing.assert_array_equal(x, V)
    device = jnp.asarray(V)
    tj.jit(kernel)(device)
    np.testing.assert_array_equal(device, V)


def test_update_of_an_output_copies_the_value_at_that_point():
    def kernel(x):
        out = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            out(tj.coord(0), tj.shape(5)).store(x[tj.coord(0), tj.shape(5)] + 1)

        copy = tj.update(out)

        @tj.parallel(1)
        def _(nest):
            out(tj.coord(0), tj.shape(2)).store(100)
            copy(tj.coord(3), tj.shape(2)).store(-1)

        return out, copy

    want = np.array([100, 100, 4, 5, 6], np.float32), np.array([2, 3, 4, -1, -1], np.float32)
    both(kernel, V, want=want)


def test_nests_run_one_after_another_over_scratch():
    """Row sums go to a scratch output that is not returned; the next nest reads it from every program."""

    def kernel(x):
        sums = tj.output((6,), x.dtype)
        out = tj.output_like(x)
        rows = tj.axis("rows", 6)
        r, c, all_rows = tj.axis("r", 1), tj.axis("c", 7), tj.axis("all", 6)

        @tj.parallel(rows)
        def _(nest):
            i = nest.index()
            sums(tj.coord(i), tj.shape(r)).store(tj.sum(x[tj.coord(i, 0), tj.shape(r, c)], c))

        @tj.parallel(rows)
        def _(nest):
            i = nest.index()
            total = tj.sum(sums[tj.coord(0), tj.shape(all_rows)], all_rows)
            out(tj.coord(i, 0), tj.shape(r, c)).store(x[tj.coord(i, 0), tj.shape(r, c)] - total)

        return out

    x = np.arange(42, dtype=np.float32).reshape(6, 7)
    both(kernel, x, want=x - x.sum())


def test_captured_arrays_are_views_through_tj_view():
    table = np.arange(10, dtype=np.float32)
    device = jnp.asarray(table * 2)

    def kernel(x):
        t, d = tj.view(table), tj.view(device)
        assert (t.shape, t.dtype) == ((10,), jnp.float32)
        out = tj.output_like(x)

        @tj.parallel(5)
        def _(nest):
            i = nest.index()
            at = tj.coord(i), tj.shape(1)
            inner = tj.view(table)[tj.coord(i + 2), tj.shape(1)]
            out(*at).store(x[at] + t[at] * d[tj.coord(i + 1), tj.shape(1)] + inner)

        return out

    i = np.arange(5, dtype=np.float32)
    both(kernel, V, want=V + i * (2 * (i + 1)) + i + 2)

    @jax.jit
    def outer(x, y):
        def kernel(x):
            out = tj.output_like(x)

            @tj.parallel(1)
            def _(nest):
                at = tj.coord(0), tj.shape(5)
                out(*at).store(x[at] - tj.view(y)[at])

            return out

        return tj.jit(kernel)(x)

    np.testing.assert_array_equal(outer(V, V * 3), V - V * 3)


def test_static_facts_of_a_view():
    def kernel(x, v, s, flag):
        assert (x.shape, x.ndim, x.size, x.dtype) == ((6, 7), 2, 42, jnp.float32)
        assert (x.extent(0), x.extent(1), v.extent(0), v.shape[0]) == (6, 7, 5, 5)
        assert all(isinstance(n, int) for n in x.shape)
        out = tj.output_like(x)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        assert type(x) is type(out) is tj.TensorView
        changed = tj.update(x)
        assert [view.name for view in (x, v, out, changed, tj.output((3,), "int8"))] == [
            *("x", "v", "out", "changed", "output [3]")
        ]
        return out

    both(kernel, X, V, jnp.float32(1), True, want=np.zeros((6, 7), np.float32))


def test_lowlevel_loads_and_stores_one_element():
    def kernel(x, n):
        out = tj.output((6, 3), x.dtype, init=-1)

        @tj.parallel(6)
        def _(nest):
            i = nest.index()
            tj.lowlevel.store(out, tj.lowlevel.load(x, i, 6 - i), i, 0)
            tj.lowlevel.store(out, tj.lowlevel.load(x, i, 0, where=i < n, fallback=9), i, 1)
            tj.lowlevel.store(out, tj.lowlevel.load(x, i, 1), i, 2, where=i >= n)

        return out

    want = np.full((6, 3), -1, np.float32)
    for i in range(6):
        want[i, 0] = X[i, 6 - i]
        want[i, 1] = X[i, 0] if i < 4 else 9
        want[i, 2] = X[i, 1] if i >= 4 else -1
    both(kernel, X, 4, want=want)


class Pair(NamedTuple):
    first: object
    second: object


def test_arguments_and_results_are_pytrees():
    def kernel(inputs, scale):
        outs = Pair(tj.output((5,), jnp.float32), {"b": tj.output((5,), jnp.float32)})

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(5)
            x, (y, z) = inputs["x"], inputs["rest"]
            outs.first(*at).store(x[at] * scale["s"])
            outs.second["b"](*at).store(y[at] + z[at])

        return outs

    inputs = {"x": V, "rest": [V + 1, jnp.asarray(V) + 2]}
    both(kernel, inputs, {"s": 2.0}, want=Pair(V * 2, {"b": V * 2 + 3}))


@pytest.mark.parametrize("shape", [(0,), (0, 32), (5, 0), (3,), (1, 1, 1), (2, 3, 4, 5)])
def test_every_rank_and_zero_extents(shape):
    x = normal(*shape)

    def kernel(x):
        out = tj.output_like(x)
        grid = [tj.axis(f"g{d}", tj.cdiv(n, 2)) for d, n in enumerate(x.shape)]
        local = [tj.axis(f"t{d}", 2) for d in range(x.ndim)]

        @tj.parallel(*grid)
        def _(nest):
            at = tj.coord(*[nest.index(g) * 2 for g in grid]), tj.shape(*local)
            out(*at).store(x[at] * 2)

        return out

    both(kernel, x, want=x * 2)


def test_tiles_of_zero_extent():
    def fn(a, x):
        empty = tj.axis("empty", 0)
        none = tj.zeros(tj.shape(a.i, empty))
        return {"none": none + tj.iota(empty), "sum": x + tj.sum(none, empty)}

    tiles("i", fn, V, want={"none": np.zeros((5, 0), np.float32), "sum": V})
