"""Programs that no documented kernel is: fixed orders, memories, scopes, loops, values at the edges."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from msl_host import Batch, Case

import tilejax as tj
from tests.helpers import same

CASES: dict[str, Case] = {}
X = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)
EDGES = np.array(
    [
        0,
        -0.0,
        1,
        -1,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e-7,
        -1e-7,
        3,
        -7,
        88,
        -104,
        1e10,
        -3e9,
        300,
        np.inf,
        -np.inf,
        np.nan,
    ],
    np.float32,
)


def case(*args: Any, want: Any, rtol: float = 0.0, atol: float = 0.0, atoms: bool = False) -> Any:
    """The decorated kernel at these arguments must give `want`; `atoms` asserts SIMD-group matrices."""
    want = tuple(map(np.asarray, want)) if isinstance(want, tuple) else np.asarray(want)

    def check(call: Any) -> None:
        same(call(*args), want, rtol=rtol, atol=atol)

    def add(kernel: Any) -> Any:
        CASES[kernel.__name__] = Case(kernel, check, atoms)
        return kernel

    return add


def whole(x: Any, *axes: tj.Axis) -> tj.Tile:
    return x[tj.coord(*(0 for _ in axes)), tj.shape(*axes)]


def mapped(name: str, x: np.ndarray, functions: dict[str, Any], **tolerance: float) -> None:
    """A kernel of one result for each function: `{name: (fn of a tile, what it must give)}`."""

    def kernel(x: Any) -> Any:
        n = tj.axis("n", x.shape[0])
        outs = [tj.output(x.shape, np.asarray(want).dtype) for _, want in functions.values()]

        @tj.parallel(1)
        def _(nest):
            for out, (fn, _) in zip(outs, functions.values(), strict=True):
                out(tj.coord(0), tj.shape(n)).store(fn(whole(x, n)).astype(out.dtype))

        return tuple(outs)

    kernel.__name__ = name
    case(x, want=tuple(want for _, want in functions.values()), **tolerance)(kernel)


with np.errstate(all="ignore"):
    wide = EDGES.astype(np.float64)
    mapped(
        "transcendental",
        EDGES,
        {
            "exp": (tj.exp, np.exp(EDGES)),
            "exp2": (tj.exp2, np.exp2(EDGES)),
            "expm1": (tj.expm1, np.expm1(wide).astype(np.float32)),
            "log": (tj.log, np.log(EDGES)),
            "log2": (tj.log2, np.log2(wide).astype(np.float32)),
            "log1p": (tj.log1p, np.log1p(wide).astype(np.float32)),
            "sqrt": (tj.sqrt, np.sqrt(EDGES)),
            "rsqrt": (tj.rsqrt, (1 / np.sqrt(wide)).astype(np.float32)),
            "tanh": (tj.tanh, np.tanh(EDGES)),
            "sin": (lambda x: tj.sin(tj.clip(x, -9, 9)), np.sin(np.clip(EDGES, -9, 9))),
            "cos": (lambda x: tj.cos(tj.clip(x, -9, 9)), np.cos(np.clip(EDGES, -9, 9))),
            "erf": (tj.erf, np.array([math.erf(x) for x in EDGES], np.float32)),
            "sigmoid": (tj.sigmoid, (1 / (1 + np.exp(-wide))).astype(np.float32)),
            "power": (lambda x: tj.power(x, 2.5), np.power(wide, 2.5).astype(np.float32)),
            "cube": (lambda x: x**3, (wide**3).astype(np.float32)),
            "inverse": (lambda x: x**-2, (wide**-2).astype(np.float32)),
        },
        rtol=2e-6,
        atol=1e-37,
    )
    mapped(
        "exact",
        EDGES,
        {
            "floor": (tj.floor, np.floor(EDGES)),
            "ceil": (tj.ceil, np.ceil(EDGES)),
            "round": (tj.round, np.rint(EDGES)),
            "sign": (tj.sign, np.sign(EDGES)),
            "abs": (tj.abs, np.abs(EDGES)),
            "isnan": (tj.isnan, np.isnan(EDGES)),
            "isfinite": (tj.isfinite, np.isfinite(EDGES)),
            "maximum": (lambda x: tj.maximum(x, 1.0), np.maximum(EDGES, 1)),
            "minimum": (lambda x: tj.minimum(1.0, x), np.minimum(1, EDGES)),
            "clip": (lambda x: tj.clip(x, -1.0, 1.0), np.clip(EDGES, -1, 1)),
            "floor_divide": (lambda x: tj.clip(x, -50, 50) // 2.0, np.clip(EDGES, -50, 50) // 2),
            "remainder": (lambda x: tj.clip(x, -50, 50) % 2.0, np.clip(EDGES, -50, 50) % 2),
            "half": (lambda x: x.astype(np.float16), EDGES.astype(np.float16)),
            "brain": (lambda x: x.astype(jnp.bfloat16), EDGES.astype(ml_dtypes.bfloat16)),
            "rounded": (
                lambda x: x.astype(jnp.bfloat16).astype(np.float32),
                EDGES.astype(ml_dtypes.bfloat16).astype(np.float32),
            ),
            "bool": (lambda x: x.astype(bool), EDGES != 0),
        },
    )

    def saturated(dtype: Any) -> np.ndarray:
        info = np.iinfo(dtype)
        inside = np.nan_to_num(np.trunc(wide), nan=0, posinf=1e30, neginf=-1e30)
        return np.array([min(max(int(v), info.min), info.max) for v in inside], dtype)

    mapped(
        "casts",
        EDGES,
        {
            np.dtype(d).name: (functools.partial(tj.Tile.astype, dtype=d), saturated(d))
            for d in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
        },
    )

COUNTS = np.array([-128, -100, -9, -8, -1, 0, 1, 3, 7, 8, 9, 100, 127], np.int8)
SHIFTS = np.where((COUNTS >= 0) & (COUNTS < 8), COUNTS, 100).astype(np.int64)


def int8(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64).astype(np.int8)


C64 = COUNTS.astype(np.int64)
mapped(
    "bytes",
    COUNTS,
    {
        "add": (lambda x: x + x, int8(2 * C64)),
        "mul": (lambda x: x * x, int8(C64 * C64)),
        "neg": (lambda x: -x, int8(-C64)),
        "abs": (tj.abs, int8(abs(C64))),
        "cube": (lambda x: x**3, int8(C64**3)),
        "floor_divide": (lambda x: x // 7, int8(C64 // 7)),
        "remainder": (lambda x: x % -7, int8(C64 % -7)),
        "left": (
            lambda x: tj.full(tj.shape(*x.axes), 77, np.int8) << x,
            int8(np.where(SHIFTS < 8, 77 << (SHIFTS % 64), 0)),
        ),
        "right": (lambda x: x >> 9, int8(np.where(C64 < 0, -1, 0))),
        "by": (lambda x: tj.full(tj.shape(*x.axes), -77, np.int8) >> x, int8(-77 >> np.minimum(SHIFTS, 63))),
        "invert": (lambda x: ~x, int8(~C64)),
        "xor": (lambda x: x ^ 85, int8(C64 ^ 85)),
        "wider": (lambda x: x.astype(np.uint32), COUNTS.astype(np.uint32)),
        "float": (lambda x: x.astype(np.float16), COUNTS.astype(np.float16)),
    },
)


def folded(x: np.ndarray, order: str) -> np.ndarray:
    """The sum of the rows in a fixed order, every step rounded."""
    rows = []
    for row in x:
        if order == "ordered_tree":
            level = [np.float32(0) + row[0], *row[1:]]
            while len(level) > 1:
                pairs = [a + b for a, b in zip(level[0::2], level[1::2], strict=False)]
                level = pairs + level[2 * len(pairs) :]
            rows.append(level[0])
        else:
            steps = row if order == "fold_left" else row[::-1]
            rows.append(functools.reduce(lambda a, b: a + b, steps, np.float32(0)))
    return np.array(rows, np.float32)


@case(X, want=tuple(folded(X, order) for order in ("fold_left", "fold_right", "ordered_tree")) * 2)
def ordered_sums(x):
    r, c = map(tj.axis, "rc", x.shape)
    outs = [tj.output(x.shape[:1], x.dtype) for _ in range(6)]
    plus = tj.Reducer(lambda a, b: a + b, 0)

    @tj.parallel(1)
    def _(nest):
        kinds = [
            (op, order) for op in (tj.add, plus) for order in ("fold_left", "fold_right", "ordered_tree")
        ]
        for out, (op, order) in zip(outs, kinds, strict=True):
            out(tj.coord(0), tj.shape(r)).store(tj.reduce(whole(x, r, c), c, op, order=order))

    return tuple(outs)


ODD = np.where(np.arange(37) % 9 == 4, np.nan, np.round(4 * X)).astype(np.float32)


@case(
    ODD,
    want=(
        np.argmax(ODD, 1).astype(np.int32),
        np.argmin(np.round(4 * X), 0).astype(np.int32),
        np.maximum.accumulate(np.round(4 * X)[:, ::-1], 1)[:, ::-1],
    ),
)
def extrema(x):
    r, c = map(tj.axis, "rc", x.shape)
    first, least, scanned = tj.output((5,), np.int32), tj.output((37,), np.int32), tj.output_like(x)
    plain = tj.view(np.round(4 * X))

    @tj.parallel(1)
    def _(nest):
        first(tj.coord(0), tj.shape(r)).store(tj.argmax(whole(x, r, c), c).astype(np.int32))
        least(tj.coord(0), tj.shape(c)).store(tj.argmin(whole(plain, r, c), r).astype(np.int32))
        scanned(tj.coord(0, 0), tj.shape(r, c)).store(tj.cummax(whole(plain, r, c), c, reverse=True))

    return first, least, scanned


MATRICES = np.random.default_rng(1).integers(-1, 2, (6, 2, 2)).astype(np.float32)


@case(
    MATRICES,
    want=np.array(functools.reduce(lambda done, m: [*done, done[-1] @ m], MATRICES[1:], [MATRICES[0]])),
)
def scan_of_matrices(x):
    """The operator is not elementwise: an element needs a row and a column of what came before."""
    y, (n, i, j) = tj.output_like(x), map(tj.axis, "nij", x.shape)

    @tj.parallel(1)
    def _(nest):
        k = tj.axis("k", 2)

        def times(a, b):
            left, right = tj.relabel(a, tj.shape(i, k)), tj.relabel(b, tj.shape(k, j))
            return tj.mma(left, right, tj.zeros(tj.shape(i, j)))

        y(tj.coord(0, 0, 0), tj.shape(n, i, j)).store(tj.associative_scan(times, whole(x, n, i, j), n))

    return y


LEFT, RIGHT = (np.random.default_rng(3).integers(-3, 4, s).astype(np.float32) for s in ((19, 13), (21, 19)))


@case(LEFT, RIGHT, want=(RIGHT @ LEFT, LEFT.T @ RIGHT.T + 1), atoms=True)
def transposed_products(a, b):
    """Each operand lies across, and one accumulator too; extents are no multiples of 8."""
    (k, m), n = map(tj.axis, "km", a.shape), tj.axis("n", b.shape[0])
    y, z = tj.output((21, 13), a.dtype), tj.output((13, 21), a.dtype)

    @tj.parallel(1)
    def _(nest):
        left, right = whole(a, k, m), whole(b, n, k)
        y(tj.coord(0, 0), tj.shape(n, m)).store(tj.mma(left, right, tj.zeros(tj.shape(n, m))))
        z(tj.coord(0, 0), tj.shape(m, n)).store(tj.mma(left, right, tj.ones(tj.shape(m, n))))

    return y, z


RATES, INPUTS = (np.random.default_rng(2).integers(-1, 2, (2, 77)).astype(np.float32) for _ in range(2))


def recurrence(rates: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """`y[t] = rate[t] * y[t - 1] + input[t]`, from the last to the first."""
    y = np.zeros_like(inputs)
    for t in reversed(range(inputs.shape[1])):
        y[:, t] = inputs[:, t] + (rates[:, t] * y[:, t + 1] if t + 1 < inputs.shape[1] else 0)
    return y


@case(RATES, INPUTS, want=recurrence(RATES, INPUTS))
def linear_recurrence(rates, inputs):
    y, (r, t) = tj.output_like(inputs), map(tj.axis, "rt", inputs.shape)

    def join(a, b):
        return b[0] * a[0], b[0] * a[1] + b[1]

    @tj.parallel(1)
    def _(nest):
        pair = whole(rates, r, t), whole(inputs, r, t)
        y(tj.coord(0, 0), tj.shape(r, t)).store(tj.associative_scan(join, pair, t, reverse=True)[1])

    return y


@case(np.arange(64, dtype=np.int32), want=np.arange(64, dtype=np.int32).reshape(8, 8).T.reshape(64) * 3)
def swizzled_memory(x):
    """Stored through one layout, read through the same one in another order of the loop's steps."""
    y, r, c = tj.output_like(x), tj.axis("r", 8), tj.axis("c", 8)
    layout = tj.IndexMap.from_function(tj.shape(r, c), lambda i, j: i * 8 + (j ^ i), 64)

    @tj.parallel(1)
    def _(nest):
        held = tj.memory(layout, np.int32)
        held.store(tj.reshape(x[tj.coord(0), tj.shape(64)], tj.shape(r, c)))
        before = held.load()

        @nest.serial(tj.axis("step", 2))
        def _(step):
            held.store(held.load() + before)

        turned = tj.transpose(held.load(), tj.shape(c, r))
        y(tj.coord(0), tj.shape(64)).store(tj.reshape(turned, tj.shape(64)))

    return y


