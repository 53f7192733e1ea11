"""Reverse mode of the documented kernels, written in the same language.

Each module here has, under the name of a kernel, the rule that gives the cotangents of its arguments, and
the kernels that compute them: plain functions of views that take a cotangent in the dtype of its result,
compute in float32 (float64 for float64) and round once, to the dtype of the argument. Importing it attaches
the rules.
"""

from . import attention, convolution, cross_entropy, elementwise, matmul, norms, scans, segments

__all__ = [
    "attention",
    "convolution",
    "cross_entropy",
    "elementwise",
    "matmul",
    "norms",
    "scans",
    "segments",
]
