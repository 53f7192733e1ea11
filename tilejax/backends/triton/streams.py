"""Rows that are longer than a program should hold go through it in pieces: what has the long dimension is a
function of the piece, computed where a reduction or a store needs it, and loaded again for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...ir.jaxprs import called, variables
from ...transforms.affine import Affine
from . import access, elementwise, stream_reductions, stream_sorts
from .kernel import Kernel
from .stream_pieces import NotStreams, Piece, Stream
from .tiles import full, padded_shape, read
from .units import Call, squeezed


@dataclass
class StreamKernel(Kernel):
    """`length` is the long extent, `width` that of a piece."""

    length: int = 0
    width: int = 0
    in_order: bool = False
    """Whether loads and stores are of one view, so that nothing may pass another."""

    def run(self, closed: Any, values: Sequence[Any], forms: Sequence[Affine | None] = ()) -> list[Any]:
        """The same, but reductions of rows wait for what does not need them, so that they share a loop; not
        where all has to be in order."""
        jaxpr = closed.jaxpr
        env = dict(zip(jaxpr.invars, values, strict=True))
        self.facts.know(jaxpr.invars[: len(forms)], forms)
        waiting = jaxpr.eqns
        while waiting:
            waiting, reductions = self._advance(waiting, env)
            results = stream_reductions.reduced(self, [(e, env[e.invars[0]]) for e in reductions])
            env.update((e.outvars[0], x) for e, x in zip(reductions, results, strict=True))
        return [read(env, v) for v in jaxpr.outvars]

    def _advance(self, eqns: Sequence[Any], env: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
        """Evaluates what needs no reduction; returns what does, and the reductions that it needs first."""
        late: set[Any] = set()
        rest, reductions = [], []
        for place, eqn in enumerate(eqns):
            if not late.isdisjoint(variables(eqn.invars)):
                rest.append(eqn)
                late.update(eqn.outvars)
                continue
            operands = [read(env, v) for v in eqn.invars]
            if not stream_reductions.takes(eqn, operands):
                env.update(zip(eqn.outvars, self.apply(eqn, operands), strict=True))
                continue
            reductions.append(eqn)
            late.update(eqn.outvars)
            if self.in_order:
                return [*eqns[place + 1 :]], reductions
        return rest, reductions

    def apply(self, eqn: Any, values: list[Any]) -> list[Any]:
        if called(eqn) is not None:
            return super().apply(eqn, values)
        results = [squeezed(v.aval.shape) for v in eqn.outvars]
        operands = [s for v in eqn.invars if (s := squeezed(v.aval.shape))]
        shapes = operands if eqn.primitive.name == "tile_store" else [*operands, *results]
        if eqn.primitive.name in ("tile_load", "tile_store"):
            shapes = results if eqn.primitive.name == "tile_load" else [squeezed(eqn.invars[1].aval.shape)]
        if not any(self.length in s for s in shapes):
            return super().apply(eqn, values)
        if any(self.length in s[:-1] for s in shapes) or "body" in eqn.params:
            raise NotStreams
        name = eqn.primitive.name
        if name == "tile_load":
            return [Stream(lambda piece: self._load(eqn, values, piece))]
        if name == "tile_store":
            return [self._store(eqn, values)]
        this = self.call(eqn)
        if name.startswith("tile_"):
            if name not in _RULES:
                raise NotStreams
            return _RULES[name](self, this, values)
        self.facts.learn(eqn)
        return [self._elementwise(this, values)]

    def over_pieces(self, step: Callable[[Piece, Any], Any], carry: Any, unroll: int = 1) -> Any:
        """`step` over all pieces in order, so many of them in a step of the loop."""
        count = -(-self.length // self.width)

        def one(i: Any, carry: Any) -> Any:
            place = lax.convert_element_type(i, np.int32) * np.int32(self.width)
            return step(Piece(place, self.width), carry)

        def several(i: Any, carry: Any) -> Any:
            for number in range(unroll):
                carry = one(i * unroll + number, carry)
            return carry

        carry = lax.fori_loop(0, count // unroll, several, carry)
        for i in range(count - count % unroll, count):
            carry = one(np.int32(i), carry)
        return carry

    def _inside(self, shape: Sequence[int], piece: Piece) -> Any:
        """Which elements of a piece are the tile's own, None if all are."""
        if self.length % piece.width == 0:
            return None
        spot = lax.broadcasted_iota(np.int32, shape, len(shape) - 1)
        return spot + piece.start < np.int32(self.length)

    def own(self, stream: Any, piece: Piece, value: Any) -> Any:
        """A piece of a tile with `value` beyond its end."""
        array = stream.at(piece)
        inside = self._inside(array.shape, piece)
        return array if inside is None else jnp.where(inside, array, full(array.shape, value, array.dtype))

    def _load(self, eqn: Any, values: list[Any], piece: Piece) -> Any:
        view, *starts, fallback = values
        if view.stored:
            raise NotStreams
        return access.load(self.facts, eqn, view, starts, fallback, piece)

    def _store(self, eqn: Any, values: list[Any]) -> Any:
        view, stream, *starts = values

        def step(piece: Piece, carry: Any) -> Any:
            access.store(self.facts, eqn, view, stream.at(piece), starts, piece)
            return carry

        self.over_pieces(step, np.int32(0))
        return view

    def _elementwise(self, this: Call, values: list[Any]) -> Any:
        name, (target,) = this.name, this.targets
        params = this.params
        lead = target[:-1]
        if name == "iota":
            along = params["dimension"] == len(target) - 1

            def places(piece: Piece) -> Any:
                extents = (*padded_shape(lead), piece.width)
                index = lax.broadcasted_iota(np.int32, extents, params["dimension"])
                return (index + piece.start if along else index).astype(this.dtypes[0])

            return Stream(places)
        if name == "broadcast_in_dim":
            dims = params["broadcast_dimensions"]
            if isinstance(values[0], Stream) and dims[-1] != len(target) - 1:
                raise NotStreams

            def spread(piece: Piece) -> Any:
                value = values[0].at(piece) if isinstance(values[0], Stream) else values[0]
                return lax.broadcast_in_dim(value, (*padded_shape(lead), piece.width), dims)

            return Stream(spread)
        if name in ("reshape", "squeeze", "expand_dims", "transpose"):
            order = params.get("permutation", range(len(target)))
            if this.shapes[0] != target or list(order) != list(range(len(target))):
                raise NotStreams
            return values[0]

        def piecewise(piece: Piece) -> Any:
            shape = (*lead, piece.width)
            inner = replace(
                this, shapes=tuple((*s[:-1], piece.width) if s else s for s in this.shapes), targets=(shape,)
            )
            return elementwise.apply(inner, [v.at(piece) if isinstance(v, Stream) else v for v in values])[0]

        return Stream(piecewise)

    def _gather(self, this: Call, values: list[Any]) -> list[Any]:
        """One element of a row: a piece that is only that."""
        stream, index, fallback = values[0], values[1], values[-1]
        if (
            not isinstance(stream, Stream)
            or isinstance(index, Stream)
            or len(values) != 3
            or this.shapes[0] != (self.length,)
            or index.shape
        ):
            raise NotStreams
        inside = (index >= 0) & (index < np.int32(self.length))
        here = jnp.minimum(jnp.maximum(index, 0), np.int32(self.length - 1))
        found = lax.reshape(stream.at(Piece(here, 1)), ())
        return [jnp.where(inside, found, fallback)]


_RULES = {
    "tile_gather": StreamKernel._gather,
    "tile_sort": stream_sorts.sort,
    "tile_top_k": stream_sorts.top_k,
}
