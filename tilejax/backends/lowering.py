"""How the kernel primitive runs: its implementation, and its lowering rule for any platform."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from .. import _compat
from ..ir.program import kernel_p
from .registry import Options, choose
from .triton import lower as triton
from .xla.evaluate import compile_program


@functools.lru_cache(maxsize=1024)
def compiled(program: Any, options: Options, differentiable: bool = False) -> Any:
    """The program as `lax` on whole arrays, once for each program and options."""
    return compile_program(program, options["temporary_bytes"], differentiable)


def _evaluate(
    platforms: tuple[str, ...], *operands: Any, program: Any, name: str, options: Options, gradient: Any
) -> list[Any]:
    if choose(program, options, name, platforms) == "triton":
        return triton.run(program, operands, num_warps=options["num_warps"], num_stages=options["num_stages"])
    closed = compiled(program, options)
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)


def implement(primitive: Any) -> None:
    """Lets `primitive` run outside of `jit`, always as one compiled operation.

    Where `jit` is off, or JAX reruns a function step by step to find a NaN, this is a step of its own, which
    checks its results: a jitted function would call itself.
    """

    @functools.lru_cache(maxsize=1024)
    def call(params: tuple[tuple[str, Any], ...]) -> Any:
        return jax.jit(lambda *operands: primitive.bind(*operands, **dict(params)))

    def impl(*operands: Any, **params: Any) -> list[Any]:
        run = call(tuple(params.items()))
        config: Any = jax.config
        nans, infs = config.jax_debug_nans, config.jax_debug_infs
        if not (nans or infs or config.jax_disable_jit):
            return run(*operands)
        with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
            out = run(*operands)
            for kind, test in [("nan", jnp.isnan)] * nans + [("inf", jnp.isinf)] * infs:
                if any(test(x).any() for x in out if jnp.issubdtype(x.dtype, np.floating)):
                    what = f"kernel {params['name']}" if "name" in params else "the derivative of a kernel"
                    raise FloatingPointError(f"invalid value ({kind}) in a result of {what}")
        return out

    primitive.def_impl(impl)


implement(kernel_p)
mlir.register_lowering(kernel_p, _compat.lower_plain(_evaluate))
