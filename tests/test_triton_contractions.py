"""Nests that the Triton lowering takes for products of matrices, whatever their own blocks: in Pallas's
interpreter, against float64 formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from kernel_cases import normal
from test_triton import close, interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends.triton import launch
from tilejax.backends.triton.blocks import Blocks
from tilejax.backends.triton.recut import matrices_of
from tilejax.transforms.simplify import simplify

F32 = np.float32
S = jax.ShapeDtypeStruct


@pytest.fixture
def matrices(monkeypatch):
    """No nest runs as its user cut it."""
    for name in ("Kernel", "LaneKernel", "StreamKernel"):
        monkeypatch.setattr(launch, name, None)


def nest_of(kernel, *args, **options):
    """The one nest of a kernel as matrices, or None."""
    program = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel
    jaxpr = simplify(program.trace(args, options).program).jaxpr
    (nest,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "tile_parallel")
    return matrices_of(nest)


CONVOLUTIONS = {
    "pixels": ((2, 5, 7, 6), (3, 3, 6, 8), {}),
    "epilogue": ((2, 5, 7, 6), (3, 3, 6, 8), {"padding": 1, "relu": True}),
    "blocks": ((2, 5, 7, 6), (3, 3, 6, 8), {"padding": 1, "block_rows": 2, "block_cols": 4}),
    "a prime of channels": ((1, 11, 9, 37), (3, 3, 37, 19), {"stride": 2, "block_rows": 2, "block_cols": 3}),
    "few channels": ((1, 15, 13, 3), (7, 7, 3, 20), {"padding": 3, "stride": 2}),
    "pairs": (
        (1, 15, 13, 3),
        (3, 2, 3, 20),
        {"stride": (2, 1), "padding": (1, 0), "dilation": (2, 3), "block_rows": 4, "block_cols": 3},
    ),
    "many channels": ((1, 8, 13, 130), (3, 3, 130, 40), {"padding": 1}),
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "only padding": ((1, 2, 2, 5), (1, 1, 5, 17), {"padding": 3, "stride": 4}),
}


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, F32) for name in CONVOLUTIONS), ("epilogue", jnp.bfloat16), ("many channels", np.float16)],
)
def test_convolutions(name, dtype):
    image, filters, options = CONVOLUTIONS[name]
    x, w, bias = normal(*image).astype(dtype), normal(*filters, seed=1).astype(dtype), normal(filters[-1])
    got = interpreted(kernels.conv2d, x, w, bias, **options)
    pairs = {k: (v, v) if type(v) is int else v for k, v in options.items() if "block" not in k}
    want = oracle.conv2d(*(np.asarray(v, np.float64) for v in (x, w, bias)), **pairs)
    assert got.dtype == dtype
    close(got, want, 1e-4 if dtype == F32 else 4 * float(jnp.finfo(dtype).eps) * max(1, np.abs(want).max()))


@pytest.mark.usefixtures("matrices")
def test_padding_is_zero_and_not_skipped():
    """Outside, the image is 0; 0 * inf is NaN there, and channels that are only beyond a block are not."""
    x, w = np.ones((1, 2, 2, 19), F32), np.ones((3, 3, 19, 1), F32)
    w[0, 0, 3] = np.inf
    got = np.asarray(interpreted(kernels.conv2d, x, w, padding=1))[0, :, :, 0]
    want = np.full((2, 2), np.nan)
    want[1, 1] = np.inf
    np.testing.assert_array_equal(got, want)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("block", [(1, 1), (3, 4)])
def test_channels_first_with_axes_of_any_name(block):
    """Filters (output, input, y, x), the image turned positive first, as a product with the filters on the
    left."""
    x, w = normal(2, 5, 9, 8).astype(np.float16), normal(6, 5, 3, 3, seed=1).astype(np.float16)

    def kernel(image, weight):
        out = tj.output((2, 6, 7, 6), F32)
        p, q, u, v = tj.axis("p", block[0]), tj.axis("q", block[1]), tj.axis("u", 3), tj.axis("v", 3)
        e, o = tj.axis("e", 5), tj.axis("o", 6)
        ys, xs = tj.axis("ys", tj.cdiv(7, block[0])), tj.axis("xs", tj.cdiv(6, block[1]))

        images = tj.axis("images", 2)

        @tj.parallel(ys, images, xs)
        def _(nest):
            y0, n, x0 = map(nest.index, (ys, images, xs))
            rows, columns = tj.axis("rows", block[0] + 2), tj.axis("columns", block[1] + 2)
            field = image[tj.coord(n, 0, y0 * block[0], x0 * block[1]), tj.shape(1, e, rows, columns)]
            taps = tj.reindex(
                tj.reshape(field, tj.shape(e, rows, columns)),
                tj.shape(u, e, v, p, q),
                lambda at: tj.coord(at.index(e), at.index(p) + at.index(u), at.index(q) + at.index(v)),
            )
            filters = weight[tj.coord(0, 0, 0, 0), tj.shape(o, e, u, v)]
            value = tj.mma(filters, tj.where(taps > 0, taps, 0), tj.zeros(tj.shape(o, p, q)))
            out(tj.coord(n, 0, y0 * block[0], x0 * block[1]), tj.shape(1, o, p, q)).store(
                tj.reshape(value, tj.shape(1, o, p, q))
            )

        return out

    got = interpreted(kernel, x, w)
    images = np.maximum(x.astype(np.float64), 0).transpose(0, 2, 3, 1)
    want = oracle.conv2d(images, w.astype(np.float64).transpose(2, 3, 1, 0))
    close(got, want.transpose(0, 3, 1, 2), 1e-4)


M, N, K = 21, 35, 70


def product(a, b, *, block=(8, 16), turn=False, epilogue=None, out_dtype=F32, precision=None):
    """A product whose whole K each program loads."""
    out = tj.output((M, N), out_dtype)
    m, n, k = tj.axis("m", block[0]), tj.axis("n", block[1]), tj.axis("k", K)
    down, across = tj.axis("down", tj.cdiv(M, block[0])), tj.axis("across", tj.cdiv(N, block[1]))

    @tj.parallel(down, across)
    def _(nest):
        i, j = nest.index(down) * block[0], nest.index(across) * block[1]
        left, right = a[tj.coord(i, 0), tj.shape(m, k)], b[tj.coord(0, j), tj.shape(k, n)]
        start = tj.zeros(tj.shape(m, n), jnp.int32 if a.dtype.itemsize == 1 else F32)
        value = (
            tj.mma(right, left, start, precision=precision)
            if turn
            else tj.mma(left, right, start, precision=precision)
        )
        value = value if epilogue is None else epilogue(value, (i, j), (m, n))
        out(tj.coord(i, j), tj.shape(m, n)).store(value.astype(out.dtype))

    return out


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("block", [(1, 1), (8, 16), (32, 64)])
@pytest.mark.parametrize("turn", [False, True])
def test_a_product_whose_k_is_one_load(block, turn):
    a, b = normal(M, K), normal(K, N, seed=1)
    close(interpreted(functools.partial(product, block=block, turn=turn), a, b), oracle.gemm(a, b), 1e-4)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_bytes_are_exact(dtype):
    a = np.random.default_rng(0).integers(0, 256, (M, K)).astype(dtype)
    b = np.random.default_rng(1).integers(0, 256, (K, N)).astype(dtype)
    got = interpreted(functools.partial(product, out_dtype=np.int32), a, b)
    np.testing.assert_array_equal(got, a.astype(int) @ b.astype(int))


@pytest.mark.usefixtures("matrices")
def test_what_comes_after_a_product():
    """A bias along each side, a sum of indices, and the product once more."""
    a, b, row, column = normal(M, K), normal(K, N, seed=1), normal(M, seed=2), normal(N, seed=3)

    def kernel(a, b, row, column):
        def epilogue(value, origin, axes):
            i, j = origin
            m, n = axes
            there = row[tj.coord(i), tj.shape(m)] * column[tj.coord(j), tj.shape(n)]
            place = tj.iota(m) * 2 - tj.iota(n) + i
            return tj.where(place > 3, tj.exp(value * 0.1) + there, value * (j + 1).astype(F32))

        return product(a, b, epilogue=epilogue)

    ab = a.astype(np.float64) @ b
    i, j = np.arange(M)[:, None], np.arange(N)
    place = i % 8 * 2 - j % 16 + i // 8 * 8
    want = np.where(place > 3, np.exp(ab * 0.1) + row[:, None] * column, ab * (j // 16 * 16 + 1))
    close(interpreted(kernel, a, b, row, column), want, 1e-4)


@pytest.mark.usefixtures("matrices")
def test_gated_products_in_one_nest():
    x, w, v = normal(M, K), normal(K, N, seed=1), normal(K, N, seed=2)

    def kernel(x, w, v):
        out, gate = tj.output((M, N), F32), tj.output((M, N), F32)
        m, n, k = tj.axis("m", 4), tj.axis("n", 8), tj.axis("k", K)
        across, down = tj.axis("across", tj.cdiv(N, 8)), tj.axis("down", tj.cdiv(M, 4))

        @tj.parallel(across, down)
        def _(nest):
            j, i = nest.index(across) * 8, nest.index(down) * 4
            rows = x[tj.coord(i, 0), tj.shape(m, k)]
            start = tj.zeros(tj.shape(m, n))
            first, second = (tj.mma(rows, f[tj.coord(0, j), tj.shape(k, n)], start) for f in (w, v))
            out(tj.coord(i, j), tj.shape(m, n)).store(first * second)
            gate(tj.coord(i, j), tj.shape(m, n)).store(tj.where(second > 0, second, 0.0))

        return out, gate

    first, second = (x.astype(np.float64) @ f for f in (w, v))
    close(interpreted(kernel, x, w, v), (first * second, np.maximum(second, 0)), 1e-4)


@pytest.mark.usefixtures("matrices")
def test_a_batch_with_a_start_that_is_updated():
    """Each matrix of a batch times one of its own, added to what is there."""
    a, b, c = normal(3, 20, 9), normal(3, 9, 18, seed=1), normal(3, 20, 18, seed=2)

    def kernel(a, b, c):
        out = tj.update(c)
        h, m, n, k = tj.axis("h", 2), tj.axis("m", 5), tj.axis("n", 18), tj.axis("k", 9)

        down, pairs = tj.axis("down", 4), tj.axis("pairs", 2)

        @tj.parallel(down, pairs)
        def _(nest):
            i, g = nest.index(down) * 5, nest.index(pairs) * 2
            here = tj.coord(g, i, 0), tj.shape(h, m, n)
            left, right = a[tj.coord(g, i, 0), tj.shape(h, m, k)], b[tj.coord(g, 0, 0), tj.shape(h, k, n)]
            out(*here).store(tj.mma(left, right, out(*here).load()))

        return out

    close(interpreted(kernel, a, b, c), c + a.astype(np.float64) @ b, 1e-4)


@pytest.mark.usefixtures("matrices")
def test_pixels_as_one_dimension():
    """The user's own reshapes to matrices."""
    x, w = normal(6, 8, 5), normal(2, 2, 5, 17, seed=1)

    def kernel(x, w):
        out = tj.output((5, 7, 17), F32)
        p, q, u, v, c, o = (tj.axis(n, s) for n, s in zip("pquvco", (2, 4, 2, 2, 5, 17), strict=True))
        pixels, depth = tj.axis("pixels", 8), tj.axis("depth", 20)

        ys, xs = tj.axis("ys", 3), tj.axis("xs", 2)

        @tj.parallel(ys, xs)
        def _(nest):
            y0, x0 = nest.index(ys) * 2, nest.index(xs) * 4
            rows, columns = tj.axis("rows", 3), tj.axis("columns", 5)
            taps = tj.reindex(
                x[tj.coord(y0, x0, 0), tj.shape(rows, columns, c)],
                tj.shape(p, q, u, v, c),
                lambda at: tj.coord(at.index(p) + at.index(u), at.index(q) + at.index(v), at.index(c)),
            )
            left = tj.reshape(taps, tj.shape(pixels, depth))
            right = tj.reshape(w[tj.coord(0, 0, 0, 0), tj.shape(u, v, c, o)], tj.shape(depth, o))
            value = tj.mma(left, right, tj.zeros(tj.shape(pixels, o)))
            out(tj.coord(y0, x0, 0), tj.shape(p, q, o)).store(tj.reshape(value, tj.shape(p, q, o)))

        return out

    close(interpreted(kernel, x, w), oracle.conv2d(x[None], w)[0], 1e-4)


