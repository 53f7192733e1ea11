"""Elementwise primitives, changes of shape and gathers, in what Pallas lowers for Triton."""

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
from .tiles import computed, full, padded, padded_shape, scalar, select_sum
from .units import Call


def apply(call: Call, values: list[Any]) -> list[Any]:
    """Any primitive that is not a tile operation."""
    name, params, (target,), (dtype,) = call.name, call.params, call.targets, call.dtypes
    if name in _SHAPES:
        return [_SHAPES[name](values, call.shapes, target, params)]
    if name not in _DIRECT and name not in _EXPANDED:
        raise UnsupportedError(f"{name} on a tile of {target}: backend triton has no rule for it")
    # The scalars of a reducer are whole tiles here.
    extents = jnp.broadcast_shapes(padded_shape(target), *(v.shape for v in values))
    values = [v if v.shape == extents else jnp.broadcast_to(v, extents) for v in values]
    if name not in _MOVED and any(is_byte_float(v.dtype) for v in values):
        wide = [v.astype(np.float32) if is_byte_float(v.dtype) else v for v in values]
        (out,) = apply(replace(call, dtypes=(np.dtype(np.float32) if is_byte_float(dtype) else dtype,)), wide)
        return [convert(out, new_dtype=dtype)]
    if name == "integer_pow":
        values = [computed(v) for v in values]
    if name in _EXPANDED:
        return [_EXPANDED[name](*values, **params)]
    if name in _IN_F32 and jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4:
        values = [v.astype(np.float32) for v in values]
    elif name in _LOGICAL and dtype == np.bool_:
        return [_LOGICAL[name](*values)]
    return [call.primitive.bind(*values, **params).astype(dtype)]


def is_byte_float(dtype: Any) -> bool:
    """Whether a dtype is one of the floats of eight bits, with which Triton only moves and casts."""
    return jnp.issubdtype(dtype, np.floating) and dtype.itemsize == 1


def exp_near(x: Any) -> Any:
    """exp by the instruction for powers of two alone, off by `abs(x)` roundings."""
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
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
    mul ne not or pow rem rsqrt select_n sin
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
    """To the nearest integer, ties to even: adding and subtracting 2**23 does it, where it is exact."""
    wide = x.astype(np.float32)
    magic = np.float32(2.0**23)
    magnitude = jnp.abs(wide)
    if rounding_method == lax.RoundingMethod.TO_NEAREST_EVEN:
        near = jnp.floor(magnitude)
        rest = magnitude - near
        odd = near - 2.0 * jnp.floor(near * 0.5)
        up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
        rounded = near + jnp.where(up, 1.0, 0.0)
    else:
        rounded = jnp.floor(magnitude + 0.5)
    out = jnp.where(magnitude < magic, rounded, magnitude)
    return jnp.where(wide < 0, -out, out).astype(x.dtype)


def convert(x: Any, *, new_dtype: Any, **_: Any) -> Any:
    """A cast; a float becomes an integer saturating, NaN becoming 0, and overflows to what the dtype has."""
    target = np.dtype(new_dtype)
    if is_byte_float(target) and not jnp.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32)
    if jnp.issubdtype(x.dtype, np.floating) and jnp.issubdtype(target, np.integer):
        return _to_integer(x.astype(np.float32) if x.dtype.itemsize < 4 else x, target)
    out = lax.convert_element_type(x, target)
    if target.name in _OVERFLOW and x.dtype.itemsize > 1:
        limit, code = _OVERFLOW[target.name]  # Triton saturates
        wide, bits = x.astype(np.float32), lax.bitcast_convert_type(out, np.int8)
        beyond = jnp.where(wide < 0, full(bits.shape, code - 128, np.int8), full(bits.shape, code, np.int8))
        bits = jnp.where(jnp.abs(wide) > np.float32(limit), beyond, bits)
        out = lax.bitcast_convert_type(bits, target)
    return out


_OVERFLOW = {"float8_e4m3fn": (464.0, 0x7F), "float8_e5m2": (61439.99, 0x7C)}
"""The greatest magnitude that rounds to a finite value, and the bits of what lies beyond."""


def _to_integer(x: Any, target: np.dtype) -> Any:
    info = jnp.iinfo(target)
    low, high = float(info.min), float(info.max)
    clipped = jnp.clip(jnp.where(x != x, full(x.shape, 0, x.dtype), x), low, high)
    if target == np.uint32:  # by way of int32, which has half of its values
        half = np.float32(2.0**31)
        large = clipped >= half
        part = lax.convert_element_type(jnp.where(large, clipped - half, clipped), np.int32).astype(target)
        out = part + jnp.where(large, full(x.shape, 2**31, target), full(x.shape, 0, target))
    else:
        out = lax.convert_element_type(clipped, np.int64 if target.itemsize == 8 else np.int32).astype(target)
    # The greatest value of a wide integer is not a float: its neighbour would overflow.
    return jnp.where(x >= high, full(x.shape, info.max, target), out)


