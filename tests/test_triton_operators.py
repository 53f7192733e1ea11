"""Scans whose operator contracts, reduces, broadcasts or moves elements: the Triton lowering runs it for all
pairs of a level at once."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from test_triton import interpreted
from test_triton_lowering import for_cuda

import tilejax as tj

F32 = np.float32
R, C, K = (tj.axis(name, 3) for name in "rck")


def scan(op, axes, reverse):
    """A kernel that scans arrays along their first axis; ``axes`` are the others of each."""

    def kernel(*arrays):
        t = tj.axis("t", arrays[0].shape[0])
        outs = [tj.output_like(x) for x in arrays]
        places = [(tj.coord(*[0] * x.ndim), tj.shape(t, *own)) for x, own in zip(arrays, axes, strict=True)]

        @tj.parallel(1)
        def _(nest):
            tiles = [x[at] for x, at in zip(arrays, places, strict=True)]
            scanned = tj.associative_scan(op, tiles, t, reverse=reverse)
            for out, at, tile in zip(outs, places, scanned, strict=True):
                out(*at).store(tile)

        return outs

    return kernel


def product(a, b):
    """Of the later matrix and the earlier one."""
    later, earlier = tj.relabel(b, tj.shape(R, K)), tj.relabel(a, tj.shape(K, C))
    return tj.mma(later, earlier, tj.zeros(tj.shape(R, C)))


def affine(a, b):
    """Of maps ``x -> matrix x + vector``."""
    (matrix, vector), (later, offset) = a, b
    return [product(matrix, later), tj.sum(later * tj.relabel(vector, tj.shape(C)), C) + offset]


def least(x):
    """Of each row, by a function of the user's."""
    return tj.reduce(x, C, tj.Reducer(tj.minimum, 9), order="fold_left")


OPERATORS = {
    "products of matrices": (
        lambda a, b: [product(a[0], b[0])],
        lambda a, b: [b[0] @ a[0]],
        [(R, C)],
    ),
    "affine maps": (affine, lambda a, b: [b[0] @ a[0], b[0] @ a[1] + b[1]], [(R, C), (R,)]),
    "vectors times scalars": (
        lambda a, b: [a[0] * b[0], a[1] * b[0] + b[1]],
        lambda a, b: [a[0] * b[0], a[1] * b[0] + b[1]],
        [(), (R,)],
    ),
    "the vector of the greatest sum": (
        lambda a, b: [tj.where(tj.sum(a[0], R) >= tj.sum(b[0], R), a[0], b[0])],
        lambda a, b: [a[0] if a[0].sum() >= b[0].sum() else b[0]],
        [(R,)],
    ),
    "the row of the greatest end": (
        lambda a, b: [tj.where(tj.argmax(a[0], R) >= tj.argmax(b[0], R), a[0], b[0])],
        lambda a, b: [a[0] if a[0].argmax() >= b[0].argmax() else b[0]],
        [(R,)],
    ),
    "compositions of functions": (
        lambda a, b: [tj.gather(b[0], a[0].astype(jnp.int32), C)],
        lambda a, b: [b[0][a[0].astype(int)]],
        [(C,)],
    ),
    "sorted maxima": (
        lambda a, b: [tj.sort(tj.maximum(tj.min(a[0], R), b[0]), R)[0]],
        lambda a, b: [np.sort(np.maximum(a[0].min(), b[0]))],
        [(R,)],
    ),
    "running maxima": (
        lambda a, b: [tj.maximum(tj.cummax(a[0], R), tj.associative_scan(tj.maximum, b[0], R))],
        lambda a, b: [np.maximum(*map(np.maximum.accumulate, (a[0], b[0])))],
        [(R,)],
    ),
    "rows of the greatest least element": (
        lambda a, b: [tj.where(least(a[0]) >= least(b[0]), a[0], b[0])],
        lambda a, b: [np.where(a[0].min(1) >= b[0].min(1), a[0].T, b[0].T).T],
        [(R, C)],
    ),
}


def arguments(name, length):
    rng = np.random.default_rng(length)
    shapes = [tuple(axis.extent for axis in own) for own in OPERATORS[name][2]]
    if name == "compositions of functions":
        return [rng.integers(0, 3, (length, *s)).astype(F32) for s in shapes]
    return [(rng.standard_normal((length, *s)) / 2).astype(F32) for s in shapes]


def wanted(name, arrays, reverse):
    """The scan by its definition, in float64."""
    exact = [x.astype(np.float64) for x in arrays]
    places = list(range(len(exact[0])))[:: -1 if reverse else 1]
    for before, here in itertools.pairwise(places):
        found = OPERATORS[name][1]([x[before] for x in exact], [x[here] for x in exact])
        for x, value in zip(exact, found, strict=True):
            x[here] = value
    return exact


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", OPERATORS)
def test_values(name, reverse):
    op, _, axes = OPERATORS[name]
    for length in (1, 2, 7, 8) if name in ("affine maps", "vectors times scalars") else (5,):
        args = arguments(name, length)
        for got, want in zip(
            interpreted(scan(op, axes, reverse), *args), wanted(name, args, reverse), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_they_are_lowered(name):
    op, _, axes = OPERATORS[name]
    text = for_cuda(scan(op, axes, False), *arguments(name, 12))
    assert text.count("custom_call @__gpu$xla.gpu.triton") == 1


def test_what_has_no_rule_is_refused():
    """A fold whose function is another one for each pair."""

    def op(a, b):
        total = tj.sum(a[0], R)
        return [tj.reduce(b[0], R, tj.Reducer(lambda x, y: x + y * total, 0)) + b[0]]

    with pytest.raises(tj.UnsupportedError, match=r"(?s)tile_fold in an operator.*test_triton_operators"):
        interpreted(scan(op, [(R,)], False), np.ones((4, 3), F32))
