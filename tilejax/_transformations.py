"""How JAX's transformations act on the kernel primitive.

vmap rewrites the program. Derivatives are those of the program as `lax` on whole arrays; the primal result
still comes from the kernel itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from .backends.lowering import evaluate
from .ir.program import kernel_p
from .transforms.batching import batch


def _batch(operands: Any, dims: Any, *, program: Any, **params: Any) -> Any:
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    new, batched = batch(program, tuple(d is not None for d in dims), size)
    out = kernel_p.bind(*moved, program=new, **params)
    return out, [0 if b else None for b in batched]


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    out = kernel_p.bind(*primals, **params)
    active = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    smooth = [i for i, x in enumerate(out) if jnp.issubdtype(x.dtype, np.floating)]

    def fn(*given: Any) -> list[Any]:
        operands = list(primals)
        for i, x in zip(active, given, strict=True):
            operands[i] = x
        results = evaluate(*operands, **params, differentiable=True)
        return [results[i] for i in smooth]

    _, moved = jax.jvp(fn, [primals[i] for i in active], [tangents[i] for i in active])
    result: list[Any] = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    for i, t in zip(smooth, moved, strict=True):
        result[i] = t
    return out, result


batching.primitive_batchers[kernel_p] = _batch
ad.primitive_jvps[kernel_p] = _jvp
