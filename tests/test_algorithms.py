"""Small whole programs: data-dependent places and trip counts, sorting in place, stencils, several nests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal

RNG = np.random.default_rng(0)


def scalar(view, *at):
    """The element of ``view`` at ``at`` as a scalar."""
    return tj.reshape(view[tj.coord(*at), tj.shape(*[1] * view.ndim)], tj.shape())


def test_histogram_in_a_serial_loop():
    """A place read from data, loaded, incremented and stored; bucket -1 is outside, so dropped."""
    ids = RNG.integers(-1, 6, 30).astype(np.int32)

    def kernel(ids):
        out = tj.output((5,), jnp.int32)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(ids.shape[0])
            def _(step):
                at = tj.coord(scalar(ids, step.index())), tj.shape(1)
                out(*at).store(out[at] + 1)

        return out

    both(kernel, ids, want=np.array([(ids == b).sum() for b in range(5)], np.int32))


def test_bubble_sort_in_place():
    """Nested loops over one updated view, the inner one shorter in every step."""
    x = RNG.permutation(8).astype(np.float32)

    def kernel(x):
        y = tj.update(x)
        outer, inner = tj.axis("outer", 8), tj.axis("inner", 7)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(outer)
            def _(sweep):
                @sweep.serial(inner, stop=7 - sweep.index())
                def _(step):
                    left, right = ((tj.coord(step.index() + d), tj.shape(1)) for d in (0, 1))
                    low, high = tj.minimum(y[left], y[right]), tj.maximum(y[left], y[right])
                    y(*left).store(low)
                    y(*right).store(high)

        return y

    both(kernel, x, want=np.sort(x))


def test_game_of_life_over_several_nests():
    """Each generation is a nest that reads the whole of the one before."""
    board = RNG.integers(0, 2, (7, 9)).astype(np.int32)

    def kernel(x):
        rows, cols = tj.axis("rows", 7), tj.axis("cols", 9)
        fy, fx = tj.axis("fy", 3), tj.axis("fx", 3)
        now = x
        for _generation in range(3):
            then = tj.output_like(x)

            @tj.parallel(rows, cols)
            def _(nest, now=now, then=then):
                i, j = nest.index(rows), nest.index(cols)
                cell = scalar(now, i, j)
                around = tj.sum(now[tj.coord(i - 1, j - 1), tj.shape(fy, fx)], tj.shape(fy, fx)) - cell
                alive = (around == 3) | ((around == 2) & (cell == 1))
                then(tj.coord(i, j), tj.shape(1, 1)).store(alive.astype(x.dtype))

            now = then
        return now

    want = board
    for _ in range(3):
        padded = np.pad(want, 1)
        around = sum(padded[a : a + 7, b : b + 9] for a in range(3) for b in range(3)) - want
        want = ((around == 3) | ((around == 2) & (want == 1))).astype(np.int32)
    both(kernel, board, want=want)


def test_means_of_rows_of_different_length():
    """The trip count and the mask come from an array; an empty row is 0."""
    lengths, x = np.array([0, 3, 5, 8], np.int32), normal(4, 8, 3)

    def kernel(x, lengths):
        out = tj.output((4, 3), jnp.float32)
        rows, blocks, b, d = tj.axis("rows", 4), tj.axis("blocks", 4), tj.axis("b", 2), tj.axis("d", 3)

        @tj.parallel(rows)
        def _(nest):
            i = nest.index()
            length = scalar(lengths, i)

            @nest.pipeline(blocks, carry=(tj.zeros(tj.shape(d)), 0.0), stop=tj.cdiv(length, 2), window=3)
            def end(step, carry):
                total, count = carry
                k0 = step.index() * 2
                tile = tj.reshape(x[tj.coord(i, k0, 0), tj.shape(1, b, d)], tj.shape(b, d))
                valid = tj.iota(b) + k0 < length
                return total + tj.sum(tj.where(valid, tile, 0), b), count + tj.sum(valid, b).astype(
                    jnp.float32
                )

            total, count = end
            out(tj.coord(i, 0), tj.shape(1, d)).store(tj.where(count > 0, total / count, 0))

        return out

    want = [x[i, :n].mean(0) if n else np.zeros(3) for i, n in enumerate(lengths)]
    both(kernel, x, lengths, want=np.array(want, np.float32), rtol=1e-5, atol=1e-6)


def test_rows_permuted_by_an_array():
    """The places of the stores are data: disjoint, but nobody can prove it."""
    x, order = normal(6, 7), np.array([3, 0, 5, 1, 2, 4], np.int32)

    def kernel(x, order):
        scattered, gathered = tj.output_like(x), tj.output_like(x)
        rows, c = tj.axis("rows", 6), tj.axis("c", 7)

        @tj.parallel(rows)
        def _(nest):
            i = nest.index()
            there = scalar(order, i)
            scattered(tj.coord(there, 0), tj.shape(1, c)).store(x[tj.coord(i, 0), tj.shape(1, c)])
            gathered(tj.coord(i, 0), tj.shape(1, c)).store(x[tj.coord(there, 0), tj.shape(1, c)])

        return scattered, gathered

    scattered = np.empty_like(x)
    scattered[order] = x
    both(kernel, x, order, want=(scattered, x[order]))


def test_overlapping_stores_of_one_program_are_in_order():
    def kernel(x):
        y = tj.update(x)
        blocks = tj.axis("blocks", 3)

        @tj.parallel(blocks)
        def _(nest):
            i = nest.index() * 4
            y(tj.coord(i), tj.shape(3)).store(1)
            y(tj.coord(i + 1), tj.shape(3)).store(2)
            at = tj.coord(i), tj.shape(4)
            y(*at).store(y[at] * 10)

        return y

    both(kernel, np.zeros(12, np.float32), want=np.array([10, 20, 20, 20] * 3, np.float32))


def test_a_loop_that_stores_backwards_and_over_the_edge():
    """Later steps overwrite earlier ones; some steps are outside at either end."""

    def kernel():
        out = tj.output((5,), jnp.int32, init=-1)
        steps = tj.axis("steps", 9)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(steps)
            def _(step):
                out(tj.coord(7 - step.index()), tj.shape(2)).store(step.index())

        return out

    want = np.full(5, -1, np.int32)
    for step in range(9):
        for place in (7 - step, 8 - step):
            if 0 <= place < 5:
                want[place] = step
    both(kernel, want=want)


@pytest.mark.parametrize("turned", [False, True])
def test_origins_that_mix_grid_axes(turned):
    """Quotients, remainders and reversals of the grid index as origins."""
    x = np.arange(12, dtype=np.float32)

    def kernel(x):
        out = tj.output((3, 4), x.dtype)

        @tj.parallel(12)
        def _(nest):
            i = 11 - nest.index() if turned else nest.index()
            out(tj.coord(i // 4, i % 4), tj.shape(1, 1)).store(x[tj.coord(i % 4 * 3 + i // 4), tj.shape(1)])

        return out

    both(kernel, x, want=x.reshape(4, 3).T.copy())


def test_matrix_product_accumulated_in_the_output():
    """The accumulator is memory: every step loads it, adds, and stores it."""
    a = normal(6, 7)

    def kernel(a, b):
        c = tj.output((6, 6), jnp.float32)
        blocks, steps = tj.axis("blocks", 3), tj.axis("steps", 4)
        m, n, k = tj.axis("m", 2), tj.axis("n", 6), tj.axis("k", 2)

        @tj.parallel(blocks)
        def _(nest):
            m0 = nest.index() * 2
            at = tj.coord(m0, 0), tj.shape(m, n)

            @nest.pipeline(steps, window=2)
            def _(step):
                k0 = step.index() * 2
                left, right = a[tj.coord(m0, k0), tj.shape(m, k)], b[tj.coord(k0, 0), tj.shape(k, n)]
                c(*at).store(tj.mma(left, right, c[at]))

        return c

    both(kernel, a, a.T.copy(), want=a @ a.T, rtol=1e-4, atol=1e-5)


def test_strided_convolution_through_reindex():
    """The seed's direct convolution: a padded window, its taps by reindex, a reduction over three axes."""
    x, w, bias = normal(1, 5, 6, 2), normal(3, 3, 2, 3, seed=1), normal(3, seed=2)

    def kernel(x, w, bias):
        y = tj.output((1, 3, 3, 3), x.dtype)
        rows, cols = tj.axis("rows", 3), tj.axis("cols", 3)
        fy, fx, ic, oc = (tj.axis(name, n) for name, n in zip(["fy", "fx", "ic", "oc"], w.shape, strict=True))
        wy, wx = tj.axis("wy", 3), tj.axis("wx", 3)

        @tj.parallel(rows, cols)
        def _(nest):
            i, j = nest.index(rows), nest.index(cols)
            window = x[tj.coord(0, i * 2 - 1, j * 2 - 1, 0), tj.shape(1, wy, wx, ic)]
            window = tj.reshape(window, tj.shape(wy, wx, ic))
            taps = tj.reindex(
                window, tj.shape(fy, fx, ic), lambda e: tj.coord(e.index(fy), e.index(fx), e.index(ic))
            )
            filters = w[tj.coord(0, 0, 0, 0), tj.shape(fy, fx, ic, oc)]
            value = tj.reduce(taps * filters, tj.shape(fy, fx, ic), tj.add) + bias[tj.coord(0), tj.shape(oc)]
            y(tj.coord(0, i, j, 0), tj.shape(1, 1, 1, oc)).store(
                tj.reshape(tj.maximum(value, 0), tj.shape(1, 1, 1, oc))
            )

        return y

    layout = ("NHWC", "HWIO", "NHWC")
    want = jax.lax.conv_general_dilated(x, w, (2, 2), ((1, 1), (1, 1)), dimension_numbers=layout) + bias
    both(kernel, x, w, bias, want=np.maximum(np.asarray(want), 0), rtol=1e-4, atol=1e-5)
