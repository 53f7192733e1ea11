"""Products in pieces: the rewritten program in the interpreter, against float64 formulas and, where the order
of the sums is fixed, bit for bit against the program as it was."""

import functools

import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from kernel_cases import normal
from test_triton import interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends import interpreter
from tilejax.backends.triton import pieces
from tilejax.ir.jaxprs import equations
from tilejax.ir.verify import verify
from tilejax.transforms.contractions import in_pieces
from tilejax.transforms.simplify import simplify

F32 = np.float32
M, N, K = 7, 9, 70


def traced(kernel, *args, **options):
    """A kernel's program and operands."""
    this = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel
    found = this.trace(args, options)
    program = simplify(found.program)
    return program, [
        np.asarray(x, v.aval.dtype) for x, v in zip(found.operands, program.jaxpr.invars, strict=True)
    ]


def rewritten(kernel, *args, depth, **options):
    """The first result, and the extents of the loops that were made."""
    program, operands = traced(kernel, *args, **options)
    new = in_pieces(program, lambda nest, eqn: depth)
    verify(new)
    loops = [e.params["extents"] for e in equations(new.jaxpr.eqns) if "num_carry" in e.params]
    return interpreter.run(new, operands)[0], loops


def product(a, b, *, block=(4, 5), before=lambda tile: tile, after=None, acc_dtype=F32, **options):
    out = tj.output((M, N), acc_dtype)
    m, n, k = tj.axis("m", block[0]), tj.axis("n", block[1]), tj.axis("k", K)
    down, across = tj.axis("down", tj.cdiv(M, block[0])), tj.axis("across", tj.cdiv(N, block[1]))

    @tj.parallel(down, across)
    def _(nest):
        i, j = nest.index(down) * block[0], nest.index(across) * block[1]
        left, right = before(a[tj.coord(i, 0), tj.shape(m, k)]), b[tj.coord(0, j), tj.shape(k, n)]
        value = tj.mma(left, right, tj.zeros(tj.shape(m, n), acc_dtype), **options)
        out(tj.coord(i, j), tj.shape(m, n)).store(value if after is None else after(value, m, n))

    return out


@pytest.mark.parametrize(
    ("depth", "loops"),
    [(1, [(70,)]), (7, [(10,)]), (16, [(4,)]), (32, [(2,)]), (64, [(1,)]), (69, [(1,)]), (70, []), (999, [])],
)
def test_any_depth(depth, loops):
    """What is left of the last piece comes after the loop."""
    a, b = normal(M, K), normal(K, N, seed=1)
    got, found = rewritten(product, a, b, depth=depth)
    np.testing.assert_allclose(got, oracle.gemm(a, b), rtol=1e-5, atol=1e-5)
    assert found == loops


@pytest.mark.parametrize("depth", [1, 4, 16, 32])
def test_sums_in_order_stay_in_order(depth):
    a, b = normal(M, K), normal(K, N, seed=1)
    kernel = functools.partial(product, allow_reassociation=False)
    program, operands = traced(kernel, a, b)
    got, loops = rewritten(kernel, a, b, depth=depth)
    assert loops
    np.testing.assert_array_equal(got, interpreter.run(program, operands)[0])


def test_narrow_sums_are_rounded_once():
    a, b = np.full((M, K), 1, np.float16), np.full((K, N), 30, np.float16)
    a[:, 0] = 2048
    got, loops = rewritten(functools.partial(product, acc_dtype=np.float16), a, b, depth=1)
    assert loops
    np.testing.assert_array_equal(got, (a.astype(np.float64) @ b).astype(np.float16))


@pytest.mark.parametrize("depth", [1, 4, 9, 40])
@pytest.mark.parametrize("options", [{}, {"block_rows": 2, "block_cols": 4}, {"stride": 2, "block_rows": 3}])
def test_convolutions(depth, options):
    """Six channels, a tap after another, or as many taps at once as there is room for."""
    x, w = normal(2, 5, 7, 6), normal(3, 3, 6, 8, seed=1)
    got, loops = rewritten(kernels.conv2d, x, w, padding=1, depth=depth, **options)
    stride = (options.get("stride", 1),) * 2
    np.testing.assert_allclose(got, oracle.conv2d(x, w, stride=stride, padding=(1, 1)), rtol=1e-5, atol=1e-5)
    assert loops == {1: [(3, 3, 6)], 4: [(3, 3), (1,)], 9: [(3, 3)], 40: [(1,)]}[depth]


def test_what_makes_a_factor_is_made_of_pieces():
    """A turned load, an index, a vector along K and a choice."""
    a, b, scale = normal(K, M), normal(K, N, seed=1), normal(K, seed=2)

    def kernel(a, b, scale):
        out = tj.output((M, N), F32)
        m, n, k = tj.axis("m", M), tj.axis("n", N), tj.axis("k", K)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            left = a[at, tj.shape(k, m)] * scale[tj.coord(0), tj.shape(k)]
            left = tj.transpose(tj.where(tj.iota(k) % 3 == 1, left, 0.5), tj.shape(m, k))
            value = tj.mma(left, b[at, tj.shape(k, n)] + 1.0, tj.ones(tj.shape(m, n)))
            out(at, tj.shape(m, n)).store(value)

        return out

    left = np.where(np.arange(K)[:, None] % 3 == 1, a * scale[:, None].astype(np.float64), 0.5)
    for depth in (4, 16, 64):
        got, loops = rewritten(kernel, a, b, scale, depth=depth)
        np.testing.assert_allclose(got, 1 + left.T @ (b.astype(np.float64) + 1), rtol=1e-5, atol=1e-5)
        assert loops


def test_what_is_stored_meanwhile_is_held():
    """The factor is loaded before a store to the same view, and multiplied after it."""
    a, b = normal(K, K), normal(K, N, seed=1)

    def kernel(a, b):
        out, changed = tj.output((K, N), F32), tj.update(a)
        m, n, k = tj.axis("m", K), tj.axis("n", N), tj.axis("k", K)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0, 0)
            left = changed(at, tj.shape(m, k)).load()
            changed(at, tj.shape(m, k)).store(left * 0)
            out(at, tj.shape(m, n)).store(tj.mma(left, b[at, tj.shape(k, n)], tj.zeros(tj.shape(m, n))))

        return out, changed

    got, loops = rewritten(kernel, a, b, depth=8)
    assert not loops
    np.testing.assert_allclose(got, oracle.gemm(a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("in_order", [False, True])
def test_triton_sums_rows_that_it_normalizes_in_pieces(monkeypatch, in_order):
    """Its elements need each other, so that the nest is not cut anew."""
    monkeypatch.setattr(pieces, "HELD", 1024)
    a, b = normal(M, K), normal(K, N, seed=1)
    kernel = functools.partial(
        product, block=(4, N), after=lambda v, m, n: v - tj.max(v, n), allow_reassociation=not in_order
    )
    program = pieces.pieces(traced(kernel, a, b)[0])
    loops = [e.params["extents"] for e in equations(program.jaxpr.eqns) if "num_carry" in e.params]
    assert loops == [(8,)] if in_order else [(2,)]
    want = oracle.gemm(a, b)
    np.testing.assert_allclose(
        interpreted(kernel, a, b), want - want.max(1, keepdims=True), rtol=1e-4, atol=1e-4
    )


def test_bytes():
    a, b = np.full((M, K), 127, np.int8), np.full((K, N), -128, np.int8)
    got, _ = rewritten(functools.partial(product, acc_dtype=jnp.int32), a, b, depth=16)
    np.testing.assert_array_equal(got, a.astype(int) @ b.astype(int))
