"""gather, reindex, reshape, broadcast_to, relabel, transpose."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

X = normal(4, 6)


def taken(row, i, fallback=0.0):
    return row[i] if 0 <= i < len(row) else fallback


def test_gather_matches_the_axes_that_both_have():
    label = np.array([0, 5, 2, 3], np.int32)
    pick = np.array([[1, 3], [0, 0]], np.int32)

    def fn(a, x, label, pick):
        matched = tj.gather(x, label, a.c)
        assert tuple(matched.axes) == (a.r,)
        crossed = tj.gather(x, pick, a.r)
        assert tuple(crossed.axes) == (a.c, a.p, a.q)
        return {"matched": matched, "crossed": crossed}

    want = {"matched": X[np.arange(4), label], "crossed": np.moveaxis(X[pick], -1, 0)}
    tiles("rc,r,pq", fn, X, label, pick, want=want)


def test_gather_along_an_axis_that_the_index_has_too():
    order = np.argsort(X, 1).astype(np.int32)

    def fn(a, x, order):
        return tj.gather(x, order, a.c)

    tiles("rc,rc", fn, X, order, want=np.sort(X, 1))


def test_gather_with_scalar_indices():
    def fn(a, x, s):
        rank0 = tj.argmax(tj.max(x, a.c), a.r)
        return {
            "int": tj.gather(x, 2, a.r),
            "traced": tj.gather(x, s, a.c),
            "rank0": tj.gather(x, rank0, a.r),
        }

    want = {"int": X[2], "traced": X[:, 5], "rank0": X[X.max(1).argmax()]}
    tiles("rc,", fn, X, jnp.int32(5), want=want)


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "int16", "uint32"])
def test_gather_outside_gives_the_fallback_at_both_ends(dtype):
    index = np.array([0, 5, 6, 100] if dtype[0] == "u" else [-1, -6, -100, 2], dtype)
    limits = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)

    def fn(a, x, index, limits):
        return {
            "zero": tj.gather(x, index, a.c),
            "filled": tj.gather(x, index, a.c, fallback=-99),
            "inf": tj.gather(x, limits, a.c, fallback=float("inf")),
            "outside": tj.gather(x, -1, a.c, fallback=7),
        }

    want = {
        "zero": [[taken(row, int(i)) for i in index] for row in X],
        "filled": [[taken(row, int(i), -99) for i in index] for row in X],
        "inf": [[taken(row, int(i), np.inf) for i in limits] for row in X],
        "outside": [7] * 4,
    }
    tiles("rc,p,l", fn, X, index, limits, want={k: np.array(v, np.float32) for k, v in want.items()})


def test_gather_of_every_kind_of_value():
    index = np.array([2, -1, 0], np.int32)

    def fn(a, flags, small, half, index):
        return {
            "flags": tj.gather(flags, index, a.i, fallback=True),
            "small": tj.gather(small, index, a.i, fallback=-128),
            "half": tj.gather(half, index, a.i, fallback=0.1),
        }

    flags, small = np.array([1, 0, 0], np.bool_), np.array([1, 2, 3], np.int8)
    half = np.array([1, 2, 3], jnp.bfloat16)
    want = {"flags": np.array([0, 1, 1], np.bool_), "small": np.array([3, -128, 1], np.int8)}
    tiles("i,i,i,j", fn, flags, small, half, index, want=want | {"half": np.array([3, 0.1, 1], jnp.bfloat16)})


def test_reindex_maps_elements_to_places_in_the_tile():
    def fn(a, x):
        i, j, k = tj.axis("i", 3), tj.axis("j", 2), tj.axis("k", 4)
        return {
            "turn": tj.reindex(x, tj.shape(a.c, a.r), lambda n: tj.coord(n.index(a.r), n.index(a.c))),
            "shift": tj.reindex(
                x, tj.shape(a.r, a.c), lambda n: tj.coord(n.index(a.r) - 1, n.index(a.c) + 2)
            ),
            "stride": tj.reindex(x, tj.shape(i, j), lambda n: tj.coord(n.index(j) * 3, n.index(i) * 2)),
            "diagonal": tj.reindex(x, tj.shape(k), lambda n: tj.coord(n.index(), n.index(k))),
            "window": tj.reindex(
                x, tj.shape(a.r, i, k), lambda n: tj.coord(n.index(a.r), n.index(i) + n.index(k))
            ),
            "constant": tj.reindex(x, tj.shape(i), lambda n: tj.coord(1, 5)),
        }

    shift = np.zeros_like(X)
    shift[1:, :4] = X[:3, 2:]
    want = {
        "turn": X.T,
        "shift": shift,
        "stride": X[::3, ::2].T,
        "diagonal": np.diag(X),
        "window": np.stack([X[:, i : i + 4] for i in range(3)], 1),
        "constant": np.full(3, X[1, 5]),
    }
    tiles("rc", fn, X, want=want)


def test_reindex_may_use_the_enclosing_nest_and_captured_tiles():
    perm = np.array([2, 0, 3, 1, 9, -1], np.int32)

    def kernel(x, perm):
        out = tj.output((4, 6), x.dtype)
        rows, r, c = tj.axis("rows", 4), tj.axis("r", 1), tj.axis("c", 6)

        @tj.parallel(rows)
        def _(nest):
            places = perm[tj.coord(0), tj.shape(c)]
            line = x[tj.coord(nest.index(), 0), tj.shape(r, c)]

            def place(element):
                return tj.coord(
                    element.index(r), tj.gather(places, element.index(c), c) + element.index(rows)
                )

            at = tj.coord(nest.index(rows), 0), tj.shape(r, c)
            out(*at).store(tj.reindex(line, tj.shape(r, c), place))

        return out

    want = np.array([[taken(X[i], p + i) for p in perm.tolist()] for i in range(4)], np.float32)
    both(kernel, X, perm, want=want)


def test_reshape_keeps_the_row_major_order():
    def fn(a, x):
        flat, two, three = tj.axis("flat", 24), tj.axis("two", 2), tj.axis("three", 3)
        squeezed = tj.reshape(tj.reshape(x, tj.shape(1, flat)), tj.shape(flat))
        assert tuple(squeezed.axes) == (flat,)
        return {
            "flat": squeezed,
            "split": tj.reshape(x, tj.shape(two, 4, three)),
            "ints": tj.reshape(x, tj.shape(12, 2)),
            "same": tj.reshape(x, tj.shape(a.r, a.c)),
        }

    want = {"flat": X.ravel(), "split": X.reshape(2, 4, 3), "ints": X.reshape(12, 2), "same": X}
    tiles("rc", fn, X, want=want)


def test_reshape_to_and_from_rank_zero():
    def fn(a, x):
        scalar = tj.reshape(tj.max(x, tj.shape(a.r, a.c)), tj.shape())
        return {"scalar": scalar, "vector": tj.reshape(scalar, tj.shape(1)), "both": x - scalar}

    want = {"scalar": X.max(), "vector": X.max()[None], "both": X - X.max()}
    tiles("rc", fn, X, want=want)


def test_broadcast_to_adds_axes_and_orders_them():
    def fn(a, x, v):
        n = tj.axis("n", 2)
        return {
            "lead": tj.broadcast_to(v, tj.shape(n, a.c)),
            "trail": tj.broadcast_to(v, tj.shape(a.c, n)),
            "turn": tj.broadcast_to(x, tj.shape(a.c, n, a.r)),
            "scalar": tj.broadcast_to(2.5, tj.shape(n, 3)),
            "ints": tj.broadcast_to(tj.reshape(v, tj.shape(1, 6)), tj.shape(3, 6)),
        }

    v = X[0]
    want = {
        "lead": np.broadcast_to(v, (2, 6)),
        "trail": np.broadcast_to(v[:, None], (6, 2)),
        "turn": np.broadcast_to(X.T[:, None], (6, 2, 4)),
        "scalar": np.full((2, 3), 2.5, np.float32),
        "ints": np.broadcast_to(v, (3, 6)),
    }
    tiles("rc,c", fn, X, v, want=want)


def test_relabel_renames_axes_in_place():
    """The same elements under other identities: an outer product of a vector with itself."""

    def fn(a, x, v):
        d, e, f = tj.axis("d", 6), tj.axis("e", 4), tj.axis("f", 6)
        other = tj.relabel(v, tj.shape(d))
        assert tuple(other.axes) == (d,)
        renamed = tj.relabel(x, tj.shape(e, f))
        named = tj.relabel(tj.reshape(x, tj.shape(4, 6)), tj.shape(a.r, a.c))
        return {
            "outer": v * other,
            "crossed": tj.sum(renamed, e),
            "named": tj.sum(named, a.c),
            "gram": tj.mma(x, tj.relabel(x, tj.shape(e, a.c)), tj.zeros(tj.shape(a.r, e))),
        }

    v = np.arange(6, dtype=np.float32)
    want = {"outer": np.outer(v, v), "crossed": X.sum(0), "named": X.sum(1), "gram": X @ X.T}
    tiles("rc,c", fn, X, v, want=want, rtol=1e-5, atol=1e-6)


def test_transpose_orders_axes():
    cube = normal(2, 3, 4)

    def fn(a, x):
        turned = tj.transpose(x, tj.shape(a.k, a.i, a.j))
        assert tuple(turned.axes) == (a.k, a.i, a.j)
        return {"turned": turned, "same": x - tj.transpose(turned, tj.shape(a.i, a.j, a.k))}

    want = {"turned": np.moveaxis(cube, 2, 0), "same": np.zeros_like(cube)}
    tiles("ijk", fn, cube, want=want)


def test_zero_extents_in_every_index_operation():
    def fn(a, x):
        empty, three = tj.axis("empty", 0), tj.axis("three", 3)
        none = tj.zeros(tj.shape(a.i, empty))
        index = tj.iota(empty)
        return {
            "reshape": tj.reshape(none, tj.shape(empty, three)),
            "gather": tj.gather(x, index, a.i),
            "outside": tj.gather(none, tj.iota(three), empty, fallback=4),
            "reindex": tj.reindex(none, tj.shape(three), lambda n: tj.coord(n.index(), n.index())),
            "transpose": tj.transpose(none, tj.shape(empty, a.i)),
            "broadcast": tj.broadcast_to(x, tj.shape(empty, a.i)),
        }

    want = {"reshape": (0, 3), "gather": (0,), "reindex": (3,), "transpose": (0, 2), "broadcast": (0, 2)}
    want = {k: np.zeros(shape, np.float32) for k, shape in want.items()}
    tiles("i", fn, np.ones(2, np.float32), want=want | {"outside": np.full((2, 3), 4, np.float32)})
