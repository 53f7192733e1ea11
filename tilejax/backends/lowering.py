"""How the kernel primitive runs: its implementation, and its lowering rule for any platform."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from .. import _compat
from .._errors import UnsupportedError
from ..ir.program import kernel_p
from .metal import gate
from .metal.profiles import Profile, profile_of
from .metal.rewrite import Rewriter
from .registry import Options, choose, choose_for_platforms, launches
from .triton import lower as triton
from .xla.evaluate import compile_program


@functools.lru_cache(maxsize=1024)
def compiled(
    program: Any, options: Options, differentiable: bool = False, platforms: tuple[str, ...] = ("cpu",)
) -> Any:
    """The program as `lax` on whole arrays, once for each program, options and platforms."""
    return compile_program(program, options["temporary_bytes"], differentiable, platforms=platforms)


def _evaluate(
    platforms: tuple[str, ...],
    *operands: Any,
    exported: bool,
    program: Any,
    name: str,
    options: Options,
    gradient: Any,
) -> list[Any]:
    # What is exported runs elsewhere later, and JAX promises that for XLA's own operations alone.
    if not exported and (closed := launches(program, options, name, platforms)) is not None:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)
    backend = choose(program, options, name, platforms)
    if backend == "triton":
        warps, stages = options["num_warps"], options["num_stages"]
        return triton.run(program, operands, num_warps=warps, num_stages=stages, platforms=platforms)
    what = f"kernel {name}"
    profile = _whitelist(options, what, platforms)
    if profile is not None:
        gate.check_program(program, profile, name)
    # A module for Metal as well is one that Metal takes.
    closed = compiled(program, options, platforms=platforms if profile is None else ("METAL",))
    return run_arrays(platforms, closed, operands, what, options)


def _whitelist(options: Options, what: str, platforms: tuple[str, ...]) -> Profile | None:
    """What the plugins of these platforms take, where `what` runs through one of Metal."""
    if choose_for_platforms(options, what, platforms) != "metal":
        return None
    return profile_of(options["profile"], platforms, what)


def run_arrays(
    platforms: tuple[str, ...], closed: Any, operands: Sequence[Any], what: str, options: Options
) -> list[Any]:
    """`closed`, `lax` on whole arrays, as `platforms` take it."""
    profile = _whitelist(options, what, platforms)
    if profile is not None:
        if not all(isinstance(n, int) for v in closed.jaxpr.invars for n in v.aval.shape):
            raise UnsupportedError(
                f"{what}: a batch of symbolic size, but Metal's plugins take static shapes only: export a "
                "module for each size"
            )
        return Rewriter(profile, what).run(closed, operands)
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)


def check_lowered(
    platforms: tuple[str, ...], operations: Sequence[Any], module: Any, what: str, options: Options
) -> None:
    """Checks what a kernel or a derivative was lowered to, where the backend has a whitelist."""
    profile = _whitelist(options, what, platforms)
    if profile is not None:
        gate.check_operations(operations, module, profile, what)


def _check(platforms: Any, operations: Any, module: Any, *, name: str, options: Options, **_: Any) -> None:
    check_lowered(platforms, operations, module, f"kernel {name}", options)


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
mlir.register_lowering(kernel_p, _compat.lower_plain(_evaluate, _check))
