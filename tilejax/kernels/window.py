"""A part of a view that kernels store to as if it were all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import tilejax as tj


@dataclass(frozen=True)
class Window:
    """The part of the writable `view` that starts at `start` and has `shape`, as the `out` of a kernel body.

        big = tj.update(array)
        norms.softmax(x, out=Window(big, (3, 5), x.shape))

    Stores outside of the window are dropped, as those outside of a view are. A ragged block reaches past
    the end of the window into the rest of the view, so a store keeps what it finds there.
    """

    view: tj.TensorView
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.view.dtype

    @property
    def ndim(self) -> int:
        return self.view.ndim

    def __call__(self, origin: Any, shape: Any) -> _WindowRef:
        return _WindowRef(self, tuple(origin), shape)


@dataclass(frozen=True)
class _WindowRef:
    window: Window
    origin: tuple[Any, ...]
    shape: Any

    def store(self, tile: Any) -> None:
        window = self.window
        inside = True
        for axis, start, extent in zip(self.shape, self.origin, window.shape, strict=True):
            index = tj.iota(axis) + start
            inside = inside & (index >= 0) & (index < extent)
        there = tj.coord(*(start + first for start, first in zip(self.origin, window.start, strict=True)))
        ref = window.view(there, self.shape)
        ref.store(tj.where(inside, tile, ref.load()))


View: TypeAlias = "tj.TensorView | Window"
"""What a kernel body stores to."""


def destination(out: View | None, shape: tuple[int, ...], dtype: Any) -> View:
    """`out` if the caller has a place for the result, else a new output."""
    return tj.output(shape, dtype) if out is None else out
