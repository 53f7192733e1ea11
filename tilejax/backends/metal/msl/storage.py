"""Where values lie, and tiles as expressions: how to compute one element, given its indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....transforms.affine import Affine

if TYPE_CHECKING:
    from .block import Block

Index = tuple[str, ...]
"""One uint expression a dimension; "0u" where the extent is 1."""


@dataclass(eq=False)
class Storage:
    """A named array.

    `space` is "thread", "threadgroup", "device" or "constant". One in "thread" space that is `striped` holds,
    in each thread, the elements whose number is the thread's modulo the threads of a group."""

    name: str
    dtype: np.dtype
    size: int
    space: str
    striped: bool = False
    mutable: bool = True
    """Whether a program may write to it after it was first read."""
    home: object = None
    """The frame that may overwrite it."""

    @property
    def shared(self) -> bool:
        """Whether other threads of the group see what one writes."""
        return self.mutable and self.space in ("threadgroup", "device")

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(eq=False)
class Tile:
    """A value: `element(block, index)` writes what computes an element to the block and gives its text."""

    shape: tuple[int, ...]
    dtype: np.dtype
    element: Callable[[Block, Index], str]
    reads: frozenset[Storage] = frozenset()
    """The storages that computing an element reads."""
    cost: int = 0
    """What computing an element costs; reading memory is 1."""
    depth: int = 0
    form: Affine | None = None
    """What is known of an int32 scalar."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def cheap(self) -> bool:
        """Whether computing an element again and again is as good as storing it."""
        return self.cost <= 4


@dataclass(eq=False)
class Stored(Tile):
    """A tile in a storage of its own; `place(block, index)` is the offset of an element there."""

    storage: Any = None
    place: Any = None


@dataclass(eq=False)
class Memory:
    """The state of a `tilejax.memory`."""

    stored: Stored


def stored(
    storage: Storage,
    shape: Sequence[int],
    place: Callable[[Block, Index], str] | None = None,
    layout: Hashable = "flat",
) -> Stored:
    """The tile in `storage`, row-major unless `place` says otherwise; `layout` names the place then."""
    shape = tuple(shape)

    def offset(block: Block, index: Index) -> str:
        return place(block, index) if place else block.flatten(index, shape, wide=math.prod(shape) >= 2**31)

    def element(block: Block, index: Index) -> str:
        owner = layout if block.owns(index, shape) else None
        return block.read(storage, offset(block, index), owner)

    return Stored(shape, storage.dtype, element, frozenset([storage]), 1, storage=storage, place=offset)


def text_of(scalar: Tile) -> str:
    """The literal or the name that a scalar is in a kernel, where each is one."""
    nowhere: Any = None
    return scalar.element(nowhere, ())


def constant(text: str, dtype: Any, form: Affine | None = None) -> Tile:
    """A scalar that is a literal or the name of a variable."""
    return Tile((), np.dtype(dtype), lambda block, index: text, form=form)
