"""Broadcasting by axis identity: which axes a result has, in which order, and what it holds."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

X = normal(3, 4)
Y = normal(4, seed=1)
Z = normal(3, seed=2)


def test_missing_axes_broadcast_and_the_highest_rank_gives_the_order():
    def fn(a, x, y, z, t):
        assert tuple((x + y).axes) == tuple((y + x).axes) == (a.m, a.n)
        assert tuple((z * y).axes) == (a.m, a.n)
        assert tuple((y * z).axes) == (a.n, a.m)
        assert tuple((x - t).axes) == (a.m, a.n)
        assert tuple((t - x).axes) == (a.n, a.m)
        return {"xy": x + y, "yx": y + x, "zy": z * y, "yz": y * z, "zx": z - x, "xt": x - t, "tx": t - x}

    t = normal(4, 3, seed=3)
    want = {
        "xy": X + Y,
        "yx": X + Y,
        "zy": Z[:, None] * Y,
        "yz": Y[:, None] * Z,
        "zx": Z[:, None] - X,
        "xt": X - t.T,
        "tx": t - X.T,
    }
    tiles("mn,n,m,nm", fn, X, Y, Z, t, want=want)


def test_further_axes_follow_in_order_of_appearance():
    k = normal(2, seed=4)

    def fn(a, x, y, z, k):
        cube = (y + z) + k
        assert tuple(cube.axes) == (a.n, a.m, a.k)
        return {
            "k+x": k + x,
            "where": tj.where(z > 0, y, k),
            "clip": tj.clip(k, z, y),
            "cube-x": cube - x,
        }

    want = {
        "k+x": X[:, :, None] + k,
        "where": np.where(Z[:, None, None] > 0, Y[None, :, None], k),
        "clip": np.minimum(np.maximum(k[:, None, None], Z[None, :, None]), Y),
        "cube-x": (Y[:, None, None] + Z[None, :, None]) + k - X.T[:, :, None],
    }
    tiles("mn,n,m,k", fn, X, Y, Z, k, want=want)


def test_axes_are_told_apart_by_identity_not_by_name():
    def kernel(x, y):
        out = tj.output((4, 4), x.dtype)
        i, j = tj.axis("i", 4), tj.axis("i", 4)

        @tj.parallel(1)
        def _(nest):
            outer = x[tj.coord(0), tj.shape(i)] * y[tj.coord(0), tj.shape(j)]
            assert tuple(outer.axes) == (i, j)
            out(tj.coord(0, 0), tj.shape(i, j)).store(outer)

        return out

    both(kernel, Y, Y + 1, want=Y[:, None] * (Y + 1))


def test_positional_axes_count_from_the_right():
    column = normal(3, 1, seed=5)

    def kernel(x, y, column):
        names = ["xy", "yx", "x column", "column y", "y column"]
        outs = {name: tj.output((3, 4), x.dtype) for name in names}

        @tj.parallel(1)
        def _(nest):
            tx = x[tj.coord(0, 0), tj.shape(3, 4)]
            ty = y[tj.coord(0), tj.shape(4)]
            tc = column[tj.coord(0, 0), tj.shape(3, 1)]
            for name, tile in zip(names, [tx - ty, ty - tx, tx - tc, tc - ty, ty - tc], strict=True):
                assert tuple(tile.shape) == (3, 4), name
                outs[name](tj.coord(0, 0), tj.shape(3, 4)).store(tile)

        return outs

    want = {
        "xy": X - Y,
        "yx": Y - X,
        "x column": X - column,
        "column y": column - Y,
        "y column": Y - column,
    }
    both(kernel, X, Y, column, want=want)


def test_mixed_shapes_count_positional_axes_among_themselves():
    """Axis ``m`` is skipped when the positional axes of (3, m, 4) are counted."""
    cube = normal(3, 2, 4, seed=6)
    row = normal(2, seed=7)

    def kernel(cube, x, y, row):
        out = tj.output((3, 2, 4), cube.dtype)
        pair = tj.output((2, 4), cube.dtype)
        turned = tj.output((4, 2), cube.dtype)
        m = tj.axis("m", 2)

        @tj.parallel(1)
        def _(nest):
            c = cube[tj.coord(0, 0, 0), tj.shape(3, m, 4)]
            tx = x[tj.coord(0, 0), tj.shape(3, 4)]
            ty = y[tj.coord(0), tj.shape(4)]
            tr = row[tj.coord(0), tj.shape(m)]
            total = tx + c + ty + tr
            assert tuple(total.shape) == (3, 2, 4)
            out(tj.coord(0, 0, 0), tj.shape(3, m, 4)).store(total)
            assert tuple((tr * ty).shape) == (2, 4)
            pair(tj.coord(0, 0), tj.shape(m, 4)).store(tr * ty)
            assert tuple((ty * tr).shape) == (4, 2)
            turned(tj.coord(0, 0), tj.shape(4, m)).store(ty * tr)

        return out, pair, turned

    want = (X[:, None] + cube + Y + row[:, None], row[:, None] * Y, Y[:, None] * row)
    both(kernel, cube, X, Y, row, want=want)


def test_scalars_of_every_kind_have_no_axes():
    def kernel(x, s, p):
        outs = [tj.output(x.shape, x.dtype) for _ in range(4)]
        i = tj.axis("i", 4)
        one = tj.axis("one", 1)

        @tj.parallel(1)
        def _(nest):
            t = x[tj.coord(0), tj.shape(i)]
            rank0 = tj.reshape(x[tj.coord(2), tj.shape(one)], tj.shape())
            for out, tile in zip(outs, [t + s, p - t, rank0 * t, t + nest.index()], strict=True):
                assert tuple(tile.axes) == (i,)
                out(tj.coord(0), tj.shape(i)).store(tile)

        return outs

    s = jnp.float32(1.5)
    both(kernel, Y, s, 2.0, want=[Y + np.float32(1.5), np.float32(2) - Y, Y[2] * Y, Y])


def test_axis_shape_and_tile_facts():
    i, empty = tj.axis("i", 7), tj.axis("empty", 0)
    assert (i.name, i.extent, empty.extent) == ("i", 7, 0)
    assert i != tj.axis("i", 7)
    assert len({i, i, tj.axis("i", 7)}) == 2

    def fn(a, x):
        assert x.dtype == jnp.float32
        assert tuple(x.shape) == (3, 4)
        assert tuple(x.astype(jnp.int32).axes) == (a.m, a.n)
        assert x.astype(jnp.bfloat16).dtype == jnp.bfloat16
        return x

    tiles("mn", fn, X, want=X)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (7, 2, 4),
        (8, 2, 4),
        (0, 5, 0),
        (1, 128, 1),
        (-7, 2, -3),
        (-8, 2, -4),
        (-1, 2, 0),
        (7, -2, -3),
        (-7, -2, 4),
    ],
)
def test_cdiv_rounds_up_for_every_sign(a, b, want):
    assert tj.cdiv(a, b) == want
    assert isinstance(tj.cdiv(a, b), int)


def test_cdiv_of_traced_scalars_and_tiles():
    values = np.arange(-7, 8, dtype=np.int32)

    def fn(a, x, s):
        return {"tile": tj.cdiv(x, 2), "scalar": tj.cdiv(s, 2)}

    tiles("i,", fn, values, jnp.int32(-7), want={"tile": -((-values) // 2), "scalar": np.int32(-3)})
