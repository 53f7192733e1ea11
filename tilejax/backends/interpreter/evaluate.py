"""Evaluation of a jaxpr on NumPy arrays: an environment, and a table of rules by primitive name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from ...ir.jaxprs import bind, held, literal

if TYPE_CHECKING:
    from .access import Tracker

Rule = Callable[..., Any]
"""`rule(eqn, place, *values)` gives the equation's result, or the list of them if there are several."""

RULES: dict[str, Rule] = {}
_TAKES_VIEWS: set[str] = set()


class View(NamedTuple):
    """A view's array inside parallel nests, with the tracker that each of them keeps, outermost first."""

    array: np.ndarray
    trackers: tuple[Tracker, ...]


class Point(NamedTuple):
    """One point of one nest's domain."""

    kind: str
    names: tuple[Any, ...]
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} ({', '.join(f'{n}={i}' for n, i in zip(self.names, self.indices, strict=True))})"


@dataclass(frozen=True)
class Place:
    """Where evaluation stands: a point of each open nest, outermost first."""

    points: tuple[Point, ...] = ()

    def enter(self, point: Point) -> Place:
        return Place((*self.points, point))

    def __str__(self) -> str:
        return ", ".join(map(str, self.points)) or "the kernel, outside its nests"


def rule(*names: str, views: bool = False) -> Callable[[Rule], Rule]:
    """Registers a rule for the primitives of these names; one without `views` gets them as plain arrays."""

    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, fn))
        if views:
            _TAKES_VIEWS.update(names)
        return fn

    return register


def plain(value: np.ndarray | View) -> np.ndarray:
    return value.array if isinstance(value, View) else value


def evaluate(closed: Any, args: Sequence[Any], place: Place) -> list[Any]:
    """The results of a jaxpr, closed or open without consts."""
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = [np.asarray(const) for const in getattr(closed, "consts", ())]
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(literal(atom)) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        values = [read(atom) for atom in eqn.invars]
        if name not in _TAKES_VIEWS:
            values = [plain(value) for value in values]
        results = RULES.get(name, _as_jax)(eqn, place, *values)
        results = results if isinstance(results, list) else [results]
        for var, result in zip(eqn.outvars, results, strict=True):
            array = np.asarray(plain(result))
            if (array.shape, array.dtype) != (var.aval.shape, var.aval.dtype):
                raise AssertionError(f"the rule of {name} gives {array.dtype}{array.shape}, not {var.aval}")
            env[var] = result if isinstance(result, View) else array
    return [read(atom) for atom in jaxpr.outvars]


def _as_jax(eqn: Any, place: Place, *values: np.ndarray) -> Any:
    """What JAX computes, for a primitive that has no rule here."""
    return [np.asarray(x) for x in bind(eqn, values)]


@rule("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", views=True)
def _inline(eqn: Any, place: Place, *values: Any) -> list[Any]:
    """A call is its body."""
    return evaluate(held(eqn), values, place)
