"""The types of Metal, their literals, and conversions between them, as text."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from .... import _compat
from ...._errors import Loc, UnsupportedError, location_of

TYPES = {
    "bool": "bool",
    "int8": "char",
    "uint8": "uchar",
    "int16": "short",
    "uint16": "ushort",
    "int32": "int",
    "uint32": "uint",
    "int64": "long",
    "uint64": "ulong",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "float",
}
"""Of float64 there are only weak values, see `check_types`."""
INT32, FLOAT32 = np.dtype(np.int32), np.dtype(np.float32)


def type_of(dtype: Any) -> str:
    """What Metal calls a dtype."""
    return TYPES[np.dtype(dtype).name]


def is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.floating))


def is_short(dtype: Any) -> bool:
    """Whether arithmetic is done in float and rounded once."""
    return is_float(dtype) and np.dtype(dtype).itemsize < 4


def accumulator(dtype: Any) -> np.dtype:
    """What sums of free order are kept in."""
    return FLOAT32 if is_short(dtype) else np.dtype(dtype)


def literal(value: Any, dtype: Any) -> str:
    """A constant of `dtype`; it needs no parentheses."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return "true" if value else "false"
    if is_short(dtype):
        return f"{type_of(dtype)}({literal(np.asarray(value).astype(dtype).astype(np.float32), FLOAT32)})"
    if is_float(dtype):
        return _float(np.float32(value))
    number = int(value)
    if dtype.itemsize < 4:
        return f"{type_of(dtype)}({number})"
    suffix = {"int32": "", "uint32": "u", "int64": "l", "uint64": "ul"}[dtype.name]
    if number == jnp.iinfo(dtype).min < 0:
        return f"({number + 1}{suffix} - 1)"  # the number without its sign would not fit
    return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"


def _float(value: np.float32) -> str:
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    text = np.format_float_scientific(value, unique=True, trim="0") + "f"
    if 1e-4 <= abs(value) < 1e7 or value == 0:
        text = np.format_float_positional(value, unique=True, trim="0") + "f"
    return f"({text})" if text.startswith("-") else text


def convert(text: str, source: Any, target: Any) -> str:
    """A cast, as JAX does it: floats round to nearest even, integers wrap, a float becomes an integer
    saturating, with 0 for NaN."""
    source, target = np.dtype(source), np.dtype(target)
    if source == target:
        return text
    if target == np.bool_:
        return f"({widened(text, source)} != 0)"
    if is_float(source) and not is_float(target):
        return f"tj_to_{target.name}({widened(text, source)})"
    if is_float(source) and is_float(target):
        return f"{type_of(target)}({widened(text, source)})"
    if is_short(target):
        return f"{type_of(target)}(float({text}))"
    return f"{type_of(target)}({text})"


def widened(text: str, dtype: Any) -> str:
    """A short float as float, anything else as it is."""
    return f"float({text})" if is_short(dtype) else text


def check_types(program: Any, name: str) -> None:
    """`UnsupportedError` naming the operation, the dtype and the line, for a dtype that Metal lacks."""
    for var in program.jaxpr.invars:
        if not _exists(var.aval):
            raise UnsupportedError(f"kernel {name}: an argument of {var.aval.dtype.name}: {_LACKS}")
    _check(program.jaxpr, name)


def _check(jaxpr: Any, name: str) -> None:
    for eqn in jaxpr.eqns:
        for inner in eqn.params.values():
            if hasattr(inner, "jaxpr"):
                _check(inner.jaxpr, name)
        for var in (*eqn.outvars, *eqn.invars):
            if not _exists(var.aval):
                what = f"{eqn.primitive.name} of {var.aval.dtype.name}"
                raise UnsupportedError(f"kernel {name}: {what}: {_LACKS}", loc=location(eqn))


def _exists(aval: Any) -> bool:
    """Whether Metal has the dtype. A weak float64 is a Python number, which takes the dtype of others."""
    return aval.dtype.name in TYPES and (aval.dtype != np.float64 or aval.weak_type)


_LACKS = "Metal does not have this dtype; cast with astype, to float32 for example"


def location(eqn: Any) -> Loc | None:
    """The user's line: that of a tile operation, or of one of JAX's from where it was traced."""
    return eqn.params.get("loc") or location_of(_compat.frames(eqn))
