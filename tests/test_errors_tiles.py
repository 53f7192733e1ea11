"""Wrong uses of the operations on tiles: absent axes, dtypes that do not fit, functions that misbehave."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.wrong import Wrong, bench, rejected

A, S, D, T, C, SC = tj.AxisError, tj.ShapeError, tj.DtypeError, tj.TileTypeError, tj.CarryError, tj.ScopeError
ADD = lambda p, q: p + q  # noqa: E731


def acc(s, *dims, dtype=jnp.float32):
    return tj.zeros(tj.shape(*dims), dtype)


def storing_in_a_reducer(s):
    def fn(p, q):
        s.out(tj.coord(0, 0), tj.shape(1, 1)).store(p)  # wrong
        return p + q

    return tj.reduce(s.x, s.n, tj.Reducer(fn, 0.0))


CASES = {
    # Elementwise
    "& of floats": Wrong(D, "bitwise_and.*float32", lambda s: s.x & s.y),
    "<< of floats": Wrong(D, "left_shift.*float32", lambda s: s.x << 1),
    "~ of floats": Wrong(D, "invert.*float32", lambda s: ~s.x),
    "complex operand": Wrong(D, "complex", lambda s: s.x + 1j),
    "negative integer power": Wrong(D, "int32.*negative.*-1.*astype", lambda s: s.ix ** (-1)),
    "integer that does not fit": Wrong(D, "4294967296.*int32", lambda s: s.ix + 2**32),
    "astype to nonsense": Wrong(D, "astype.*floaty", lambda s: s.x.astype("floaty")),
    "astype to complex": Wrong(D, "astype.*complex64", lambda s: s.x.astype(jnp.complex64)),
    "float8 with float32": Wrong(D, "add.*float8_e5m2.*float32", lambda s: s.x.astype(jnp.float8_e5m2) + s.x),
    # Making tiles
    "iota of an int": Wrong(A, "iota.*8.*relabel", lambda s: tj.iota(8)),
    "full of a value that does not fit": Wrong(
        D, "int8.*300", lambda s: tj.full(tj.shape(s.m), 300, jnp.int8)
    ),
    "zeros of nonsense": Wrong(D, "floaty", lambda s: tj.zeros(tj.shape(s.m), "floaty")),
    # Reductions
    "sum over an absent axis": Wrong(A, "sum|reduce.*m:4, n:8.*k:5", lambda s: tj.sum(s.x, s.k)),
    "sum over an axis of that name": Wrong(A, "m:4.*one object", lambda s: tj.sum(s.x, tj.axis("m", 4))),
    "sum over an int": Wrong(A, "1.*relabel", lambda s: tj.sum(s.x, 1)),
    "sum over a positional shape": Wrong(A, "relabel", lambda s: tj.sum(s.x, tj.shape(s.m, 8))),
    "sum over an axis twice": Wrong(A, "twice", lambda s: tj.sum(s.x, (s.m, s.m))),
    "max of an empty axis": Wrong(S, "max.*empty", lambda s: tj.max(acc(s, s.m, s.empty), s.empty)),
    "argmin of an empty axis": Wrong(S, "argmin.*empty", lambda s: tj.argmin(acc(s, s.m, s.empty), s.empty)),
    "reduce with an unknown order": Wrong(
        S, "'left'.*fold_left", lambda s: tj.reduce(s.x, s.n, tj.add, order="left")
    ),
    "reduce with an unknown op": Wrong(T, "subtract.*Reducer", lambda s: tj.reduce(s.x, s.n, tj.subtract)),
    "argmax over two axes": Wrong(A, "argmax", lambda s: tj.argmax(s.x, tj.shape(s.m, s.n))),
    "identity that does not fit": Wrong(
        D, "identity.*int32.*0.5", lambda s: tj.reduce(s.ix, s.n, tj.Reducer(ADD, 0.5))
    ),
    "reducer that changes dtype": Wrong(
        C,
        "Reducer.*float32.*float16",
        lambda s: tj.reduce(s.x, s.n, tj.Reducer(lambda p, q: (p + q).astype(jnp.float16), 0.0)),
    ),
    "reducer that adds axes": Wrong(
        C, "Reducer.*n:8", lambda s: tj.reduce(s.x, s.m, tj.Reducer(lambda p, q: p + s.y, 0.0))
    ),
    "reducer that stores": Wrong(SC, "Reducer.*view", storing_in_a_reducer),
    # Contraction
    "mma without a place for an axis": Wrong(
        S, "mma.*m:4.*k:5.*m:4", lambda s: tj.mma(s.x, acc(s, s.k), acc(s, s.m))
    ),
    "mma positional mismatch": Wrong(
        S, "mma.*3.*4", lambda s: tj.mma(acc(s, 2, 3), acc(s, 4, 5), acc(s, 2, 5))
    ),
    "mma of two dtypes": Wrong(D, "mma.*float32.*float16.*astype", lambda s: tj.mma(s.x, s.h, acc(s, s.m))),
    "mma of int8 into float32": Wrong(D, "mma.*int8.*float32", lambda s: tj.mma(s.i8, s.i8, acc(s))),
    "mma of float32 into int32": Wrong(
        D, "mma.*float32.*int32", lambda s: tj.mma(s.x, s.y, acc(s, s.m, dtype=jnp.int32))
    ),
    "mma into a narrow accumulator": Wrong(
        D, "mma.*float32.*float16", lambda s: tj.mma(s.x, s.y, acc(s, s.m, dtype=jnp.float16))
    ),
    "mma into int8": Wrong(D, "mma.*int8.*int32", lambda s: tj.mma(s.i8, s.i8, acc(s, dtype=jnp.int8))),
    "mma precision": Wrong(
        D, "precision.*'exact'", lambda s: tj.mma(s.x, s.y, acc(s, s.m), precision="exact")
    ),
    "mma of a view": Wrong(T, "image.*load", lambda s: tj.mma(s.image, s.x, acc(s, s.m))),
    # Scans
    "scan over an absent axis": Wrong(A, "cumsum.*m:4, n:8.*k:5", lambda s: tj.cumsum(s.x, s.k)),
    "scan over an int": Wrong(A, "0.*relabel", lambda s: tj.cummax(s.x, 0)),
    "scan of tiles without the axis": Wrong(
        A, "n:8.*m:4", lambda s: tj.associative_scan(ADD, (s.x, s.y), s.m)
    ),
    "scan operator that drops a leaf": Wrong(
        C, "associative_scan.*structure", lambda s: tj.associative_scan(lambda p, q: (p[0],), (s.x, s.x), s.n)
    ),
    "scan operator that changes dtype": Wrong(
        C,
        "associative_scan.*float32.*int32",
        lambda s: tj.associative_scan(lambda p, q: (p + q).astype(jnp.int32), s.x, s.n),
    ),
    # Index
    "gather along an absent axis": Wrong(A, "gather.*m:4, n:8.*k:5", lambda s: tj.gather(s.x, s.ix, s.k)),
    "gather with a float index": Wrong(D, "gather.*index.*float32", lambda s: tj.gather(s.x, s.y, s.n)),
    "gather along an int": Wrong(A, "gather.*1.*relabel", lambda s: tj.gather(s.x, s.ix, 1)),
    "gather with a bad fallback": Wrong(
        D, "gather.*int32.*0.5", lambda s: tj.gather(s.ix, 0, s.n, fallback=0.5)
    ),
    "reindex of another rank": Wrong(
        S, "reindex.*1.*2", lambda s: tj.reindex(s.x, tj.shape(s.k), lambda e: tj.coord(e.index()))
    ),
    "reindex that returns no coord": Wrong(
        S, "reindex.*coord.*int", lambda s: tj.reindex(s.x, tj.shape(s.k), lambda e: 3)
    ),
    "reindex by an axis that is not there": Wrong(
        A,
        r"n:8.*k:5.*parallel\(grid\)",
        lambda s: tj.reindex(s.y, tj.shape(s.k), lambda e: tj.coord(e.index(s.n))),
    ),
    "reshape of another size": Wrong(S, "reshape.*32.*30", lambda s: tj.reshape(s.x, tj.shape(6, 5))),
    "broadcast_to without an axis": Wrong(
        A, "broadcast_to.*m:4.*n:8", lambda s: tj.broadcast_to(s.x, tj.shape(s.n, s.k))
    ),
    "broadcast_to of another extent": Wrong(
        S, "broadcast_to.*4.*3", lambda s: tj.broadcast_to(acc(s, 4), tj.shape(2, 3))
    ),
    "relabel of another rank": Wrong(S, "relabel.*n:8.*m:4, n:8", lambda s: tj.relabel(s.x, tj.shape(s.n))),
    "relabel of another extent": Wrong(S, "relabel.*k:5.*n:8", lambda s: tj.relabel(s.y, tj.shape(s.k))),
    "transpose to other axes": Wrong(
        A, "transpose.*k:5, m:4.*m:4, n:8", lambda s: tj.transpose(s.x, tj.shape(s.k, s.m))
    ),
    # Order
    "sort along an absent axis": Wrong(A, "sort.*m:4, n:8.*k:5", lambda s: tj.sort(s.x, s.k)),
    "sort along an int": Wrong(A, "0.*relabel", lambda s: tj.sort(s.x, 0)),
    "top_k of too many": Wrong(S, "top_k.*9.*8", lambda s: tj.top_k(s.x, s.n, 9)),
    "top_k with too long an axis": Wrong(S, "top_k.*n:8.*4|top_k.*8.*m:4", lambda s: tj.top_k(s.x, s.m, s.n)),
    "top_k of fewer than none": Wrong(A, "top_k.*-1", lambda s: tj.top_k(s.x, s.n, -1)),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_operation(name):
    case = CASES[name]
    rejected(case, lambda: bench(case.program))


def test_every_error_is_a_tile_error_and_a_built_in():
    for error in (A, S, tj.LayoutError, SC):
        assert issubclass(error, tj.TileError)
        assert issubclass(error, ValueError)
    for error in (D, C, T, tj.ReadOnlyError):
        assert issubclass(error, tj.TileError)
        assert issubclass(error, TypeError)
    assert issubclass(tj.BoundsError, IndexError)
    assert issubclass(tj.RaceError, RuntimeError)
    assert issubclass(tj.UnsupportedError, NotImplementedError)
    assert np.all([issubclass(e, tj.TileError) for e in (tj.BoundsError, tj.RaceError, tj.UnsupportedError)])
