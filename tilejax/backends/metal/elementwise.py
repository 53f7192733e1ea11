"""Elementwise primitives that the plugins lack, or of which they leave cases open."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax


class NoForm(Exception):
    """A case of a primitive that is not made of what the plugins have; the message names it."""


def full(like: Any, value: Any, dtype: Any = None) -> Any:
    """An array of the shape of `like`, all of it `value`."""
    return lax.full(jnp.shape(like), value, like.dtype if dtype is None else dtype)


def convert(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    """A cast. StableHLO leaves open what an integer out of range is: here it saturates, and NaN is 0."""
    if new_dtype == np.bool_ or not (
        jnp.issubdtype(x.dtype, np.floating) and jnp.issubdtype(new_dtype, np.integer)
    ):
        return lax.convert_element_type(x, new_dtype)
    x, info = lax.convert_element_type(x, np.float32), jnp.iinfo(new_dtype)
    least, past = full(x, float(info.min)), full(x, float(int(info.max) + 1))
    low, high = lax.lt(x, least), lax.ge(x, past)
    inside = lax.select(lax.lt(x, past) & lax.ge(x, least), x, full(x, 0))  # no comparison holds for NaN
    out = lax.convert_element_type(inside, new_dtype)
    return lax.select(low, full(out, info.min), lax.select(high, full(out, info.max), out))


def reduce_precision(x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    """Rounds f32 to fewer bits of mantissa, to nearest even, as integers: a compiler can't fold it with the
    casts around it."""
    if x.dtype != np.float32 or exponent_bits != 8:
        raise NoForm(f"reduce_precision of {x.dtype} to {exponent_bits} bits of exponent")
    shift = 23 - mantissa_bits
    if shift <= 0:
        return x
    bits = lax.bitcast_convert_type(x, np.uint32)
    odd = lax.shift_right_logical(bits, full(bits, shift)) & full(bits, 1)
    bits = (bits + odd + full(bits, (1 << (shift - 1)) - 1)) & full(bits, 0xFFFFFFFF << shift & 0xFFFFFFFF)
    return lax.select(lax.ne(x, x), x, lax.bitcast_convert_type(bits, np.float32))


def _shift(shift: Callable[[Any, Any], Any], fill: Callable[[Any], Any]) -> Callable[..., Any]:
    """A shift of which amounts past the width are defined: they give `fill`."""

    def rule(x: Any, amount: Any) -> Any:
        width = jnp.iinfo(x.dtype).bits
        inside = lax.ge(amount, full(amount, 0)) & lax.lt(amount, full(amount, width))
        return lax.select(inside, shift(x, lax.select(inside, amount, full(amount, 0))), fill(x))

    return rule


def _sign_bits(x: Any) -> Any:
    return lax.shift_right_arithmetic(x, full(x, jnp.iinfo(x.dtype).bits - 1))


# erf(x) = x * P(x * x) / Q(x * x) within an f32 rounding, for |x| up to where erf is 1.
_ERF_LIMIT = 3.7439211627767994
_ERF_P = (
    2.2905065861350646e-4,
    3.4082910107109506e-3,
    5.0955695062380861e-2,
    1.8520832239976145e-1,
    1.128379143519084,
)
_ERF_Q = (
    -1.1791602954361697e-7,
    2.3547966471313185e-5,
    1.0179625278914885e-3,
    1.4070470171167667e-2,
    1.1098505178285362e-1,
    4.9746925110067538e-1,
    1.0,
)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    out = full(x, coefficients[0])
    for c in coefficients[1:]:
        out = out * x + full(x, c)
    return out


def _erf(x: Any) -> Any:
    bounded = lax.clamp(np.float32(-_ERF_LIMIT), x, np.float32(_ERF_LIMIT))
    square = bounded * bounded
    out = bounded * _polynomial(square, _ERF_P) / _polynomial(square, _ERF_Q)
    return lax.select(lax.ne(x, x), x, lax.clamp(np.float32(-1), out, np.float32(1)))


def _in_f32(fn: Callable[[Any], Any]) -> Callable[..., Any]:
    """`fn` of an f32, also for shorter floats, which are rounded once."""

    def rule(x: Any, **_: Any) -> Any:
        return lax.convert_element_type(fn(lax.convert_element_type(x, np.float32)), x.dtype)

    return rule


def round_(x: Any, *, rounding_method: Any) -> Any:
    """To the nearest integer."""
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        return lax.round(x, rounding_method)
    size = lax.abs(x)
    floor = lax.floor(size)
    up = lax.select(lax.ge(size - floor, full(x, 0.5)), floor + full(x, 1), floor)
    return lax.select(lax.lt(x, full(x, 0)), -up, lax.select(lax.eq(floor, size), x, up))


def polynomial(x: Any, *coefficients: Any, **_: Any) -> Any:
    """Horner's rule, the constant coefficient first."""
    terms = [c if jnp.shape(c) else full(x, c) for c in coefficients]
    if any(c.shape != x.shape for c in terms):
        raise NoForm(f"polynomial of {x.dtype} with coefficients of another shape")
    out = terms.pop()
    while terms:
        out = out * x + terms.pop()
    return out


RULES: dict[str, Callable[..., Any]] = {
    "convert_element_type": convert,
    "reduce_precision": reduce_precision,
    "shift_left": _shift(lax.shift_left, lambda x: full(x, 0)),
    "shift_right_logical": _shift(lax.shift_right_logical, lambda x: full(x, 0)),
    "shift_right_arithmetic": _shift(lax.shift_right_arithmetic, _sign_bits),
    "erf": _in_f32(_erf),
    "exp2": _in_f32(lambda x: lax.exp(x * full(x, math.log(2)))),
    "tan": _in_f32(lambda x: lax.sin(x) / lax.cos(x)),
    "round": round_,
    "polynomial": polynomial,
    "square": lambda x: x * x,
    "copy": lambda x: x,
    "copy_p": lambda x: x,
}
