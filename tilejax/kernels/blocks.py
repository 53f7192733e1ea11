"""How the kernels cut an array into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

import tilejax as tj

Size = int | None
"""A block size; `None` lets the kernel choose."""


@dataclass(frozen=True)
class Blocks:
    """An array cut into equal blocks; the last one of a dimension may be ragged.

    `axes` are those of one block. `cuts` has, for each dimension, the axis that counts its blocks, or
    `None` where a block spans the dimension. A slice is the same cut of fewer dimensions (or, reversed, of
    the transposed array), so `block[:-1]` places what a reduction over the last dimension leaves.
    """

    axes: tuple[tj.Axis, ...]
    cuts: tuple[tj.Axis | None, ...]

    def __getitem__(self, dims: slice) -> Blocks:
        return Blocks(self.axes[dims], self.cuts[dims])

    @property
    def grid(self) -> tuple[tj.Axis, ...]:
        """The axes to run over; one program when nothing is cut."""
        return tuple(cut for cut in self.cuts if cut is not None) or (tj.axis("whole", 1),)

    def at(self, nest: tj.Nest) -> tuple[Any, Any]:
        """`(origin, shape)` of the block that `nest` is at: `x[block.at(nest)]` loads it."""
        starts = (
            0 if cut is None else nest.index(cut) * axis.extent
            for axis, cut in zip(self.axes, self.cuts, strict=True)
        )
        return tj.coord(*starts), tj.shape(*self.axes)


def cut(extents: tuple[int, ...], sizes: tuple[Size, ...]) -> Blocks:
    """Blocks of `sizes`; `None` spans the dimension.

    A block of an empty dimension has one element, which is outside: a maximum over it is defined.
    """
    names = ("rows", "columns")[-len(extents) :]
    names = tuple(f"dim{i}" for i in range(len(extents) - len(names))) + names
    return Blocks(
        tuple(
            tj.axis(name, max(extent, 1) if size is None else size)
            for name, extent, size in zip(names, extents, sizes, strict=True)
        ),
        tuple(
            None if size is None else tj.axis(f"{name}_blocks", tj.cdiv(extent, size))
            for name, extent, size in zip(names, extents, sizes, strict=True)
        ),
    )


def tiles(x: tj.TensorView, block_rows: Size, block_cols: Size, *, columns: int = 1024) -> Blocks:
    """Blocks of the last two dimensions, by default of at most 4096 elements and `columns` wide."""
    width = block_size("block_cols", block_cols, columns, x.shape[-1])
    sizes = [width]
    if x.ndim > 1:
        sizes.insert(0, block_size("block_rows", block_rows, _power_of_two(4096 // width), x.shape[-2]))
    return cut(x.shape, (1,) * (x.ndim - 2) + tuple(sizes))


def whole_rows(x: tj.TensorView, block_rows: Size) -> Blocks:
    """Blocks of whole rows: several short rows, or one that is long. No tail of a row needs a mask."""
    if x.ndim == 1:
        return cut(x.shape, (None,))
    few = _power_of_two(1024 // max(x.shape[-1], 1))
    height = block_size("block_rows", block_rows, few, x.shape[-2])
    return cut(x.shape, (1,) * (x.ndim - 2) + (height, None))


def block_size(name: str, given: Size, default: int, extent: int) -> int:
    """`given`, or `default` but no more than `extent`: a small array is one exact block."""
    if given is None:
        return max(1, min(default, extent))
    if given < 1:
        raise tj.AxisError(f"{name} must be at least 1, got {given}")
    return given


def on_gpu() -> bool:
    """Whether blocks must fit a GPU's registers, that of the mesh in use if it has an abstract device, else
    the default device; on other platforms larger ones are better."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    device = jax.sharding.get_abstract_mesh().abstract_device or default
    if device is None:
        return jax.default_backend() == "gpu"
    return (device if isinstance(device, str) else device.platform) in ("gpu", "cuda", "rocm")


def _power_of_two(n: int) -> int:
    return 1 << max(n.bit_length() - 1, 0)
