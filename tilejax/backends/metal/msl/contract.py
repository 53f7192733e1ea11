"""Contractions: a thread adds up the products of its elements of the result in ascending order, from copies
of the operands in threadgroup memory, a chunk of the contracted axis after another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import simdgroup
from .block import Block
from .elementwise import arithmetic
from .evaluate import Frame, rule
from .kernel import Kernel
from .storage import Index, Storage, Stored, Tile, stored
from .types import accumulator, convert, type_of


@dataclass(frozen=True)
class Operand:
    tile: Tile
    labels: tuple[int, ...]
    reuse: int
    """How many products each element is in."""

    def index(self, at: Mapping[int, str]) -> Index:
        return tuple("0u" if n == 1 else at[x] for x, n in zip(self.labels, self.tile.shape, strict=True))


@rule("tile_mma")
def _mma(frame: Frame, eqn: Any, a: Tile, b: Tile, acc: Tile) -> Tile:
    kernel, params = frame.kernel, eqn.params
    assert kernel is not None
    labels = [params[f"{name}_labels"] for name in ("a", "b", "acc")]
    extents = {
        x: n
        for own, tile in zip(labels, (a, b, acc), strict=True)
        for x, n in zip(own, tile.shape, strict=True)
    }
    summed = [x for x in labels[0] if x in labels[1] and x not in labels[2]]
    if not acc.size:
        return acc
    in_place = frame.dying(acc, [a, b])
    if simdgroup.takes(kernel, params, [a, b, acc], summed):
        return simdgroup.mma(frame, labels, extents, (a, b, acc), in_place)
    reuse = [math.prod(extents[x] for x in labels[2] if x not in own) for own in labels[:2]]
    operands = [Operand(t, own, r) for t, own, r in zip((a, b), labels, reuse, strict=False)]
    ordered = not params["allow_reassociation"]
    return _Sum(
        frame, operands, labels[2], extents, summed, acc.dtype if ordered else accumulator(acc.dtype)
    ).run(acc, in_place)


@dataclass
class _Sum:
    frame: Frame
    operands: list[Operand]
    labels: tuple[int, ...]
    extents: dict[int, int]
    summed: list[int]
    wide: np.dtype
    """What is added up in."""

    def run(self, acc: Tile, in_place: Storage | None) -> Tile:
        kernel = self.frame.kernel
        assert kernel is not None
        staged = [o.reuse > 1 and kernel.lanes > 1 and not _on_chip(o.tile) for o in self.operands]
        chunk = self._chunk(kernel, staged)
        if not chunk:
            staged = [False, False]
        self.operands = [
            Operand(self.frame.often(o.tile), o.labels, o.reuse) if o.reuse > 1 and not s else o
            for o, s in zip(self.operands, staged, strict=True)
        ]
        whole = not any(staged) or chunk == self.extents[self.summed[0]]
        storage = in_place or kernel.allocate(acc.dtype, acc.size, self.frame)
        if self._spread(kernel, storage, acc) and not in_place:
            acc = kernel.keep(acc, storage)
            in_place = storage
        if whole:
            with self._stage(kernel, staged, "", 0) as operands:
                self._add(kernel, acc, storage, operands, "")
            return stored(storage, acc.shape)
        total = acc if in_place else kernel.keep(acc, storage)
        first, length = kernel.fresh("k"), self.extents[self.summed[0]]
        with (
            kernel.loop(f"for (uint {first} = 0; {first} < {length}u; {first} += {chunk}u)", True),
            self._stage(kernel, staged, first, chunk) as operands,
        ):
            self._add(kernel, total, storage, operands, first, chunk)
        return stored(storage, acc.shape)

    def _chunk(self, kernel: Kernel, staged: Sequence[bool]) -> int:
        """How much of the first contracted axis is in threadgroup memory at once: a power of two, or all."""
        if not self.summed or not any(staged):
            return 0
        length = self.extents[self.summed[0]]
        row = sum(
            o.tile.size * o.tile.dtype.itemsize for o, s in zip(self.operands, staged, strict=True) if s
        )
        fits = kernel.free_bytes() // 2 * length // max(row, 1)
        return length if fits >= length else 1 << fits.bit_length() - 1 if fits else 0

    @contextmanager
    def _stage(
        self, kernel: Kernel, staged: Sequence[bool], first: str, chunk: int
    ) -> Iterator[list[Operand]]:
        """The operands, those that are staged with `chunk` elements from `first` on (all, if that is "")."""
        out, storages = [], []
        for operand, copied in zip(self.operands, staged, strict=True):
            if copied:
                stage, storage = _copy(kernel, operand, self.summed[0] if first else None, first, chunk)
                out.append(stage)
                storages.append(storage)
            else:
                out.append(operand)
        yield out
        for storage in storages:
            kernel.release(storage)

    def _add(
        self,
        kernel: Kernel,
        acc: Tile,
        storage: Storage,
        operands: Sequence[Operand],
        first: str,
        chunk: int = 0,
    ) -> None:
        """Adds the products of the operands, which begin at `first` of the contracted axis, to `acc`."""
        shape, kind = acc.shape, type_of(self.wide)
        if self._spread(kernel, storage, acc):
            # The contracted loops outside: what a thread's elements have in common is read once for all.
            with (
                kernel.step(scoped=False) as block,
                self._loops(block, first, chunk) as (inner, summed),
                inner.elements(shape) as (one, index),
            ):
                product = self._product(one, operands, summed | self._at(index), first)
                total = arithmetic("add", self.wide, one.get(acc, index), product)
                one.write(storage, one.flatten(index, shape), total, "flat")
            return
        with kernel.each(shape) as (block, index):
            total = block.variable(kind, convert(block.get(acc, index), acc.dtype, self.wide))
            with self._loops(block, first, chunk) as (inner, summed):
                product = self._product(inner, operands, summed | self._at(index), first)
                inner.add(f"{total} = {arithmetic('add', self.wide, total, product)};")
            block.write(storage, block.flatten(index, shape), convert(total, self.wide, acc.dtype), "flat")

    def _spread(self, kernel: Kernel, storage: Storage, acc: Tile) -> bool:
        """Whether each thread keeps several elements of the result in registers."""
        return storage.striped and acc.size > kernel.lanes and acc.dtype == self.wide

    def _at(self, index: Index) -> dict[int, str]:
        return dict(zip(self.labels, index, strict=True))

    @contextmanager
    def _loops(self, block: Block, first: str, chunk: int) -> Iterator[tuple[Block, dict[int, str]]]:
        """The loops of one thread over the contracted axes: the innermost scope, and the indices."""
        with ExitStack() as loops:
            at = {}
            for x in self.summed:
                stop: Any = self.extents[x]
                if first and x == self.summed[0]:
                    stop = f"min({chunk}u, {stop}u - {first})" if stop % chunk else chunk
                block, at[x] = loops.enter_context(block.count(stop))
            yield block, at

    def _product(self, block: Block, operands: Sequence[Operand], at: dict[int, str], first: str) -> str:
        texts = []
        for own, operand in zip(self.operands, operands, strict=True):
            here = dict(at)
            if first and own is operand and self.summed[0] in own.labels:  # it is not staged
                here[self.summed[0]] = block.index(f"{first} + {at[self.summed[0]]}")
            value = block.get(operand.tile, operand.index(here))
            texts.append(convert(value, operand.tile.dtype, self.wide))
        return arithmetic("mul", self.wide, *texts)


def _on_chip(tile: Tile) -> bool:
    return isinstance(tile, Stored) and tile.storage.space == "threadgroup"


def _copy(
    kernel: Kernel, operand: Operand, label: int | None, first: str, chunk: int
) -> tuple[Operand, Storage]:
    """A copy of an operand in threadgroup memory, of `chunk` elements of `label` from `first` on."""
    tile, labels = operand.tile, operand.labels
    shape = tuple(chunk if x == label else n for x, n in zip(labels, tile.shape, strict=True))
    storage = kernel.scratch(tile.dtype, math.prod(shape))
    with kernel.each(shape) as (block, index):
        where, test = list(index), ""
        if label in labels:
            d = labels.index(label)
            where[d] = block.index(first if index[d] == "0u" else f"{first} + {index[d]}")
            test = f"{where[d]} < {tile.shape[d]}u" if tile.shape[d] % chunk else ""
        with block.inner(f"if ({test})") if test else nullcontext(block) as inside:
            value = inside.get(tile, tuple(where))
            inside.write(storage, inside.flatten(index, shape), value, "flat")
    return Operand(stored(storage, shape), labels, operand.reuse), storage
