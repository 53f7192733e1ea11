"""Equations without unit dimensions. A dimension of extent 1 holds nothing, but Triton would lay it out, and
a product of tiles would not be a plain one of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """An equation as the rules of this backend see it: its tiles have no dimension of extent 1, unless the
    operation works along it."""

    name: str
    primitive: Any
    params: dict[str, Any]
    shapes: tuple[Extents, ...]
    """Of the operands."""
    targets: tuple[Extents, ...]
    """Of the results."""
    dtypes: tuple[Any, ...]


def squeezed(shape: Sequence[int]) -> Extents:
    """The extents that are not 1."""
    return tuple(n for n in shape if n != 1)


def call(eqn: Any) -> Call:
    """The equation without unit dimensions."""
    name, params = eqn.primitive.name, dict(eqn.params)
    full = [tuple(v.aval.shape) for v in eqn.invars]
    results = [tuple(v.aval.shape) for v in eqn.outvars]
    shapes, targets = [*map(squeezed, full)], [*map(squeezed, results)]

    if name == "broadcast_in_dim":
        kept = _kept(results[0])
        places = [d for n, d in zip(full[0], params["broadcast_dimensions"], strict=True) if n != 1]
        params["broadcast_dimensions"] = tuple(kept.index(d) for d in places)
    elif name == "transpose":
        kept = _kept(full[0])
        params["permutation"] = tuple(kept.index(d) for d in params["permutation"] if d in kept)
    elif name == "iota":
        kept, d = _kept(results[0]), params["dimension"]
        params["dimension"] = kept.index(d) if d in kept else None
    elif name == "tile_reduce":
        kept = _kept(full[0])
        params["axes"] = tuple(kept.index(d) for d in params["axes"] if d in kept)
    elif name == "tile_fold":
        kept = _kept(full[0], params["axes"])
        shapes[0] = _at(full[0], kept)
        params["axes"] = tuple(map(kept.index, params["axes"]))
    elif name in ("tile_argreduce", "tile_scan", "tile_associative_scan", "tile_sort", "tile_top_k"):
        first, axis = params.get("num_consts", 0), params["axis"]
        shapes[first:] = [_at(s, _kept(s, (axis,))) for s in full[first:]]
        if name != "tile_argreduce":
            targets = [_at(s, _kept(s, (axis,))) for s in results]
        params["axis"] = _kept(full[first], (axis,)).index(axis)
    elif name == "tile_mma":
        for key, shape in zip(("a_labels", "b_labels", "acc_labels"), full, strict=True):
            params[key] = tuple(x for x, n in zip(params[key], shape, strict=True) if n != 1)
    elif name == "tile_gather":
        dims, to = params["dims"], _kept(results[0])
        kept = _kept(full[0], [i for i, d in enumerate(dims) if d is None])
        shapes[0] = _at(full[0], kept)
        params["dims"] = tuple(None if dims[i] is None else to.index(dims[i]) for i in kept)
        params["coord_dims"] = tuple(
            tuple(to.index(d) for d in own if d in to) for own in params["coord_dims"]
        )
        params["shape"] = targets[0]
    return Call(
        name, eqn.primitive, params, (*shapes,), (*targets,), tuple(v.aval.dtype for v in eqn.outvars)
    )


def _kept(shape: Sequence[int], also: Sequence[int] = ()) -> list[int]:
    """The dimensions that stay: those of other extents than 1, and some more."""
    return [d for d, n in enumerate(shape) if n != 1 or d in also]


def _at(shape: Sequence[int], dims: Sequence[int]) -> Extents:
    return tuple(shape[d] for d in dims)
