"""The primitives that hold a whole function of arrays: a program of tiles, or a derivative of one."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive

from .. import _compat

kernel_p = Primitive("tile_kernel")
kernel_p.multiple_results = True

derivative_p = Primitive("tile_derivative")
derivative_p.multiple_results = True


@kernel_p.def_abstract_eval
def _kernel(*operands, program, name, options, gradient):
    return [_compat.result_aval(v.aval.shape, v.aval.dtype, operands) for v in program.jaxpr.outvars]


@derivative_p.def_abstract_eval
def _derivative(*operands, closed, linear, backward, options):
    return [_compat.result_aval(v.aval.shape, v.aval.dtype, operands) for v in closed.jaxpr.outvars]


def run_kernel(operands: Any, **params: Any) -> list[Any]:
    """Binds a program: `program` to run, its `name`, the compiler's `options`, and `gradient`, how it
    differentiates, if that is its own."""
    return kernel_p.bind(*_compat.same_varying([_whole(x) for x in operands]), **params)


def run_derivative(
    operands: Any, *, closed: Any, linear: tuple[int, ...], options: Any, backward: Any = None
) -> list[Any]:
    """Binds `closed`, a jaxpr on whole arrays, linear in the operands at `linear`; `backward` transposes
    it, if it does not do so itself; `options` are those of the kernel."""
    params = {"closed": closed, "linear": linear, "backward": backward, "options": options}
    return derivative_p.bind(*_compat.same_varying(operands), **params)


def _whole(x: Any) -> Any:
    """`x`, whose type may say that it is spread over a mesh of explicit axes, as an array that is not: a
    program's programs are spread over devices by `shard_map` only, and its derivatives have whole types.
    """
    sharding = jax.typeof(x).sharding
    if not any(sharding.spec):
        return x
    return jax.reshard(x, jax.NamedSharding(sharding.mesh, jax.P(*(None,) * len(sharding.spec))))
