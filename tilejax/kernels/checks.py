"""What the kernels ask of their arguments, and the dtypes that they work in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import tilejax as tj


def check_rank(kernel: str, wanted: int, /, *, more: bool = False, **views: Any) -> None:
    """`ShapeError` unless each view has the rank `wanted`, or `more`."""
    for name, view in views.items():
        rank = getattr(view, "ndim", 0)  # scalars are not views
        if rank != wanted and not (more and rank > wanted):
            raise tj.ShapeError(
                f"{kernel}: {name} must have {wanted}{' or more' * more} dimensions, it has {rank}"
            )


def check_shape(kernel: str, expected: tuple[int, ...], like: str, /, **views: Any) -> None:
    """`ShapeError` unless each view has the shape that `like` says where it comes from."""
    for name, view in views.items():
        shape = getattr(view, "shape", ())
        if shape != expected:
            raise tj.ShapeError(f"{kernel}: {name} has shape {shape}, but {like} asks for {expected}")


def check_product(kernel: str, a: Any, b: Any) -> None:
    """`ShapeError` unless `a` and `b` are matrices that can be multiplied."""
    check_rank(kernel, 2, a=a, b=b)
    if a.shape[1] != b.shape[0]:
        raise tj.ShapeError(
            f"{kernel}: a has shape {a.shape} and b {b.shape}; the columns of a must be the rows of b"
        )


def check_float(kernel: str, /, **views: Any) -> Any:
    """The dtype to compute in: float32, or a view's float64. `DtypeError` if one is not floating."""
    for name, view in views.items():
        if not jnp.issubdtype(view.dtype, jnp.floating):
            raise tj.DtypeError(f"{kernel}: {name} must be floating, it is {view.dtype}; cast it with astype")
    return jnp.float64 if any(view.dtype == jnp.float64 for view in views.values()) else jnp.float32


def check_integer(kernel: str, /, **views: Any) -> None:
    """`DtypeError` unless each view holds integers."""
    for name, view in views.items():
        if not jnp.issubdtype(view.dtype, jnp.integer):
            raise tj.DtypeError(f"{kernel}: {name} must be integers, it is {view.dtype}; cast it with astype")


def sum_type(dtype: Any) -> Any:
    """What `jnp.sum` gives for `dtype`: narrow integers and bool widen."""
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), dtype)).dtype


def accumulator(dtype: Any) -> Any:
    """The dtype to add up `dtype` in: float32 for shorter floats."""
    return jnp.float32 if jnp.issubdtype(dtype, jnp.floating) and dtype != jnp.float64 else dtype


def int32_ids(ids: tj.Tile, count: int) -> tj.Tile:
    """`ids` of any integer dtype as int32; those outside `0 .. count - 1` as -1."""
    if ids.dtype.itemsize < 4:
        ids = ids.astype(jnp.int32)  # `count` need not fit a shorter dtype
    return tj.where((ids >= 0) & (ids < count), ids, -1).astype(jnp.int32)
