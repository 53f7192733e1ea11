"""How the kernel primitive runs: its implementation, and its lowering rule for any platform."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.core
from jax.interpreters import mlir

from .. import _compat
from ..ir.program import kernel_p
from .registry import Options, check_backend
from .xla.evaluate import compile_program


@functools.lru_cache(maxsize=1024)
def compiled(program: Any, options: Options, differentiable: bool = False) -> Any:
    """The program as `lax` on whole arrays, once for each program and options."""
    return compile_program(program, options["temporary_bytes"], differentiable)


def _evaluate(*operands: Any, program: Any, name: str, options: Options, gradient: Any) -> list[Any]:
    check_backend(program, options, name)
    closed = compiled(program, options)
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *operands)


kernel_p.def_impl(lambda *operands, **params: _call(tuple(params.items()))(*operands))


@functools.lru_cache(maxsize=1024)
def _call(params: tuple[tuple[str, Any], ...]) -> Any:
    return jax.jit(lambda *operands: kernel_p.bind(*operands, **dict(params)))


mlir.register_lowering(kernel_p, _compat.lower_plain(_evaluate))
