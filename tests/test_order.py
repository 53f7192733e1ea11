"""sort and top_k: stable, NaN greatest, zeros tie, ties by index; both directions."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

NAN = float("nan")
SPECIAL = np.array([NAN, -0.0, 0.0, -NAN, np.inf, -1, NAN, -np.inf, 0.0, 2], np.float32)
SPECIAL[3] = np.copysign(np.float32(NAN), np.float32(-1))


def order(row, descending=False):
    """Indices of a stable sort in which every NaN is one value, greater than inf, and the zeros are one."""
    keys = [(bool(np.isnan(v)), 0.0 if np.isnan(v) else float(v) + 0.0) for v in row.astype(np.float64)]
    # Python's reverse keeps equal elements in their order.
    places = sorted(range(len(row)), key=lambda i: keys[i], reverse=descending)
    return np.array(places, np.int32)


def plus_zero(tile):
    """The sign of a tied zero in ``values`` is free, so the tests compare without it."""
    return tj.where(tile == 0, 0, tile)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sort_of_special_values(descending, dtype):
    x = SPECIAL.astype(jnp.dtype(dtype))

    def fn(a, x):
        values, indices = tj.sort(x, a.i, descending=descending)
        assert tuple(values.axes) == tuple(indices.axes) == (a.i,)
        return plus_zero(values), indices

    indices = order(x, descending)
    assert not descending or indices[:3].tolist() == [0, 3, 6]
    values = np.where(x == 0, np.zeros_like(x), x)[indices]
    tiles("i", fn, x, want=(values, indices))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33, 100])
def test_sort_is_stable_on_every_axis(n):
    x = np.random.default_rng(0).integers(0, 5, (3, n, 2)).astype(np.float32)

    def fn(a, x):
        return {
            f"{name} {down}": tuple(tj.sort(x, getattr(a, name), descending=down))
            for name in "ijk"
            for down in (False, True)
        }

    def sorted_along(axis, down):
        moved = np.moveaxis(x, axis, -1)
        indices = np.array([[order(row, down) for row in plane] for plane in moved])
        values = np.take_along_axis(moved, indices, -1)
        return np.moveaxis(values, -1, axis), np.moveaxis(indices, -1, axis)

    want = {f"{name} {down}": sorted_along(d, down) for d, name in enumerate("ijk") for down in (False, True)}
    tiles("ijk", fn, x, want=want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "bool"])
def test_sort_and_top_k_of_integers(dtype):
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = np.array([high, low, 1, high, low, 0, 1], dtype)

    def fn(a, x):
        return {
            "up": tuple(tj.sort(x, a.i)),
            "down": tuple(tj.sort(x, a.i, descending=True)),
            "most": tuple(tj.top_k(x, a.i, 3)),
            "least": tuple(tj.top_k(x, a.i, 3, largest=False)),
        }

    up, down = (order(x, d) for d in (False, True))
    want = {
        "up": (x[up], up),
        "down": (x[down], down),
        "most": (x[down[:3]], down[:3]),
        "least": (x[up[:3]], up[:3]),
    }
    tiles("i", fn, x, want=want)


@pytest.mark.parametrize("k", [0, 1, 3, 9, 10])
@pytest.mark.parametrize("largest", [True, False])
def test_top_k_with_nan_in_every_place(k, largest):
    """Largest: NaN first. Smallest: NaN last. Ties by index, whatever the sign of a NaN or a zero."""
    rows = np.stack([np.roll(SPECIAL, s) for s in range(4)])

    def fn(a, x):
        values, indices = tj.top_k(x, a.c, k, largest=largest)
        return plus_zero(values), indices

    indices = np.stack([order(row, largest)[:k] for row in rows])
    values = np.take_along_axis(np.where(rows == 0, np.float32(0), rows), indices, 1)
    tiles("rc", fn, rows, want=(values, indices))


def test_top_k_takes_the_axis_of_the_result():
    x = normal(3, 7)

    def fn(a, x):
        best = tj.axis("best", 2)
        values, indices = tj.top_k(x, a.c, best)
        assert tuple(values.axes) == tuple(indices.axes) == (a.r, best)
        again = tj.gather(x, indices, a.c)
        columns = tj.top_k(x, a.r, best)
        return {"values": values, "gathered": again, "sum": tj.sum(values, best), "first axis": columns[0]}

    top = -np.sort(-x, 1)[:, :2]
    want = {"values": top, "gathered": top, "sum": top[:, 0] + top[:, 1], "first axis": -np.sort(-x, 0)[:2]}
    tiles("rc", fn, x, want=want)


def test_results_are_pairs_with_int32_indices():
    x = normal(7)

    def fn(a, x):
        ranked, top = tj.sort(x, a.i), tj.top_k(x, a.i, 3)
        assert ranked[1].dtype == top[1].dtype == jnp.int32
        return ranked[0], top[1]

    tiles("i", fn, x, want=(np.sort(x), np.argsort(-x)[:3].astype(np.int32)))


def test_sort_and_top_k_of_empty_axes():
    def fn(a, x):
        empty = tj.axis("empty", 0)
        none = tj.zeros(tj.shape(a.i, empty))
        return {
            "sort": tuple(tj.sort(none, empty)),
            "top": tuple(tj.top_k(none, empty, 0)),
            "k": tj.top_k(x, a.i, 0)[0],
        }

    pair = np.zeros((2, 0), np.float32), np.zeros((2, 0), np.int32)
    want = {"sort": pair, "top": pair, "k": np.zeros(0, np.float32)}
    tiles("i", fn, np.ones(2, np.float32), want=want)


def test_the_median_of_a_window():
    """The seed's median: reshape a window to one axis, sort it, take the middle."""
    image = normal(6, 7)

    def kernel(x):
        out = tj.output_like(x)
        y, z = tj.axis("y", 6), tj.axis("x", 7)
        fy, fx, tap, one = tj.axis("fy", 3), tj.axis("fx", 3), tj.axis("tap", 9), tj.axis("one", 1)

        @tj.parallel(y, z)
        def _(nest):
            i, j = nest.index(y), nest.index(z)
            window = x[tj.coord(i - 1, j - 1), tj.shape(fy, fx)]
            values, _ = tj.sort(tj.reshape(window, tj.shape(tap)), tap)
            out(tj.coord(i, j), tj.shape(one, 1)).store(tj.gather(values, 4, tap))

        return out

    padded = np.pad(image, 1)
    want = [[np.median(padded[i : i + 3, j : j + 3]) for j in range(7)] for i in range(6)]
    both(kernel, image, want=np.array(want, np.float32))