@case(
    X[:, :4],
    want=np.cumsum(X[:, :4] * 0 + 1, 1, dtype=np.float32) * np.arange(1, 6, dtype=np.float32)[:, None],
)
def workers_in_a_group(x):
    """Sub-programs of a thread each, with memory of their own."""
    y, rows, cols, one = tj.output_like(x), tj.axis("rows", 5), tj.axis("cols", 4), tj.axis("one", 1)

    @tj.parallel(1, scope=tj.Scope.GROUP)
    def _(nest):
        c = tj.axis("c", 4)
        weights = tj.cumsum(tj.ones(tj.shape(c)), c)

        @nest.parallel(rows, scope=tj.Scope.WORKER)
        def _(sub):
            held = tj.memory(tj.shape(c), np.float32, tj.Resource.PRIVATE)
            held.store(weights * (sub.index() + 1).astype(np.float32))

            @sub.serial(cols)
            def _(step):
                value = tj.gather(held.load(), step.index(), c)
                y(tj.coord(sub.index(rows), step.index()), tj.shape(one, one_more)).store(value)

    return y


one_more = tj.axis("one_more", 1)


@case(np.arange(5, dtype=np.int32), want=np.array([8, 4, 13, 0, 0], np.int32))
def fibonacci(x):
    """Scalars that change places, a tile that needs other elements of itself, and a stop that was loaded."""
    y, n, one = tj.output_like(x), tj.axis("n", 5), tj.axis("one", 1)

    @tj.parallel(1)
    def _(nest):
        stop = tj.reshape(x[tj.coord(3), tj.shape(one)], tj.shape()) + 3

        @nest.serial(tj.axis("steps", 9), carry=(0, 1, tj.iota(n)), stop=stop)
        def last(step, carry):
            a, b, ring = carry
            return b, a + b, tj.gather(ring, (tj.iota(n) + 1) % 5, n)

        a, b, ring = last
        first = tj.where(tj.iota(n) == 0, a, tj.where(tj.iota(n) == 1, tj.gather(ring, 3, n), 0))
        y(tj.coord(0), tj.shape(n)).store(tj.where(tj.iota(n) == 2, b, first))

    return y


