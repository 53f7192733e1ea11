"""Contractions in pieces: `mma(a, b, acc)` of tiles that are loaded whole as a loop over what they share,
each step of which loads a piece of both.

The contracted labels are taken in the order that they have in `a`: the last ones whole as far as a piece
goes, the next one cut, those before it an index at a time. So the terms are added up in their order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _compat
from ..ir import primitives as ir
from ..ir.jaxprs import contracted
from .inline import inlined
from .replace import evaluate, read, typed
from .simplify import simplify
from .slices import Cut, NotSliced, Slices

_LINE = 16
"""Pieces of another length are for the rest."""

Depth = Callable[[Any, Any], int]
"""How many contracted elements a piece is to have, of a parallel nest and a product in it."""


def in_pieces(program: Any, depth: Depth) -> Any:
    """The same function of arrays, with loops for those products of its parallel nests that `depth` gives
    less than they sum, if both factors come from views that the nest only reads."""
    jaxpr = program.jaxpr
    eqns = [_nest(e, depth) if e.primitive.name == "tile_parallel" else e for e in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return program
    return simplify(_compat.rebuild(jaxpr, jaxpr.invars, jaxpr.outvars, eqns))


def _nest(nest: Any, depth: Depth) -> Any:
    p = nest.params
    if not any(e.primitive.name == "tile_mma" for e in p["body"].jaxpr.eqns):
        return nest
    jaxpr = inlined(p["body"])
    constant = jaxpr.invars[: len(jaxpr.invars) - p["num_views"]]
    slices = Slices({v: e for e in jaxpr.eqns for v in e.outvars}, frozenset(constant))
    found = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "tile_mma" and (plan := _plan(eqn, depth(nest, eqn), slices)):
            found[id(eqn)] = plan
    if not found:
        return nest

    def run(*values: Any) -> list[Any]:
        env = dict(zip(jaxpr.invars, values, strict=True))

        def rule(plan: _Pieces) -> Any:
            return lambda operands: [plan.emit([read(env, v) for v in plan.inputs], operands[2])]

        evaluate(jaxpr.eqns, env, {key: rule(plan) for key, plan in found.items()})
        return [read(env, v) for v in jaxpr.outvars]

    avals = [typed(v.aval) for v in jaxpr.invars]
    return nest.replace(params={**p, "body": _compat.trace_closed(run, avals)})


def _plan(eqn: Any, depth: int, slices: Slices) -> _Pieces | None:
    p = eqn.params
    extents = dict(zip(p["a_labels"], eqn.invars[0].aval.shape, strict=True))
    labels = [x for x in contracted(eqn) if extents[x] != 1]
    if 0 in extents.values():
        return None
    while labels and extents[labels[-1]] <= depth:
        depth //= extents[labels.pop()]
    if not labels:
        return None
    last, most = extents[labels[-1]], max(depth, 1)
    fitting = (n for n in range(most, most // 2, -1) if last % n == 0 and n % min(most, _LINE) == 0)
    size = next(fitting, most)
    cut: dict[int, tuple[Any, int]] = dict.fromkeys(labels, (None, 1)) | {labels[-1]: (None, size)}
    try:
        inputs = [v for var, inner in _factors(eqn, cut) for v in slices.inputs(var, inner)]
    except NotSliced:
        return None
    return _Pieces(eqn, slices, tuple(dict.fromkeys(inputs)), extents, tuple(labels), size)


def _factors(eqn: Any, cut: Cut) -> list[tuple[Any, Cut]]:
    """The factors of a product, and the cuts of their dimensions by those of labels."""
    labels = eqn.params["a_labels"], eqn.params["b_labels"]
    return [
        (v, {d: cut[x] for d, x in enumerate(own) if x in cut})
        for v, own in zip(eqn.invars, labels, strict=False)
    ]


@dataclass(frozen=True)
class _Pieces:
    """A product whose `labels` are looped over, of the last one `size` elements at a time."""

    eqn: Any
    slices: Slices
    inputs: tuple[Any, ...]
    extents: dict[int, int]
    labels: tuple[int, ...]
    size: int

    def emit(self, values: Sequence[Any], acc: Any) -> Any:
        """The result; `values` are those of the inputs. Narrow floats add up in float32."""
        reassociates, dtype = self.eqn.params["allow_reassociation"], acc.dtype
        narrow = reassociates and jnp.issubdtype(dtype, np.floating) and dtype.itemsize < 4
        acc = lax.convert_element_type(acc, np.float32) if narrow else acc
        *before, last = self.labels
        if self.extents[last] % self.size == 0:
            acc = self._nest(self.labels, values, {}, acc, self._piece)
        elif before:
            acc = self._nest(before, values, {}, acc, self._ragged)
        else:
            acc = self._ragged(values, {}, acc)
        return lax.convert_element_type(acc, dtype) if narrow else acc

    def _ragged(self, values: Sequence[Any], cut: Cut, acc: Any) -> Any:
        """The whole pieces of the last label, then what is left."""
        last = self.labels[-1]
        whole, rest = divmod(self.extents[last], self.size)
        acc = self._nest([last], values, cut, acc, self._piece)
        return self._piece(values, {**cut, last: (np.int32(whole * self.size), rest)}, acc)

    def _piece(self, values: Sequence[Any], cut: Cut, acc: Any) -> Any:
        env = dict(zip(self.inputs, values, strict=True))
        given = functools.partial(read, env)
        a, b = (self.slices.value(v, inner, given) for v, inner in _factors(self.eqn, cut))
        return self.eqn.primitive.bind(a, b, acc, **self.eqn.params)[0]

    def _nest(
        self, labels: Sequence[int], values: Sequence[Any], cut: Cut, acc: Any, body: Callable[..., Any]
    ) -> Any:
        """A loop over labels, inside of those that are cut already."""
        sizes = [self.size if x == self.labels[-1] else 1 for x in labels]

        def step(*args: Any) -> list[Any]:
            first = len(labels) + len(cut)
            there = {
                x: (start, n) for start, (x, (_, n)) in zip(args[len(labels) :], cut.items(), strict=False)
            }
            for x, index, n in zip(labels, args, sizes, strict=False):
                there[x] = lax.mul(index, np.int32(n)), n
            return [body(args[first:-1], there, args[-1])]

        operands = [*(start for start, _ in cut.values()), *values, acc]
        avals = [jax.ShapeDtypeStruct(np.shape(v), v.dtype) for v in operands]
        reassociates = self.eqn.params["allow_reassociation"]
        free = {"window": 0, "interval": 1, "stages": ()} if reassociates else {}
        return (ir.pipeline_p if reassociates else ir.serial_p).bind(
            *operands,
            names=tuple(f"summed_{x}" for x in labels),
            extents=tuple(self.extents[x] // n for x, n in zip(labels, sizes, strict=True)),
            num_bounds=0,
            num_views=0,
            num_carry=1,
            body=_compat.trace_closed(step, [*(jax.ShapeDtypeStruct((), np.int32) for _ in labels), *avals]),
            loc=self.eqn.params["loc"],
            **free,
        )[0]
