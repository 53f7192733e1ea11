"""Every elementwise function and operator against jax.numpy's dtype and NumPy's float64 value."""

import operator
from math import erf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, tiles, whole

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


JNP = {"sigmoid": jax.nn.sigmoid, "erf": jax.scipy.special.erf, "rsqrt": jax.lax.rsqrt}


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8"])
def test_unary_functions_of_integers_promote_as_jax_numpy_does(dtype):
    x = np.array([1, 2, 3, 5], dtype)
    names = [name for name in UNARY if name != "rsqrt"]
    want = {n: np.asarray(JNP.get(n, getattr(jnp, n, None))(x)) for n in names if n not in ("erf", "sigmoid")}
    want["sigmoid"] = (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)

    def fn(a, x):
        return {name: getattr(tj, name)(x) for name in want}

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


DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"]
NUMBERS = {"True": True, "2": 2, "2.5": 2.5}


def promotions(x64: bool) -> None:
    """Each pair of dtypes, and each dtype with each Python scalar, gives what ``jax.numpy`` gives."""
    dtypes = [*DTYPES, *(["int64", "float64"] if x64 else [])]
    arrays = {d: jnp.ones(3, d) for d in dtypes}
    seen = []

    def fn(a, *xs):
        for d, x in zip(dtypes, xs, strict=True):
            for e, y in zip(dtypes, xs, strict=True):
                seen.append((f"{d} + {e}", (x + y).dtype, (arrays[d] + arrays[e]).dtype))
            for name, n in NUMBERS.items():
                seen.append((f"{d} + {name}", (x + n).dtype, (arrays[d] + n).dtype))
                seen.append(
                    (
                        f"where {d}, {name}",
                        tj.where(x, n, x).dtype,
                        jnp.where(arrays[d] != 0, n, arrays[d]).dtype,
                    )
                )
            seen.append((f"{d} / {d}", (x / x).dtype, (arrays[d] / arrays[d]).dtype))
        return xs[0]

    want = np.ones(3, np.bool_)
    spec = ",".join(["i"] * len(dtypes))
    assert tj.jit(whole(spec, fn, want)).eval_shape(*arrays.values()).dtype == jnp.bool_
    assert len(seen) >= len(dtypes) * (len(dtypes) + 7)
    assert [s for s in seen if s[1] != s[2]] == []


def test_promotion_is_jax_numpys():
    promotions(x64=False)


def test_promotion_under_x64():
    with jax.enable_x64(True):
        promotions(x64=True)


def test_weak_types_stay_weak_through_tiles():
    """``where`` of two Python scalars is weak, so is ``full`` of one; a rank-0 array is not."""

    def fn(a, x, s, w):
        weak = tj.where(x > 0, 2, 1)
        half = tj.where(x > 0, 0.5, -0.5) * weak
        assert (x * weak).dtype == x.dtype
        assert (x * half).dtype == x.dtype
        assert (x + s).dtype == jnp.float32
        assert (x + w).dtype == x.dtype
        return {"weak": x * weak, "half": x + half, "strong": x + s, "python": x + w}

    x = np.array([-1, 1, 2], np.float16)
    want = {"weak": x * np.float16([1, 2, 2]), "half": x + np.float16([-0.5, 1, 1])}
    want |= {"strong": x.astype(np.float32) + 1, "python": x + np.float16(3)}
    tiles("i,,", fn, x, jnp.float32(1), 3.0, want=want)


def test_functions_take_scalars_as_well_as_tiles():
    def fn(a, x, s):
        one = tj.sum(x, a.i)
        return {
            "traced": tj.exp(s) * x,
            "rank0": tj.maximum(one, 3) + x,
            "python": tj.sqrt(4.0) * x,
            "where": tj.where(s > 0, x, 0),
            "numbers": tj.maximum(2, 3.5) + x,
            "index": tj.minimum(a.nest.index(), 5) + x,
        }

    x = np.array([1, 2, 3], np.float32)
    want = {"traced": x * np.float32(1), "rank0": x + 6, "python": x * 2, "where": x * 0, "numbers": x + 3.5}
    tiles("i,", fn, x, jnp.float32(0), want=want | {"index": x})


def test_float64_and_int64_values():
    with jax.enable_x64(True):
        x = np.linspace(0.5, 3, 7)
        n = np.array([2**40, -(2**40), 7], np.int64)

        def fn(a, x, n):
            return {"log": tj.log(x), "erf": tj.erf(x), "x": x * 2.5 + 1, "//": n // 3, "float": n * 0.5}

        want = {
            "log": np.log(x),
            "erf": np.vectorize(erf)(x),
            "x": x * 2.5 + 1,
            "//": n // 3,
            "float": n * 0.5,
        }
        tiles("i,j", fn, x, n, want=want, rtol=RTOL["float64"])


def test_making_tiles():
    def kernel():
        outs = {
            "zeros": tj.output((2, 3), jnp.float32),
            "ones": tj.output((2, 3), jnp.int8),
            "full": tj.output((2, 3), jnp.float16),
            "iota": tj.output((2, 3), jnp.int32),
            "fn": tj.output((2, 3), jnp.int32),
            "mixed": tj.output((2, 3), jnp.float32),
        }
        i, j = tj.axis("i", 2), tj.axis("j", 3)

        @tj.parallel(1)
        def _(nest):
            shape = tj.shape(i, j)
            results = {
                "zeros": tj.zeros(shape),
                "ones": tj.ones(shape, jnp.int8),
                "full": tj.full(shape, 2.5, jnp.float16),
                "iota": tj.iota(i) * 10 + tj.iota(j),
                "fn": tj.fromfunction(shape, lambda a, b: a * 10 + b),
                "mixed": tj.iota(j, jnp.float32) / 2 + tj.zeros(shape),
            }
            assert tj.zeros(shape).dtype == tj.ones(shape).dtype == jnp.float32
            assert tj.iota(i).dtype == jnp.int32
            for name, tile in results.items():
                assert tile.dtype == outs[name].dtype, name
                outs[name](tj.coord(0, 0), shape).store(tile)

        return outs

    index = np.arange(2, dtype=np.int32)[:, None] * 10 + np.arange(3, dtype=np.int32)
    want = {
        "zeros": np.zeros((2, 3), np.float32),
        "ones": np.ones((2, 3), np.int8),
        "full": np.full((2, 3), 2.5, np.float16),
        "iota": index,
        "fn": index,
        "mixed": np.broadcast_to(np.arange(3, dtype=np.float32) / 2, (2, 3)),
    }
    both(kernel, want=want)


def test_iota_and_indices_are_int32_under_x64():
    with jax.enable_x64(True):

        def fn(a, x):
            assert tj.iota(a.i).dtype == a.nest.index().dtype == jnp.int32
            assert (tj.iota(a.i) + 1).dtype == jnp.int32
            assert tj.zeros(tj.shape(a.i)).dtype == jnp.float32
            _, indices = tj.sort(x, a.i)
            _, where = tj.top_k(x, a.i, 2)
            assert indices.dtype == where.dtype == jnp.int32
            return tj.argmax(x, a.i), tj.sum(x > 1, a.i), indices

        x = np.array([1.0, 3.0, 2.0])
        result = np.int64(1), np.int64(2), np.array([0, 2, 1], np.int32)
        tiles("i", fn, x, want=result)
