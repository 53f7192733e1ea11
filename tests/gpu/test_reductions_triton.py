"""Reductions of rows on an NVIDIA GPU through Triton: held, and in pieces in one loop."""

import pytest
import test_triton_reductions as reductions

import tilejax as tj


def triton(kernel, x):
    return tj.jit(kernel, backend="triton")(x)


@reductions.LENGTHS
@reductions.DTYPES
def test_extrema_and_their_places(n, dtype):
    reductions.check_extrema(triton, n, dtype)


@pytest.mark.parametrize("n", [3000, 50_001])
def test_moments(n):
    reductions.check_moments(triton, n)
