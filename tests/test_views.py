"""Loads, stores and bounds of views; what outputs hold; which arrays are views."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

X = normal(6, 7)
V = np.arange(1, 6, dtype=np.float32)


def window(x, origins, extents):
    """``x`` at an origin that may lie anywhere, zero outside: element by element."""
    out = np.zeros(extents, x.dtype)
    for index in np.ndindex(*extents):
        at = tuple(o + i for o, i in zip(origins, index, strict=True))
        if all(0 <= a < n for a, n in zip(at, x.shape, strict=True)):
            out[index] = x[at]
    return out


ORIGINS = [(0, 0), (2, 3), (-2, -1), (4, 5), (-9, 0), (6, 7), (0, 100), (-1, 6)]


@pytest.mark.parametrize("traced", [False, True])
def test_a_load_reads_zero_outside_at_both_ends(traced):
    def kernel(x, starts):
        outs = [tj.output((4, 5), x.dtype) for _ in ORIGINS]

        @tj.parallel(1)
        def _(nest):
            for row, (out, origin) in enumerate(zip(outs, ORIGINS, strict=True)):
                if traced:
                    origin = [
                        tj.reshape(starts[tj.coord(row, d), tj.shape(1, 1)], tj.shape()) for d in (0, 1)
                    ]
                out(tj.coord(0, 0), tj.shape(4, 5)).store(x[tj.coord(*origin), tj.shape(4, 5)])

        return outs

    both(kernel, X, np.array(ORIGINS, np.int32), want=[window(X, o, (4, 5)) for o in ORIGINS])


def test_the_four_spellings_of_a_load_and_its_fallback():
    """Origin 3, extent 4, of a view of 5: [x3, x4, fallback, fallback]."""

    def kernel(x):
        outs = {
            name: tj.output((4,), x.dtype)
            for name in ["getitem", "call", "tile", "policy", "filled", "inf", "ref"]
        }

        @tj.parallel(1)
        def _(nest):
            i = tj.axis("i", 4)
            at = tj.coord(3), tj.shape(i)
            results = {
                "getitem": x[at],
                "call": x(*at).load(),
                "tile": x.tile(*at).load(),
                "policy": x[tj.coord(3), tj.shape(i), tj.Bounds.ZERO],
                "filled": x(*at).load(-99),
                "inf": x(*at, tj.Bounds.ZERO).load(fallback=float("-inf")),
                "ref": x.tile(tj.coord(3), tj.shape(i), tj.Bounds.ZERO).load(),
            }
            for name, tile in results.items():
                assert (tuple(tile.axes), tile.dtype) == ((i,), x.dtype)
                outs[name](tj.coord(0), tj.shape(i)).store(tile)

        return outs

    zero = np.array([4, 5, 0, 0], np.float32)
    want = dict.fromkeys(["getitem", "call", "tile", "policy", "ref"], zero)
    want["filled"] = np.array([4, 5, -99, -99], np.float32)
    want["inf"] = np.array([4, 5, -np.inf, -np.inf], np.float32)
    both(kernel, V, want=want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.float16, jnp.bfloat16, np.bool_])
def test_fallbacks_take_the_dtype_of_the_view(dtype):
    x = np.array([1, 0, 1], dtype)

    def kernel(x):
        outs = [tj.output((5,), x.dtype) for _ in range(3)]

        @tj.parallel(1)
        def _(nest):
            for out, value in zip(outs, [0, 1, True], strict=True):
                out(tj.coord(0), tj.shape(5)).store(x(tj.coord(-1), tj.shape(5)).load(value))

        return outs

    both(kernel, x, want=[np.array([f, 1, 0, 1, f], dtype) for f in (0, 1, 1)])


def test_a_fallback_may_be_a_traced_scalar_or_round():
    def kernel(x, s):
        outs = tj.output((3,), x.dtype), tj.output((3,), x.dtype)

        @tj.parallel(1)
        def _(nest):
            ref = x(tj.coord(2), tj.shape(3))
            outs[0](tj.coord(0), tj.shape(3)).store(ref.load(s))
            outs[1](tj.coord(0), tj.shape(3)).store(ref.load(0.1))

        return outs

    x = np.array([1, 2, 3], np.float16)
    want = tuple(np.array([3, f, f], np.float16) for f in (7, 0.1))
    both(kernel, x, jnp.float16(7), want=want)


def test_assume_inside_is_an_ordinary_load_and_store():
    def kernel(x):
        out = tj.output_like(x)
        rows, cols = tj.axis("rows", 3), tj.axis("cols", 7)
        r, c = tj.axis("r", 2), tj.axis("c", 1)

        @tj.parallel(rows, cols)
        def _(nest):
            origin = tj.coord(nest.index(rows) * 2, nest.index(cols))
            tile = x[origin, tj.shape(r, c), tj.Bounds.ASSUME]
            out(origin, tj.shape(r, c), tj.Bounds.ASSUME).store(tile + 1)

        return out

    both(kernel, X, want=X + 1)


def test_a_store_outside_is_dropped_at_both_ends():
    def kernel(x):
        outs = [tj.output((6, 7), x.dtype, init=-5) for _ in ORIGINS]

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0, 0), tj.shape(4, 5)]
            for out, origin in zip(outs, ORIGINS, strict=True):
                out(tj.coord(*origin), tj.shape(4, 5)).store(tile)

        return outs

    def stored(origin):
        want = np.full((6, 7), -5, np.float32)
        for i, j in np.ndindex(4, 5):
            at = origin[0] + i, origin[1] + j
            if 0 <= at[0] < 6 and 0 <= at[1] < 7:
                want[at] = X[i, j]
        return want

    both(kernel, X, want=[stored(o) for o in ORIGINS])


def test_store_places_axes_by_identity_and_broadcasts_missing_ones():
    def kernel(x, v):
        outs = {
            name: tj.output((5, 4), x.dtype)
            for name in ["same", "turned", "row", "column", "scalar", "number"]
        }
        m, n = tj.axis("m", 5), tj.axis("n", 4)

        @tj.parallel(1)
        def _(nest):
            turned = x[tj.coord(0, 0), tj.shape(n, m)]
            results = {
                "same": x[tj.coord(0, 0), tj.shape(m, n)],
                "turned": turned,
                "row": v[tj.coord(0), tj.shape(n)],
                "column": v[tj.coord(0), tj.shape(m)],
                "scalar": tj.sum(turned, tj.shape(m, n)) * 0 + 3,
                "number": 2.5,
            }
            for name, tile in results.items():
                outs[name](tj.coord(0, 0), tj.shape(m, n)).store(tile)

        return outs

    want = {
        "same": X[:5, :4],
        "turned": X[:4, :5].T,
        "row": np.broadcast_to(V[:4], (5, 4)),
        "column": np.broadcast_to(V[:, None], (5, 4)),
        "scalar": np.full((5, 4), 3, np.float32),
        "number": np.full((5, 4), 2.5, np.float32),
    }
    both(kernel, X, V, want=want)


def test_store_takes_other_axes_by_position():
    """As soon as one axis is not in the shape, all are positional: (n, k) into (m, n) is not a transpose."""

    def kernel(x):
        outs = [tj.output((4, 4), x.dtype) for _ in range(3)]
        m, n, k = (tj.axis(name, 4) for name in "mnk")

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0, 0), tj.shape(n, k)]
            outs[0](tj.coord(0, 0), tj.shape(m, n)).store(tile)
            outs[1](tj.coord(0, 0), tj.shape(4, 4)).store(tile)
            outs[2](tj.coord(0, 0), tj.shape(m, n)).store(x[tj.coord(0, 0), tj.shape(4, 4)])

        return outs

    both(kernel, X, want=[X[:4, :4]] * 3)


WIDENINGS = [
    ("int8", "int32"),
    ("uint8", "int16"),
    ("bool", "int8"),
    ("bool", "int32"),
    ("int16", "int32"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
]


def test_store_widens_within_a_kind():
    def kernel(*views):
        outs = [tj.output(v.shape, to) for v, (_, to) in zip(views, WIDENINGS, strict=True)]

        @tj.parallel(1)
        def _(nest):
            for view, out in zip(views, outs, strict=True):
                out(tj.coord(0), tj.shape(3)).store(view[tj.coord(0), tj.shape(3)])

        return outs

    args = [np.asarray(jnp.array([0, 1, 1.5], jnp.dtype(dtype))) for dtype, _ in WIDENINGS]
    both(kernel, *args, want=[a.astype(jnp.dtype(to)) for a, (_, to) in zip(args, WIDENINGS, strict=True)])


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16", "float32", "int32"])
def test_weak_tiles_are_stored_in_any_dtype(dtype):
    def kernel(x):
        out = tj.output((2, 3), dtype)

        @tj.parallel(1)
        def _(nest):
            mask = x[tj.coord(0), tj.shape(3)] > 2
            out(tj.coord(0, 0), tj.shape(2, 3)).store(tj.where(mask, 7, 1))

        return out

    want = np.array([[1, 1, 7]] * 2).astype(jnp.dtype(dtype))
    both(kernel, V, want=want)


def test_a_load_is_a_snapshot_and_sees_every_earlier_store():
    def kernel(x):
        y = tj.update(x)
        log = tj.output((3, 5), x.dtype)

        @tj.parallel(1)
        def _(nest):
            i, one = tj.axis("i", 5), tj.axis("one", 1)
            at = tj.coord(0), tj.shape(i)
            before = y[at]
            y(*at).store(before * 10)
            after = y[at]
            y(tj.coord(3), tj.shape(i)).store(0.5)
            for row, tile in enumerate([before, after, y[at]]):
                log(tj.coord(row, 0), tj.shape(one, i)).store(tile)

        return y, log

    end = np.array([10, 20, 30, 0.5, 0.5], np.float32)
    both(kernel, V, want=(end, np.stack([V, V * 10, end])))


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
