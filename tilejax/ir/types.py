"""The enumerations that programs carry as parameters."""

from __future__ import annotations

import enum


class Bounds(enum.Enum):
    """What an access does outside its view."""

    ZERO = "zero"
    """Reads give the fallback (0), stores are dropped."""
    ASSUME = "assume"
    """The caller promises to stay inside."""

    def __repr__(self) -> str:
        return self.name


class Scope(enum.Enum):
    """Which level of the machine runs one program of a nest, widest first."""

    AUTOMATIC = "automatic"
    DEVICE = "device"
    GROUP = "group"
    SUBGROUP = "subgroup"
    WORKER = "worker"
    VECTOR = "vector"

    def __repr__(self) -> str:
        return self.name


class Order(enum.Enum):
    """How a reduction associates; see the reference page on reductions."""

    UNORDERED_TREE = "unordered_tree"
    ORDERED_TREE = "ordered_tree"
    FOLD_LEFT = "fold_left"
    FOLD_RIGHT = "fold_right"
