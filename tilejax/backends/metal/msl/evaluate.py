"""Evaluation of a jaxpr to tiles: an environment, and a table of rules by primitive name.

Elementwise work is not written where it stands but where its elements are needed, in one loop with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from ...._errors import UnsupportedError
from ....ir.jaxprs import held
from ....transforms.affine import Affine, combine
from .elementwise import COSTS, DEAR, apply
from .elementwise import RULES as ELEMENTWISE
from .kernel import Kernel
from .sharing import users
from .storage import Index, Memory, Storage, Stored, Tile, constant
from .types import INT32, literal, location, type_of

Value = Tile | Memory
Rule = Callable[..., Any]
"""`rule(frame, eqn, *values)` gives the equation's result, or the list of them if there are several."""

RULES: dict[str, Rule] = {}
_DEEP = 60
"""How many operations are nested in one expression at most."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        return fn

    return register


class Frame:
    """The variables of one jaxpr. `kernel` is None outside of nests, where nothing is written."""

    def __init__(self, kernel: Kernel | None, name: str, outer: Frame | None = None):
        self.kernel, self.name, self.outer = kernel, name, outer
        self.env: dict[Any, Value] = {}
        self.last: dict[Any, float] = {}
        self.now = -1

    def run(
        self, jaxpr: Any, values: Sequence[Value], override: Callable[..., Any] | None = None
    ) -> list[Value]:
        """The results of an open jaxpr without consts. `override(frame, eqn, values)` may take an
        equation; it returns None for those that it leaves."""
        self.env.update(zip(jaxpr.invars, values, strict=True))
        for number, eqn in enumerate(jaxpr.eqns):
            self.last.update((v, number) for v in eqn.invars if not isinstance(v, Literal))
        shared = users(jaxpr) if self.kernel else {}
        self.last.update((v, float("inf")) for v in jaxpr.outvars if not isinstance(v, Literal))
        for number, eqn in enumerate(jaxpr.eqns):
            self.now = number
            if eqn.outvars and not any(v in self.last for v in eqn.outvars):
                continue
            given = [self.read(v) for v in eqn.invars]
            results = override(self, eqn, given) if override else None
            if results is None:
                results = self.apply(eqn, given)
            for var, value in zip(eqn.outvars, results, strict=True):
                settled = self.settle(value)
                self.env[var] = self.shared(eqn, settled) if shared.get(var, 0) > 1 else settled
        self.now = len(jaxpr.eqns)
        return [self.read(v) for v in jaxpr.outvars]

    def read(self, var: Any) -> Value:
        if not isinstance(var, Literal):
            return self.env[var]
        aval: Any = var.aval
        form = Affine(int(var.val)) if aval.dtype == INT32 else None
        return constant(literal(np.asarray(var.val), aval.dtype), aval.dtype, form)

    def apply(self, eqn: Any, values: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        if name in RULES:
            out = RULES[name](self, eqn, *values)
            return out if isinstance(out, list) else [out]
        if name in ELEMENTWISE:
            return [self.elementwise(eqn, values)]
        dtypes = ", ".join(str(v.aval.dtype) for v in eqn.invars)
        raise UnsupportedError(
            f"kernel {self.name}: {name} of {dtypes or 'nothing'} is not written in Metal", loc=location(eqn)
        )

    def elementwise(self, eqn: Any, values: Sequence[Any]) -> Tile:
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        dtypes = [*(v.dtype for v in values), out.dtype]
        form = None
        if out.dtype == INT32 and not out.shape and self.kernel:
            form = combine(name, [v.form for v in values], self.kernel.extents.__getitem__)

        def element(block: Any, index: Index) -> str:
            args = [block.get(v, index if v.shape else ()) for v in values]
            if form is not None:  # nothing overflows: it can be read as it was meant
                return block.define("int", _plain(name, args))
            return block.define(type_of(out.dtype), apply(name, eqn.params, dtypes, args))

        return derived(tuple(out.shape), out.dtype, element, values, COSTS.get(name, 1), form)

    def settle(self, value: Value) -> Value:
        """A scalar gets its name where it is made, so that it is the same in all threads; a long expression
        is stored."""
        if self.kernel is None or not isinstance(value, Tile):
            return value
        if value.form is not None and value.form.is_constant:
            return constant(literal(value.form.const, INT32), INT32, value.form)
        if not value.shape:
            with self.kernel.step(scoped=False) as block:
                text = block.define(type_of(value.dtype), block.get(value, ()))
            return constant(text, value.dtype, value.form)
        return self.store(value) if value.depth > _DEEP else value

    # Storage

    def shared(self, eqn: Any, value: Value) -> Value:
        """A value that several steps need: stored if it was loaded or is dear, and there is room for it."""
        kernel = self.kernel
        assert kernel is not None
        if not isinstance(value, Tile) or isinstance(value, Stored) or kernel.lanes == 1 or value.size == 1:
            return value
        dear = eqn.primitive.name == "tile_load" or value.cost >= DEAR
        fits = value.size * value.dtype.itemsize <= kernel.free_bytes() // 2
        return self.store(value) if dear and fits else value

    def store(self, tile: Tile) -> Stored:
        """The tile in a storage of its own."""
        assert self.kernel is not None
        if isinstance(tile, Stored):
            return tile
        storage = self.kernel.allocate(tile.dtype, tile.size, self)
        kept = self.kernel.keep(tile, storage)
        assert isinstance(kept, Stored)
        return kept

    def often(self, tile: Tile) -> Tile:
        """The tile as something whose elements are computed many times."""
        return tile if tile.cheap else self.store(tile)

    def near(self, tile: Tile) -> Tile:
        """The tile as something whose elements are read very many times: not from the host's buffers."""
        far = any(s.space in ("device", "constant") for s in tile.reads)
        return self.store(tile) if far or not tile.cheap else tile

    def protect(self, storage: Storage, after: int = 1) -> None:
        """Stores what still has to be computed from a storage that is about to change."""
        frame: Frame | None = self
        while frame is not None:
            for var, value in frame.live(after):
                if isinstance(value, Tile) and storage in value.reads:
                    frame.env[var] = self.copy(value)
            frame = frame.outer

    def copy(self, tile: Tile) -> Tile:
        assert self.kernel is not None
        return self.kernel.keep(tile, self.kernel.allocate(tile.dtype, tile.size, self))

    def live(self, after: int = 1) -> list[tuple[Any, Value]]:
        """The variables that later equations read; this one too if `after` is 0."""
        return [(v, x) for v, x in self.env.items() if self.last.get(v, -1) >= self.now + after]

    def dying(self, value: Value, others: Iterable[Value]) -> Storage | None:
        """The storage of an operand, if it may be overwritten: it is this frame's own, and neither a later
        equation nor the `others` of this one read it."""
        if not isinstance(value, Stored) or value.storage.home is not self:
            return None
        readers = [*others, *(x for _, x in self.live())]
        read = any(isinstance(x, Tile) and value.storage in x.reads for x in readers)
        return None if read else value.storage


