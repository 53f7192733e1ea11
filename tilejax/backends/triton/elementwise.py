"""Elementwise primitives in what Pallas lowers for Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..._errors import UnsupportedError
from . import instructions
from .casts import convert, is_byte_float
from .moves import SHAPES
from .tiles import computed, full, padded_shape, scalar, widened
from .units import Call


def apply(call: Call, values: list[Any]) -> list[Any]:
    """Any primitive that is not a tile operation."""
    name, params, (target,), (dtype,) = call.name, call.params, call.targets, call.dtypes
    if name in SHAPES:
        return [SHAPES[name](values, call.shapes, target, params)]
    if name not in _DIRECT and name not in _EXPANDED:
        raise UnsupportedError(f"{name} on a tile of {target}: backend triton has no rule for it")
    # The scalars of a reducer are whole tiles here.
    extents = jnp.broadcast_shapes(padded_shape(target), *(v.shape for v in values))
    values = [v if v.shape == extents else jnp.broadcast_to(v, extents) for v in values]
    if name not in _MOVED and any(is_byte_float(v.dtype) for v in values):
        wide = [v.astype(np.float32) if is_byte_float(v.dtype) else v for v in values]
        (out,) = apply(replace(call, dtypes=(np.dtype(np.float32) if is_byte_float(dtype) else dtype,)), wide)
        return [convert(out, new_dtype=dtype)]
    if len(values) == 1 and name not in _MOVED:  # Pallas has few operations of constants
        values = [computed(v) for v in values]
    if name in _EXPANDED:
        return [_EXPANDED[name](*values, **params)]
    if name in _IN_F32 and jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4:
        values = [v.astype(np.float32) for v in values]
    elif name in _LOGICAL and dtype == np.bool_:
        return [_LOGICAL[name](*values)]
    return [call.primitive.bind(*values, **params).astype(dtype)]


def exp_near(x: Any) -> Any:
    """exp by the instruction for powers of two alone, off by `abs(x)` roundings."""
    wide = widened(x)
    return instructions.exp2(wide * scalar(1 / math.log(2), wide.dtype)).astype(x.dtype)


# Triton has these for f32 alone, or rounds them differently for shorter floats.
_IN_F32 = frozenset(
    "add cos div exp exp2 expm1 integer_pow log log1p mul pow rem rsqrt sin sqrt square sub tan tanh".split()  # noqa: SIM905
)
_MOVED = ("select_n", "convert_element_type", "copy")
_LOGICAL: dict[str, Callable[..., Any]] = {"add": lax.bitwise_or, "mul": lax.bitwise_and}

_DIRECT = frozenset(
    """
    abs add and ceil cos div eq exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p lt
    mul ne or pow rem rsqrt select_n sin
    sqrt square sub tan tanh xor
    """.split()  # noqa: SIM905
)


def _erf(x: Any, **_: Any) -> Any:
    """Abramowitz and Stegun 7.1.26 is too coarse; this is the rational form that XLA uses for f32."""
    if x.dtype == np.float64:
        return _erf_series(x)
    wide = x.astype(np.float32)
    t = jnp.clip(wide, -4.0, 4.0)
    s = t * t
    top = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05)
    top += (-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)
    bottom = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03)
    bottom += (-1.42647390514189e-02,)
    return jnp.where(wide != wide, wide, t * _horner(s, top) / _horner(s, bottom)).astype(x.dtype)


def _erf_series(x: Any) -> Any:
    """In float64: `2x/sqrt(pi) exp(-x**2)` times the sum of `(2x**2)**n / (1 3 5 ... (2n + 1))`, whose terms
    are positive."""
    wide, near = scalar(6, x.dtype), jnp.abs(x)
    t = jnp.where(near < wide, x, full(x.shape, 0, x.dtype))
    square = t * t
    term = total = full(x.shape, 1, x.dtype)

    def step(n: Any, state: Any) -> Any:
        total, term = state
        term = term * square * (scalar(2, x.dtype) / (2 * n + 1).astype(x.dtype))
        return total + term, term

    total, _ = lax.fori_loop(1, 160, step, (total, term))
    found = t * lax.exp(-square) * total * scalar(2 / math.sqrt(math.pi), x.dtype)
    sign = jnp.where(x < 0, full(x.shape, -1, x.dtype), full(x.shape, 1, x.dtype))
    return jnp.where(x != x, x, jnp.where(near < wide, found, sign))


def _horner(x: Any, coefficients: Sequence[float]) -> Any:
    total = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total = total * x + np.float32(c)
    return total


def _round(x: Any, *, rounding_method: Any) -> Any:
    """To the nearest integer, ties to even or away from 0; large numbers are integers."""
    wide = widened(x)
    large = scalar(2 ** jnp.finfo(wide.dtype).nmant, wide.dtype)
    magnitude = jnp.abs(wide)
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        near = jnp.floor(magnitude)
        rest = magnitude - near
        odd = near - 2.0 * jnp.floor(near * 0.5)
        up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
        rounded = near + up.astype(wide.dtype)
    else:
        rounded = jnp.floor(magnitude + 0.5)
    out = jnp.where(magnitude < large, rounded, magnitude)
    signed = jnp.where(wide < 0, -out, out)
    return jnp.where(out == 0, wide * 0, signed).astype(x.dtype)  # -0 stays


def _logistic(x: Any, **_: Any) -> Any:
    return (1.0 / (1.0 + jnp.exp(-widened(x)))).astype(x.dtype)


def _sign(x: Any, **_: Any) -> Any:
    one, zero, less = (full(x.shape, n, x.dtype) for n in (1, 0, -1))
    rest = x if jnp.issubdtype(x.dtype, np.floating) else zero  # NaN and -0 stay
    return jnp.where(x > 0, one, jnp.where(x < 0, less, rest))


def maximum(x: Any, y: Any, **_: Any) -> Any:
    """The greater one; NaN if either is, which Triton's own drops."""
    return _extremum(lax.max, lax.bitwise_or, instructions.maximum, x, y)


