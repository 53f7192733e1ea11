"""Scans by operators of tiles, batches of matrices and signed zeros on an NVIDIA GPU through Triton."""

import numpy as np
import pytest
import test_triton_contract as contract
import test_triton_operators as operators

import tilejax as tj


def triton(kernel):
    return tj.jit(kernel, backend="triton")


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("name", operators.OPERATORS)
def test_scans(name, reverse):
    op, _, axes = operators.OPERATORS[name]
    for length in (1, 2, 12, 100):
        args = operators.arguments(name, length)
        got, want = triton(operators.scan(op, axes, reverse))(*args), operators.wanted(name, args, reverse)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "uint8"])
@pytest.mark.parametrize("name", contract.CASES)
def test_batches(name, dtype):
    a, b = contract.operands(name, dtype)
    kernel = contract.product(name, np.int32 if "int" in dtype else np.float32)
    np.testing.assert_array_equal(triton(kernel)(a, b), contract.wanted(name, a, b))


@pytest.mark.parametrize("seed", [0.0, -0.0])
@pytest.mark.parametrize("order", ["ordered_tree", "fold_left", "fold_right"])
def test_only_negative_zeros(order, seed):
    """Added to 0.0 they are 0.0, and -0.0 added to -0.0; the identity of a plain sum is 0.0."""
    x = np.full((4, 5), -0.0, np.float32)

    def kernel(x):
        out, r, c = tj.output((2, 4), np.float32), tj.axis("r", 4), tj.axis("c", 5)

        @tj.parallel(1)
        def _(nest):
            tile = x[tj.coord(0, 0), tj.shape(r, c)]
            for i, op in enumerate((tj.Reducer(lambda a, b: a + b, seed), tj.add)):
                total = tj.reduce(tile, c, op, order=order)
                out(tj.coord(i, 0), tj.shape(1, r)).store(tj.reshape(total, tj.shape(1, r)))

        return out

    own, plain = np.signbit(triton(kernel)(x))
    assert own.tolist() == [bool(np.signbit(seed))] * 4
    assert plain.tolist() == [False] * 4
