"""Overlapping tiles, and what is picked from them at strides, against plain NumPy indexing."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.test_structure import INDEXED, LAYOUT, LOOPS, operations, temporaries
from tilejax import kernels


def pick(x, *, places, block, step, gap, taps, offset=0, start=0, fallback=None):
    """`(places, taps)`: for each place `i` what `x` holds at `start + i * step + offset + j * gap`, read in
    fields of a whole block."""
    y = tj.output((places, taps), x.dtype)
    g, p, t = tj.axis("blocks", tj.cdiv(places, block)), tj.axis("place", block), tj.axis("tap", taps)
    field = tj.axis("field", (block - 1) * step + (taps - 1) * gap + 1)

    @tj.parallel(g)
    def _(nest):
        p0 = nest.index(g) * block
        ref = x(tj.coord(p0 * step + start), tj.shape(field))
        tile = ref.load() if fallback is None else ref.load(fallback)

        def source(element):
            return tj.coord(element.index(p) * step + element.index(t) * gap + offset)

        y(tj.coord(p0, 0), tj.shape(p, t)).store(tj.reindex(tile, tj.shape(p, t), source))

    return y


def wanted(x, *, places, block, step, gap, taps, offset=0, start=0, fallback=None):
    out = np.zeros((places, taps), x.dtype)
    width = (block - 1) * step + (taps - 1) * gap + 1
    for i in range(places):
        for j in range(taps):
            within = i % block * step + j * gap + offset
            if 0 <= within < width:
                at = i // block * block * step + start + within
                out[i, j] = x[at] if 0 <= at < len(x) else 0 if fallback is None else fallback
    return out


@pytest.mark.parametrize(
    ("offset", "start", "fallback"), [(0, 0, None), (0, -3, 7.0), (0, 50, None), (1, 0, 7.0), (-1, 2, None)]
)
@pytest.mark.parametrize(("step", "gap"), [(1, 1), (2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize(("block", "taps"), [(1, 3), (3, 3), (4, 2), (7, 1), (5, 70), (90, 3)])
def test_picking_from_fields(block, taps, step, gap, offset, start, fallback):
    x = np.arange(1.0, 101.0, dtype=np.float32)
    given = {"places": 19, "block": block, "taps": taps, "step": step, "gap": gap}
    given |= {"offset": offset, "start": start, "fallback": fallback}
    np.testing.assert_array_equal(tj.jit(partial(pick, **given))(x), wanted(x, **given))


@pytest.mark.parametrize("block", [1, 4, 30])
def test_transformed(block):
    given = {"places": 23, "block": block, "taps": 3, "step": 2, "gap": 1, "start": -1}
    call = tj.jit(partial(pick, **given))
    x = np.arange(1.0, 121.0, dtype=np.float32).reshape(2, 60)
    got = jax.vmap(call)(x)
    np.testing.assert_array_equal(got, [wanted(row, **given) for row in x])
    weights = np.arange(69.0, dtype=np.float32).reshape(23, 3)
    gradient = jax.grad(lambda row: (call(row) * weights).sum())(x[0])
    want = np.zeros(60)
    for i in range(23):
        for j in range(3):
            if 0 <= (at := 2 * i + j - 1) < 60:
                want[at] += weights[i, j]
    np.testing.assert_array_equal(gradient, want)


VARIANTS = [
    {},
    {"padding": 1, "relu": True},
    {"dilation": 2},
    {"stride": 2, "padding": 1},
    {"stride": 2, "dilation": 3},
    {"block_rows": 2, "block_cols": 5},
    {"block_rows": 3, "block_cols": 4, "stride": 2, "dilation": 2},
    {"block_rows": 16, "block_cols": 16},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("taps", [3, 9])
def test_every_dense_convolution_is_one(options, taps):
    found = operations(kernels.conv2d, (2, 40, 41, 6), (taps, taps, 6, 5), **options)
    assert found["convolution"] == 1
    assert not set(found) & (LOOPS | INDEXED | {"transpose", "slice", "concatenate", "dot_general"})


@pytest.mark.parametrize("blocks", [{}, {"block_rows": 2, "block_cols": 4}, {"block_rows": 8}], ids=str)
def test_stencils_in_blocks_of_pixels_are_shifted_slices(blocks):
    for kernel, shapes in (
        (kernels.depthwise_conv_pool, [(24, 25, 6), (3, 3, 6)]),
        (kernels.sobel_median, [(24, 25)]),
    ):
        found = operations(kernel, *shapes, **blocks)
        assert found["pad"] == 1
        assert not set(found) & (LOOPS | INDEXED | (LAYOUT - {"reshape", "pad", "slice"}) | {"sort"})


def test_a_field_of_the_whole_image():
    """The field is loaded as a plain tile, and its taps picked from that."""

    def blur(x):
        (rows, cols), y = x.shape, tj.output((x.shape[0] - 2, x.shape[1] - 2), x.dtype)
        r, c, fy, fx = (tj.axis(n, e) for n, e in zip("rcyx", (rows - 2, cols - 2, 3, 3), strict=True))

        @tj.parallel(1)
        def _(nest):
            image = x[tj.coord(0, 0), tj.shape(rows, cols)]

            def source(element):
                return tj.coord(element.index(r) + element.index(fy), element.index(c) + element.index(fx))

            taps = tj.reindex(image, tj.shape(r, c, fy, fx), source)
            y(tj.coord(0, 0), tj.shape(r, c)).store(tj.sum(taps, tj.shape(fy, fx)))

        return y

    x = np.arange(99.0, dtype=np.float32).reshape(9, 11)
    want = sum(x[i : 7 + i, j : 9 + j] for i in range(3) for j in range(3))
    np.testing.assert_array_equal(tj.jit(blur)(x), want)
    assert not set(operations(blur, jnp.asarray(x))) & (LOOPS | INDEXED | {"reduce"})


@pytest.mark.parametrize("shift", [0, -4, 3])
@pytest.mark.parametrize(("programs", "stride", "taps"), [(5, 2, 3), (4, 1, 2), (3, 2, 70), (2, 9, 4)])
def test_windows_that_move_with_a_loop(programs, stride, taps, shift):
    """The start depends on the step and on the program: no gather, edges on both sides."""

    def kernel(x):
        y = tj.output((programs, taps), x.dtype)
        p, t, one = tj.axis("programs", programs), tj.axis("tap", taps), tj.axis("one", 1)

        @tj.parallel(p)
        def _(nest):
            @nest.serial(tj.axis("steps", 6), carry=tj.zeros(tj.shape(t), x.dtype))
            def total(step, total):
                here = tj.coord(nest.index(p) * stride + step.index() * 5 + shift)
                return total * 0.5 + x(here, tj.shape(t)).load(-1.0)

            y(tj.coord(nest.index(p), 0), tj.shape(one, t)).store(tj.broadcast_to(total, tj.shape(one, t)))

        return y

    x = np.arange(1.0, 34.0, dtype=np.float32)
    padded = np.concatenate([np.full(200, -1.0), x, np.full(200, -1.0)])
    want = np.zeros((programs, taps))
    for i in range(programs):
        for step in range(6):
            at = 200 + i * stride + step * 5 + shift
            want[i] = want[i] * 0.5 + padded[at : at + taps]
    np.testing.assert_array_equal(tj.jit(kernel)(x), want)
    assert taps > 64 or "gather" not in operations(kernel, jnp.asarray(x))


@pytest.mark.parametrize("rows", [64, 61])
def test_a_large_image_is_padded_in_pieces(rows):
    """What a stencil pads stays within the budget too."""
    image = jnp.asarray(np.random.default_rng(0).standard_normal((rows, 100), np.float32))
    whole = tj.jit(kernels.sobel_median)
    pieces = tj.jit(kernels.sobel_median, compiler_params={"temporary_bytes": 2**13})
    for got, want in zip(pieces(image), whole(image), strict=True):
        np.testing.assert_array_equal(got, want)
    assert temporaries(whole, image) > 2**14
    assert rows == 61 or temporaries(pieces, image) <= 2**13
