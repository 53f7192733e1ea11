"""A slice of a tile without the tile: what makes it is computed anew, of slices, down to smaller loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend.core import Literal

from ..ir.jaxprs import bind

Cut = dict[int, tuple[Any, int]]
"""By dimension where a slice of it starts, and how long that is."""


class NotSliced(Exception):
    """Only the whole tile can be computed."""


@dataclass(frozen=True)
class Slices:
    """Slices of the tiles of a body without calls. A load may be done again, later, from `constant` views."""

    makers: dict[Any, Any]
    """The equation that makes a variable."""
    constant: frozenset[Any]

    def inputs(self, var: Any, cut: Cut) -> Iterator[Any]:
        """The variables of which a slice is made; `NotSliced` if it is not."""
        if isinstance(var, Literal):
            return
        if not cut:
            yield var
            return
        eqn = self.makers.get(var)
        if eqn is None:
            raise NotSliced
        if eqn.primitive.name == "tile_load" and eqn.invars[0] not in self.constant:
            raise NotSliced
        for operand, inner in zip(eqn.invars, _inner(eqn, cut), strict=True):
            yield from self.inputs(operand, inner)

    def value(self, var: Any, cut: Cut, read: Callable[[Any], Any]) -> Any:
        """A slice of a variable, of those that `read` gives."""
        if not cut or isinstance(var, Literal):
            return read(var)
        eqn = self.makers[var]
        operands = zip(eqn.invars, _inner(eqn, cut), strict=True)
        values = [self.value(operand, inner, read) for operand, inner in operands]
        name, params = eqn.primitive.name, dict(eqn.params)
        shape = tuple(cut[d][1] if d in cut else n for d, n in enumerate(var.aval.shape))
        params.update({key: shape for key in ("shape", "new_sizes") if key in params})
        if name == "tile_load":
            for d, (start, _) in cut.items():
                values[d + 1] = lax.add(values[d + 1], start)
        out = bind(eqn.replace(params=params), values)[0]
        if name == "iota" and (d := params["dimension"]) in cut:
            return lax.add(out, lax.convert_element_type(cut[d][0], out.dtype))
        return out


def _inner(eqn: Any, cut: Cut) -> list[Cut]:
    """The cuts of the operands of an equation with one result."""
    name, p, (out, *more) = eqn.primitive.name, eqn.params, eqn.outvars
    shapes = [v.aval.shape for v in eqn.invars]
    if name == "broadcast_in_dim":
        dims = p["broadcast_dimensions"]
        return [{i: cut[d] for i, d in enumerate(dims) if d in cut and shapes[0][i] != 1}]
    if name == "transpose":
        return [{i: cut[d] for d, i in enumerate(p["permutation"]) if d in cut}]
    if name in ("reshape", "squeeze"):
        theirs, ours = ([i for i, n in enumerate(s) if n != 1] for s in (shapes[0], out.aval.shape))
        if [shapes[0][i] for i in theirs] != [out.aval.shape[i] for i in ours]:
            raise NotSliced
        return [{i: cut[d] for i, d in zip(theirs, ours, strict=True) if d in cut}]
    if name == "iota":
        return []
    if name == "tile_load":
        return [{} for _ in eqn.invars]
    if name == "tile_gather":
        own = [{i: cut[d] for i, d in enumerate(dims) if d in cut} for dims in p["coord_dims"]]
        coords = [
            {i: c for i, c in inner.items() if v.aval.shape[i] != 1}
            for inner, v in zip(own, eqn.invars[1:], strict=False)
        ]
        return [{i: cut[d] for i, d in enumerate(p["dims"]) if d in cut}, *coords, {}]
    if name.startswith("tile_") or "body" in p or more:
        raise NotSliced
    if any(s and s != out.aval.shape for s in shapes):
        raise NotSliced
    return [cut if s else {} for s in shapes]
