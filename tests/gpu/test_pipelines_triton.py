"""Triton loads ahead of time what the dots of a loop multiply; never what a step before stores."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from test_pipeline import KERNELS, SCHEDULES, data

import tilejax as tj

SIZE = 64
SHUFFLE = np.eye(SIZE, dtype=np.float32)[np.random.default_rng(0).permutation(SIZE)]
T, S = tj.axis("t", SIZE), tj.axis("s", SIZE)


def triton(kernel, **options):
    return tj.jit(kernel, backend="triton", **options)


def tile(view, block, rows=T):
    return view(tj.coord(block * SIZE, 0), tj.shape(rows, S))


def chain(x, w, *, window, back):
    """Block i of ``y`` is block i - back, shuffled, plus its old self: it is stored and then loaded."""
    y = tj.update(x)
    steps, k = tj.axis("steps", x.shape[0] // SIZE - back), tj.axis("k", SIZE)

    @tj.parallel(1)
    def _(nest):
        @nest.pipeline(steps, window=window)
        def _(step):
            step.stage("load")
            shuffle = w[tj.coord(0, 0), tj.shape(T, k)]
            old = tile(y, step.index(), k).load()
            step.stage("compute")
            new = tj.mma(shuffle, old, tj.zeros(tj.shape(T, S)))
            step.stage("store")
            below = tile(y, step.index() + back)
            below.store((new + below.load()).astype(y.dtype))

    return y


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("back", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_dot_of_what_an_earlier_step_stored(dtype, back, num_stages):
    x = np.random.default_rng(1).integers(-2, 3, (9 * SIZE, SIZE)).astype(np.float32)
    want = x.copy()
    for i in range(9 - back):
        here = slice((i + back) * SIZE, (i + back + 1) * SIZE)
        want[here] += SHUFFLE @ want[i * SIZE : (i + 1) * SIZE]
    for window in (0, 2):
        kernel = functools.partial(chain, window=window, back=back)
        got = triton(kernel, compiler_params={"num_stages": num_stages})(
            x.astype(dtype), SHUFFLE.astype(dtype)
        )
        np.testing.assert_array_equal(np.asarray(got, np.float32), want)


@pytest.mark.parametrize("donate", [None, 0])
def test_the_argument_of_an_update_is_not_the_updated_view(donate):
    """Step i stores block i + 1 of ``y``, and then loads that block of ``x``, which starts as the same."""
    x = np.random.default_rng(2).integers(-2, 3, (6 * SIZE, SIZE)).astype(np.float32)

    def kernel(x, w):
        y = tj.update(x)
        steps, k = tj.axis("steps", 5), tj.axis("k", SIZE)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(steps)
            def _(step):
                left, right = w[tj.coord(0, 0), tj.shape(T, k)], tile(x, step.index(), k).load()
                tile(y, step.index() + 1).store(tj.mma(left, right, tj.zeros(tj.shape(T, S))))

        return y

    want = x.copy()
    for i in range(5):
        want[(i + 1) * SIZE : (i + 2) * SIZE] = SHUFFLE @ x[i * SIZE : (i + 1) * SIZE]
    got = triton(kernel, donate_argnums=donate)(jnp.asarray(x), SHUFFLE)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("columns", [7, 129])
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_gives_what_the_steps_give_in_order(name, trips, columns):
    x = data(trips, columns)
    for schedule in SCHEDULES:
        kernel, want = KERNELS[name](trips, *schedule)
        got, wanted = triton(kernel)(x), want(x)
        for g, w in zip(*(v if isinstance(v, tuple) else (v,) for v in (got, wanted)), strict=True):
            np.testing.assert_array_equal(g, w)
