"""Reductions: operations, orders, dtypes, empty axes, and the first extremum."""

from functools import reduce as foldl

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

X = normal(3, 5, 4)


def test_sum_max_min_prod_mean_over_any_axes():
    def fn(a, x):
        axes = {
            "i": a.i,
            "k": a.k,
            "ik": tj.shape(a.i, a.k),
            "ki": tj.shape(a.k, a.i),
            "all": tj.shape(*x.axes),
        }
        ops = {"sum": tj.sum, "max": tj.max, "min": tj.min, "prod": tj.prod, "mean": tj.mean}
        return {f"{name} {which}": op(x, axis) for name, op in ops.items() for which, axis in axes.items()}

    numpy_axes = {"i": 0, "k": 2, "ik": (0, 2), "ki": (0, 2), "all": (0, 1, 2)}
    exact = X.astype(np.float64)
    want = {
        f"{name} {which}": getattr(np, name)(exact, axis=axis).astype(np.float32)
        for name in ["sum", "max", "min", "prod", "mean"]
        for which, axis in numpy_axes.items()
    }
    tiles("ijk", fn, X, want=want, rtol=1e-5, atol=1e-6)


def test_reduce_takes_the_operations_of_the_language():
    n = np.arange(-7, 8, dtype=np.int32).reshape(3, 5)
    p = n > 2

    def fn(a, x, p):
        results = {
            "add": tj.reduce(x, a.j, tj.add),
            "multiply": tj.reduce(x, a.j, tj.multiply),
            "maximum": tj.reduce(x, a.j, tj.maximum),
            "minimum": tj.reduce(x, a.j, tj.minimum),
            "and": tj.reduce(p, a.j, tj.logical_and),
            "or": tj.reduce(p, a.j, tj.logical_or),
            "any": tj.any(p, a.j),
            "all": tj.all(p, a.j),
            "any of ints": tj.any(x, a.j),
            "max of bools": tj.max(p, a.j),
            "min of bools": tj.min(p, a.j),
        }
        for order in ["unordered_tree", "ordered_tree", "fold_left", "fold_right"]:
            results[order] = tj.reduce(x, tj.shape(a.i, a.j), tj.add, order=order)
        return results

    want = {"add": n.sum(1), "multiply": n.prod(1), "maximum": n.max(1), "minimum": n.min(1)}
    want |= {"and": p.all(1), "or": p.any(1), "any": p.any(1), "all": p.all(1), "any of ints": n.any(1)}
    want |= {"max of bools": p.max(1), "min of bools": p.min(1)}
    want |= dict.fromkeys(["unordered_tree", "ordered_tree", "fold_left", "fold_right"], n.sum())
    want = {k: v.astype(np.int32) if v.dtype == np.int64 else v for k, v in want.items()}
    tiles("ij,ij", fn, n, p, want=want)


