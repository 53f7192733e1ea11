"""What every reader of jaxprs does with an equation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call"})
"""Primitives that stand for the jaxpr that they hold, also where it is differentiated."""


def held(eqn: Any) -> Any:
    """The jaxpr inside of a call, closed or open without consts."""
    return eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]


def called(eqn: Any) -> Any:
    """The closed jaxpr that an equation stands for; None if it is no call."""
    return held(eqn) if eqn.primitive.name in CALLS else None


def literal(var: Any) -> Any:
    """The number of a `Literal`, as a NumPy scalar of its dtype."""
    return np.asarray(var.val, var.aval.dtype)[()]


def variables(atoms: Iterable[Any]) -> set[Any]:
    """Those of some operands or results that are no literals."""
    return {v for v in atoms if not isinstance(v, Literal)}


def contracted(mma: Any) -> list[int]:
    """The labels that a `tile_mma` sums over, in the order that they have in its first factor."""
    p = mma.params
    return [x for x in p["a_labels"] if x in p["b_labels"] and x not in p["acc_labels"]]


def bind(eqn: Any, values: Sequence[Any]) -> list[Any]:
    """The results of an equation at other operands."""
    out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def equations(eqns: Iterable[Any]) -> Iterator[Any]:
    """All equations of a program, each nest before those inside."""
    for eqn in eqns:
        yield eqn
        if "body" in eqn.params:
            yield from equations(eqn.params["body"].jaxpr.eqns)
