"""The blocks of products that are cut anew: what was fastest on an H200."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .device import cores, room_for_loads
from .products import least_depth
from .tiles import padded


@dataclass(frozen=True)
class Blocks:
    """The rows and columns of a program, and how much of the depth a step multiplies."""

    rows: int
    columns: int
    depth: int

    @property
    def warps(self) -> int:
        return 4 if self._small else 8

    def stages(self, itemsize: int) -> int:
        """Three, so that a multiprocessor has room for several programs; four for the largest, which is alone
        there, if their loads fit."""
        step = (self.rows + self.columns) * self.depth * itemsize
        return max(1, min(3 if self._small else 4, room_for_loads() // step))

    @property
    def _small(self) -> bool:
        return self.rows * self.columns <= 128 * 128


PIECE = 64
"""How much a step multiplies; twice as much of bytes, and half of float32."""
_MOST = 2**15
"""The elements of the sums of a program."""


def blocks_for(rows: int, columns: int, depth: int, outer: int, itemsizes: Sequence[int]) -> Blocks:
    """The largest blocks of which there are enough to go round, for products of elements of these sizes."""
    itemsize, products = max(itemsizes), len(itemsizes)
    sizes = [(64, 128)] if itemsize >= 4 else [(128, 256), (128, 128), (64, 128), (64, 64)]
    sizes = [*(s for s in sizes if s[0] * s[1] * products <= _MOST), (64, 32)]
    height = width = 0
    for size in sizes:
        height, width = (max(16, min(n, padded(m))) for n, m in zip(size, (rows, columns), strict=True))
        if outer * -(-rows // height) * -(-columns // width) >= cores():
            break
    least = max(map(least_depth, itemsizes))
    return Blocks(height, width, max(least, min(PIECE * 2 // itemsize, padded(depth))))
