"""What must hold of every program, checked after tracing and after transforms by the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Literal

from .primitives import PRIMITIVES


class InvalidProgram(AssertionError):
    """A program that breaks the rules of `docs/design.md`: a fault of tilejax, not of its user."""


def verify(program: Any) -> None:
    """Raises `InvalidProgram` unless variables are defined before use, bodies are closed and fit their
    operands, starts are int32 scalars, a store keeps its view's type, and a memory's state has its layout's
    shape."""
    if program.consts:
        raise InvalidProgram("a program has no consts: captured arrays are operands")
    _verify(program.jaxpr, "program")


def _verify(jaxpr: Any, where: str) -> None:
    known = {*jaxpr.invars, *jaxpr.constvars}
    for eqn in jaxpr.eqns:
        place = f"{where}: {eqn.primitive.name} at {eqn.params.get('loc')}"
        for var in eqn.invars:
            _require(
                isinstance(var, Literal) or var in known, f"{place} reads a variable that is not defined"
            )
        if eqn.primitive.name in PRIMITIVES:
            _verify_tile(eqn, place)
        known.update(eqn.outvars)
    for var in jaxpr.outvars:
        _require(isinstance(var, Literal) or var in known, f"{where} returns a variable that is not defined")


def _verify_tile(eqn: Any, place: str) -> None:
    name, params, avals = eqn.primitive.name, eqn.params, [v.aval for v in eqn.invars]
    if name in ("tile_load", "tile_store"):
        starts = avals[1:-1] if name == "tile_load" else avals[2:]
        _require(
            len(starts) == len(avals[0].shape),
            f"{place} has {len(starts)} starts for a view of shape {avals[0].shape}",
        )
        _require(all(s.shape == () and s.dtype == np.int32 for s in starts), f"{place} has starts {starts}")
        other = avals[-1] if name == "tile_load" else avals[1]
        _require(other.dtype == avals[0].dtype, f"{place} mixes {other.dtype} with {avals[0].dtype}")
    if name in ("tile_memory_store", "tile_memory_load"):
        shapes = {a.shape for a in avals}
        _require(
            shapes == {params["layout"].extents} and len({a.dtype for a in avals}) == 1,
            f"{place}: {avals} do not fit {params['layout']}",
        )
    if "body" not in params:
        return
    body, count = params["body"], len(params["extents"])
    _require(not body.consts, f"{place}: the body has consts")
    operands = avals[params.get("num_bounds", 0) :]
    inputs = [v.aval for v in body.jaxpr.invars]
    _require(len(inputs) == count + len(operands), f"{place}: the body takes {len(inputs)} inputs")
    for have, want in zip(inputs[count:], operands, strict=True):
        _require(
            have.shape == want.shape and have.dtype == want.dtype,
            f"{place}: the body takes {have}, not {want}",
        )
    state = params["num_views"] + params.get("num_carry", 0)
    results = [v.aval for v in body.jaxpr.outvars]
    _require(len(results) == state == len(eqn.outvars), f"{place}: the body returns {len(results)} results")
    for have, want in zip(results, operands[len(operands) - state :], strict=True):
        _require(
            have.shape == want.shape and have.dtype == want.dtype,
            f"{place}: the body returns {have}, not {want}",
        )
    _verify(body.jaxpr, place)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidProgram(message)
