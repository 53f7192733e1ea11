"""Small programs whose windows overlap: a few of them run in one, in the Triton lowering."""

import itertools

import numpy as np
import oracle
import pytest
from kernel_cases import normal
from test_triton import close, interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import lane_access
from tilejax.backends.triton.neighbours import neighbours
from tilejax.backends.triton.schedule import lanes_of
from tilejax.backends.xla.order import network
from tilejax.transforms.simplify import simplify


@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 9])
def test_any_height(height):
    """The last ones of a grid that is not a multiple run twice."""
    image = normal(height, 33)
    image[0, 3], image[-1, 7] = np.nan, 1e30
    close(interpreted(kernels.sobel_median, image), oracle.sobel_median(image))


@pytest.mark.parametrize(("taps", "padding"), [((3, 3), 1), ((2, 3), 0), ((1, 1), 0)])
def test_windows_of_any_size(taps, padding):
    x, w = normal(7, 19, 20), normal(*taps, 20, seed=1)
    got = interpreted(kernels.depthwise_conv_pool, x, w, padding)
    close(got, oracle.depthwise_conv_pool(x, w, padding))


def test_each_element_is_loaded_once(monkeypatch):
    """Four windows of three rows see six rows of three columns; the filters are the same for all."""
    load, seen = lane_access.plgpu.load, []
    monkeypatch.setattr(lane_access.plgpu, "load", lambda *a, **k: seen.append(0) or load(*a, **k))
    x, w = normal(8, 19, 20), normal(3, 3, 20, seed=1)
    close(interpreted(kernels.depthwise_conv_pool, x, w), oracle.depthwise_conv_pool(x, w))
    assert len(seen) == 6 * 3 + 3 * 3


def test_rows_that_see_what_others_store_are_not_joined():
    """Each program adds the row above to its own, in a view that it updates: a row of the even ones."""

    def kernel(x):
        y, c = tj.update(x), tj.axis("c", 1)
        rows, columns = tj.axis("rows", x.shape[0] // 2), tj.axis("columns", x.shape[1])

        @tj.parallel(rows, columns)
        def _(nest):
            i, j = nest.index(rows) * 2, nest.index(columns)
            pair = y(tj.coord(i, j), tj.shape(tj.axis("r", 3), c)).load()
            y(tj.coord(i + 1, j), tj.shape(1, c)).store(
                tj.reshape(tj.sum(pair, pair.axes[0]), tj.shape(1, c))
            )

        return y

    program = tj.make_jaxpr(kernel)(normal(8, 40))
    (nest,) = (e for e in simplify(program).jaxpr.eqns if e.primitive.name == "tile_parallel")
    assert neighbours(nest, lanes_of(nest)) is None


@pytest.mark.parametrize("n", range(1, 14))
def test_a_network_sorts_zeros_and_ones(n):
    """Then it sorts everything."""
    rows = np.array([*itertools.product((0, 1), repeat=n)], np.int8)
    columns = [*rows.T]
    for i, j in network(n):
        columns[i], columns[j] = np.minimum(columns[i], columns[j]), np.maximum(columns[i], columns[j])
    np.testing.assert_array_equal(np.stack(columns, 1), np.sort(rows, 1))
