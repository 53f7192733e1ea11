"""What Metal's standard library lacks, or computes otherwise than JAX: functions that a text gets if it calls
them."""

from __future__ import annotations

import re

HEADER = """\
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
// NaN and infinities are values: where the compiler does not know this pragma, turn fast math off.
#pragma METAL fp math_mode(safe)
"""

_EXTREMUM = """\
// NaN if either is.
template <typename T> inline T tj_{name}(T x, T y) {{
    return x != x ? x : y != y ? y : x {sign} y ? x : y;
}}
"""

_TO_INTEGER = """\
// Toward zero; saturating, and 0 for NaN.
inline {type} tj_to_{name}(float x) {{
    return x != x ? {type}(0) : x >= {above} ? {most} : x <= {below} ? {least} : {type}(x);
}}
"""

FUNCTIONS = {
    "tj_max": _EXTREMUM.format(name="max", sign=">"),
    "tj_min": _EXTREMUM.format(name="min", sign="<"),
    "tj_div": """\
template <typename T> inline T tj_div(T x, T y) {
    return y == T(0) ? T(~T(0)) : T(~y) == T(0) && T(-1) < T(0) ? T(0ul - ulong(x)) : T(x / y);
}
""",
    "tj_rem": """\
template <typename T> inline T tj_rem(T x, T y) {
    return y == T(0) ? x : T(~y) == T(0) && T(-1) < T(0) ? T(0) : T(x % y);
}
""",
    "tj_power": """\
template <typename T> inline T tj_power(T x, int n) {
    T result = T(1), factor = x;
    for (uint bits = uint(n < 0 ? -n : n); bits != 0; bits /= 2) {
        result = bits % 2 ? result * factor : result;
        factor = factor * factor;
    }
    return n < 0 ? T(1) / result : result;
}
""",
    "tj_expm1": """\
inline float tj_expm1(float x) {
    const float u = exp(x), less = u - 1.0f;
    return u == 1.0f ? x : less == -1.0f || u == INFINITY ? less : less * (x / log(u));
}
""",
    "tj_log1p": """\
inline float tj_log1p(float x) {
    const float u = 1.0f + x;
    return u == 1.0f ? x : u == INFINITY ? u : log(u) * (x / (u - 1.0f));
}
""",
    "tj_erf": """\
// The rational form that XLA uses for float.
inline float tj_erf(float x) {
    const float t = x > 4.0f ? 4.0f : x < -4.0f ? -4.0f : x, s = t * t;
    float top = -2.72614225801306e-10f, bottom = -1.45660718464996e-05f;
    top = top * s + 2.77068142495902e-08f;
    top = top * s - 2.10102402082508e-06f;
    top = top * s - 5.69250639462346e-05f;
    top = top * s - 7.34990630326855e-04f;
    top = top * s - 2.95459980854025e-03f;
    top = top * s - 1.60960333262415e-02f;
    bottom = bottom * s - 2.13374055278905e-04f;
    bottom = bottom * s - 1.68282697438203e-03f;
    bottom = bottom * s - 7.37332916720468e-03f;
    bottom = bottom * s - 1.42647390514189e-02f;
    return t * top / bottom;
}
""",
    "tj_floor_div": """\
inline long tj_floor_div(long x, long y) {
    return x / y - long(x % y != 0 && (x < 0) != (y < 0));
}
""",
    "tj_floor_mod": """\
inline long tj_floor_mod(long x, long y) {
    return x % y + (x % y != 0 && (x < 0) != (y < 0) ? y : 0);
}
""",
}

for _bits, _signed, _unsigned, _end in (
    (8, "char", "uchar", ""),
    (16, "short", "ushort", ""),
    (32, "int", "uint", ""),
    (64, "long", "ulong", "l"),
):
    _half = 2 ** (_bits - 1)
    FUNCTIONS[f"tj_to_int{_bits}"] = _TO_INTEGER.format(
        type=_signed, name=f"int{_bits}", above=f"{float(_half)}f", most=f"{_signed}({_half - 1}{_end})",
        below=f"{float(-_half)}f", least=f"{_signed}({1 - _half}{_end} - 1)",
    )  # fmt: skip
    FUNCTIONS[f"tj_to_uint{_bits}"] = _TO_INTEGER.format(
        type=_unsigned, name=f"uint{_bits}", above=f"{float(2 * _half)}f",
        most=f"{_unsigned}({2 * _half - 1}u{_end})", below="0.0f", least=f"{_unsigned}(0)",
    )  # fmt: skip


def with_prelude(functions: list[str]) -> str:
    """The kernels as one text, with what they call before them."""
    body = "\n\n".join(functions)
    called = [text for name, text in FUNCTIONS.items() if re.search(rf"\b{name}\b", body)]
    return "\n".join([HEADER, *called, body, ""])
