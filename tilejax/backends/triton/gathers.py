"""Gathers that are less than what `tile_gather` may be: those that take a dimension as it is, for `reindex`
gives a coordinate for every one, and those that take a few elements of what was loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plgpu

from ...ir.types import Bounds
from .casts import convert
from .cuts import Facts
from .moves import at_result
from .tiles import View, as_index, padded_shape, scalar
from .units import squeezed


@dataclass(frozen=True)
class Load:
    """A `tile_load` of a view that the nest does not store to, and the casts of what it gave."""

    eqn: Any
    view: View
    starts: Sequence[Any]
    fallback: Any
    casts: tuple[Any, ...] = ()

    def cast(self, dtype: Any) -> Load:
        return replace(self, casts=(*self.casts, dtype))


def is_less(eqn: Any) -> bool:
    """Whether a gather had better be loaded again: it gives much less than it takes from, or would look at
    too many elements."""
    given, taken = math.prod(eqn.outvars[0].aval.shape), eqn.invars[0].aval.shape
    looked = given * math.prod(n for n, d in zip(taken, eqn.params["dims"], strict=True) if d is None)
    return given * 16 <= math.prod(taken) or looked > _MANY


_MANY = 2**16
"""The elements that a select may look at."""


def pick(load: Load, eqn: Any, values: Sequence[Any]) -> Any:
    """A `tile_gather` of a loaded tile, from memory; `values` are its coordinates and what is beyond."""
    *coords, beyond = values
    p, view = eqn.params, load.view
    kept = [d for d, n in enumerate(p["shape"]) if n != 1]
    extents = padded_shape(squeezed(p["shape"]))
    stride, offsets = math.prod(view.room), jnp.broadcast_to(scalar(0, view.index_type), extents)
    inside = within = jnp.broadcast_to(jnp.bool_(True), extents)
    given = zip(coords, p["coord_dims"], strict=True)
    for d, start, n, size, room in zip(
        p["dims"], load.starts, load.eqn.params["shape"], view.shape, view.room, strict=True
    ):
        stride //= room
        if d is None:
            coord, to = next(given)
            place = at_result(coord, [kept.index(i) for i in to if i in kept], extents)
            within = within & (place >= 0) & (place < np.int32(n))
        else:
            place = lax.broadcasted_iota(np.int32, extents, kept.index(d)) if d in kept else np.int32(0)
        index = place + start
        offsets = offsets + as_index(index, view.index_type) * scalar(stride, view.index_type)
        if load.eqn.params["bounds"] is Bounds.ZERO:
            inside = inside & (index >= 0) & (index < np.int32(size))
    found = plgpu.load(
        view.ref.at[offsets], mask=inside & within, other=lax.broadcast(load.fallback, extents)
    )
    for dtype in load.casts:
        found = convert(found, new_dtype=dtype)
    return jnp.where(within, found, jnp.broadcast_to(beyond, extents))


def simplify(facts: Facts, eqn: Any, values: list[Any]) -> tuple[Any, list[Any]]:
    """A `tile_gather` and its operands, without the coordinates that are the places along a dimension of the
    result."""
    p, shape = eqn.params, eqn.invars[0].aval.shape
    dims, kept, coord_dims = list(p["dims"]), [0], []
    sources = [i for i, d in enumerate(dims) if d is None]
    for k, i in enumerate(sources):
        to = p["coord_dims"][k]
        if (
            len(to) == 1
            and p["shape"][to[0]] == shape[i]
            and to[0] not in dims
            and _places(facts, eqn.invars[k + 1])
        ):
            dims[i] = to[0]
        else:
            kept.append(k + 1)
            coord_dims.append(to)
    kept.append(len(values) - 1)
    params = {**p, "dims": tuple(dims), "coord_dims": tuple(coord_dims)}
    return eqn.replace(invars=[eqn.invars[k] for k in kept], params=params), [values[k] for k in kept]


def _places(facts: Facts, var: Any) -> bool:
    """Whether a tile of one dimension counts from 0."""
    form = facts.form(var)
    if form is None or form.const or len(var.aval.shape) != 1:
        return False
    n = var.aval.shape[0]
    if n == 1:
        return not form.coefs
    atoms = [a for a, c in form.coefs.items() if c == 1 and a not in facts.indices and facts.extents[a] == n]
    return len(form.coefs) == 1 and len(atoms) == 1
