"""Sums of what an id selects: one scatter on the CPU, the same numbers as comparing every item."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.test_structure import lower, operations, temporaries
from tilejax import kernels

pytestmark = pytest.mark.usefixtures("on_cpu")


def histogram(
    ids: tj.TensorView, values: tj.TensorView, places: int, *, block: int, items: int = 16, first: int = 0
) -> tj.TensorView:
    """The sum of the values of each id in `first .. first + places - 1`, `block` of them a program."""
    sums = tj.output((places,), values.dtype)
    g, b = tj.axis("blocks", tj.cdiv(places, block)), tj.axis("place", block)
    steps, i = tj.axis("steps", tj.cdiv(ids.shape[0], items)), tj.axis("item", items)

    @tj.parallel(g)
    def _(nest: tj.Nest):
        p0 = nest.index(g) * block

        @nest.pipeline(steps, carry=tj.zeros(tj.shape(b), values.dtype))
        def total(step, total):
            i0 = step.index() * items
            # An item past the end has an id that is no place.
            mine = ids(tj.coord(i0), tj.shape(i)).load(-1) == tj.iota(b) + p0 + first
            return total + tj.sum(tj.where(mine, values[tj.coord(i0), tj.shape(i)], 0), i)

        sums(tj.coord(p0), tj.shape(b)).store(total)

    return sums


def expected(ids: np.ndarray, values: np.ndarray, places: int, first: int = 0) -> np.ndarray:
    out = np.zeros(places, np.float64)
    with np.errstate(invalid="ignore"):
        for id, value in zip(ids, values.astype(np.float64), strict=True):
            if first <= id < first + places:
                out[id - first] += value
    return out


def scatters(kernel: Any, *args: Any, **options: Any) -> int:
    return lower(kernel, *args, **options).as_text().count('"stablehlo.scatter"')


def draw(items: int, places: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids of which some are no place, and integers, whose sums are exact."""
    rng = np.random.default_rng(seed)
    return rng.integers(-5, places + 5, items).astype(np.int32), rng.integers(-9, 9, items).astype(np.float32)


@pytest.mark.parametrize("first", [0, -3, 7])
@pytest.mark.parametrize("block", [1, 4, 7, 37])
@pytest.mark.parametrize(("items", "places"), [(1, 37), (16, 37), (37, 5), (101, 64), (0, 8)])
def test_a_histogram(items, places, block, first):
    ids, values = draw(items, places)
    call = partial(histogram, places=places, block=block, first=first)
    want = expected(ids, values, places, first)
    np.testing.assert_array_equal(tj.jit(call)(ids, values), want)
    np.testing.assert_array_equal(tj.interpret(call)(ids, values), want)


@pytest.mark.parametrize("block", [1, 7])
def test_a_nan_or_infinity_stays_in_its_place(block):
    ids, values = draw(50, 20)
    values[[3, 11, 30]] = np.nan, np.inf, -np.inf
    got = tj.jit(partial(histogram, places=20, block=block))(ids, values)
    np.testing.assert_array_equal(got, expected(ids, values, 20))


def test_the_ends_of_int32_are_no_place():
    ids = np.array([2**31 - 1, -(2**31), 3, -1, 8], np.int32)
    values = np.ones(5, np.float32)
    for first in (0, 3, -3, 2**31 - 8, -(2**31)):
        got = tj.jit(partial(histogram, places=8, block=4, first=first))(ids, values)
        np.testing.assert_array_equal(got, expected(ids, values, 8, first))


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 0)])
def test_vmapped(axes):
    ids, values = draw(41, 20)
    batch = [
        np.stack([x, x[::-1], np.roll(x, 3)], a) if a is not None else x
        for x, a in zip((ids, values), axes, strict=True)
    ]
    got = jax.vmap(tj.jit(partial(histogram, places=20, block=7)), axes)(*batch)
    for i in range(3):
        rows = [np.take(x, i, a) if a is not None else x for x, a in zip(batch, axes, strict=True)]
        np.testing.assert_array_equal(got[i], expected(*rows, 20))


