"""Ordered reductions and ordered contractions, to the bit, on data whose every order gives another sum."""

from fractions import Fraction

import numpy as np
import pytest
from test_triton import interpreted

import tilejax as tj
from tests.helpers import RUNNERS

F32 = np.float32
CANCELLING = np.array([2**24, 1, -(2**24), 3, -2], F32)
EXTENTS = [(0, 3), (2, 0), (1, 1), (1, 3), (2, 3), (3, 5)]
SEEDS = [0.0, -0.0, 3.0]
ORDERS = ["ordered_tree", "fold_left", "fold_right"]
BACKENDS = dict(RUNNERS)
if "triton" not in RUNNERS:  # no GPU: Triton's bodies, in Pallas's interpreter
    BACKENDS["pallas"] = lambda kernel: lambda *args: interpreted(kernel, *args)


def bits(x):
    """Values as integers: -0.0 is not 0.0 here."""
    return np.asarray(x, F32).view(np.int32).tolist()


def reduced(order, values, seed, fn=lambda a, b: F32(a + b)):
    """One row by the definition; ``values`` are float32 numbers."""
    seed = F32(seed)
    if order == "fold_left":
        for value in values:
            seed = fn(seed, value)
        return seed
    if order == "fold_right":
        for value in values[::-1]:
            seed = fn(value, seed)
        return seed
    level = [fn(seed, values[0]), *values[1:]] if len(values) else [seed]
    while len(level) > 1:
        pairs = [fn(*level[i : i + 2]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def cancelling(outer, inner):
    """A row for each rotation of the data."""
    count = outer * inner
    rows = [np.resize(np.roll(CANCELLING, -shift), count) for shift in range(5)]
    return np.array(rows, F32).reshape(5, outer, inner)


@pytest.mark.parametrize(("outer", "inner"), EXTENTS)
@pytest.mark.parametrize("order", ORDERS)
def test_reductions_in_order(order, outer, inner):
    """From each seed: over both axes, row-major; over both in the other order; over the inner one alone."""
    x = cancelling(outer, inner)
    width = max(outer, 1)

    def kernel(x):
        totals, rows = tj.output((2, len(SEEDS), 5), F32), tj.output((len(SEEDS), 5, width), F32, init=7)
        r, o, i = tj.axis("r", 5), tj.axis("o", outer), tj.axis("i", inner)

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0, 0, 0), tj.shape(r, o, i)]
            for s, seed in enumerate(SEEDS):
                plus = tj.add if s == 0 else tj.Reducer(lambda a, b: a + b, seed)
                for w, axes in enumerate((tj.shape(o, i), tj.shape(i, o))):
                    result = tj.reduce(tile, axes, plus, order=order)
                    totals(tj.coord(w, s, 0), tj.shape(1, 1, r)).store(tj.reshape(result, tj.shape(1, 1, r)))
                result = tj.reduce(tile, i, plus, order=order)
                rows(tj.coord(s, 0, 0), tj.shape(1, r, o)).store(tj.reshape(result, tj.shape(1, r, o)))

        return totals, rows

    swapped = x.transpose(0, 2, 1)
    totals = [[[reduced(order, row.ravel(), e) for row in y] for e in SEEDS] for y in (x, swapped)]
    rows = np.full((len(SEEDS), 5, width), 7, F32)
    for s, a, b in np.ndindex(len(SEEDS), 5, outer):
        rows[s, a, b] = reduced(order, x[a, b], SEEDS[s])
    for name, runner in BACKENDS.items():
        got = runner(kernel)(x)
        assert [bits(g) for g in got] == [bits(totals), bits(rows)], name


@pytest.mark.parametrize("order", ORDERS)
def test_an_operation_that_does_not_commute(order):
    """``a - b / 2`` shows which operand is the earlier one."""
    x = cancelling(3, 5)[:, 0]
    r, i = tj.axis("r", 5), tj.axis("i", 5)

    def kernel(x):
        out = tj.output((5,), F32)

        @tj.parallel(1)
        def _(nest):
            less = tj.Reducer(lambda a, b: a - b * 0.5, 3)
            result = tj.reduce(x[tj.coord(0, 0), tj.shape(r, i)], i, less, order=order)
            out(tj.coord(0), tj.shape(r)).store(result)

        return out

    want = [reduced(order, row, 3, lambda a, b: F32(a - F32(b * F32(0.5)))) for row in x]
    for name, runner in BACKENDS.items():
        assert bits(runner(kernel)(x)) == bits(want), name


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_negative_zeros_stay_so(count):
    """Folded from -0.0, and where elements are only picked."""
    x = np.full((3, count), -0.0, F32)
    x[1, 0] = x[2, -1] = 0
    r, i = tj.axis("r", 3), tj.axis("i", count)

    def kernel(x):
        totals, picked = tj.output((len(ORDERS), 3), F32), tj.output((3, count), F32)

        @tj.parallel(1)
        def _(nest):
            at, tile = (tj.coord(0, 0), tj.shape(r, i)), x[tj.coord(0, 0), tj.shape(r, i)]
            for o, order in enumerate(ORDERS):
                total = tj.reduce(tile, i, tj.Reducer(lambda a, b: a + b, -0.0), order=order)
                totals(tj.coord(o, 0), tj.shape(1, r)).store(tj.reshape(total, tj.shape(1, r)))
            picked(*at).store(tj.gather(tile, count - 1 - tj.iota(i), i))

        return totals, picked

    totals = np.broadcast_to(np.where(np.signbit(x).all(1), F32(-0.0), F32(0)), (len(ORDERS), 3))
    want = [bits(totals), bits(x[:, ::-1])]
    for name, runner in BACKENDS.items():
        assert [bits(got) for got in runner(kernel)(x)] == want, name


