"""Statistics and losses of rows, several of them from one load."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp

import tilejax as tj

from .blocks import Size, whole_rows
from .checks import check_float, check_rank, check_shape


class RowStatistics(NamedTuple):
    """One value a row. `argmax` is the place of the first NaN, else of the first maximum."""

    sum: Any
    mean: Any
    peak: Any
    argmax: Any
    mse: Any
    mae: Any
    huber: Any
    bce: Any


jax.export.register_namedtuple_serialization(RowStatistics, serialized_name="tilejax.RowStatistics")


def row_statistics(
    x: tj.TensorView,
    target: tj.TensorView,
    probability: tj.TensorView,
    huber_delta: float = 0.75,
    eps: float = 0.0001,
    *,
    block_rows: Size = None,
    out: RowStatistics | None = None,
) -> RowStatistics:
    """`RowStatistics` over the last axis: of `x`; its losses against `target` (mean squared, mean absolute,
    Huber); and the binary cross entropy of `probability`, clipped to `eps .. 1 - eps`, against `target`.

    Computed in float32, rounded once to the dtype of `x`; `argmax` has the dtype that `jnp.argmax` gives.
    """
    check_rank("row_statistics", 2, more=True, x=x)
    check_shape("row_statistics", x.shape, "x", target=target, probability=probability)
    f32 = check_float("row_statistics", x=x, target=target, probability=probability)
    if x.shape[-1] == 0:
        raise tj.ShapeError(
            f"row_statistics: the rows of x, of shape {x.shape}, are empty and have no maximum"
        )
    out = out or _outputs(x)
    block = whole_rows(x, block_rows)
    c = block.axes[-1]

    @tj.parallel(*block.grid)
    def _(nest: tj.Nest):
        here = block.at(nest)
        value, expected = x[here].astype(f32), target[here].astype(f32)
        difference = value - expected
        magnitude = tj.abs(difference)
        p = tj.clip(probability[here].astype(f32), eps, 1.0 - eps)
        huber = tj.where(
            magnitude <= huber_delta,
            0.5 * difference * difference,
            huber_delta * (magnitude - 0.5 * huber_delta),
        )
        bce = -(expected * tj.log(p) + (1.0 - expected) * tj.log(1.0 - p))
        results = RowStatistics(
            sum=tj.sum(value, c),
            mean=tj.mean(value, c),
            peak=tj.max(value, c),
            argmax=tj.argmax(value, c),
            mse=tj.mean(difference * difference, c),
            mae=tj.mean(magnitude, c),
            huber=tj.mean(huber, c),
            bce=tj.mean(bce, c),
        )
        for view, result in zip(out, results, strict=True):
            view(*block[:-1].at(nest)).store(result.astype(view.dtype))

    return out


def _outputs(x):
    place = jax.eval_shape(jnp.argmax, jax.ShapeDtypeStruct((1,), x.dtype)).dtype
    return RowStatistics(
        *(tj.output(x.shape[:-1], place if f == "argmax" else x.dtype) for f in RowStatistics._fields)
    )
