"""Whether the threads of a program have to wait for each other between two accesses of a view."""

from __future__ import annotations

from typing import Any

from ...transforms.accesses import Access, Walk


def meets(eqn: Any, operand: int) -> bool:
    """Whether a program of a `tile_parallel` may store an element that it loads or stores elsewhere."""
    walk = Walk()
    grid = walk.enter(eqn, eqn.invars, {}, {}, True)
    root = eqn.params["body"].jaxpr.invars[len(grid) + operand]
    mine = [a for a in walk.accesses if a.root is root]
    stores = [a for a in mine if a.stores]
    if len(stores) != 1 or len(mine) > 1:
        return bool(stores) and len(mine) > 1
    loops = [i for i, n in walk.extents.items() if i not in grid and n > 1]
    return bool(loops) and not _apart(stores[0], loops)


def loads_what_it_stores(eqn: Any) -> bool:
    """Whether the programs of a `tile_parallel` load from a view that they store to, in whatever order."""
    walk = Walk()
    walk.enter(eqn, eqn.invars, {}, {}, True)
    stored = {a.root for a in walk.accesses if a.stores}
    return any(a.root in stored for a in walk.accesses if not a.stores)


def _apart(access: Access, loops: list[Any]) -> bool:
    """Whether no two steps of loops store the same: one dimension of the origin counts blocks for each."""
    if not access.affine:
        return False
    steps: dict[Any, bool] = {}
    for start, n in zip(access.starts, access.extents, strict=True):
        steps.update({i: abs(c) >= n for i, c in start.coefs.items()})
    return all(steps.get(i, False) for i in loops)
