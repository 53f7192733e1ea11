"""Proofs about index maps: against brute force over the points, and the maps that are easy to get wrong."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter

import pytest

import tilejax as tj

P, D, U = tj.Proof.PROVEN, tj.Proof.DISPROVEN, tj.Proof.UNKNOWN
INT64 = range(-(2**63), 2**63)
DEFAULT = 2**20


class Undefined(Exception):
    """A subexpression has no value of 64 bits."""


class Exact:
    """An int that counts as undefined what the language does; the oracle shares no code with index maps."""

    def __init__(self, value):
        if value not in INT64:
            raise Undefined
        self.value = value

    def _do(self, other, fn):
        other = other if isinstance(other, Exact) else Exact(other)
        try:
            return Exact(fn(self.value, other.value))
        except (ZeroDivisionError, ValueError, OverflowError):
            raise Undefined from None

    def __add__(self, other):
        return self._do(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._do(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._do(other, lambda a, b: a * b)

    def __floordiv__(self, other):
        return self._do(other, lambda a, b: math.floor(a // b))

    def __mod__(self, other):
        return self._do(other, lambda a, b: a - b * (a // b))

    def __xor__(self, other):
        return self._do(other, lambda a, b: a ^ b)

    def __and__(self, other):
        return self._do(other, lambda a, b: a & b)

    def __lshift__(self, other):
        return self._do(other, lambda a, b: a * 2 ** _count(b))

    def __rshift__(self, other):
        return self._do(other, lambda a, b: a // 2 ** _count(b))

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other):
        return Exact(other) - self

    def __rfloordiv__(self, other):
        return Exact(other) // self


def _count(b):
    if not 0 <= b <= 63:
        raise ValueError
    return b


def brute(shape, fn, codomain):
    """`(total, in_bounds, injective, surjective)` of the defined points, one by one."""
    total, images = True, []
    for point in itertools.product(*map(range, shape)):
        try:
            image = fn(*map(Exact, point))
            image = image if isinstance(image, tuple) else (image,)
            images.append(tuple(v.value if isinstance(v, Exact) else v for v in image))
        except Undefined:
            total = False
    inside = [image for image in images if all(0 <= v < n for v, n in zip(image, codomain, strict=True))]
    return (
        total,
        len(inside) == len(images),
        len(set(images)) == len(images),
        len(set(inside)) == math.prod(codomain),
    )


def check(shape, fn, codomain, budget=0):
    """The verdicts, each of which the points confirm."""
    index_map = tj.IndexMap.from_function(tj.shape(*shape), fn, tj.shape(*codomain))
    found = index_map.prove(budget)
    truth = brute(shape, fn, codomain)
    for claim, verdict, true in zip(found._fields, found[:4], truth, strict=False):
        expected = {P: True, D: False}.get(verdict, true)
        assert expected == true, f"{claim} of {index_map} is {verdict}"
    if not truth[0]:
        assert P not in (found.in_bounds, found.injective), index_map
    assert found.enumerated in (0, math.prod(shape))
    assert found.enumerated <= budget
    return found


def affine_case(r):
    rank = r.choice((1, 2, 2, 3))
    shape = tuple(r.choice((1, 2, 3, 4, 5, 8)) if rank < 3 else r.randint(0, 4) for _ in range(rank))
    outputs = r.choice((1, 1, 1, 2))
    rows = [[r.choice((0, 1, 1, 2, 3, 4, 5, 8, 9, 12, -1, -2, -3)) for _ in shape] for _ in range(outputs)]
    offsets = [r.choice((0, 0, 0, 1, 5, -1)) for _ in rows]

    def fn(*index):
        images = []
        for row, offset in zip(rows, offsets, strict=True):
            image = index[0] * row[0]
            for i, stride in zip(index[1:], row[1:], strict=True):
                image = image + i * stride
            images.append(image + offset)
        return tuple(images)

    codomain = tuple(r.choice((1, 2, 4, 8, 16, 33, r.randint(1, 60))) for _ in rows)
    return shape, fn, codomain


def operation(r, pool, mixed):
    """A random step of a program: mostly linear over bits, or with `mixed` any operator."""
    a, b = r.choice(pool), r.choice(pool)
    kind = r.randrange(12 if mixed else 8)
    n = r.choice((1, 2, 3, 5, 6, 7, 8, 12, 15))
    s = r.choice((0, 1, 1, 2, 3)) if not mixed or r.random() < 0.95 else r.choice((-1, 62, 63, 64))
    return [
        lambda x: x[a] ^ x[b],
        lambda x: x[a] ^ x[b],
        lambda x: x[a] >> s,
        lambda x: x[a] << s,
        lambda x: x[a] & n,
        lambda x: (x[a] << 4) + (x[b] & 15),
        lambda x: x[a] ^ n,
        lambda x: x[a] // 2 if n % 2 else x[a] % 4,
        lambda x: x[a] & x[b],
        lambda x: x[a] + x[b] if n % 2 else x[a] - x[b],
        lambda x: x[a] * (n if n % 3 else -n),
        lambda x: x[a] // n if n % 2 else x[a] % n if n % 3 else x[a] // (x[b] - 1),
    ][kind]


def bit_case(r, mixed=False):
    rank = r.choice((1, 1, 2, 2, 3))
    shape = (r.choice((1, 2, 8, 16, 32, 31, 17, 12)),)
    if rank > 1:
        shape = tuple(r.choice((1, 2, 4, 3, 5)) for _ in range(rank))
    length = r.randint(1, 5)
    steps = [operation(r, range(rank + i), mixed) for i in range(length)]
    outputs = r.choice((1, 1, 2))

    def fn(*index):
        values = list(index)
        for step in steps:
            values.append(step(values))
        return tuple(values[-outputs:])

    codomain = tuple(r.choice((1, 2, 4, 8, 16, 32, 64, r.randint(1, 70))) for _ in range(outputs))
    return shape, fn, codomain


def division_case(r):
    """Strides, quotients, remainders and swizzles together, padded and rotated layouts among them."""
    rank = r.choice((1, 2, 2, 3))
    shape = tuple(r.choice((1, 2, 3, 4, 5, 6, 7)) for _ in range(rank))
    length, outputs = r.randint(1, 6), r.choice((1, 1, 2, 3))

    def step(a, b, c, n):
        return r.choice(
            [
                lambda x: x[a] * c + x[b],
                lambda x: x[a] - x[b] * c,
                lambda x: x[a] // n,
                lambda x: x[a] % n,
                lambda x: x[a] * c + x[b] % n,
                lambda x: (x[a] // n) * c + x[a] % n,
                lambda x: x[a] * c + (x[b] ^ x[a]),
                lambda x: x[a] + c,
            ]
        )

    steps = []
    for i in range(length):
        a, b = r.randrange(rank + i), r.randrange(rank + i)
        steps.append(
            step(a, b, r.choice((1, 2, 3, 4, 6, 7, 8, 12, -1, -2)), r.choice((1, 2, 3, 4, 5, 7, 12)))
        )

    def fn(*index):
        values = list(index)
        for step in steps:
            values.append(step(values))
        return tuple(values[-outputs:])

    codomain = tuple(r.choice((1, 2, 4, 6, 12, 30, 60)) for _ in range(min(outputs, rank + length)))
    return shape, fn, codomain


def edge_case(r):
    """Values at the ends of 64 bits."""
    shape = tuple(r.choice((1, 2, 3, 5, 8)) for _ in range(r.choice((1, 2))))
    constants = (2**63 - 1, 2**63 - 3, -(2**63), 2**62, -(2**62), 2**61 + 1, 5, -3, -1, 0, 1)
    steps = []
    for i in range(r.randint(1, 5)):
        a, b = r.randrange(len(shape) + i), r.randrange(len(shape) + i)
        c, s = r.choice(constants), r.choice((0, 1, 58, 60, 62, 63, 64, -1))
        choices = [
            lambda x, a=a, c=c: x[a] + c,
            lambda x, a=a, c=c: x[a] - c,
            lambda x, a=a, c=c: x[a] * c,
            lambda x, a=a, s=s: x[a] << s,
            lambda x, a=a, s=s: x[a] >> s,
            lambda x, a=a, b=b, c=c: x[a] // (c or x[b]),
            lambda x, a=a, b=b, c=c: x[a] % (c or x[b]),
            lambda x, a=a, c=c: x[a] ^ c,
            lambda x, a=a, c=c: x[a] & c,
            lambda x, a=a, b=b: x[a] * x[b],
            lambda x, a=a, b=b: x[a] << x[b],
        ]
        steps.append(r.choice(choices))

    def fn(*index):
        values = list(index)
        for step in steps:
            values.append(step(values))
        return (values[-1],)

    return shape, fn, (r.choice((1, 2, 8, 2**62, 2**63 - 1)),)


def sweep(case, count, seed, budget=0):
    r, decided = random.Random(seed), Counter()
    for _ in range(count):
        found = check(*case(r), budget)
        decided.update((claim, verdict) for claim, verdict in zip(found._fields, found[:4], strict=False))
    return decided


def test_9000_affine_maps_against_every_point():
    decided = sweep(affine_case, 9000, 1)
    assert decided["total", P] == 9000
    assert decided["in_bounds", U] == 0
    assert decided["injective", U] == 0
    assert min(decided["injective", P], decided["injective", D]) > 500
    assert min(decided["surjective", P], decided["surjective", D]) > 100


@pytest.mark.parametrize("seed", range(4))
def test_36000_bit_linear_maps_against_every_point(seed):
    decided = sweep(bit_case, 9000, seed)
    assert decided["total", U] == decided["in_bounds", U] == decided["injective", U] == 0
    assert min(decided["injective", P], decided["injective", D]) > 1000
    assert min(decided["surjective", P], decided["surjective", D]) > 300


@pytest.mark.parametrize("budget", [0, DEFAULT])
def test_maps_of_all_operators_against_every_point(budget):
    decided = sweep(lambda r: bit_case(r, mixed=True), 3000, 5, budget)
    assert decided["total", D] > 50
    if budget:
        assert decided["total", U] == 0


def test_quotients_and_remainders_against_every_point():
    decided = sweep(division_case, 6000, 2)
    assert decided["total", P] == 6000
    assert min(decided["injective", P], decided["injective", D]) > 2000


@pytest.mark.parametrize("budget", [0, DEFAULT])
def test_the_ends_of_64_bits_against_every_point(budget):
    decided = sweep(edge_case, 3000, 3, budget)
    assert min(decided["total", P], decided["total", D]) > 500
    if budget:
        assert decided["total", U] == 0


def of(shape, fn, codomain):
    return tj.IndexMap.from_function(tj.shape(*shape), fn, codomain)


def decided(index_map, *verdicts):
    """The verdicts hold without a visit, within milliseconds."""
    start = time.perf_counter()
    found = index_map.prove(0)
    assert time.perf_counter() - start < 0.5
    assert found == (*verdicts, 0)


def test_a_map_that_needs_no_visit_has_none_at_any_budget():
    index_map = tj.IndexMap.strided(tj.shape(3, 2), (2, 3))
    for budget in (0, 5, 6):
        found = index_map.prove(budget)
        assert found.injective is P  # the least collision, 3 steps against 2, does not fit
        assert found.enumerated == 0


def test_the_budget_is_kept():
    index_map = of((6,), lambda x: (x * x) % 7, 7)
    assert index_map.prove(5) == (P, P, U, D, 0)
    assert index_map.prove(6) == (P, P, D, D, 6)


LARGE = tj.shape(513, 2047)
MILLION = 2**20


@pytest.mark.parametrize(
    ("index_map", "verdicts"),
    [
        (tj.IndexMap.identity(LARGE), (P, P, P, P)),
        (tj.layout(LARGE, (2047, 1)), (P, P, P, P)),
        (tj.layout(LARGE, (2048, 1)), (P, P, P, D)),
        (tj.layout(LARGE, (1, 513)), (P, P, P, P)),
        (tj.layout(LARGE, (2046, 1)), (P, P, D, P)),
        (tj.IndexMap.reshape(LARGE, tj.shape(27, 38893)), (P, P, P, P)),
        (of((513, 2047), lambda i, j: i * 2047 + (i + j) % 2047, 513 * 2047), (P, P, P, P)),
        (of((513, 2047), lambda i, j: i * 2048 + (j ^ (i & 31)), 513 * 2048), (P, P, P, D)),
        (of((4096, 32), lambda i, j: i * 33 + (j ^ (i & 31)), 4096 * 33), (P, P, P, D)),
        (tj.layout(tj.shape(MILLION, MILLION), (MILLION, 1)), (P, P, P, P)),
        (tj.layout(tj.shape(MILLION, MILLION), (1, MILLION)), (P, P, P, P)),
        (tj.layout(tj.shape(MILLION, MILLION), (MILLION + 1, 1)), (P, P, P, D)),
        (tj.layout(tj.shape(MILLION, MILLION), (MILLION - 1, 1)), (P, P, D, P)),
        (tj.layout(tj.shape(MILLION, MILLION), (MILLION - 1, MILLION + 1)), (P, P, P, D)),
        (tj.IndexMap.strided(tj.shape(MILLION, 2, 2), (3, 1, 2)), (P, P, D, P)),
        (of((MILLION, MILLION), lambda i, j: (i << 20) + (i ^ j), MILLION**2), (P, P, P, P)),
        (of((MILLION, MILLION), lambda i, j: (i + j, i - j + MILLION), (2 * MILLION,) * 2), (P, P, P, D)),
        (of((MILLION, MILLION), lambda i, j: (i + j) * 2, 4 * MILLION), (P, P, D, D)),
        (tj.IndexMap.permute(tj.shape(MILLION, 3, MILLION), (2, 0, 1)), (P, P, P, P)),
        (tj.IndexMap.strided(tj.shape(MILLION), (1,), codomain=MILLION - 1), (P, D, P, P)),
        (tj.IndexMap.strided(tj.shape(MILLION), (-1,), codomain=MILLION), (P, D, P, D)),
        (tj.IndexMap.strided(tj.shape(MILLION), (-1,), offset=MILLION - 1), (P, P, P, P)),
    ],
    ids=str,
)
def test_large_maps_are_decided_by_algebra(index_map, verdicts):
    decided(index_map, *verdicts)


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((5, 6, 3), (23, 3, 5)), ((7, 5, 7), (4, 7, 39)), ((3, 5, 5), (20, 8, 17)), ((5, 5, 5), (12, 20, 31))],
)
def test_a_collision_of_two_strides_that_just_does_not_fit(shape, strides):
    def fn(i, j, k):
        return i * strides[0] + j * strides[1] + k * strides[2]

    assert check(shape, fn, (300,)).injective is P


def reversed_bits(bits):
    def fn(x):
        out = x & 0
        for k in range(bits):
            out = out + (((x >> k) & 1) << (bits - 1 - k))
        return out

    return fn


@pytest.mark.parametrize("size", [1, 31, 32, 257, 1024, 2_097_152, 3_000_001])
def test_gray_codes_and_bit_reversals(size):
    bits = (size - 1).bit_length()
    full = P if size == 2**bits else D
    decided(of((size,), lambda x: x ^ (x >> 1), 2**bits), P, P, P, full)
    decided(of((size,), reversed_bits(bits), 2**bits), P, P, P, full)


def test_a_map_that_is_linear_on_basis_vectors_only():
    def fn(x):
        return x ^ ((x & (x >> 1)) << 1)

    assert [int(fn(a) ^ fn(b) == fn(a ^ b)) for a, b in ((1, 2), (1, 4), (2, 4))] == [0, 1, 0]
    assert all(fn(1 << k) == 1 << k for k in range(20))
    assert of((8,), fn, 16).prove(0).injective is U
    assert check((8,), fn, (16,), DEFAULT).injective is D
    assert of((2**21,), fn, 2**22).prove().injective is U


def test_masks_fields_and_negative_numbers():
    decided(of((16, 16), lambda i, j: (i & 12) * 16 + j, 256), P, P, D, D)
    decided(of((16, 16), lambda i, j: ((i & 12) << 4) + (j << 2) + (i & 3), 256), P, P, P, P)
    decided(of((32,), lambda x: 31 - x, 32), P, P, P, P)
    decided(of((32,), lambda x: (x - 32) & 31, 32), P, P, P, P)
    decided(of((32,), lambda x: (x - 32) >> 1, 32), P, D, D, D)
    decided(of((32,), lambda x: (x ^ -1) + 32, 32), P, P, P, P)


class TestRaggedDomains:
    """A domain that is a part of the box that its bits can say."""

    def test_a_bad_point_of_the_box_is_not_one_of_the_domain(self):
        decided(of((6,), lambda x: x ^ 1, 6), P, P, P, P)  # of the box of 8, points 6 and 7 leave
        decided(of((3_000_000,), lambda x: x ^ 1, 3_000_000), P, P, P, P)

    def test_a_bad_point_of_the_domain_is(self):
        decided(of((5,), lambda x: x ^ 1, 5), P, D, P, D)
        decided(of((3_000_001,), lambda x: x ^ 1, 3_000_001), P, D, P, D)

    def test_a_collision_of_the_box_is_one_of_the_domain(self):
        for size in range(2, 40):
            assert check((size,), lambda x: x & 30, (64,)).injective is D


class TestTotal:
    """Every subexpression counts, not the result alone."""

    @pytest.mark.parametrize(
        ("shape", "fn"),
        [
            ((2,), lambda x: (x << 62) * 4),
            ((2,), lambda x: x << 63),
            ((4,), lambda x: (x + (2**63 - 2)) - (2**63 - 2)),
            ((4,), lambda x: x * 0 + (x >> 64)),
            ((4,), lambda x: x << (x - 1)),
            ((4,), lambda x: 8 // x),
            ((4,), lambda x: x % (x - 2)),
            ((4,), lambda x: x + (x // (x * 0))),
            ((2**21,), lambda x: x * 2**50),
            ((2**21,), lambda x: (x - 2**62) * 3),
        ],
    )
    def test_not(self, shape, fn):
        found = of(shape, fn, 2**21).prove()
        assert found.total is D
        assert P not in (found.in_bounds, found.injective)

    def test_a_constant_that_does_not_fit(self):
        assert of((2,), lambda x: x + 2**63, 4).prove().total is D
        assert of((2,), lambda x: x + (2**63 - 2), 4).prove().total is P

    def test_a_bad_point_inside_is_found_by_a_visit(self):
        index_map = of((9,), lambda x: x % ((x - 5) * (x - 5)), 9)
        assert index_map.prove(8).total is U
        assert index_map.prove(9).total is D

    def test_out_of_range_is_total(self):
        decided(of((4,), lambda x: x - 10, 4), P, D, P, D)


def test_empty_domains_and_codomains():
    assert tj.IndexMap.strided(tj.shape(0, 5), (1, 1)).prove() == (P, P, P, P, 0)
    assert tj.IndexMap.strided(tj.shape(0, 5), (1, 1), codomain=3).prove() == (P, P, P, D, 0)
    assert of((0,), lambda x: x // 0, 0).prove() == (P, P, P, P, 0)
    assert of((3,), lambda x: x, 0).prove() == (P, D, P, P, 0)
    assert tj.IndexMap.identity(tj.shape()).prove() == (P, P, P, P, 0)


def test_reshapes_and_their_compositions():
    shape, middle = tj.shape(6, 35), tj.shape(15, 14)
    reshape = tj.IndexMap.reshape(shape, middle)
    decided(reshape, P, P, P, P)
    decided(tj.layout(middle, (14, 1)).compose(reshape), P, P, P, P)
    decided(tj.layout(middle, (15, 1)).compose(reshape), P, P, P, D)
    back = tj.IndexMap.reshape(middle, shape).compose(reshape)
    decided(back, P, P, P, P)
    assert all(back(i, j) == (i, j) for i in range(6) for j in range(35))