@pytest.mark.parametrize("trips", [0, 1, 2, 5, 15])
def test_a_serial_sum_adds_in_the_order_of_its_steps(trips):
    x = cancelling(3, 5).reshape(5, 15)

    def kernel(x):
        out = tj.output((len(SEEDS), 5), F32)
        r, one = tj.axis("r", 5), tj.axis("one", 1)

        @tj.parallel(1)
        def _(nest):
            for s, seed in enumerate(SEEDS):

                @nest.serial(tj.axis("steps", trips), carry=tj.full(tj.shape(r), seed, F32))
                def total(step, total):
                    column = x[tj.coord(0, step.index()), tj.shape(r, one)]
                    return total + tj.reshape(column, tj.shape(r))

                out(tj.coord(s, 0), tj.shape(one, r)).store(total)

        return out

    want = [[reduced("fold_left", row[:trips], seed) for row in x] for seed in SEEDS]
    for name, runner in BACKENDS.items():
        assert bits(runner(kernel)(x)) == bits(want), name


def rounded(exact: Fraction):
    """The float32 nearest to an exact number, ties to even."""
    near = F32(float(exact))
    around = [near, np.nextafter(near, F32(np.inf)), np.nextafter(near, F32(-np.inf))]
    return min(around, key=lambda f: (abs(Fraction(float(f)) - exact), int(f.view(np.int32)) & 1))


def products(a, b, acc, axes, order):
    """The ordered contraction, with FMA and without."""
    fused, plain = acc.copy(), acc.copy()
    for m, n in np.ndindex(acc.shape):
        for at in order:
            x, y = a[(m, *at)], b[(*at, n)]
            exact = Fraction(float(x)) * Fraction(float(y))
            fused[m, n] = rounded(Fraction(float(fused[m, n])) + exact)
            plain[m, n] = plain[m, n] + x * y
    return fused, plain


def contraction(a, b, acc):
    """``acc + a * b`` over two axes in order, a kernel of one program."""
    m, n = tj.axis("m", acc.shape[0]), tj.axis("n", acc.shape[1])
    j, k = tj.axis("j", a.shape[1]), tj.axis("k", a.shape[2])

    def kernel(a, b, acc):
        out = tj.output(acc.shape, acc.dtype)

        @tj.parallel(1)
        def _(nest):
            left, right = a[tj.coord(0, 0, 0), tj.shape(m, j, k)], b[tj.coord(0, 0, 0), tj.shape(j, k, n)]
            start = acc[tj.coord(0, 0), tj.shape(m, n)]
            result = tj.mma(left, right, start, allow_reassociation=False)
            out(tj.coord(0, 0), tj.shape(m, n)).store(result)

        return out

    return kernel


@pytest.mark.parametrize(("j", "k"), [(0, 3), (2, 0), (1, 1), (1, 3), (2, 3), (3, 5)])
@pytest.mark.parametrize("exact", [True, False])
def test_a_contraction_in_order(exact, j, k):
    """Powers of two times the cancelling data: exact products, so one result. Else that with FMA or without,
    in each element."""
    rng = np.random.default_rng(j * 10 + k)
    if exact:
        a = np.resize(CANCELLING, (3, j, k)).astype(F32)
        b = (2.0 ** rng.integers(-3, 4, (j, k, 4))).astype(F32)
    else:
        a, b = rng.standard_normal((3, j, k)).astype(F32), rng.standard_normal((j, k, 4)).astype(F32)
    acc = rng.standard_normal((3, 4)).astype(F32)
    fused, plain = products(a, b, acc, (j, k), list(np.ndindex(j, k)))
    if exact:
        assert bits(fused) == bits(plain)
    for name, runner in BACKENDS.items():
        got = np.asarray(runner(contraction(a, b, acc))(a, b, acc))
        ok = (got.view(np.int32) == fused.view(np.int32)) | (got.view(np.int32) == plain.view(np.int32))
        assert ok.all(), name
