"""JAX's primitives that move elements without computing."""

from __future__ import annotations

from typing import Any

import numpy as np

from .evaluate import Place, rule


@rule("copy", "copy_p")
def _copy(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    return x


@rule("optimization_barrier")
def _barrier(eqn: Any, place: Place, *values: np.ndarray) -> list[np.ndarray]:
    return list(values)


@rule("broadcast_in_dim")
def _broadcast_in_dim(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    shape = eqn.params["shape"]
    aligned = [1] * len(shape)
    for position, extent in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        aligned[position] = extent
    return np.broadcast_to(x.reshape(aligned), shape)


@rule("reshape", "squeeze")
def _reshape(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    return x.reshape(eqn.outvars[0].aval.shape)


@rule("transpose")
def _transpose(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    return x.transpose(eqn.params["permutation"])


@rule("rev")
def _rev(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    return np.flip(x, eqn.params["dimensions"])


@rule("slice")
def _slice(eqn: Any, place: Place, x: np.ndarray) -> np.ndarray:
    strides = eqn.params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, eqn.params["start_indices"], eqn.params["limit_indices"], strides))]


@rule("concatenate")
def _concatenate(eqn: Any, place: Place, *values: np.ndarray) -> np.ndarray:
    return np.concatenate(values, axis=eqn.params["dimension"])


@rule("iota")
def _iota(eqn: Any, place: Place) -> np.ndarray:
    shape, dimension = eqn.params["shape"], eqn.params["dimension"]
    aligned = [1] * len(shape)
    aligned[dimension] = shape[dimension]
    counts = np.arange(shape[dimension]).astype(eqn.params["dtype"])
    return np.broadcast_to(counts.reshape(aligned), shape)