def tree(fn, values):
    """Neighbours level by level, an odd one carried up."""
    while len(values) > 1:
        pairs = [fn(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def ordered(fn, identity, values, order):
    """The three exact orders, as section 11 writes them."""
    if not values:
        return identity
    if order == "fold_left":
        return foldl(fn, values, identity)
    if order == "fold_right":
        return foldl(lambda acc, x: fn(x, acc), reversed(values), identity)
    return tree(fn, [fn(identity, values[0]), *values[1:]])


ORDERS = ["ordered_tree", "fold_left", "fold_right"]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_exact_orders_of_float_sums_bit_for_bit(n):
    """Numbers of very different size: every order gives another sum."""
    x = (normal(2, n) * 10.0 ** np.random.default_rng(1).integers(-4, 8, (2, n))).astype(np.float32)

    def fn(a, x):
        return {order: tj.reduce(x, a.j, tj.add, order=order) for order in ORDERS}

    want = {
        o: np.array([ordered(np.add, np.float32(0), list(row), o) for row in x], np.float32) for o in ORDERS
    }
    tiles("ij", fn, x, want=want)


def test_orders_follow_the_axes_given_row_major():
    """``a * 2 + b`` is not associative, and its identity 5 shows where it joins: once, at the end named."""
    n = np.arange(6, dtype=np.int32).reshape(2, 3) ** 2 + 1

    def fn(a, x):
        double = tj.Reducer(lambda p, q: p * 2 + q, 5)
        results = {f"ij {o}": tj.reduce(x, tj.shape(a.i, a.j), double, order=o) for o in ORDERS}
        results |= {f"ji {o}": tj.reduce(x, tj.shape(a.j, a.i), double, order=o) for o in ORDERS}
        return results | {f"j {o}": tj.reduce(x, a.j, double, order=o) for o in ORDERS}

    def op(p, q):
        return p * 2 + q

    want = {f"ij {o}": ordered(op, 5, n.ravel().tolist(), o) for o in ORDERS}
    want |= {f"ji {o}": ordered(op, 5, n.T.ravel().tolist(), o) for o in ORDERS}
    want |= {f"j {o}": [ordered(op, 5, row, o) for row in n.tolist()] for o in ORDERS}
    tiles("ij", fn, n, want={k: np.array(v, np.int32) for k, v in want.items()})


def test_a_reducer_of_the_user():
    x = np.array([[3.0, -4.0], [0.5, 2.0], [-1.0, -1.0]], np.float32)

    def fn(a, x, s):
        magnitude = tj.Reducer(lambda p, q: tj.maximum(tj.abs(p), tj.abs(q)), 0.0)
        scaled = tj.Reducer(lambda p, q: p + q * s, 0.0)
        return {
            "j": tj.reduce(x, a.j, magnitude),
            "all": tj.reduce(x, tj.shape(a.i, a.j), magnitude),
            "captured": tj.reduce(x, a.j, scaled, order="fold_left"),
            "tree": tj.reduce(x, a.i, tj.Reducer(tj.multiply, 1.0), order="ordered_tree"),
        }

    want = {"j": np.abs(x).max(1), "all": np.float32(4), "captured": x.sum(1) * 2, "tree": x.prod(0)}
    tiles("ij,", fn, x, jnp.float32(2), want=want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_float_sums_run_in_float32_and_round_once(dtype):
    ones, big = np.ones(4096, jnp.dtype(dtype)), np.array([2.0**10, 2.0**10, 2.0**-10], jnp.dtype(dtype))
    spread = normal(100, dtype=jnp.dtype(dtype))

    def fn(a, ones, big, spread):
        return {
            "ones": tj.sum(ones, a.i),
            "prod": tj.prod(big, a.j),
            "mean": tj.mean(ones, a.i),
            "spread": tj.reduce(spread, a.k, tj.add, order="fold_left"),
        }

    total = np.float32(0)
    for value in spread.astype(np.float32):
        total += value
    want = {"ones": 4096, "prod": 2.0**10, "mean": 1, "spread": total}
    want = {k: np.asarray(v, np.float32).astype(jnp.dtype(dtype)) for k, v in want.items()}
    tiles("i,j,k", fn, ones, big, spread, want=want)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "uint32"])
@pytest.mark.parametrize("x64", [False, True])
def test_sums_and_products_of_integers_widen_as_jax_numpy_does(dtype, x64):
    x = (
        np.array([[1, 1, 1], [1, 0, 1]], np.bool_)
        if dtype == "bool"
        else np.array([[100, 27, 3], [7, 1, 2]], dtype)
    )

    def fn(a, x):
        return {
            "sum": tj.sum(x, a.j),
            "prod": tj.prod(x, a.j),
            "max": tj.max(x, a.j),
            "mean": tj.mean(x, a.j),
        }

    with jax.enable_x64(x64):
        want = {"sum": jnp.sum(x, 1), "prod": jnp.prod(x, 1), "max": jnp.max(x, 1), "mean": jnp.mean(x, 1)}
        assert np.asarray(want["sum"]).tolist() == np.sum(x, 1, dtype=np.int64).tolist()
        tiles("ij", fn, x, want=want, rtol=1e-6)


def test_an_empty_axis_gives_the_identity():
    def fn(a, x):
        empty = tj.axis("empty", 0)
        none = tj.zeros(tj.shape(a.i, empty)) + tj.sum(x, a.i)
        count = tj.zeros(tj.shape(empty, a.i), jnp.int32)
        return {
            "sum": tj.sum(none, empty),
            "prod": tj.prod(none, empty),
            "any": tj.any(none > 0, empty),
            "all": tj.all(none > 0, empty),
            "left": tj.reduce(count, empty, tj.add, order="fold_left"),
            "tree": tj.reduce(count, empty, tj.multiply, order="ordered_tree"),
            "user": tj.reduce(count, empty, tj.Reducer(lambda p, q: p + q, 7), order="fold_right"),
            "unordered": tj.reduce(none, tj.shape(a.i, empty), tj.Reducer(lambda p, q: p + q, 0.0)),
        }

    want = {"sum": np.zeros(2), "prod": np.ones(2), "unordered": np.float32(0)}
    want = {k: np.asarray(v, np.float32) for k, v in want.items()} | {
        "any": np.zeros(2, bool),
        "all": np.ones(2, bool),
    }
    want |= {"left": np.zeros(2, np.int32), "tree": np.ones(2, np.int32), "user": np.full(2, 7, np.int32)}
    tiles("i", fn, np.array([1.0, 2.0], np.float32), want=want)


def test_argmax_and_argmin_give_the_first_extremum():
    x = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, -1, -1, 5]], np.float32)
    n = x.astype(np.int8)

    def fn(a, x, n):
        return {
            "max": tj.argmax(x, a.j),
            "min": tj.argmin(x, a.j),
            "max i": tj.argmax(x, a.i),
            "ints": tj.argmin(n, a.j),
            "bools": tj.argmax(x > 1, a.j),
            "values": tj.gather(x, tj.argmax(x, a.j), a.j),
        }

    want = {"max": x.argmax(1), "min": x.argmin(1), "max i": x.argmax(0), "ints": n.argmin(1)}
    want |= {"bools": (x > 1).argmax(1)}
    want = {k: v.astype(np.int32) for k, v in want.items()} | {"values": x.max(1)}
    tiles("ij,ij", fn, x, n, want=want)


def test_reduction_of_a_tile_that_depends_on_the_program():
    """Inside a grid and over a ragged tail, with the fallback that the operation needs."""
    x = -np.abs(normal(3, 10)) - 1

    def kernel(x):
        sums, peaks = tj.output((3, 3), x.dtype), tj.output((3, 3), x.dtype)
        rows, blocks, r, c = tj.axis("rows", 3), tj.axis("blocks", 3), tj.axis("r", 1), tj.axis("c", 4)

        @tj.parallel(rows, blocks)
        def _(nest):
            i, j = nest.index(rows), nest.index(blocks)
            ref = x(tj.coord(i, j * 4), tj.shape(r, c))
            at = tj.coord(i, j), tj.shape(r, 1)
            sums(*at).store(tj.sum(ref.load(), c))
            peaks(*at).store(tj.max(ref.load(float("-inf")), c))

        return sums, peaks

    blocks = [x[:, :4], x[:, 4:8], x[:, 8:]]
    want = np.stack([b.sum(1) for b in blocks], 1), np.stack([b.max(1) for b in blocks], 1)
    both(kernel, x, want=want, rtol=1e-6)
