"""Functions that users give to reductions and scans, on one element of each operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Literal

from .block import Block
from .elementwise import RULES as ELEMENTWISE
from .evaluate import Frame, call
from .storage import Index, Tile

Function = Callable[[Block, Index, Sequence[str]], list[str]]
"""`fn(block, index, texts)` gives the texts of an element of each result from that of each operand."""


def pointwise(frame: Frame, closed: Any, consts: Sequence[Tile]) -> Function:
    """`closed(*consts, *operands)`, of which `is_pointwise` holds."""
    inputs = closed.jaxpr.invars[len(consts) :]

    def fn(block: Block, index: Index, texts: Sequence[str]) -> list[str]:
        given = [_element(v.aval, text) for text, v in zip(texts, inputs, strict=True)]
        results = call(Frame(None, frame.name), closed, [*consts, *given])
        return [block.get(x, index if x.shape else ()) for x in results if isinstance(x, Tile)]

    return fn


def _element(aval: Any, text: str) -> Tile:
    """An operand of which only the element is looked at that the text is."""
    return Tile(tuple(aval.shape), aval.dtype, lambda block, index: text)


def is_pointwise(jaxpr: Any, operands: set[Any]) -> bool:
    """Whether an element of each result needs of the `operands`, some inputs, only the elements at its own
    place. What doesn't come from them may also be broadcast."""
    for eqn in jaxpr.eqns:
        name, inner = eqn.primitive.name, eqn.params.get("jaxpr")
        given = [v for v in eqn.invars if not isinstance(v, Literal) and v in operands]
        if inner is not None:
            pairs = zip(inner.jaxpr.invars, eqn.invars, strict=True)
            if not is_pointwise(inner.jaxpr, {mine for mine, outer in pairs if outer in given}):
                return False
        elif name not in ELEMENTWISE and (given or name not in ("broadcast_in_dim", "iota")):
            return False
        if given:
            operands = operands | set(eqn.outvars)
    return True
