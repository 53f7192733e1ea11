"""Every elementwise function and operator against jax.numpy's dtype and NumPy's float64 value."""

import operator
from math import erf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import tiles

FLOATS = ["float32", "float16", "bfloat16"]


INTS = ["int8", "uint8", "int16", "int32", "uint32"]


# Relative to float64: a few units in the last place.
RTOL = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-14}


UNARY = {
    # name: (float64 reference, least and greatest argument)
    "abs": (np.abs, -4, 4),
    "sign": (np.sign, -4, 4),
    "exp": (np.exp, -4, 4),
    "exp2": (np.exp2, -4, 4),
    "expm1": (np.expm1, -2, 2),
    "log": (np.log, 2, 9),
    "log2": (np.log2, 2, 9),
    "log1p": (np.log1p, 0.5, 4),
    "sqrt": (np.sqrt, 0.1, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "tanh": (np.tanh, -3, 3),
    "sin": (np.sin, -1.5, 1.5),
    "cos": (np.cos, -1.5, 1.5),
    "erf": (np.vectorize(erf, otypes=[np.float64]), -2, 2),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), -6, 6),
    "floor": (np.floor, -4, 4),
    "ceil": (np.ceil, -4, 4),
    "round": (np.round, -4, 4),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_unary_functions_of_floats(dtype):
    args = [np.linspace(lo, hi, 13).astype(jnp.dtype(dtype)) for _, lo, hi in UNARY.values()]
    want = {
        name: reference(x.astype(np.float64)).astype(jnp.dtype(dtype))
        for (name, (reference, _, _)), x in zip(UNARY.items(), args, strict=True)
    }
    atol = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[dtype]

    def fn(a, *xs):
        return {name: getattr(tj, name)(x) for name, x in zip(UNARY, xs, strict=True)}

    tiles(",".join(["i"] * len(args)), fn, *args, want=want, rtol=RTOL[dtype], atol=atol)


JNP = {
    "sigmoid": jax.scipy.special.expit,
    "erf": jax.scipy.special.erf,
    "rsqrt": lambda x: jax.lax.rsqrt(jnp.sqrt(x) ** 2),
}


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
@pytest.mark.parametrize("x64", [False, True])
def test_unary_functions_of_integers_promote_as_jax_numpy_does(dtype, x64):
    x = np.array([1, 2, 3, 5], dtype)

    def fn(a, x):
        return {name: getattr(tj, name)(x) for name in UNARY}

    with jax.enable_x64(x64):
        want = {n: np.asarray(JNP.get(n, getattr(jnp, n, None))(x)) for n in UNARY}
        tiles("i", fn, x, want=want, rtol=3e-6, atol=1e-6)


def test_rounding_is_half_to_even_and_signs_and_predicates_are_exact():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, np.nan, np.inf, -np.inf, -0.0, 3.7], np.float32)

    def fn(a, x):
        one = {"round": tj.round(x), "isnan": tj.isnan(x), "isfinite": tj.isfinite(x)}
        return one | {
            "sign": tj.sign(x),
            "abs": tj.abs(x),
            "floor": tj.floor(x),
            "ceil": tj.ceil(x),
            "neg": -x,
        }

    want = {"round": np.round(x), "isnan": np.isnan(x), "isfinite": np.isfinite(x), "sign": np.sign(x)}
    want |= {"abs": np.abs(x), "floor": np.floor(x), "ceil": np.ceil(x), "neg": -x}
    tiles("i", fn, x, want=want)


