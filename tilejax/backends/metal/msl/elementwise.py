"""JAX's elementwise primitives on one element, as expressions of Metal.

Short floats are computed in float and rounded once. Signed integers wrap, so they are added as unsigned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .types import convert, is_float, is_short, literal, type_of, widened

Rule = Callable[[Any, list[np.dtype], list[str]], str]
"""`rule(params, dtypes, args)` gives the text; dtypes are those of the operands, then of the result."""

RULES: dict[str, Rule] = {}


def apply(name: str, params: Any, dtypes: Sequence[Any], args: Sequence[str]) -> str:
    """The text of a primitive of `RULES` at the texts of its operands."""
    return RULES[name](params, [np.dtype(d) for d in dtypes], list(args))


def arithmetic(name: str, dtype: Any, x: str, y: str) -> str:
    """`add`, `sub`, `mul`, `max`, `min`, `and` or `or` of two values of one dtype."""
    return apply(name, {}, [dtype] * 3, [x, y])


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


def _rounded(text: str, dtype: np.dtype) -> str:
    """A float rounded to a short float."""
    return f"{type_of(dtype)}({text})" if is_short(dtype) else text


def _wrapping(dtype: np.dtype) -> str:
    """The unsigned type in which integers are computed."""
    return "ulong" if dtype.itemsize == 8 else "uint"


def _binary(name: str, sign: str, logical: str) -> None:
    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        x, y, dtype = *args, dtypes[-1]
        if dtype == np.bool_:
            return f"({x} {logical} {y})"
        if is_float(dtype):
            return _rounded(f"({widened(x, dtype)} {sign} {widened(y, dtype)})", dtype)
        wide = _wrapping(dtype)
        if type_of(dtype) == wide:
            return f"({x} {sign} {y})"
        return f"{type_of(dtype)}({wide}({x}) {sign} {wide}({y}))"


_binary("add", "+", "||")
_binary("add_any", "+", "||")
_binary("sub", "-", "!=")
_binary("mul", "*", "&&")


def _compare(name: str, sign: str) -> None:
    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        return f"({widened(args[0], dtypes[0])} {sign} {widened(args[1], dtypes[0])})"


for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    _compare(_name, _sign)


def _bits(name: str, sign: str, logical: str) -> None:
    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        if dtypes[-1] == np.bool_:
            return f"({args[0]} {logical} {args[1]})"
        return f"{type_of(dtypes[-1])}({args[0]} {sign} {args[1]})"


_bits("and", "&", "&&")
_bits("or", "|", "||")
_bits("xor", "^", "!=")


@rule("not")
def _not(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    return f"(!{args[0]})" if dtypes[-1] == np.bool_ else f"{type_of(dtypes[-1])}(~{args[0]})"


def _extremum(name: str, logical: str) -> None:
    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        x, y, dtype = *args, dtypes[-1]
        if dtype == np.bool_:
            return f"({x} {logical} {y})"
        return _rounded(f"tj_{name}({widened(x, dtype)}, {widened(y, dtype)})", dtype)


_extremum("max", "||")
_extremum("min", "&&")


@rule("clamp")
def _clamp(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    low, x, high = args
    return arithmetic("min", dtypes[-1], arithmetic("max", dtypes[-1], low, x), high)


def _function(name: str, text: str) -> None:
    """A function of floats, computed in float."""

    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        given = [widened(a, d) if is_float(d) else f"float({a})" for a, d in zip(args, dtypes, strict=False)]
        return _rounded(text.format(*given), dtypes[-1])


_OWN = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh")
for _name in _OWN:
    _function(_name, f"{_name}({{0}})")
for _name in ("expm1", "log1p", "erf"):
    _function(_name, f"tj_{_name}({{0}})")
_function("logistic", "(1.0f / (1.0f + exp(-{0})))")
_function("pow", "pow({0}, {1})")


def _whole(name: str, function: str) -> None:
    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        return _rounded(f"{function}({widened(args[0], dtypes[0])})", dtypes[-1])


_whole("floor", "floor")
_whole("ceil", "ceil")


@rule("round")
def _round(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    """`rounding_method` 0 takes halves away from zero, 1 to even."""
    function = "rint" if int(params["rounding_method"]) == 1 else "round"
    return _rounded(f"{function}({widened(args[0], dtypes[0])})", dtypes[-1])


@rule("is_finite")
def _is_finite(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    return f"isfinite({widened(args[0], dtypes[0])})" if is_float(dtypes[0]) else "true"


@rule("neg")
def _neg(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    if is_float(dtypes[-1]):
        return _rounded(f"(-{widened(args[0], dtypes[-1])})", dtypes[-1])
    return arithmetic("sub", dtypes[-1], literal(0, dtypes[-1]), args[0])


@rule("abs")
def _abs(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    dtype = dtypes[-1]
    if is_float(dtype):
        return _rounded(f"fabs({widened(args[0], dtype)})", dtype)
    if dtype.kind != "i":
        return args[0]
    return f"({args[0]} < 0 ? {_neg(params, dtypes, args)} : {args[0]})"


@rule("sign")
def _sign_rule(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    """NaN and zeros of either sign stay."""
    dtype, x = dtypes[-1], widened(args[0], dtypes[-1])
    one, less = (literal(n, dtype) for n in (1, -1 if dtype.kind != "u" else 0))
    rest = args[0] if is_float(dtype) else literal(0, dtype)
    return f"({x} > 0 ? {one} : {x} < 0 ? {less} : {rest})"


@rule("square")
def _square(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    return arithmetic("mul", dtypes[-1], args[0], args[0])


@rule("integer_pow")
def _integer_pow(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    dtype, y = dtypes[-1], int(params["y"])
    if is_float(dtype):
        return _rounded(f"tj_power({widened(args[0], dtype)}, {y})", dtype)
    return f"{type_of(dtype)}(tj_power({_wrapping(dtype)}({args[0]}), {y}))"


@rule("div")
def _div(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    """Integers truncate toward zero; by zero they give some value and no fault."""
    dtype = dtypes[-1]
    if is_float(dtype):
        return _rounded(f"({widened(args[0], dtype)} / {widened(args[1], dtype)})", dtype)
    return f"{type_of(dtype)}(tj_div({args[0]}, {args[1]}))"


@rule("rem")
def _rem(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    """The sign is the dividend's."""
    dtype = dtypes[-1]
    if is_float(dtype):
        return _rounded(f"fmod({widened(args[0], dtype)}, {widened(args[1], dtype)})", dtype)
    return f"{type_of(dtype)}(tj_rem({args[0]}, {args[1]}))"


