"""Index maps: what each maps where, composition, and what their makers refuse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilejax as tj
from tilejax.ir.pointmap import addresses

ROWS, COLUMNS = tj.axis("i", 4), tj.axis("j", 6)
IJ = tj.shape(ROWS, COLUMNS)


def table(index_map):
    """The images of all elements, in row-major order."""
    return [index_map(*point) for point in itertools.product(*map(range, index_map.domain.extents))]


def test_identity():
    same = tj.IndexMap.identity(IJ)
    assert table(same) == list(itertools.product(range(4), range(6)))
    assert (same.domain, same.codomain) == (IJ, IJ)
    assert tj.IndexMap.identity(tj.shape())() == ()
    assert tj.IndexMap.identity(5)(3) == 3


def test_strides():
    padded = tj.layout(IJ, (7, 1))
    assert table(padded) == [7 * i + j for i in range(4) for j in range(6)]
    assert (padded.domain, padded.codomain) == (IJ, 3 * 7 + 6)
    assert padded == tj.IndexMap.strided(IJ, (7, 1))
    turned = tj.IndexMap.strided((4, 6), (-1, 4), offset=3)
    assert table(turned) == [3 - i + 4 * j for i in range(4) for j in range(6)]
    assert turned.codomain == 3 + 5 * 4 + 1
    assert tj.IndexMap.strided((4, 6), (6, 1), codomain=100).codomain == 100
    assert tj.IndexMap.strided((0, 6), (6, 1)).codomain == 0


def test_permute_and_reshape():
    permuted = tj.IndexMap.permute(tj.shape(ROWS, COLUMNS, 2), (2, 0, 1))
    assert permuted(3, 5, 1) == (1, 3, 5)
    assert permuted.codomain == tj.shape(2, ROWS, COLUMNS)
    reshaped = tj.IndexMap.reshape(IJ, (3, 2, 4))
    flat = np.arange(24).reshape(4, 6)
    for i, j in itertools.product(range(4), range(6)):
        assert reshaped(i, j) == tuple(int(k) for k in np.unravel_index(flat[i, j], (3, 2, 4)))
    assert tj.IndexMap.reshape((4, 0), (0, 7)).prove().surjective is tj.Proof.PROVEN
    assert tj.IndexMap.reshape((1, 1), ())(0, 0) == ()
    assert tj.IndexMap.reshape((), (1,))() == 0


def test_functions_use_every_operator_as_python_does():
    def fn(i, j):
        return ((i * 3 - 7) // 2 + (j - 5) % 3) ^ ((i << 2) & (13 - j)), (i - j) >> 1

    index_map = tj.IndexMap.from_function(IJ, fn, (64, 64))
    assert table(index_map) == [fn(i, j) for i in range(4) for j in range(6)]
    constant = tj.IndexMap.from_function(IJ, lambda i, j: 3, 5)
    assert set(table(constant)) == {3}


def test_reflected_operators():
    def fn(i):
        return (9 - i) + (2 * i) + (20 // (i + 1)) + (20 % (i + 1)) + (5 ^ i) + (6 & i) + (1 << i) + (64 >> i)

    assert table(tj.IndexMap.from_function(4, fn, 200)) == [fn(i) for i in range(4)]


def test_composition():
    swizzle = tj.IndexMap.from_function((6, 4), lambda i, j: i * 4 + (j ^ (i & 3)), 24)
    turned = swizzle.compose(tj.IndexMap.permute(IJ, (1, 0)))
    assert table(turned) == [swizzle(j, i) for i in range(4) for j in range(6)]
    assert (turned.domain, turned.codomain) == (IJ, 24)
    assert tj.IndexMap.identity(24).compose(turned)(2, 5) == turned(2, 5)
    with pytest.raises(tj.ShapeError, match=r"\[4, 6\].*\[6, 4\]"):
        swizzle.compose(tj.IndexMap.identity(IJ))


def test_numpy_evaluates_them_alike():
    for index_map in (
        tj.layout(IJ, (1, 5)),
        tj.IndexMap.from_function(IJ, lambda i, j: (i * 8 + (i ^ j)) - (j >> 1) * 0, 64),
        tj.IndexMap.from_function(IJ, lambda i, j: (5 - j, i % 3), (6, 4)),
        tj.IndexMap.identity(IJ),
    ):
        sizes = index_map.points.codomain
        want = [np.ravel_multi_index(p if isinstance(p, tuple) else (p,), sizes) for p in table(index_map)]
        np.testing.assert_array_equal(addresses(index_map.points), np.reshape(want, (4, 6)))
    assert addresses(tj.IndexMap.identity(()).points).shape == ()


def test_maps_are_equal_when_they_compute_the_same_way():
    def make(pad, axes):
        return tj.layout(tj.shape(*axes), (6 + pad, 1))

    assert make(1, (ROWS, COLUMNS)) == make(1, (ROWS, COLUMNS))
    assert hash(make(1, (ROWS, COLUMNS))) == hash(make(1, (ROWS, COLUMNS)))
    assert make(1, (ROWS, COLUMNS)) != make(2, (ROWS, COLUMNS))
    assert make(1, (ROWS, COLUMNS)) != make(1, (4, 6))


def test_a_map_prints_what_it_computes():
    swizzle = tj.IndexMap.from_function((8, 8), lambda i, j: i * 8 + (i ^ j), 64)
    assert repr(swizzle) == "IndexMap([8, 8] -> [64]: (i0 * 8) + (i0 ^ i1))"


class TestRefusals:
    def test_evaluation_outside(self):
        index_map = tj.layout(IJ, (6, 1))
        for point in ((4, 0), (0, -1), (0,), (0, 0, 0)):
            with pytest.raises(tj.LayoutError, match=r"not an element of shape\(i:4, j:6\)"):
                index_map(*point)
        with pytest.raises(tj.LayoutError, match="ints"):
            index_map(1.5, 0)

    def test_evaluation_where_it_is_not_defined(self):
        for fn in (lambda i: 5 // i, lambda i: i % i, lambda i: i << (i + 64), lambda i: (i + 2**62) * 4):
            with pytest.raises(tj.LayoutError, match=r"not defined at \(0,\)"):
                tj.IndexMap.from_function(4, fn, 4)(0)

    def test_strides_and_orders_that_do_not_fit(self):
        with pytest.raises(tj.ShapeError, match="one a dimension"):
            tj.layout(IJ, (1,))
        with pytest.raises(tj.LayoutError, match="strides must be ints"):
            tj.layout(IJ, (1, 2.0))  # type: ignore[arg-type]
        for order in ((0,), (0, 0), (1, 2)):
            with pytest.raises(tj.ShapeError, match="not a permutation"):
                tj.IndexMap.permute(IJ, order)
        with pytest.raises(tj.ShapeError, match="sizes differ"):
            tj.IndexMap.reshape(IJ, (5, 5))

    @pytest.mark.parametrize(
        ("fn", "says"),
        [
            (lambda i, j: i / j, "unsupported operand"),
            (lambda i, j: i + 0.5, "unsupported operand"),
            (lambda i, j: i if i else j, "truth value"),
            (lambda i: i, "takes 2 coordinates"),
            (lambda i, j: 0.5, "ints"),
            (lambda i, j: i | j, "unsupported operand"),
        ],
    )
    def test_functions_that_are_not_integer_arithmetic(self, fn, says):
        with pytest.raises(tj.LayoutError, match=says):
            tj.IndexMap.from_function(IJ, fn, 24)

    def test_an_index_of_another_map(self):
        stolen = []
        tj.IndexMap.from_function(4, lambda i: stolen.append(i) or i, 4)
        with pytest.raises(tj.LayoutError, match="another map"):
            tj.IndexMap.from_function(4, lambda i: i + stolen[0], 8)
        with pytest.raises(tj.LayoutError, match="another map"):
            tj.IndexMap.from_function(4, lambda i: stolen[0], 8)

    def test_a_codomain_of_another_rank(self):
        with pytest.raises(tj.ShapeError, match="gives 2 values, not 1"):
            tj.IndexMap.from_function(IJ, lambda i, j: i, (4, 6))
        with pytest.raises(tj.AxisError, match=">= 0"):
            tj.IndexMap.from_function(IJ, lambda i, j: i, -1)

    def test_the_message_names_the_users_line(self):
        with pytest.raises(tj.LayoutError, match=r"test_layout\.py:\d+"):
            tj.layout(IJ, (6, 1))(9, 9)
