"""Tiles that are never whole: functions that compute a piece of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class NotStreams(Exception):
    """The rows have to be held whole."""


@dataclass(frozen=True)
class Piece:
    """The places `start .. start + width - 1` along the long dimension."""

    start: Any
    width: int
    made: dict[int, Any] = field(default_factory=dict)
    """What streams gave for it."""


@dataclass(frozen=True, eq=False)
class Stream:
    """A tile whose last dimension is long; `make` gives the padded array of a piece."""

    make: Callable[[Piece], Any]

    def at(self, piece: Piece) -> Any:
        if id(self) not in piece.made:
            piece.made[id(self)] = self.make(piece)
        return piece.made[id(self)]
