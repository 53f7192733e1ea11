"""Loads, stores and bounds of views; what outputs hold; which arrays are views."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal

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
