"""The enumerations that programs carry as parameters."""

from __future__ import annotations

import enum
from typing import NamedTuple


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


class Resource(enum.Enum):
    """Which storage of the machine holds a memory."""

    AUTO = "auto"
    PRIVATE = "private"
    SHARED = "shared"
    CLUSTER = "cluster"
    GLOBAL = "global"
    TENSOR = "tensor"

    def __repr__(self) -> str:
        return self.name


class Proof(enum.Enum):
    """What is known of a claim. All three are true to `if`: compare with `is` or `==`."""

    PROVEN = "proven"
    DISPROVEN = "disproven"
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return self.name


class Proofs(NamedTuple):
    """What `IndexMap.prove` found."""

    total: Proof
    """Every subexpression is defined and fits signed 64 bits, everywhere on the domain."""
    in_bounds: Proof
    """Every image is in the codomain."""
    injective: Proof
    """No two points have the same image."""
    surjective: Proof
    """Every point of the codomain is an image."""
    enumerated: int
    """How many points were visited to decide."""