@pytest.mark.usefixtures("matrices")
def test_a_product_that_is_read_twice():
    """Once as it is and once turned: each factor has the rows of one and the columns of the other."""
    x = normal(20, K)

    def kernel(x):
        out = tj.output((20, 20), F32)
        m, n, k = tj.axis("m", 20), tj.axis("n", 20), tj.axis("k", K)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            value = tj.mma(x[at, tj.shape(m, k)], 2 * x[at, tj.shape(n, k)] + 1, tj.zeros(tj.shape(m, n)))
            turned = tj.reindex(value, tj.shape(m, n), lambda e: tj.coord(e.index(n), e.index(m)))
            out(at, tj.shape(m, n)).store(value - 3 * turned)

        return out

    value = x.astype(np.float64) @ (2 * x.astype(np.float64) + 1).T
    close(interpreted(kernel, x), value - 3 * value.T, 1e-3)


def test_what_is_not_cut_anew():
    """Sums in order, rows that are reduced, products of products, and places that data says."""
    a, b = S((M, K), F32), S((K, N), F32)
    assert nest_of(product, a, b) is not None

    def normalized(value, origin, axes):
        return value - tj.max(value, axes[1])

    def whole(a, b, row=lambda a: 0, **options):
        """A product of one program, of what `a` has from a row on."""
        out = tj.output((M, N), F32)
        m, n, k = tj.axis("m", M), tj.axis("n", N), tj.axis("k", K)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            left, right = a[tj.coord(row(a), 0), tj.shape(m, k)], b[at, tj.shape(k, n)]
            out(at, tj.shape(m, n)).store(tj.mma(left, right, tj.zeros(tj.shape(m, n)), **options))

        return out

    def first(a):
        return tj.reshape(a[tj.coord(0, 0), tj.shape(1, 1)], tj.shape()).astype(np.int32)

    assert nest_of(lambda a, b: product(a, b, epilogue=normalized), a, b) is None
    assert nest_of(whole, a, b) is not None
    assert nest_of(lambda a, b: whole(a, b, allow_reassociation=False), a, b) is None
    assert nest_of(lambda a, b: whole(a, b, row=first), a, b) is None
    assert nest_of(kernels.gemm, a, b) is None


@pytest.mark.parametrize(
    ("image", "filters", "blocks", "grid"),
    [
        ((64, 28, 28, 256), (3, 3, 256, 256), Blocks(128, 256, 64), (1, 392, 1)),
        ((64, 56, 56, 64), (3, 3, 64, 64), Blocks(128, 64, 64), (1, 1568, 1)),
        ((32, 14, 14, 512), (3, 3, 512, 512), Blocks(128, 128, 64), (1, 49, 4)),
    ],
)
def test_blocks(image, filters, blocks, grid):
    """Pixels are rows, one after another through all images."""
    nest = nest_of(kernels.conv2d, S(image, jnp.bfloat16), S(filters, jnp.bfloat16), padding=1)
    assert (nest.blocks, nest.grid) == (blocks, grid)
    (only,) = nest.sums.values()
    assert [nest.nest.places.extents[s] for s in (*only.steps, only.depth)] == [3, 3, image[-1]]
