"""The blocks of products that are cut anew: what was fastest on an H200."""

from __future__ import annotations

from dataclasses import dataclass

from .device import cores, shared_bytes
from .tiles import padded


@dataclass(frozen=True)
class Blocks:
    """The rows and columns of a program, and how much of the depth a step multiplies."""

    rows: int
    columns: int
    depth: int

    @property
    def warps(self) -> int:
        return 4 if self.rows * self.columns <= 8192 else 8

    def stages(self, itemsize: int) -> int:
        """Three, or four of short numbers; fewer where their loads would not fit."""
        step = (self.rows + self.columns) * self.depth * itemsize
        return max(1, min(4 if itemsize <= 2 else 3, (shared_bytes() - _SPARE) // step))


_SPARE = 24 * 1024
"""Bytes of shared memory that are left to exchanges between threads."""
PIECE = 64
"""How much a step multiplies; twice as much of bytes, and half of float32."""
_MOST = 2**15
"""The elements of the sums of a program."""


def blocks_for(rows: int, columns: int, depth: int, outer: int, itemsize: int, products: int) -> Blocks:
    """The largest blocks of which there are enough to go round; tall ones for few columns, for each program
    loads all that these are multiplied with."""
    tall = [(256, 64)] if columns <= 64 else []
    sizes = [(64, 128)] if itemsize >= 4 else [*tall, (128, 256), (128, 128), (64, 128), (64, 64)]
    sizes = [*(s for s in sizes if s[0] * s[1] * products <= _MOST), (64, 32)]
    height = width = 0
    for size in sizes:
        height, width = (max(16, min(n, padded(m))) for n, m in zip(size, (rows, columns), strict=True))
        if outer * -(-rows // height) * -(-columns // width) >= cores():
            break
    least = 32 if itemsize == 1 else 16
    return Blocks(height, width, max(least, min(PIECE * 2 // itemsize, padded(depth))))
