"""Contractions of float matrices by 8x8 SIMD-group matrices, where the caller asserts that there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from .block import Block
from .evaluate import Frame
from .kernel import Kernel
from .steps import Access
from .storage import Index, Storage, Tile, stored

WIDTH = 32
"""The threads of a SIMD group."""
_SIDE = 8


def takes(kernel: Kernel, params: Mapping[str, Any], tiles: Sequence[Tile], summed: Sequence[int]) -> bool:
    """Whether a contraction is a product of float matrices, in any order of addition, by a whole group."""
    if not kernel.settings.cooperative_matrix or kernel.lanes == 1 or not params["allow_reassociation"]:
        return False
    if any(t.dtype != np.float32 or len(t.shape) != 2 or not t.size for t in tiles) or len(summed) != 1:
        return False
    (k,) = summed
    rows, cols = ({*params[f"{x}_labels"]} - {k} for x in "ab")
    return rows != cols and rows | cols == {*params["acc_labels"]}


def mma(
    frame: Frame,
    labels: Sequence[tuple[int, ...]],
    extents: Mapping[int, int],
    tiles: tuple[Tile, Tile, Tile],
    in_place: Storage | None,
) -> Tile:
    """The result in atoms of 8x8, of which each SIMD group takes its share."""
    kernel = frame.kernel
    assert kernel is not None
    (a, b, acc), (a_labels, b_labels, (m, n)) = tiles, labels
    if m in b_labels:
        (a, a_labels), (b, b_labels) = (b, b_labels), (a, a_labels)
    (k,) = {*a_labels} - {m}
    rows, cols, depth = (_up(extents[x]) for x in (m, n, k))
    exact = acc.shape == (rows, cols)
    if not exact:
        in_place = None
    total = in_place or kernel.allocate(np.float32, rows * cols, frame)

    def place(block: Block, index: Index) -> str:
        return block.index(f"{index[0]} * {cols}u + {index[1]}")

    result = stored(total, acc.shape, None if exact else place)
    if not in_place:
        with kernel.each(acc.shape) as (block, index):
            block.write(total, result.place(block, index), block.get(acc, index), "flat")
    chunk = min(depth, max(_SIDE, kernel.free_bytes() // (4 * (rows + cols)) // _SIDE * _SIDE))
    left, right = kernel.scratch(acc.dtype, rows * chunk), kernel.scratch(acc.dtype, chunk * cols)
    first = kernel.fresh("k")
    header = f"for (uint {first} = 0; {first} < {depth}u; {first} += {chunk}u)"
    if chunk == depth:
        first = "0u"
    with kernel.loop(header, True) if chunk < depth else nullcontext():
        _fill(kernel, left, (a, a_labels), {m: rows, k: chunk}, k, first)
        _fill(kernel, right, (b, b_labels), {k: chunk, n: cols}, k, first)
        _multiply(kernel, left, right, total, rows, cols, chunk)
    kernel.release(left)
    kernel.release(right)
    return result


def _fill(
    kernel: Kernel,
    storage: Storage,
    matrix: tuple[Tile, Sequence[int]],
    shape: Mapping[int, int],
    contracted: int,
    first: str,
) -> None:
    """Copies a matrix row-major, with the extents of `shape`, its contracted axis from `first` on; 0 beyond
    its own extents."""
    tile, labels = matrix
    extents = dict(zip(labels, tile.shape, strict=True))
    with kernel.each(tuple(shape.values())) as (block, index):
        at = {
            x: i if x != contracted or first == "0u" else block.index(f"{first} + {i}")
            for x, i in zip(shape, index, strict=True)
        }
        tests = [
            f"{at[x]} < {n}u" for x, n in extents.items() if n % (_SIDE if x != contracted else shape[x])
        ]
        source = tuple("0u" if extents[x] == 1 else at[x] for x in labels)
        if tests:
            value = block.variable("float", "0.0f")
            with block.inner(f"if ({' && '.join(tests)})") as inside:
                inside.add(f"{value} = {inside.get(tile, source)};")
        else:
            value = block.get(tile, source)
        block.write(storage, block.flatten(index, tuple(shape.values())), value, "flat")


def _multiply(
    kernel: Kernel, left: Storage, right: Storage, total: Storage, rows: int, cols: int, chunk: int
) -> None:
    """Adds the product of two matrices in threadgroup memory to a third."""
    across = cols // _SIDE
    with kernel.step() as block:
        atom = kernel.fresh("k")
        stop, step = rows // _SIDE * across, kernel.lanes // WIDTH
        with block.inner(f"for (uint {atom} = lane / {WIDTH}u; {atom} < {stop}u; {atom} += {step}u)") as own:
            row = own.index(f"{atom} / {across}u * {_SIDE}u")
            col = own.index(f"{atom} % {across}u * {_SIDE}u")
            here = f"&{_shared(own, total, f'{row} * {cols}u + {col}', writes=True)}, {cols}"
            own.add("simdgroup_float8x8 c, a, b;")
            own.add(f"simdgroup_load(c, {here});")
            with own.count(chunk, 0, _SIDE) as (inner, number):
                inner.add(
                    f"simdgroup_load(a, &{_shared(inner, left, f'{row} * {chunk}u + {number}')}, {chunk});"
                )
                inner.add(
                    f"simdgroup_load(b, &{_shared(inner, right, f'{number} * {cols}u + {col}')}, {cols});"
                )
                inner.add("simdgroup_multiply_accumulate(c, a, b, c);")
            own.add(f"simdgroup_store(c, {here});")


def _shared(block: Block, storage: Storage, offset: str, *, writes: bool = False) -> str:
    """An element of a storage that a whole SIMD group reads from."""
    block.accesses.append(Access(storage, writes, None))
    return block.kernel.place(storage, offset, None)


def _up(n: int) -> int:
    return -(-n // _SIDE) * _SIDE