def minimum(x: Any, y: Any, **_: Any) -> Any:
    """The lesser one; NaN if either is."""
    return _extremum(lax.min, lax.bitwise_and, instructions.minimum, x, y)


def _extremum(op: Any, logical: Any, floating: Any, x: Any, y: Any) -> Any:
    if x.dtype == np.bool_:
        return logical(x, y)
    if is_byte_float(x.dtype):
        return _extremum(op, logical, floating, x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
    return (floating if jnp.issubdtype(x.dtype, np.floating) else op)(x, y)


def _shift(op: Callable[..., Any], x: Any, y: Any) -> Any:
    """A shift by the width or more leaves nothing, or the sign."""
    width = 8 * x.dtype.itemsize
    far = (y >= scalar(width, y.dtype)) | (y < scalar(0, y.dtype))
    shifted = op(x, jnp.where(far, full(y.shape, 0, y.dtype), y))
    if op is lax.shift_right_arithmetic and jnp.issubdtype(x.dtype, np.signedinteger):
        return jnp.where(
            far, jnp.where(x < 0, full(x.shape, -1, x.dtype), full(x.shape, 0, x.dtype)), shifted
        )
    return jnp.where(far, full(x.shape, 0, x.dtype), shifted)


def _clamp(low: Any, x: Any, high: Any, **_: Any) -> Any:
    return minimum(maximum(x, low), high)


def _log2(x: Any, **_: Any) -> Any:
    wide = widened(x)
    return (jnp.log(wide) * scalar(1 / math.log(2), wide.dtype)).astype(x.dtype)


def _not(x: Any, **_: Any) -> Any:
    # Pallas has no constant for all bits of a uint64.
    return x ^ scalar(2**64 - 1, x.dtype) if x.dtype == np.uint64 else lax.bitwise_not(x)


_EXPANDED: dict[str, Callable[..., Any]] = {
    "max": maximum,
    "min": minimum,
    "shift_left": lambda x, y: _shift(lax.shift_left, x, y),
    "shift_right_arithmetic": lambda x, y: _shift(lax.shift_right_arithmetic, x, y),
    "shift_right_logical": lambda x, y: _shift(lax.shift_right_logical, x, y),
    "erf": _erf,
    "round": _round,
    "convert_element_type": convert,
    "logistic": _logistic,
    "sign": _sign,
    "clamp": _clamp,
    "log2": _log2,
    "not": _not,
    "copy": lambda x: x,
    "neg": lambda x: x * scalar(-1, x.dtype),  # Pallas does not negate constants
}
