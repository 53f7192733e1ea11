"""Elementwise operations: JAX's own, applied after broadcasting by the identity of axes.

Every function takes tiles and scalars and returns a tile over the union of their axes. Dtypes promote as
in `jax.numpy`: Python scalars are weak, functions of the real numbers turn integers into floats. Values
are JAX's too: `maximum`, `minimum` and `clip` propagate NaN, `//` and `%` floor, `round` goes to even,
shifts past the width give 0 (or the sign).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..._errors import DtypeError
from ..dtypes import as_dtype, inexact
from ..tile import Scalar, Tile, align, as_tile

Operand = Tile | Scalar


def _apply(name: str, fn: Callable[..., Any], *operands: Operand) -> Tile:
    axes, arrays = align(operands, name)
    try:
        return Tile(fn(*arrays), axes)
    except (TypeError, ValueError) as error:
        kinds = ", ".join(str(a.dtype) for a in arrays)
        raise DtypeError(f"{name} of {kinds}: {str(error).splitlines()[0]}") from None


def _unary(name: str, fn: Callable[[Any], Any], doc: str) -> Callable[[Operand], Tile]:
    def op(x: Operand) -> Tile:
        return _apply(name, fn, x)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


def _binary(name: str, fn: Callable[[Any, Any], Any], doc: str) -> Callable[[Operand, Operand], Tile]:
    def op(x: Operand, y: Operand) -> Tile:
        return _apply(name, fn, x, y)

    op.__name__ = op.__qualname__ = name
    op.__doc__ = doc
    return op


def _inexact(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`fn` of a float; integers are turned into one first."""
    return lambda x: fn(x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(inexact(x.dtype)))


add = _binary("add", jnp.add, "`x + y`.")
subtract = _binary("subtract", jnp.subtract, "`x - y`.")
multiply = _binary("multiply", jnp.multiply, "`x * y`.")
divide = _binary("divide", jnp.divide, "`x / y`, a float also for integers.")
floor_divide = _binary("floor_divide", jnp.floor_divide, "`x // y`, rounded toward minus infinity.")
remainder = _binary("remainder", jnp.remainder, "`x % y`, with the sign of `y`.")
maximum = _binary("maximum", jnp.maximum, "The greater one; NaN if either is NaN.")
minimum = _binary("minimum", jnp.minimum, "The lesser one; NaN if either is NaN.")
equal = _binary("equal", jnp.equal, "`x == y`, a bool tile.")
not_equal = _binary("not_equal", jnp.not_equal, "`x != y`, a bool tile.")
less = _binary("less", jnp.less, "`x < y`, a bool tile.")
less_equal = _binary("less_equal", jnp.less_equal, "`x <= y`, a bool tile.")
greater = _binary("greater", jnp.greater, "`x > y`, a bool tile.")
greater_equal = _binary("greater_equal", jnp.greater_equal, "`x >= y`, a bool tile.")
logical_and = _binary("logical_and", jnp.logical_and, "Both are nonzero, a bool tile.")
logical_or = _binary("logical_or", jnp.logical_or, "Either is nonzero, a bool tile.")
bitwise_and = _binary("bitwise_and", jnp.bitwise_and, "`x & y` of integers or bools.")
bitwise_or = _binary("bitwise_or", jnp.bitwise_or, "`x | y` of integers or bools.")
bitwise_xor = _binary("bitwise_xor", jnp.bitwise_xor, "`x ^ y` of integers or bools.")
left_shift = _binary("left_shift", jnp.left_shift, "`x << y`; 0 if `y` is the width or more.")
right_shift = _binary("right_shift", jnp.right_shift, "`x >> y`, arithmetic for signed integers.")

negative = _unary("negative", jnp.negative, "`-x`.")
invert = _unary("invert", jnp.invert, "`~x` of integers or bools.")
logical_not = _unary("logical_not", jnp.logical_not, "Whether `x` is zero, a bool tile.")
abs = _unary("abs", jnp.abs, "The absolute value.")
sign = _unary("sign", jnp.sign, "-1, 0 or 1, and NaN of NaN.")
exp = _unary("exp", jnp.exp, "e to the power of `x`.")
exp2 = _unary("exp2", jnp.exp2, "2 to the power of `x`.")
expm1 = _unary("expm1", jnp.expm1, "`exp(x) - 1`, exact near 0.")
log = _unary("log", jnp.log, "The natural logarithm.")
log2 = _unary("log2", jnp.log2, "The logarithm to base 2.")
log1p = _unary("log1p", jnp.log1p, "`log(1 + x)`, exact near 0.")
sqrt = _unary("sqrt", jnp.sqrt, "The square root; NaN below 0.")
rsqrt = _unary("rsqrt", _inexact(jax.lax.rsqrt), "`1 / sqrt(x)`.")
tanh = _unary("tanh", jnp.tanh, "The hyperbolic tangent.")
sin = _unary("sin", jnp.sin, "The sine of `x` radians.")
cos = _unary("cos", jnp.cos, "The cosine of `x` radians.")
erf = _unary("erf", _inexact(jax.lax.erf), "The error function.")
sigmoid = _unary("sigmoid", _inexact(jax.lax.logistic), "`1 / (1 + exp(-x))`.")
floor = _unary("floor", jnp.floor, "The greatest integer not above `x`, in the same dtype.")
ceil = _unary("ceil", jnp.ceil, "The least integer not below `x`, in the same dtype.")
round = _unary("round", jnp.round, "The nearest integer, ties to even, in the same dtype.")
isnan = _unary("isnan", jnp.isnan, "Whether `x` is NaN, a bool tile.")
isfinite = _unary("isfinite", jnp.isfinite, "Whether `x` is neither NaN nor infinite, a bool tile.")


def power(x: Operand, y: Operand) -> Tile:
    """`x ** y`. A Python int `y` keeps the dtype of `x`; integers to a negative power raise `DtypeError`."""
    if isinstance(y, (int, np.integer)) and not isinstance(y, (bool, np.bool_)):
        base = as_tile(x, "power")
        if base.dtype == np.bool_:
            base = base.astype(jnp.int32)
        if y < 0 and jnp.issubdtype(base.dtype, np.integer):
            raise DtypeError(
                f"power: {base.dtype} to the negative power {y} is not an integer; use astype to a float "
                "dtype first"
            )
        return Tile(jax.lax.integer_pow(base.value, int(y)), base.axes)
    return _apply("power", jnp.power, x, y)


def where(cond: Operand, x: Operand, y: Operand) -> Tile:
    """`x` where `cond` is true (nonzero), else `y`; two Python scalars give a weak tile."""
    return _apply("where", jnp.where, cond, x, y)


def clip(x: Operand, lo: Operand, hi: Operand) -> Tile:
    """`minimum(maximum(x, lo), hi)`; NaN stays NaN."""
    return minimum(maximum(x, lo), hi)


def cast(x: Tile, dtype: Any) -> Tile:
    """`Tile.astype`."""
    tile, target = as_tile(x, "astype"), as_dtype(dtype, "astype")
    if target == np.bool_ and tile.dtype != np.bool_:
        return not_equal(tile, 0)
    return Tile(jax.lax.convert_element_type(tile.value, target), tile.axes)
