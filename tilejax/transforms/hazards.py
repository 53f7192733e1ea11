"""Loads that may read what earlier steps of a loop store: where affine places prove that they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .accesses import Access, Walk
from .affine import combine


def apart(
    load: Access, store: Access, indices: Sequence[Any], distance: int, extents: dict[Any, int]
) -> bool:
    """Whether the tile loaded `distance` steps after a step and the one that the step stores surely have no
    element in common. `indices` are those of the loop, `extents` those of all nests."""
    if not (load.affine and store.affine) or (distance and len(indices) != 1):
        return False
    for ahead, behind, n, m in zip(load.starts, store.starts, load.extents, store.extents, strict=True):
        shift = distance * ahead.coefs.get(indices[0], 0) if distance else 0
        gap = combine("sub", [replace(ahead, const=ahead.const + shift), behind], extents.__getitem__)
        if gap is not None:
            low, high = gap.bounds(extents.__getitem__)
            if low >= m or high <= -n:
                return True
    return False


def hazard(nest: Any, most: int) -> str | None:
    """Why a machine that issues the loads of innermost loops up to `most` steps early, whatever is stored
    meanwhile, must not do so in a parallel nest; None if it may."""
    walk = Walk()
    walk.enter(nest, nest.invars, {}, {}, True)
    inside = [(loop, 0) for loop in walk.nests]  # their programs store nothing that another loads
    for (eqn, indices, accesses), steps in [*inside, *((loop, most) for loop in walk.loops)]:
        if any("body" in inner.params for inner in eqn.params["body"].jaxpr.eqns):
            continue
        for i, load in enumerate(accesses):
            for j, store in enumerate(accesses):
                if load.stores or not store.stores or load.root is not store.root:
                    continue
                first = 0 if j < i else 1  # in its own step a load only sees the stores before it
                if not all(apart(load, store, indices, d, walk.extents) for d in range(first, steps + 1)):
                    return (
                        f"the load of {load.name} ({load.loc}) may read what the store ({store.loc}) wrote "
                        f"less than {steps + 1} steps before"
                    )
    return None
