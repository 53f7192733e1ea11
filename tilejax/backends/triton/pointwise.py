"""What a nest computes, element by element: the value of a variable at a point, whose coordinates are affine
forms, is an array over a frame of such points. Nothing is kept of tiles; a load goes where the point says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton as plgpu
from jax.extend.core import Literal

from ...ir.types import Bounds
from ...transforms.affine import Affine, combine
from . import elementwise
from .points import ZERO, Frame, NotPoints, Places, Point, key
from .tiles import scalar
from .units import Call


@dataclass
class Pointwise:
    """The equations of a body without calls. `contract` gives the value of a `tile_mma`."""

    jaxpr: Any
    places: Places
    known: dict[Any, Any]
    """Forms of indices; scalars and views of a kernel."""
    stored: frozenset[Any]
    """The views that the nest stores to."""
    contract: Callable[[Pointwise, Any, Point, Frame], Any]
    element: Point = ()
    """Where the element at hand is stored."""
    makers: dict[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = {v: eqn for eqn in self.jaxpr.eqns for v in eqn.outvars}

    def form(self, var: Any, point: Point, frame: Frame) -> Affine:
        """An index."""
        value = self.value(var, point, frame)
        if not isinstance(value, Affine):
            raise NotPoints
        return value

    def array(self, var: Any, point: Point, frame: Frame) -> Any:
        """A value, spread as far as it differs from point to point; None in a frame without arrays."""
        value = self.value(var, point, frame)
        return frame.index(value) if isinstance(value, Affine) else value

    def value(self, var: Any, point: Point, frame: Frame) -> Any:
        """A form where it is one, else as `array`."""
        if isinstance(var, Literal):
            aval: Any = var.aval
            return Affine(int(var.val)) if aval.dtype == np.int32 else scalar(var.val, aval.dtype)
        if var in self.known:
            return self.known[var]
        here = var, key(point)
        if here not in frame.made:
            eqn = self.makers.get(var)
            if eqn is None:
                raise NotPoints
            rule = _RULES.get(eqn.primitive.name)
            frame.made[here] = (rule or Pointwise._elementwise)(self, eqn, point, frame)
        return frame.made[here]

    def combined(self, name: str, *forms: Affine) -> Affine:
        """The sum, or whatever the name says, of forms; in int32."""
        found = combine(name, forms, self.places.extents.__getitem__)
        if found is None:
            raise NotPoints
        return found

    def _elementwise(self, eqn: Any, point: Point, frame: Frame) -> Any:
        name, out = eqn.primitive.name, eqn.outvars[0]
        if name.startswith("tile_") or "body" in eqn.params:
            raise NotPoints
        operands = [(v, point if v.aval.shape else ()) for v in eqn.invars]
        values = [self.value(v, p, frame) for v, p in operands]
        if out.aval.dtype == np.int32 and all(isinstance(v, Affine) for v in values):
            form = combine(name, values, self.places.extents.__getitem__)
            if form is not None:
                return form
        arrays = [self.array(v, p, frame) for v, p in operands]
        if frame.used is not None:
            return None
        none = ((),) * len(arrays)
        return elementwise.apply(
            Call(name, eqn.primitive, eqn.params, none, ((),), (out.aval.dtype,)), arrays
        )[0]

    def _iota(self, eqn: Any, point: Point, frame: Frame) -> Any:
        form, dtype = point[eqn.params["dimension"]], eqn.params["dtype"]
        if dtype == np.int32:
            return form
        index = frame.index(form)
        return index if index is None else index.astype(dtype)

    def _broadcast(self, eqn: Any, point: Point, frame: Frame) -> Any:
        (operand, *_), dims = eqn.invars, eqn.params["broadcast_dimensions"]
        return self.value(operand, along(operand.aval.shape, [point[d] for d in dims]), frame)

    def _transpose(self, eqn: Any, point: Point, frame: Frame) -> Any:
        order = eqn.params["permutation"]
        return self.value(eqn.invars[0], tuple(point[order.index(d)] for d in range(len(point))), frame)

    def _reshape(self, eqn: Any, point: Point, frame: Frame) -> Any:
        """Runs of dimensions with as many elements go over into each other."""
        operand, target = eqn.invars[0], eqn.outvars[0].aval.shape
        flat, size = Affine(), 1
        for form, n in zip(reversed(point), reversed(target), strict=True):
            if n > 1:
                flat = self.combined("add", flat, self.combined("mul", form, Affine(size)))
                size *= n
        coordinates = []
        for n in reversed(operand.aval.shape):
            size //= n
            here, flat = (ZERO, flat) if n == 1 else (flat, ZERO) if size == 1 else self.places.split(flat, n)
            coordinates.append(here)
        return self.value(operand, tuple(reversed(coordinates)), frame)

    def _load(self, eqn: Any, point: Point, frame: Frame) -> Any:
        var, *starts, fallback = eqn.invars
        if 0 in var.aval.shape:
            return self.array(fallback, (), frame)
        forms = [self.combined("add", self.form(s, (), frame), p) for s, p in zip(starts, point, strict=True)]
        mine = [self.places.simplest(f) for f in forms]
        if var in self.makers or (var in self.stored and mine != list(self.element)):
            raise NotPoints
        return self._read(eqn, var, mine, fallback, frame)

    def _read(self, eqn: Any, var: Any, forms: list[Affine], fallback: Any, frame: Frame) -> Any:
        sizes = var.aval.shape
        tests = [] if frame.mask is None else [frame.mask]
        if eqn.params["bounds"] is Bounds.ZERO:
            for form, size in zip(forms, sizes, strict=True):
                tests += self._inside(form, size, frame)
        other = self.array(fallback, (), frame)
        if frame.used is not None:
            frame.used.update(a for f in forms for a in f.coefs)
            return None
        view = self.known[var]
        offsets = frame.index(_offset(forms, view.room), view.index_type)
        shape = jnp.broadcast_shapes(offsets.shape, *(t.shape for t in tests))
        if view.barrier:
            plgpu.debug_barrier()
        if not tests:
            return plgpu.load(view.ref.at[offsets])
        mask: Any = tests[0]
        for test in tests[1:]:
            mask = mask & test
        offsets, mask = jnp.broadcast_to(offsets, shape), jnp.broadcast_to(mask, shape)
        return plgpu.load(view.ref.at[offsets], mask=mask, other=jnp.broadcast_to(other, shape))

    def _inside(self, form: Affine, size: int, frame: Frame) -> list[Any]:
        """The tests, of those that are needed, whether an index is at least 0 and less than `size`."""
        low, high = self.places.bounds(form)
        if low >= 0 and high < size:
            return []
        place = frame.index(form)
        if frame.used is not None:
            return []
        return [*([place >= 0] if low < 0 else []), *([place < np.int32(size)] if high >= size else [])]

    def store(self, view: Any, value: Any, frame: Frame, shape: tuple[int, int]) -> None:
        """Stores the values of a whole frame as the elements at hand."""
        offsets = jnp.broadcast_to(frame.index(_offset(self.element, view.room), view.index_type), shape)
        mask = None if frame.mask is None else jnp.broadcast_to(frame.mask, shape)
        if view.barrier:
            plgpu.debug_barrier()
        plgpu.store(view.ref.at[offsets], jnp.broadcast_to(value, shape), mask=mask)

    def _gather(self, eqn: Any, point: Point, frame: Frame) -> Any:
        tile, *coords, fallback = eqn.invars
        own = iter(zip(coords, eqn.params["coord_dims"], strict=True))
        forms, tests = [], []
        for n, d in zip(tile.aval.shape, eqn.params["dims"], strict=True):
            if d is not None:
                forms.append(point[d] if n > 1 else ZERO)
                continue
            coord, dims = next(own)
            form = self.form(coord, along(coord.aval.shape, [point[i] for i in dims]), frame)
            forms.append(form)
            tests += self._inside(form, n, frame)
        value, other = self.array(tile, tuple(forms), frame), self.array(fallback, (), frame)
        if frame.used is not None:
            return None
        for test in tests:
            shape = jnp.broadcast_shapes(value.shape, test.shape)
            value = jnp.where(test, jnp.broadcast_to(value, shape), jnp.broadcast_to(other, shape))
        return value

    def _mma(self, eqn: Any, point: Point, frame: Frame) -> Any:
        if frame.inner or not eqn.params["allow_reassociation"]:
            raise NotPoints
        return self.contract(self, eqn, point, frame)


def along(shape: Sequence[int], point: Sequence[Affine]) -> Point:
    """A point of a tile that is broadcast along its dimensions of extent 1."""
    return tuple(p if n > 1 else ZERO for p, n in zip(point, shape, strict=True))


def _offset(forms: Sequence[Affine], room: Sequence[int]) -> Affine:
    """The number of an element of a view, from its coordinates."""
    const, coefs, stride = 0, {}, math.prod(room)
    for form, n in zip(forms, room, strict=True):
        stride //= n
        const += form.const * stride
        for atom, c in form.coefs.items():
            coefs[atom] = coefs.get(atom, 0) + c * stride
    return Affine(const, {a: c for a, c in coefs.items() if c})


_RULES: dict[str, Callable[..., Any]] = {
    "iota": Pointwise._iota,
    "broadcast_in_dim": Pointwise._broadcast,
    "transpose": Pointwise._transpose,
    "reshape": Pointwise._reshape,
    "squeeze": Pointwise._reshape,
    "expand_dims": Pointwise._reshape,
    "tile_load": Pointwise._load,
    "tile_gather": Pointwise._gather,
    "tile_mma": Pointwise._mma,
}
