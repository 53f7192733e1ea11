"""What the Triton lowering makes of a program, by the questions that the lowering itself asks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ...ir.types import Bounds
from ...transforms.accesses import Access, Walk
from ...transforms.hazards import hazard
from ...transforms.pipeline import Cut, find_cuts
from ...transforms.simplify import simplify
from ...transforms.splits import chosen
from ..decisions import Decisions, Nests, decided
from .contract import way
from .pieces import depth_of, summed
from .prefetch import pays
from .products import dots_of
from .recut import Matrices, matrices_of
from .schedule import contracts, lanes_of, stages_of
from .splits import pieces
from .units import call
from .whole import by_address

MEMORY = "a value in registers, whatever its layout"
"""Where the memories of a program live."""


def decisions(program: Any, num_stages: int | None) -> Decisions:
    """The pipelines, contractions and stores of a program, in its order."""
    simple = simplify(program)
    cuts = find_cuts(simple)
    walk = Walk()
    walk.walk(simple.jaxpr, {}, {}, True)
    accesses = {id(a.eqn): a for a in walk.accesses}

    def pipeline(eqn: Any, nests: Nests) -> tuple[bool, str]:
        if by_address(nests[0], ("cuda",)):
            return False, "no loop: XLA adds each item in the one place that its id names"
        overlapped, reason = _pipeline(eqn, nests[0], cuts[id(eqn)][1], num_stages)
        found = chosen(nests[0], pieces)
        shared = f"; {found[1]} programs share its steps" if found and found[0] is eqn else ""
        return overlapped, reason + shared

    def store(eqn: Any, nests: Nests) -> str:
        nest = matrices_of(nests[0]) if nests else None
        return _store(accesses[id(eqn)], walk.extents) if nest is None else _block(nest)

    def mma(eqn: Any, nests: Nests) -> str:
        nest = matrices_of(nests[0]) if nests else None
        if nest is None:
            return _mma(eqn) + (_pieces(nests[0], eqn) if len(nests) == 1 else "")
        ahead = (num_stages or nest.stages) - 1
        return f"{_unit(eqn)}; {nest.blocks.depth} summed a step, loaded up to {ahead} steps ahead"

    return decided(simple.jaxpr, pipeline, mma, store)


def _pipeline(eqn: Any, nest: Any, cut: Cut, asked: int | None) -> tuple[bool, str]:
    if "no second step" in cut.reason:
        return False, cut.reason
    body = eqn.params["body"].jaxpr
    if lanes_of(nest):
        return False, "one loop for all programs that run as lanes of one"
    if not contracts(body):
        if cut.overlapped and pays(eqn):
            return True, f"{cut.reason}, run one step ahead into registers"
        return False, "one loop; " + (
            f"{cut.reason}, could run ahead, but pay only where steps carry values and load little"
            if cut.overlapped
            else cut.reason
        )
    if any("body" in inner.params for inner in body.eqns):
        return False, "one loop with loops inside, and Triton loads ahead in innermost loops only"
    stages = stages_of(nest, asked)
    if stages < 2:
        return False, hazard(nest, 2) or "num_stages=1 asks for no overlap"
    fed = list(dict.fromkeys(_fed(body)))
    if not fed:
        return False, "one loop; its dots multiply nothing that its own steps load"
    loads = ", ".join(f"{load.params['name']} ({load.params['loc']})" for load in fed)
    return True, f"the loads of {loads} run up to {stages - 1} steps ahead, by cp.async (num_stages={stages})"


def _fed(body: Any) -> Iterator[Any]:
    """The loads of a body whose tiles go into a dot there."""
    loads: dict[Any, list[Any]] = {}
    for eqn in body.eqns:
        of = [e for v in eqn.invars if not isinstance(v, Literal) for e in loads.get(v, ())]
        if eqn.primitive.name == "tile_mma" and _way(eqn) == "dots":
            yield from (e for v in eqn.invars[:2] if not isinstance(v, Literal) for e in loads.get(v, ()))
        loads.update(dict.fromkeys(eqn.outvars, [eqn] if eqn.primitive.name == "tile_load" else of))


def _way(eqn: Any) -> str:
    """How a contraction is had, as `contract.way` says it."""
    this = call(eqn)
    names = tuple(this.params[key] for key in ("a_labels", "b_labels", "acc_labels"))
    a, b = (v.aval.dtype for v in eqn.invars[:2])
    dots = dots_of(a, b, eqn.params["precision"])
    return way(names, this.shapes, dots) if this.params["allow_reassociation"] else "order"


def _mma(eqn: Any) -> str:
    how = _way(eqn)
    if how == "order":
        return "CUDA cores: multiply and add, one contracted index after another"
    if how == "sums":
        return "CUDA cores: sums of products of the columns and rows of small matrices"
    p = eqn.params
    labels = zip(p["acc_labels"], eqn.outvars[0].aval.shape, strict=True)
    count = math.prod(n for x, n in labels if x in p["a_labels"] and x in p["b_labels"])
    return _unit(eqn) + (f", for each of {count} pairs of matrices" if count > 1 else "")


def _pieces(nest: Any, eqn: Any) -> str:
    """How a product outside of loops is summed."""
    depth, total = depth_of(nest, eqn), summed(eqn)
    return f"; {depth} summed a step, if both factors are loads" if depth < total else ""


def _unit(eqn: Any) -> str:
    """What multiplies matrices."""
    a, b = (v.aval.dtype for v in eqn.invars[:2])
    precision = eqn.params["precision"]
    if jnp.issubdtype(a, np.integer):
        parts = dots_of(a, b, precision)
        return f"tensor cores: int8{f', {parts} products for the eighth bits of uint8' if parts > 1 else ''}"
    if a.itemsize == 1:  # what multiplies them as they are sums them up in fewer bits
        return f"tensor cores: float16, to which {a.name} widens"
    if a != np.float32:
        return f"tensor cores: {a.name}"
    if precision is None:
        return "tensor cores: bfloat16, six products of float32 in three parts"
    if precision in (lax.Precision.HIGH, lax.Precision.DEFAULT):
        return "tensor cores: tf32"
    return "CUDA cores: float32" if precision == lax.Precision.HIGHEST else f"as {precision} says"


def _block(nest: Matrices) -> str:
    """Of a nest that is cut anew."""
    (m, n), blocks = map(nest.count, (nest.rows, nest.columns)), nest.blocks
    whole = m % blocks.rows == n % blocks.columns == 0
    return f"{blocks.rows} x {blocks.columns} elements a program, whatever the nest's own blocks: " + (
        "inside the view, no mask" if whole else "masked at the last ones"
    )


def _store(access: Access, extents: dict[Any, int]) -> str:
    """Programs need no proof to store on their own; a mask is what one saves."""
    if access.eqn.params["bounds"] is Bounds.ASSUME:
        return "promised to stay inside: no mask"
    if not access.affine:
        return "its place is not known: masked"
    bounds = [form.bounds(extents.__getitem__) for form in access.starts]
    inside = all(
        low >= 0 and high + n <= size
        for (low, high), n, size in zip(bounds, access.extents, access.shape, strict=True)
    )
    return "inside the view: no mask" if inside else "it may reach over the view's edge: masked there"
