"""A slice of a tile without the tile: what makes it is computed anew, of slices, down to smaller loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend.core import Literal

from ..ir.jaxprs import bind

Cut = dict[int, tuple[Any, int]]
"""By dimension where a slice of it starts, and how long that is."""
Read = Callable[[Any], Any]


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

    def value(self, var: Any, cut: Cut, read: Read) -> Any:
        """A slice of a variable, of those that `read` gives."""
        if not cut or isinstance(var, Literal):
            return read(var)
        return self.made(self.makers[var], cut, read)[self.makers[var].outvars.index(var)]

    def made(self, eqn: Any, cut: Cut, read: Read) -> list[Any]:
        """Slices of what an equation makes."""
        operands = zip(eqn.invars, _inner(eqn, cut), strict=True)
        values = [self.value(operand, inner, read) for operand, inner in operands]
        name, params = eqn.primitive.name, dict(eqn.params)
        shape = tuple(cut[d][1] if d in cut else n for d, n in enumerate(eqn.outvars[0].aval.shape))
        params.update({key: shape for key in ("shape", "new_sizes") if key in params})
        if name == "tile_load":
            for d, (start, _) in cut.items():
                values[d + 1] = lax.add(values[d + 1], start)
        out = bind(eqn.replace(params=params), values)
        if name == "iota" and (d := params["dimension"]) in cut:
            return [lax.add(out[0], lax.convert_element_type(cut[d][0], out[0].dtype))]
        return out


def _inner(eqn: Any, cut: Cut) -> list[Cut]:
    """The cuts of the operands of an equation."""
    name, p, out = eqn.primitive.name, eqn.params, eqn.outvars[0]
    shapes = [v.aval.shape for v in eqn.invars]
    if name == "broadcast_in_dim":
        dims = p["broadcast_dimensions"]
        return [{i: cut[d] for i, d in enumerate(dims) if d in cut and shapes[0][i] != 1}]
    if name == "transpose":
        return [{i: cut[d] for d, i in enumerate(p["permutation"]) if d in cut}]
    if name in ("reshape", "squeeze"):
        theirs = {place: i for i, place in _places(shapes[0])}
        here = {theirs[place]: cut[d] for d, place in _places(out.aval.shape) if d in cut and place in theirs}
        if len(here) < len(cut):
            raise NotSliced
        return [here]
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
    if name in ("tile_reduce", "tile_fold", "tile_argreduce"):
        axes = p["axes"] if "axes" in p else (p["axis"],)
        kept = [i for i in range(len(shapes[0])) if i not in axes]
        return [{kept[d]: c for d, c in cut.items()}, *({} for _ in shapes[1:])]
    if name in ("tile_sort", "tile_scan", "tile_top_k") and p["axis"] not in cut:
        return [cut]
    if name.startswith("tile_") or "body" in p or len(eqn.outvars) > 1:
        raise NotSliced
    if any(s and s != out.aval.shape for s in shapes):
        raise NotSliced
    return [cut if s else {} for s in shapes]


def _places(shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each dimension that is none of extent 1, and what stays of it if those beside it are rearranged: its
    extent, and how many elements are before it."""
    before = 1
    for d, n in enumerate(shape):
        if n != 1:
            yield d, (n, before)
        before *= n
