"""Explicit memory: storage of a program for one whole tile, with a layout, that loops carry by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._errors import LayoutError, ScopeError, TileTypeError, assigned_name
from ..ir import primitives as ir
from ..ir.types import Proof, Resource
from . import trace
from .axis import Shape, as_shape
from .dtypes import as_dtype
from .layout import IndexMap
from .tile import Scalar, Tile, as_tile, place_axes
from .view import widen


class Memory:
    """A place for one tile of `axes`, which belongs to the program of the nearest `parallel`. Made by
    `memory`."""

    __hash__ = object.__hash__

    def __init__(self, layout: IndexMap, dtype: np.dtype, resource: Resource, name: str):
        here = trace.current("memory")
        self.layout, self.dtype, self.name = layout, dtype, name
        self.frame, self.owner = here, _program(here)
        self.skipped: str | None = None
        """A loop that stores to it and may run no step."""
        (self.initial,) = ir.memory_p.bind(
            dtype=dtype, layout=layout.points, resource=resource, name=name, loc=trace.here()
        )

    @property
    def axes(self) -> Shape:
        return self.layout.domain

    @property
    def shape(self) -> tuple[int, ...]:
        return self.axes.extents

    def __repr__(self) -> str:
        return f"{self.name}: memory of {self.dtype} {self.axes}"

    def load(self) -> Tile:
        """What was stored last: a snapshot, which later stores do not change.

        Raises `ScopeError` where nothing may have been stored, and outside the nest that declared it."""
        here = self._enter("load")
        while self not in here.stored:
            if here is self.frame or here.parent is None:
                reason = "store first"
                if self.skipped:
                    reason = f"{self.skipped}, which stores there, may run no step"
                raise ScopeError(f"load of {self.name} before anything is stored there: {reason}")
            here = here.parent
        (value,) = ir.memory_load_p.bind(
            trace.version(self), layout=self.layout.points, name=self.name, loc=trace.here()
        )
        return Tile(value, self.axes)

    def store(self, tile: Tile | Scalar) -> None:
        """Replaces the whole content. Axes and dtype go as in a store to a view.

        Raises `ScopeError` in a nested `parallel`, whose programs own only the memory that they declare."""
        here = self._enter("store")
        if _program(here) is not self.owner:
            raise ScopeError(
                f"store to {self.name} in {_program(here)}: it belongs to {self.owner}. Sub-programs may "
                "only load it; store to a memory of their own, or to a view"
            )
        what = f"{self.name}.store"
        value = as_tile(tile, what)
        array = widen(place_axes(value, self.axes, what), value, self.dtype, what)
        (new,) = ir.memory_store_p.bind(
            trace.version(self), array, layout=self.layout.points, name=self.name, loc=trace.here()
        )
        self.bind(new, True)

    def bind(self, state: Any, surely: bool, by: str | None = None) -> None:
        """Makes `state` the content here, stored `surely` or only if the loop `by` runs a step."""
        trace.bind_version(self, state)
        if surely:
            trace.current(self.name).stored.add(self)
        else:
            self.skipped = by

    def _enter(self, what: str) -> trace.Frame:
        here = trace.current(f"{what} of {self.name}")
        if self.frame.closed or self.frame.root is not here.root:
            raise ScopeError(
                f"{what} of {self.name} outside {self.frame}, which declared it: declare it in a nest around "
                "all of its uses"
            )
        if here.kind == "function":
            raise ScopeError(
                f"{what} of {self.name} in {here}: functions given to operations must not touch memory"
            )
        return here


def memory(shape: Any, dtype: Any, resource: Resource = Resource.AUTO) -> Memory:
    """Storage for one tile of `shape`, a shape or an `IndexMap` that says where each element lies.

    Declared in a `parallel` it lasts as long as the program; declared in a step it is fresh in each step.
    Raises `ScopeError` outside nests, `LayoutError` for a layout that is known not to be total, in bounds and
    injective. Where there is no such resource, or too little of it, compiling raises `UnsupportedError`.
    """
    layout = shape if isinstance(shape, IndexMap) else IndexMap.identity(as_shape(shape, "memory"))
    if not isinstance(resource, Resource):
        raise TileTypeError(f"memory: the resource must be a tilejax.Resource, got {resource!r}")
    name = assigned_name() or f"memory {list(layout.points.extents)}"
    here = trace.current("memory")
    if here.kind not in ("parallel", "serial", "pipeline"):
        raise ScopeError(f"memory {name} in {here}: declare it inside a nest, whose programs own it")
    found = layout.prove()
    claims = {"total": found.total, "in bounds": found.in_bounds, "injective": found.injective}
    for claim, proof in claims.items():
        if proof is Proof.DISPROVEN:
            raise LayoutError(
                f"memory {name}: its layout {layout.points} is not {claim}; every element needs a place of "
                "its own inside the codomain"
            )
    return Memory(layout, as_dtype(dtype, "memory"), resource, name)


def _program(frame: trace.Frame) -> trace.Frame:
    """The nearest enclosing `parallel`."""
    while frame.kind != "parallel":
        assert frame.parent is not None
        frame = frame.parent
    return frame
