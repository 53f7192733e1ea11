"""What a product sums over, and in which steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...ir.jaxprs import contracted
from ...transforms.affine import Affine
from .blocks import PIECE
from .points import Places, Point, coordinate


@dataclass(frozen=True)
class Sum:
    """The contracted labels of a `tile_mma`: `depth` is the whole of those that a step takes a piece of, of
    those in `steps` it takes one value."""

    labels: dict[int, Affine]
    depth: Any
    steps: tuple[Any, ...]

    def factors(self, eqn: Any, point: Point) -> list[tuple[Any, Point]]:
        """The operands of the `tile_mma`, and where they are read for an element of its result."""
        at = {**dict(zip(eqn.params["acc_labels"], point, strict=True)), **self.labels}
        labels = eqn.params["a_labels"], eqn.params["b_labels"]
        return [(v, tuple(at[x] for x in own)) for v, own in zip(eqn.invars, labels, strict=False)]


def sum_of(eqn: Any, places: Places) -> Sum:
    """The longest label is cut into pieces; if that is short, the last ones are taken together."""
    p, out = eqn.params, eqn.outvars[0]
    extents = dict(zip(p["a_labels"], eqn.invars[0].aval.shape, strict=True))
    labels = contracted(eqn)
    places.extents.update({(out, x): extents[x] for x in labels})
    held = [max(reversed(labels), key=extents.__getitem__)] if labels else []
    if not held or extents[held[0]] < PIECE // 2:
        held = []
        for x in reversed(labels):
            if extents[x] * math.prod(extents[y] for y in held) > PIECE:
                break
            held.append(x)
    parts, size = [], 1
    for x in held:
        if extents[x] > 1:
            parts.append(((out, x), size))
        size *= extents[x]
    places.compose((out, "depth"), size, parts)
    rest = tuple((out, x) for x in labels if x not in held)
    return Sum({x: coordinate((out, x), extents[x]) for x in labels}, (out, "depth"), rest)
