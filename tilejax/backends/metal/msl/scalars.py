"""Functions of scalars, as users give them to reductions, inside a loop of one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .block import Block
from .evaluate import Frame, call
from .storage import Tile, constant


def scalar_function(
    frame: Frame, closed: Any, consts: Sequence[Tile]
) -> Callable[[Block, Sequence[str]], list[str]]:
    """`closed(*consts, *scalars)` as a function from the texts of its scalars to those of its results."""
    inputs = closed.jaxpr.invars[len(consts) :]

    def fn(block: Block, texts: Sequence[str]) -> list[str]:
        given = [constant(text, v.aval.dtype) for text, v in zip(texts, inputs, strict=True)]
        inside = Frame(None, frame.name)
        results = call(inside, closed, [*consts, *given])
        return [block.get(x, ()) for x in results if isinstance(x, Tile)]

    return fn
