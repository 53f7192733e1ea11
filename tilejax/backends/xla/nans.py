"""Where a NaN goes that a maximum lost, so that softmax may take the quick one.

XLA's quick maximum drops NaN (`extremum.py`). In `e = exp(x - max(x))`, `e / sum(e)` that does not show: the
difference is NaN where `x` is, the sum then is, and all of the row. So the maximum of an equation is first
taken quickly, and marked. What is made of it must come together with a sum that has the NaN; anything else
that reads it has the plan take the exact one, and the evaluation starts again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ...ir.jaxprs import CALLS
from .value import Entry, Group, Plan, Restart, Val

_SPREADS = frozenset(
    """
    abs add ceil convert_element_type div erf exp exp2 expm1 floor integer_pow log log1p logistic max min mul
    neg reduce_precision rsqrt sin cos tan sqrt square sub tanh
    """.split()  # noqa: SIM905
)
"""Elementwise operations whose result is NaN where an operand is."""
_MOVES = frozenset({"broadcast_in_dim", "squeeze", "transpose", "reshape", "copy"})


class Kind(enum.Enum):
    """What is known of a value in the rows where its maximum lost a NaN, and where it should be NaN."""

    LOST = enum.auto()
    """It is the maximum itself: a number."""
    PARTLY = enum.auto()
    """It is NaN where the reduced tile is."""
    WHOLE = enum.auto()
    """It is NaN, as it should be: the sum over a row of what is NaN in part."""


@dataclass(frozen=True, eq=False)
class Mark:
    """One quick maximum: of which equation, what it reduced, and the groups of its result."""

    eqn: Any
    tile: Any
    tile_groups: tuple[Group, ...]
    reduced: frozenset[Entry]
    row_groups: tuple[Group, ...]


def exactly(plan: Plan, vals: list[Val]) -> None:
    """Values that somebody needs as they should be."""
    wrong = [v.nan[1] for v in vals if v.nan is not None and v.nan[0] is not Kind.WHOLE]
    if wrong:
        plan.exact.update(id(mark.eqn) for mark in wrong)
        raise Restart


def follow(plan: Plan, eqn: Any, vals: list[Val]) -> tuple[Kind, Mark] | None:
    """What is known of the result of an equation; a restart if it needs the exact maximum."""
    name, marks = eqn.primitive.name, {v.nan[1] for v in vals if v.nan is not None}
    if name in CALLS or not marks:
        return None
    if len(marks) == 1:
        (mark,) = marks
        kinds = [v.nan[0] if v.nan is not None else None for v in vals]
        if name in _MOVES and kinds[0] is not Kind.PARTLY:
            return vals[0].nan
        adds = name == "tile_reduce" and eqn.params["op"] == "add"
        if adds and kinds == [Kind.PARTLY] and mark.reduced <= set(eqn.params["axes"]):
            return Kind.WHOLE, mark
        if name in _SPREADS and (found := _together(mark, vals, kinds)) is not None:
            return found if found[0] is not None else None
    exactly(plan, vals)
    return None


def _together(mark: Mark, vals: list[Val], kinds: list[Kind | None]) -> Any:
    """What comes of operands of an operation that spreads NaN: a kind, or None for nothing to remember; None
    altogether if a NaN may be missing."""
    rows = [v for v, k in zip(vals, kinds, strict=True) if k in (Kind.LOST, Kind.WHOLE)]
    if any(v.groups != mark.row_groups for v in rows):
        return None
    others = [v for v, k in zip(vals, kinds, strict=True) if k is None]
    if Kind.WHOLE in kinds:
        alone = all(k is Kind.WHOLE for k in kinds) or not any(v.entries() for v in others)
        return (Kind.WHOLE, mark) if alone and set(kinds) <= {Kind.WHOLE, None} else (None, mark)
    has_nan = any(v.array is mark.tile and v.groups == mark.tile_groups for v in others)
    return (Kind.PARTLY, mark) if Kind.PARTLY in kinds or has_nan else None
