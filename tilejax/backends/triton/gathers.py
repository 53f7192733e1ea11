"""Gathers that take a dimension as it is: `reindex` gives a coordinate for every one."""

from __future__ import annotations

from typing import Any

from .cuts import Facts


def simplify(facts: Facts, eqn: Any, values: list[Any]) -> tuple[Any, list[Any]]:
    """A `tile_gather` and its operands, without the coordinates that are the places along a dimension of the
    result."""
    p, shape = eqn.params, eqn.invars[0].aval.shape
    dims, kept, coord_dims = list(p["dims"]), [0], []
    sources = [i for i, d in enumerate(dims) if d is None]
    for k, i in enumerate(sources):
        to = p["coord_dims"][k]
        if (
            len(to) == 1
            and p["shape"][to[0]] == shape[i]
            and to[0] not in dims
            and _places(facts, eqn.invars[k + 1])
        ):
            dims[i] = to[0]
        else:
            kept.append(k + 1)
            coord_dims.append(to)
    kept.append(len(values) - 1)
    params = {**p, "dims": tuple(dims), "coord_dims": tuple(coord_dims)}
    return eqn.replace(invars=[eqn.invars[k] for k in kept], params=params), [values[k] for k in kept]


def _places(facts: Facts, var: Any) -> bool:
    """Whether a tile of one dimension counts from 0."""
    form = facts.form(var)
    if form is None or form.const or len(var.aval.shape) != 1:
        return False
    n = var.aval.shape[0]
    if n == 1:
        return not form.coefs
    atoms = [a for a, c in form.coefs.items() if c == 1 and a not in facts.indices and facts.extents[a] == n]
    return len(form.coefs) == 1 and len(atoms) == 1
