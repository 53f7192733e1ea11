"""Arrays inside of a nest: a program has views of memory, and what it computes is a tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import Literal

from ... import _compat
from ..._errors import UnsupportedError, location_of
from ...ir.jaxprs import called


def check_arrays(nest: Any) -> None:
    """`UnsupportedError` for a `tile_parallel` that computes with whole arrays, or loads what it made."""
    _check(nest.params["body"].jaxpr, _inner(nest, [v for v in nest.invars if not isinstance(v, Literal)]))


def _inner(nest: Any, views: Iterable[Any]) -> set[Any]:
    """Those variables of a nest's body that are views, if `views` are outside."""
    p, views = nest.params, set(views)
    inner = nest.params["body"].jaxpr.invars[len(p["extents"]) :]
    outer = nest.invars[p.get("num_bounds", 0) :]
    pairs = zip(inner, outer, strict=True)
    return {v for v, o in pairs if not isinstance(o, Literal) and o in views and v.aval.shape}


def _check(jaxpr: Any, views: set[Any]) -> None:
    """Adds what is a view to `views`."""
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        own = [not isinstance(v, Literal) and v in views for v in eqn.invars]
        if name in ("tile_load", "tile_store"):
            if not own[0]:
                raise UnsupportedError(
                    "an array that is made inside of a nest is in no memory that backend triton could load "
                    "it from: make it outside",
                    loc=eqn.params["loc"],
                )
            views.update(eqn.outvars if name == "tile_store" else ())
        elif "extents" in eqn.params:
            _check(eqn.params["body"].jaxpr, _inner(eqn, views))
            views.update(eqn.outvars[: eqn.params["num_views"]])
        elif (body := called(eqn)) is not None:
            inner = {v for v, is_view in zip(body.jaxpr.invars, own, strict=True) if is_view}
            _check(body.jaxpr, inner)
            out = zip(eqn.outvars, body.jaxpr.outvars, strict=True)
            views.update(v for v, o in out if not isinstance(o, Literal) and o in inner)
        elif any(own):
            raise UnsupportedError(
                f"{name} of a whole array inside of a nest: backend triton computes with tiles there; load "
                "one, or compute it outside",
                loc=location_of(_compat.frames(eqn)),
            )
