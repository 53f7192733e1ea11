"""Single instructions of NVIDIA GPUs that Pallas does not reach by its operations; elsewhere, and in its
interpreter, they are spelled out."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plgpu

_PTX = contextvars.ContextVar("ptx", default=False)


@contextlib.contextmanager
def ptx(available: bool) -> Iterator[None]:
    """Whether what is traced inside may hold NVIDIA's instructions."""
    token = _PTX.set(available)
    try:
        yield
    finally:
        _PTX.reset(token)


def exp2(x: Any) -> Any:
    """The power of two; subnormal results are 0."""
    return _float32("ex2.approx.ftz.f32", lax.exp2, x)


def maximum(x: Any, y: Any) -> Any:
    """The greater of two floats, NaN if either is."""
    return _float32("max.NaN.f32", _propagating(lax.max), x, y)


def minimum(x: Any, y: Any) -> Any:
    """The lesser of two floats, NaN if either is."""
    return _float32("min.NaN.f32", _propagating(lax.min), x, y)


def lesser_number(x: Any, y: Any) -> Any:
    """The lesser of two floats; the number if one is NaN."""
    return _float32("min.f32", lambda x, y: jnp.where(x == x, jnp.where(y == y, lax.min(x, y), x), y), x, y)


def _propagating(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: jnp.where(x != x, x, jnp.where(y != y, y, op(x, y)))


def _float32(name: str, otherwise: Callable[..., Any], *args: Any) -> Any:
    if not _PTX.get() or args[0].dtype != np.float32 or not args[0].shape:
        return otherwise(*args)
    (out,) = plgpu.elementwise_inline_asm(
        f"{name} {', '.join(f'${i}' for i in range(len(args) + 1))};",
        args=args,
        constraints=",".join(["=f", *("f" for _ in args)]),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(args[0].shape, np.float32)],
    )
    return out