def test_derivatives():
    ids, values = draw(33, 12)
    call = tj.jit(partial(histogram, places=12, block=4))
    weights = np.arange(1.0, 13.0, dtype=np.float32)
    gradient = jax.grad(lambda v: (call(ids, v) * weights).sum())(values)
    inside = (ids >= 0) & (ids < 12)
    np.testing.assert_array_equal(gradient, np.where(inside, weights[np.clip(ids, 0, 11)], 0))
    tangent = np.arange(33.0, dtype=np.float32)
    _, moved = jax.jvp(lambda v: call(ids, v), (values,), (tangent,))
    np.testing.assert_array_equal(moved, expected(ids, tangent, 12))


def counts(ids: tj.TensorView, keep: tj.TensorView, places: int) -> Any:
    """How often each id occurs, and how often among those kept: a comparison cast and masked."""
    every, kept = tj.output((places,), jnp.int32), tj.output((places,), jnp.float32)
    g, one, i = tj.axis("place", places), tj.axis("local_place", 1), tj.axis("item", ids.shape[0])

    @tj.parallel(g)
    def _(nest: tj.Nest):
        whole = tj.coord(0), tj.shape(i)
        mine = nest.index(g) == ids[whole]
        for view, member in ((every, mine), (kept, mine & (keep[whole] > 0))):
            number = tj.sum(member.astype(view.dtype), i)
            view(tj.coord(nest.index(g)), tj.shape(one)).store(tj.reshape(number, tj.shape(one)))

    return every, kept


@pytest.mark.parametrize("items", [1, 33, 200])
def test_counts(items):
    ids, keep = draw(items, 30)
    call = partial(counts, places=30)
    every, kept = tj.jit(call)(ids, keep)
    ones = np.ones(items)
    np.testing.assert_array_equal(every, expected(ids, ones, 30))
    np.testing.assert_array_equal(kept, expected(ids, (keep > 0) * ones, 30))
    assert items == 1 or scatters(call, ids, keep) == 2


@pytest.mark.parametrize("block", [1, 8])
def test_items_are_not_compared_with_every_place(block):
    ids, values = draw(4096, 1000)
    call = partial(histogram, places=1000, block=block)
    assert scatters(call, ids, values) == 1
    assert temporaries(call, ids, values) < 2**17


def test_segment_sum_is_two_scatters():
    ids, values = jax.ShapeDtypeStruct((4096,), jnp.int32), jax.ShapeDtypeStruct((4096, 3), jnp.float32)
    assert scatters(kernels.segment_sum, ids, values, num_segments=500) == 2
    assert not operations(kernels.segment_sum, ids, values, num_segments=500)["while"]


def used_twice(ids: tj.TensorView, table: tj.TensorView) -> tj.TensorView:
    """A comparison that is summed, negated and multiplied: only some of it can stay symbolic."""
    n, places = ids.shape[0], table.shape[0]
    out = tj.output((3, places), jnp.float32)
    i, p, one = tj.axis("item", n), tj.axis("place", places), tj.axis("one", 1)

    @tj.parallel(1)
    def _(nest: tj.Nest):
        mine = ids[tj.coord(0), tj.shape(i)] == tj.iota(p)
        row = table[tj.coord(0), tj.shape(p)]
        results = (
            tj.sum(tj.where(mine, 1.0, 0.0), i),
            tj.sum(tj.where(~mine, 1.0, 0.0), i),
            tj.sum(tj.where(mine, row, 0.0), i) + tj.sum(mine.astype(jnp.float32) * row, i),
        )
        for at, result in enumerate(results):
            out(tj.coord(at, 0), tj.shape(one, p)).store(tj.broadcast_to(result, tj.shape(one, p)))

    return out


def test_other_uses_see_the_comparison():
    ids, _ = draw(30, 11)
    table = np.arange(11.0, dtype=np.float32) - 5
    number = expected(ids, np.ones(30), 11)
    want = np.stack([number, 30 - number, 2 * number * table])
    np.testing.assert_array_equal(tj.jit(used_twice)(ids, table), want)
    np.testing.assert_array_equal(tj.interpret(used_twice)(ids, table), want)
