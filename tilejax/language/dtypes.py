"""Which dtypes there are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import DtypeError


def as_dtype(dtype: Any, what: str) -> np.dtype:
    """`dtype` as JAX has it (without x64, 64 bits become 32); `DtypeError` unless it is bool, an integer
    or a float.
    """
    try:
        target = jax.dtypes.canonicalize_dtype(dtype)
    except TypeError:
        raise DtypeError(f"{what}: {dtype!r} is not a dtype") from None
    except ValueError:  # an extended dtype, of random keys say
        target = dtype
    if jnp.issubdtype(target, np.complexfloating) or not (
        jnp.issubdtype(target, np.number) or target == np.bool_
    ):
        raise DtypeError(f"{what}: {target} is not supported; dtypes are bool, integers and floats")
    return target


def inexact(dtype: np.dtype) -> np.dtype:
    """The float dtype that functions of the real numbers have for arguments of `dtype`, as in `jax.numpy`."""
    return jax.eval_shape(jnp.sqrt, jax.ShapeDtypeStruct((), dtype)).dtype