def turned_and_added(x, scope):
    y, r, c = tj.update(x), tj.axis("r", 5), tj.axis("c", 37)

    @tj.parallel(r, scope=scope)
    def _(nest):
        here, row = tj.coord(nest.index(r), 0), tj.shape(1, c)
        before = y[here, row]
        backwards = tj.gather(before, 36 - tj.iota(c), c)
        y(here, row).store(backwards)
        y(here, row).store(y[here, row] + before)

    return y


@case(X, want=X[:, ::-1] + X)
def what_was_loaded_stays(x):
    return turned_and_added(x, tj.Scope.GROUP)


@case(X, want=X[:, ::-1] + X)
def what_a_worker_loaded_stays(x):
    return turned_and_added(x, tj.Scope.WORKER)


LONG = np.random.default_rng(4).permutation(6000).astype(np.float32)


@case(LONG, want=np.sort(LONG)[::-1].copy())
def a_worker_sorts_what_is_too_large_for_it(x):
    y, n = tj.output_like(x), tj.axis("n", x.shape[0])

    @tj.parallel(1, scope=tj.Scope.WORKER)
    def _(nest):
        y(tj.coord(0), tj.shape(n)).store(tj.sort(whole(x, n), n, descending=True)[0])

    return y


@case(X, want=(np.sort(X, 1) * 2, X[:, 0].copy()))
def outside_of_nests(x):
    """Tile operations that are programs of their own; what was loaded of a view outlives a store to it."""
    y, z, r, c = tj.update(x), tj.output((5,), x.dtype), tj.axis("r", 5), tj.axis("c", 37)
    here = tj.coord(0, 0), tj.shape(r, c)
    first = tj.gather(y[here], 0, c)
    y(*here).store(tj.sort(x[here], c)[0])

    @tj.parallel(r)
    def _(nest):
        row = tj.coord(nest.index(r), 0), tj.shape(1, c)
        y(*row).store(y[row] * 2)

    z(tj.coord(0), tj.shape(r)).store(first)
    return y, z


@pytest.fixture(scope="module")
def batch(tmp_path_factory) -> Any:
    made, folder = Batch(CASES), tmp_path_factory.mktemp("programs")
    made.run(folder)
    return made, folder


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_it_must(batch, name):
    made, folder = batch
    made.check(name, folder)


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees(name):
    CASES[name].check(tj.interpret(CASES[name].kernel))


def test_workers_wait_for_nobody(batch):
    """Some have ended before others begin: a barrier would wait for ever."""
    assert "barrier" in batch[0].sources["what_was_loaded_stays"].text
    for name in ("what_a_worker_loaded_stays", "a_worker_sorts_what_is_too_large_for_it"):
        assert "barrier" not in batch[0].sources[name].text


def test_products_of_transposed_tiles_are_made_of_atoms(batch):
    assert batch[0].sources["transposed_products"].matrix_operations == 2