def derived(
    shape: tuple[int, ...],
    dtype: Any,
    element: Callable[[Any, Index], str],
    values: Iterable[Any],
    cost: int = 0,
    form: Affine | None = None,
) -> Tile:
    """The tile whose elements are computed from those of `values`."""
    tiles = [v for v in values if isinstance(v, Tile)]
    reads = frozenset[Storage]().union(*(t.reads for t in tiles))
    depth = 1 + max((t.depth for t in tiles), default=0)
    return Tile(shape, np.dtype(dtype), element, reads, cost + sum(t.cost for t in tiles), depth, form)


def _plain(name: str, args: Sequence[str]) -> str:
    sign = {"add": "+", "sub": "-", "mul": "*"}
    return f"(-{args[0]})" if name == "neg" else f"({args[0]} {sign[name]} {args[1]})"


@rule("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint")
def _inline(frame: Frame, eqn: Any, *values: Value) -> list[Value]:
    """A call is its body."""
    return call(frame, held(eqn), values)


def call(frame: Frame, closed: Any, values: Sequence[Value]) -> list[Value]:
    """The results of a closed jaxpr; its consts are scalars."""
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = [
        constant(literal(np.asarray(c), np.asarray(c).dtype), np.asarray(c).dtype)
        for c in getattr(closed, "consts", ())
    ]
    inner = Frame(frame.kernel, frame.name, frame)
    inner.env.update(zip(jaxpr.constvars, consts, strict=True))
    return inner.run(jaxpr, values)
