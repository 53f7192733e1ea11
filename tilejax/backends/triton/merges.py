"""Sorts of rows that are longer than a program should hold: a bitonic network whose blocks are in registers,
one after another, and whose wider comparators go through scratch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import bitonic
from .pairs import Pairs
from .scratch import Scratch
from .tiles import full

BLOCK = 4096
"""The elements of a block: rows of no more are sorted in registers."""


def sort(scratch: Scratch, pairs: Pairs, rows: int, n: int) -> None:
    """Sorts rows of `n` pairs in scratch memory, of which the first `pairs.count` have been stored; `rows`
    and `n` are powers of two."""
    block = min(BLOCK, n)

    def places(start: Any) -> Any:
        return start + lax.iota(np.int32, block)

    def load(start: Any) -> list[Any]:
        return pairs.pack(*scratch.load(places(start)))

    def store(start: Any, arrays: Any) -> None:
        scratch.barrier()  # other threads may still be loading what these overwrite
        scratch.store(places(start), *pairs.split(arrays))

    def every(width: int, step: Callable[[Any], None]) -> None:
        """`step` at each multiple of a width, once all have stored what it may load."""

        def one(i: Any, carry: Any) -> Any:
            step(lax.convert_element_type(i, np.int32) * np.int32(width))
            return carry

        scratch.barrier()
        lax.fori_loop(0, rows * n // width, one, np.int32(0))

    def block_at(start: Any) -> None:
        place = places(start)
        own = (place & np.int32(n - 1)) < np.int32(pairs.count)
        arrays = pairs.pack(*scratch.load(place, own))
        arrays = _turned(arrays, start & np.int32(block & (n - 1)))
        arrays = bitonic.ordered(arrays, block)
        store(start, _turned(arrays, start & np.int32(block & (n - 1))))

    def level(i: Any, carry: Any) -> Any:
        """Blocks of half the size, up and down in turn, become blocks of the whole."""
        size = np.int32(block) << (lax.convert_element_type(i, np.int32) + np.int32(1))

        def exchange(j: Any, carry: Any) -> Any:
            distance = size >> (lax.convert_element_type(j, np.int32) + np.int32(1))

            def two(start: Any) -> None:
                start = lax.div(start, np.int32(2))
                low = start + (start & -distance)
                a, b = load(low), load(low + distance)
                swap = bitonic.after(a, b) == ((low & np.int32(n - 1) & size) == 0)
                store(low, [jnp.where(swap, y, x) for x, y in zip(a, b, strict=True)])
                store(low + distance, [jnp.where(swap, x, y) for x, y in zip(a, b, strict=True)])

            every(2 * block, two)
            return carry

        def merge(start: Any) -> None:
            down = start & np.int32(n - 1) & size
            store(start, _turned(bitonic.merge(_turned(load(start), down), block), down))

        lax.fori_loop(0, i + 1, exchange, np.int32(0))
        every(block, merge)
        return carry

    every(block, block_at)
    lax.fori_loop(0, (n // block).bit_length() - 1, level, np.int32(0))
    scratch.barrier()


def _turned(arrays: list[Any], down: Any) -> list[Any]:
    """Arrays in the opposite order where `down` is not 0: its own inverse."""

    def turn(x: Any) -> Any:
        ones = full(x.shape, -1, x.dtype)
        return x ^ jnp.where(down != 0, ones, full(x.shape, 0, x.dtype))

    return [turn(x) for x in arrays]
