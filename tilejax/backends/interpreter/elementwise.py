"""JAX's elementwise primitives in NumPy, as `jax.lax` defines them: in f32 or better, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .evaluate import Place, rule
from .numbers import cast, is_float, widen

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _define(name: str, fn: Callable[..., np.ndarray], widened: Callable[[np.ndarray], np.ndarray]) -> None:
    """The rule that widens the operands, applies `fn` and rounds to the result's dtype."""

    @rule(name)
    def _(eqn: Any, place: Place, *values: np.ndarray) -> np.ndarray:
        return cast(fn(*map(widened, values)), eqn.outvars[0].aval.dtype)


def _to_double(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


_ARITHMETIC: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "max": np.maximum,
    "min": np.minimum,
    "square": np.square,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "is_finite": np.isfinite,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "clamp": lambda low, x, high: np.minimum(np.maximum(low, x), high),
}
for _name, _fn in _ARITHMETIC.items():
    _define(_name, _fn, widen)

_TRANSCENDENTAL: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "erf": _erf,
    "erfc": _erfc,
    "pow": np.power,
}
for _name, _fn in _TRANSCENDENTAL.items():
    _define(_name, _fn, _to_double)


@rule("convert_element_type")
def _convert(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    return cast(x, eqn.outvars[0].aval.dtype)


@rule("integer_pow")
def _integer_pow(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    """Integers wrap: a power modulo 2**64 is right modulo any smaller power of two."""
    wide = x.astype(np.float64 if is_float(x.dtype) else np.int64)
    return cast(np.power(wide, np.asarray(eqn.params["y"], wide.dtype)), x.dtype)


@rule("div")
def _div(eqn: Any, place: Place, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Integers truncate toward zero; by zero they give -1 (all bits set), as XLA does."""
    if is_float(x.dtype):
        return cast(np.divide(widen(x), widen(y)), x.dtype)
    divisor = np.where(y == 0, 1, y).astype(y.dtype)
    floor, rest = np.floor_divide(x, divisor), np.remainder(x, divisor)
    toward_zero = floor + ((rest != 0) & ((x < 0) != (divisor < 0))).astype(x.dtype)
    return np.where(y == 0, np.invert(np.zeros_like(x)), toward_zero)


@rule("rem")
def _rem(eqn: Any, place: Place, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The sign is the dividend's; integers by zero give the dividend, as XLA does."""
    if is_float(x.dtype):
        return cast(np.fmod(widen(x), widen(y)), x.dtype)
    return np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y).astype(y.dtype)))


@rule("round")
def _round(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    """`rounding_method` 0 takes halves away from zero, 1 to even."""
    wide = widen(x)
    if int(eqn.params["rounding_method"]) == 1:
        return cast(np.rint(wide), x.dtype)
    whole = np.trunc(wide)
    return cast(np.where(np.abs(wide - whole) >= 0.5, whole + np.sign(wide), whole), x.dtype)


def _shift(name: str, shift: np.ufunc, kind: str) -> None:
    """The rule that shifts the bits as integers of `kind` ("u" or "i"), whatever the dtype's own.

    Counts are unsigned, so a negative one is past the width. Past it nothing is left but the sign."""

    @rule(name)
    def _(eqn: Any, place: Place, x: np.ndarray, count: np.ndarray) -> np.ndarray:
        bits = x.view(f"{kind}{x.dtype.itemsize}")
        inside = (count >= 0) & (count < 8 * x.dtype.itemsize)
        shifted = shift(bits, np.where(inside, count, 0).astype(bits.dtype))
        return np.where(inside, shifted, -(bits < 0).astype(bits.dtype)).view(x.dtype)


_shift("shift_left", np.left_shift, "u")
_shift("shift_right_logical", np.right_shift, "u")
_shift("shift_right_arithmetic", np.right_shift, "i")


@rule("select_n")
def _select_n(eqn: Any, place: Place, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    result = cases[0]
    for number, case in enumerate(cases[1:], start=1):
        result = np.where(which == number, case, result)
    return result
