"""Blocks of windows as programs of single elements, in the Triton lowering."""

import functools

import numpy as np
import oracle
import pytest
from kernel_cases import normal
from test_triton import close, interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends import interpreter
from tilejax.backends.triton.pixels import single_pixels
from tilejax.ir.jaxprs import equations
from tilejax.ir.verify import verify
from tilejax.transforms.simplify import simplify

F32 = np.float32


def rewritten(kernel, *args, **options):
    """The results of the rewritten program in the interpreter, and the extents of its nest."""
    this = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel
    traced = this.trace(args, options)
    program = single_pixels(simplify(traced.program))
    verify(program)
    operands = [
        np.asarray(x, v.aval.dtype) for x, v in zip(traced.operands, program.jaxpr.invars, strict=True)
    ]
    (nest,) = (e for e in equations(program.jaxpr.eqns) if e.primitive.name == "tile_parallel")
    return interpreter.run(program, operands), nest.params["extents"]


@pytest.mark.parametrize(
    ("shape", "blocks", "grid"),
    [
        ((20, 40), {"block_rows": 8, "block_cols": 16}, (20, 40)),
        ((7, 19), {"block_rows": 7, "block_cols": 5}, (7, 19)),
        ((7, 19), {"block_rows": 1, "block_cols": 19}, (7, 19)),
        ((7, 19), {"block_rows": 9, "block_cols": 1}, (7, 19)),
        ((7, 19), {}, (7, 19)),
    ],
)
def test_blocks_of_an_image(shape, blocks, grid):
    """Those that reach over its edge make no programs there."""
    image = normal(*shape)
    image[2, 3] = np.nan
    got, extents = rewritten(kernels.sobel_median, image, **blocks)
    assert extents == grid
    close(got, oracle.sobel_median(image))
    close(interpreted(kernels.sobel_median, image, **blocks), oracle.sobel_median(image))


@pytest.mark.parametrize("blocks", [{"block_rows": 4, "block_cols": 4}, {"block_rows": 1, "block_cols": 5}])
def test_channels_stay_together(blocks):
    x, w = normal(9, 11, 24), normal(3, 2, 24, seed=1)
    got, extents = rewritten(kernels.depthwise_conv_pool, x, w, **blocks)
    assert extents == (9, 12)
    close(got, oracle.depthwise_conv_pool(x, w))
    got = interpreted(kernels.depthwise_conv_pool, x, w, **blocks)
    close(got, oracle.depthwise_conv_pool(x, w))


def dilated(x, *, step=2, block=(6, 8), shift=0):
    """Sums and places of the greatest of dilated windows that start somewhere in the view; with what depends
    on the block and on the place in it."""
    out, best = tj.output((15, 17), F32), tj.output((15, 17), np.int32)
    p, q, u, v = (tj.axis(n, s) for n, s in zip("pquv", (*block, 3, 3), strict=True))
    down, across = tj.axis("down", tj.cdiv(15, block[0])), tj.axis("across", tj.cdiv(17, block[1]))

    @tj.parallel(across, down)
    def _(nest):
        y0, x0 = nest.index(down) * block[0], nest.index(across) * block[1]
        rows, columns = tj.axis("rows", block[0] + 2 * step), tj.axis("columns", block[1] + 2 * step)
        field = x[tj.coord(y0 + shift, x0 - step), tj.shape(rows, columns)]
        windows = tj.reindex(
            field,
            tj.shape(u, p, v, q),
            lambda e: tj.coord(e.index(p) + e.index(u) * step, e.index(q) + e.index(v) * step),
        )
        place = tj.iota(p) * 2 + tj.iota(q)
        total = tj.sum(windows, tj.shape(u, v)) + place.astype(F32) + nest.index(across).astype(F32)
        flat = tj.reshape(tj.transpose(windows, tj.shape(p, q, u, v)), tj.shape(p, q, tj.axis("w", 9)))
        here = tj.coord(y0, x0), tj.shape(p, q)
        out(*here).store(total)
        best(*here).store(tj.argmax(flat, flat.axes[-1]))

    return out, best


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("shift", [0, -3])
def test_windows_of_a_users_own(step, shift):
    x = normal(15, 17)
    padded = np.pad(x.astype(np.float64), 8)
    y, z = np.arange(15)[:, None], np.arange(17)
    taps = np.stack(
        [padded[8 + y + shift + i * step, 8 + z - step + j * step] for i in range(3) for j in range(3)],
        -1,
    )
    want = taps.sum(-1) + y % 6 * 2 + z % 8 + z // 8, taps.argmax(-1)
    kernel = functools.partial(dilated, step=step, shift=shift)
    got, extents = rewritten(kernel, x)
    assert extents == (15, 17)
    close(got, want)
    close(interpreted(kernel, x), want)


def test_what_stays_as_it_is():
    """Windows of what a program stores, and coordinates that are data."""

    def stored(x):
        y, p, u = tj.update(x), tj.axis("p", 40), tj.axis("u", 3)

        @tj.parallel(1)
        def _(nest):
            field = y(tj.coord(0), tj.shape(42)).load()
            windows = tj.reindex(field, tj.shape(p, u), lambda e: tj.coord(e.index(p) + e.index(u)))
            y(tj.coord(0), tj.shape(p)).store(tj.sum(windows, u))

        return y

    def data(x):
        y, p, u = tj.output_like(x), tj.axis("p", 42), tj.axis("u", 3)

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0), tj.shape(p)]
            places = tj.where(tile > 0, tj.iota(p), 0)
            windows = tj.reindex(
                tile, tj.shape(p, u), lambda e: tj.coord(tj.minimum(places + e.index(u), 41))
            )
            y(tj.coord(0), tj.shape(p)).store(tj.sum(windows, u))

        return y

    x = normal(42)
    got, extents = rewritten(stored, x)
    assert extents == (1,)
    close(got, [np.array([*(x[:-2].astype(np.float64) + x[1:-1] + x[2:]), *x[40:]])])
    got, extents = rewritten(data, x)
    assert extents == (1,)
    places = np.where(x > 0, np.arange(42), 0)
    close(got, [sum(x[np.minimum(places + i, 41)].astype(np.float64) for i in range(3))])