def _logistic(x: Any, **_: Any) -> Any:
    return (1.0 / (1.0 + jnp.exp(-x.astype(np.float32)))).astype(x.dtype)


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
    return (jnp.log(x.astype(np.float32)) * np.float32(1 / math.log(2))).astype(x.dtype)


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
    "copy": lambda x: x,
    "neg": lambda x: x * scalar(-1, x.dtype),  # Pallas does not negate constants
}


def _broadcast_in_dim(values, shapes, target, params) -> Any:
    dims = params["broadcast_dimensions"]
    extents = padded_shape(target)
    return lax.broadcast_in_dim(values[0], extents, dims)


def _reshape(values, shapes, target, params) -> Any:
    (value,), (shape,) = values, shapes
    if shape != target and any(n != padded(n) for n in (*shape, *target)):
        return rearrange(value, shape, target)
    return lax.reshape(value, padded_shape(target))


def rearrange(value: Any, shape: tuple[int, ...], target: tuple[int, ...]) -> Any:
    """A reshape of extents that are padded: each element is selected from the whole tile."""
    extents = padded_shape(target)
    source, rest = jnp.zeros(extents, np.int32), jnp.zeros(extents, np.int32)
    for d, n in enumerate(target):
        rest = rest * np.int32(n) + lax.broadcasted_iota(np.int32, extents, d)
    stride = 1
    for n in reversed(shape):
        source = source + lax.rem(rest, np.int32(max(n, 1))) * np.int32(stride)
        rest, stride = lax.div(rest, np.int32(max(n, 1))), stride * padded(n)
    whole = (*extents, stride)
    flat = lax.broadcast_in_dim(lax.reshape(value, (stride,)), whole, (len(extents),))
    here = lax.broadcasted_iota(np.int32, whole, len(extents)) == _expand(source, len(whole))
    return select_sum(here, flat, len(extents))


def _transpose(values, shapes, target, params) -> Any:
    return lax.transpose(values[0], params["permutation"])


def _iota(values, shapes, target, params) -> Any:
    if params["dimension"] is None:
        return full(padded_shape(target), 0, params["dtype"])
    index = lax.broadcasted_iota(np.int32, padded_shape(target), params["dimension"])
    return convert(index, new_dtype=params["dtype"])


_SHAPES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "iota": _iota,
}


def gather(
    values: list[Any], shapes: list[tuple[int, ...]], *, shape, dims, coord_dims, loc, **_: Any
) -> Any:
    """`tile_gather`: for each indexed dimension, a select among its elements."""
    tile, *coords, fallback = values
    extents = padded_shape(shape)
    sources = tuple(i for i, d in enumerate(dims) if d is None)
    # The tile over the result's dimensions and, after them, its indexed ones.
    where = [d if d is not None else len(shape) + sources.index(i) for i, d in enumerate(dims)]
    order = sorted(range(len(dims)), key=lambda i: where[i])
    whole = (*extents, *(padded(shapes[0][i]) for i in sources))
    spread = lax.broadcast_in_dim(
        lax.transpose(tile, order), _ones_except(whole, [where[i] for i in order]), [where[i] for i in order]
    )
    spread = jnp.broadcast_to(spread, whole)
    inside: Any = full(extents, True, np.bool_)
    for k, i in reversed(list(enumerate(sources))):
        index = at_result(coords[k], coord_dims[k], extents)
        axis = len(shape) + k
        here = lax.broadcasted_iota(np.int32, spread.shape, axis) == _expand(index, spread.ndim)
        spread = select_sum(here, spread, axis)
        inside = inside & (index >= 0) & (index < np.int32(shapes[0][i]))
    if not sources:
        return spread
    return jnp.where(inside, spread, jnp.broadcast_to(fallback, extents))


def _ones_except(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    return [n if i in dims else 1 for i, n in enumerate(shape)]


def at_result(coord: Any, dims: Sequence[int], extents: Sequence[int]) -> Any:
    """A coordinate along dimensions `dims` of a result, broadcast to all of it."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    moved = lax.transpose(coord, order) if order != list(range(len(dims))) else coord
    ones = lax.broadcast_in_dim(moved, _ones_except(extents, dims), [dims[i] for i in order])
    return jnp.broadcast_to(ones, tuple(extents))


def _expand(array: Any, rank: int) -> Any:
    return lax.reshape(array, (*array.shape, *(1,) * (rank - array.ndim)))
