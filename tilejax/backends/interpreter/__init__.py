"""The NumPy interpreter: runs a nest one program, and one tile, at a time, and checks what it does.

It is the oracle that every backend is compared with, so it shares nothing with them and prefers the plain
way of saying a thing to the fast one. `docs/design.md` defines what it computes; JAX's own primitives mean
what `jax.lax` says, rounded once per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import access, elementwise, memory, nests, shapes, tile_ops  # noqa: F401  (each registers its rules)
from .evaluate import RULES, Place, evaluate, plain

__all__ = ["RULES", "run"]


def run(program: Any, args: Sequence[Any]) -> list[np.ndarray]:
    """The results of `program` (a closed jaxpr, arrays to arrays) at `args`.

    Raises `BoundsError` for an access outside a view under `Bounds.ASSUME`, and `RaceError` where two
    programs of one parallel nest touch the same element and one of them stores it."""
    arrays = [np.asarray(arg) for arg in args]
    with np.errstate(all="ignore"):
        return [np.array(plain(result)) for result in evaluate(program, arrays, Place())]