BINARY = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@pytest.mark.parametrize("dtype", FLOATS + INTS)
def test_binary_functions_and_operators(dtype):
    """Against the same operation in JAX, which NumPy's would not match in dtype (int8 / int8)."""
    unsigned = dtype.startswith("u")
    x = np.array([7, 5, 1, 0, 9, 3] if unsigned else [7, -7, 7, -7, 0, 3], jnp.dtype(dtype))
    y = np.array([2, 3, 1, 4, 9, 7] if unsigned else [2, 2, -2, -2, 3, 3], jnp.dtype(dtype))
    number = 3

    def fn(a, x, y):
        results = {name: getattr(tj, name)(x, y) for name in BINARY}
        results |= {name: op(x, y) for name, op in (OPERATORS | COMPARISONS).items()}
        results |= {f"{name} number": op(x, number) for name, op in (OPERATORS | COMPARISONS).items()}
        return results | {f"number {name}": op(number, y) for name, op in (OPERATORS | COMPARISONS).items()}

    jx, jy = jnp.asarray(x), jnp.asarray(y)
    want = {name: getattr(jnp, name)(jx, jy) for name in BINARY}
    want |= {name: op(jx, jy) for name, op in (OPERATORS | COMPARISONS).items()}
    want |= {f"{name} number": op(jx, number) for name, op in (OPERATORS | COMPARISONS).items()}
    want |= {f"number {name}": op(number, jy) for name, op in (OPERATORS | COMPARISONS).items()}
    exact = x.astype(np.float64)
    assert jnp.issubdtype(want["/"].dtype, jnp.floating)
    np.testing.assert_array_equal(np.asarray(want["//"], np.float64), exact // y.astype(np.float64))
    np.testing.assert_array_equal(np.asarray(want["%"], np.float64), exact % y.astype(np.float64))
    tiles("i,i", fn, x, y, want=want, rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 1e-6))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_bitwise_operators_and_shifts_of_integers(dtype):
    x = np.array([0b1100, 0b1010, 127, 0, 1], dtype)
    y = np.array([0b1010, 0b0110, 1, 5, 2], dtype)
    s = np.array([0, 1, 2, 3, 4], dtype)

    def fn(a, x, y, s):
        bits = {"&": x & y, "|": x | y, "^": x ^ y, "~": ~x, "<<": x << s, ">>": x >> s}
        return bits | {"& 6": x & 6, "6 |": 6 | x, "^ 1": x ^ 1, "1 <<": 1 << s, ">> 1": x >> 1}

    want = {"&": x & y, "|": x | y, "^": x ^ y, "~": ~x, "<<": x << s, ">>": x >> s}
    want |= {"& 6": x & 6, "6 |": 6 | x, "^ 1": x ^ 1, "1 <<": (1 << s.astype(np.int64)), ">> 1": x >> 1}
    tiles("i,i,i", fn, x, y, s, want={k: v.astype(dtype) for k, v in want.items()})


def test_logic_of_bools_and_of_numbers():
    p, q = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)
    n = np.array([0, 2, 0, -1], np.int32)

    def fn(a, p, q, n):
        bits = {"&": p & q, "|": p | q, "^": p ^ q, "~": ~p, "& True": p & True, "==": p == q}
        return bits | {
            "and": tj.logical_and(p, q),
            "or": tj.logical_or(p, q),
            "not": tj.logical_not(p),
            "and n": tj.logical_and(p, n),
            "or n": tj.logical_or(n, p),
            "not n": tj.logical_not(n),
        }

    want = {"&": p & q, "|": p | q, "^": p ^ q, "~": ~p, "& True": p, "==": p == q, "and": p & q, "or": p | q}
    want |= {"not": ~p, "and n": p & (n != 0), "or n": p | (n != 0), "not n": n == 0}
    tiles("i,i,i", fn, p, q, n, want=want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_power(dtype):
    x = np.array([0, 1, 2, -3, 3], jnp.dtype(dtype))
    floating = dtype != "int32"
    exponents = range(-2, 6) if floating else range(6)

    def fn(a, x, e):
        results = {f"{n}": x**n for n in exponents} | {"2**": 2 ** tj.abs(x), "tile": tj.power(tj.abs(x), e)}
        return results | ({"half": tj.abs(x) ** 0.5} if floating else {})

    e = np.array([1, 2, 3, 2, 0], jnp.dtype(dtype))
    exact = x.astype(np.float64)
    with np.errstate(divide="ignore"):
        want = {f"{n}": exact**n for n in exponents} | {
            "2**": 2 ** abs(exact),
            "tile": abs(exact) ** e.astype(float),
        }
    want |= {"half": abs(exact) ** 0.5} if floating else {}
    want = {name: value.astype(jnp.dtype(dtype)) for name, value in want.items()}
    tiles("i,i", fn, x, e, want=want, rtol=RTOL.get(dtype, 0.0))


def test_power_of_special_values():
    x = np.array([0.0, np.inf, -np.inf, np.nan, 2.0], np.float32)

    def fn(a, x):
        return {"0": x**0, "1": x**1, "-1": x**-1, "3": x**3}

    want = {
        "0": np.ones(5),
        "1": x,
        "-1": [np.inf, 0, -0.0, np.nan, 0.5],
        "3": [0, np.inf, -np.inf, np.nan, 8],
    }
    tiles("i", fn, x, want={k: np.array(v, np.float32) for k, v in want.items()})


def test_where_and_clip():
    x = np.arange(-3, 4, dtype=np.float32)
    lo, hi = x[::-1].copy(), np.full(7, 2, np.float32)

    def fn(a, x, lo, hi):
        return {
            "where": tj.where(x > 0, x, -x),
            "where n": tj.where(x > 0, x, 0),
            "where i": tj.where(x, 1, x),
            "clip": tj.clip(x, -1, 2.0),
            "clip tiles": tj.clip(x, lo, hi),
            "clip int": tj.clip(x.astype(jnp.int32), -1, 2),
        }

    want = {"where": abs(x), "where n": np.maximum(x, 0), "where i": np.where(x != 0, np.float32(1), x)}
    want |= {"clip": np.clip(x, -1, 2), "clip tiles": np.minimum(np.maximum(x, lo), hi)}
    tiles("i,i,i", fn, x, lo, hi, want=want | {"clip int": np.clip(x, -1, 2).astype(np.int32)})