def _shift(name: str, text: str, kind: str, far: str) -> None:
    """A count past the width, or below zero, leaves nothing, or the sign."""

    @rule(name)
    def _(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
        dtype, (x, count) = dtypes[-1], args
        width = 8 * dtype.itemsize
        as_kind = np.dtype(f"{kind}{dtype.itemsize}")
        bits = f"{type_of(as_kind)}({x})"
        inside = f"{_wrapping(dtype)}({count}) < {width}u"
        shifted = text.format(x=bits, n=f"({count})", wide=_wrapping(dtype))
        beyond = far.format(x=bits, kind=type_of(as_kind))
        return f"{type_of(dtype)}({inside} ? {type_of(as_kind)}({shifted}) : {beyond})"


_shift("shift_left", "{wide}({x}) << {n}", "u", "{kind}(0)")
_shift("shift_right_logical", "{x} >> {n}", "u", "{kind}(0)")
_shift("shift_right_arithmetic", "{x} >> {n}", "i", "{kind}({x} < 0 ? -1 : 0)")


@rule("select_n")
def _select_n(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    which, first, *others = args
    if dtypes[0] == np.bool_:
        return f"({which} ? {others[0]} : {first})" if others else first
    text = first
    for number, case in enumerate(others, start=1):
        text = f"({which} == {number} ? {case} : {text})"
    return text


@rule("convert_element_type")
def _convert(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    return convert(args[0], dtypes[0], dtypes[-1])


@rule("copy", "copy_p", "optimization_barrier")
def _same(params: Any, dtypes: list[np.dtype], args: list[str]) -> str:
    return args[0]


_DEAR = (*_OWN, "expm1", "log1p", "erf", "logistic", "pow", "div", "rem", "integer_pow")
DEAR = 8
COSTS = dict.fromkeys(_DEAR, DEAR)
"""What is dearer than an addition."""
