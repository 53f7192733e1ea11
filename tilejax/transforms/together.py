"""A function of tiles for many of them at once, which have one more dimension, the first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from .. import _compat
from .._errors import UnsupportedError
from ..ir import primitives as ir
from ..ir.jaxprs import bind, called, literal


@functools.lru_cache(maxsize=1024)
def together(fn: Any, batched: tuple[bool, ...], size: int) -> Any:
    """The closed jaxpr `fn` for `size` values of those operands that `batched` says; each result has one for
    each. `UnsupportedError` for an operation that needs more than another place for its dimensions."""
    many = _Many(size)

    def run(*arrays: Any) -> list[Any]:
        return [many.whole(v) for v in many.run(fn, list(zip(arrays, batched, strict=True)))]

    avals = [
        jax.ShapeDtypeStruct((size, *v.aval.shape) if b else v.aval.shape, v.aval.dtype)
        for v, b in zip(fn.jaxpr.invars, batched, strict=True)
    ]
    return _compat.trace_closed(run, avals)


_Value = tuple[Any, bool]
"""An array, and whether it has the first dimension."""


@dataclass(frozen=True)
class _Many:
    """Evaluates a jaxpr for so many values at once."""

    size: int

    def run(self, closed: Any, values: Sequence[_Value]) -> list[_Value]:
        env = dict(zip(closed.jaxpr.invars, values, strict=True))

        def read(var: Any) -> _Value:
            return (literal(var), False) if isinstance(var, Literal) else env[var]

        for eqn in closed.jaxpr.eqns:
            env.update(zip(eqn.outvars, self.apply(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in closed.jaxpr.outvars]

    def apply(self, eqn: Any, values: list[_Value]) -> list[_Value]:
        if (body := called(eqn)) is not None:
            return self.run(body, values)
        arrays, many = [x for x, _ in values], [b for _, b in values]
        if not any(many):
            return [(x, False) for x in bind(eqn, arrays)]
        if eqn.primitive.name in ir.PRIMITIVES:
            return [(x, True) for x in self.tile_operation(eqn, values)]
        axes = [0 if b else None for b in many]
        return [(x, True) for x in jax.vmap(functools.partial(_elementwise, eqn), axes)(*arrays)]

    def whole(self, value: _Value) -> Any:
        return value[0] if value[1] else lax.broadcast(value[0], (self.size,))

    def tile_operation(self, eqn: Any, values: list[_Value]) -> list[Any]:
        """A tile operation, some of whose operands have the first dimension."""
        name, p = eqn.primitive.name, dict(eqn.params)
        # Scalars, which have to stay such.
        alone = {"tile_gather": values[-1:], "tile_fold": values[1:]}.get(name, [])
        if (name not in _MOVED and name not in _RULES) or any(b for _, b in alone):
            raise UnsupportedError(
                f"{name} in an operator, at what depends on its operands: no rule takes many at once",
                loc=p["loc"],
            )
        if name in _RULES:
            arrays = _RULES[name](self, p, values)
        else:
            arrays = [self.whole(values[0]), *(x for x, _ in values[1:])]
            p[_MOVED[name]] = jax.tree.map(lambda axis: axis + 1, p[_MOVED[name]])
        return eqn.primitive.bind(*arrays, **p)


def _elementwise(eqn: Any, *arrays: Any) -> list[Any]:
    """JAX's own operation; the scalars among tiles are tiles, for each will be another one."""
    shape = eqn.outvars[0].aval.shape
    wide = len(arrays) > 1 and shape
    return bind(eqn, [lax.broadcast(x, shape) if wide and not np.shape(x) else x for x in arrays])


_MOVED = {
    "tile_reduce": "axes",
    "tile_fold": "axes",
    "tile_argreduce": "axis",
    "tile_scan": "axis",
    "tile_sort": "axis",
    "tile_top_k": "axis",
}
"""Operations of one tile, and which parameter names its dimensions."""


def _mma(many: _Many, p: dict[str, Any], values: Sequence[_Value]) -> list[Any]:
    (a, in_a), (b, in_b), acc = values
    new = 1 + max((*p["a_labels"], *p["b_labels"], *p["acc_labels"]), default=-1)
    p["a_labels"], p["b_labels"] = (new,) * in_a + p["a_labels"], (new,) * in_b + p["b_labels"]
    p["acc_labels"] = (new, *p["acc_labels"])
    return [a, b, many.whole(acc)]


def _scan(many: _Many, p: dict[str, Any], values: Sequence[_Value]) -> list[Any]:
    consts, tiles = values[: p["num_consts"]], values[p["num_consts"] :]
    p["axis"] += 1
    p["fn"] = together(p["fn"], (*(b for _, b in consts), *[True] * 2 * len(tiles)), many.size)
    return [*(x for x, _ in consts), *map(many.whole, tiles)]


def _gather(many: _Many, p: dict[str, Any], values: Sequence[_Value]) -> list[Any]:
    (_, in_tile), *coords, _ = values
    p["shape"] = (many.size, *p["shape"])
    p["dims"] = (*[0] * in_tile, *(None if d is None else d + 1 for d in p["dims"]))
    p["coord_dims"] = tuple(
        (*[0] * b, *(d + 1 for d in dims)) for (_, b), dims in zip(coords, p["coord_dims"], strict=True)
    )
    return [x for x, _ in values]


_RULES: dict[str, Callable[..., list[Any]]] = {
    "tile_mma": _mma,
    "tile_associative_scan": _scan,
    "tile_gather": _gather,
}
"""How the parameters of others change, and what their operands are."""
