"""Statements of one thread, and the names of what they compute."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .steps import Access, indent
from .storage import Index, Storage, Tile
from .types import type_of

if TYPE_CHECKING:
    from .kernel import Kernel

_ATOM = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\(?-?\d[\w.]*\)?")


class Block:
    """A list of lines in one scope. What was computed in it or around it is not computed again."""

    def __init__(self, kernel: Kernel, accesses: list[Access], parent: Block | None = None):
        self.kernel, self.accesses, self.parent = kernel, accesses, parent
        self.lines: list[str] = []
        self._known: dict[Hashable, str] = {}
        self._flats: dict[Hashable, str] = {}
        self.owner: str | None = parent.owner if parent else None
        """The number that says which thread runs this: the element that a loop over all of them is at."""

    def get(self, tile: Tile, index: Index) -> str:
        """The text of an element."""
        key = (tile, index)
        text = self._look(key)
        if text is None:
            text = self._known[key] = tile.element(self, index)
        return text

    def define(self, type_name: str, expression: str) -> str:
        """A name for an expression, unless it is as short as one."""
        if _ATOM.fullmatch(expression):
            return expression
        key = (type_name, expression)
        name = self._look(key)
        if name is None:
            name = self._known[key] = self.kernel.fresh("j" if type_name == "uint" else "v")
            self.lines.append(f"const {type_name} {name} = {expression};")
        return name

    def variable(self, type_name: str, value: str) -> str:
        """A new variable that may be assigned to."""
        name = self.kernel.fresh("s")
        self.lines.append(f"{type_name} {name} = {value};")
        return name

    def add(self, line: str) -> None:
        self.lines.append(line)

    @contextmanager
    def inner(self, header: str) -> Iterator[Block]:
        """A scope inside, as `if` and `for` have."""
        block = Block(self.kernel, self.accesses, self)
        yield block
        self.lines += [f"{header} {{", *indent(block.lines), "}"]

    @contextmanager
    def count(self, stop: Any, start: Any = 0, step: int = 1) -> Iterator[tuple[Block, str]]:
        """A loop of one thread over `range(start, stop, step)`: its scope and its index."""
        name = self.kernel.fresh("k")
        begin, end = (x if isinstance(x, str) else f"{x}u" for x in (start, stop))
        advance = f"++{name}" if step == 1 else f"{name} += {step}u"
        with self.inner(f"for (uint {name} = {begin}; {name} < {end}; {advance})") as block:
            yield block, name

    @contextmanager
    def elements(self, shape: Sequence[int]) -> Iterator[tuple[Block, Index]]:
        """Each thread's share of the elements of `shape`: the scope of one, and its index. How many it takes
        is a constant, so that what it keeps of them lies in registers once the loop is unrolled."""
        kernel, size, before = self.kernel, math.prod(shape), len(self.accesses)
        block = Block(kernel, self.accesses, self)
        flat = block.owner = "lane" if size <= kernel.lanes > 1 else kernel.fresh("i")
        if size > kernel.lanes > 1:
            kernel.turns[flat] = kernel.fresh("q")
        index = block.unravel(flat, shape)
        yield block, index
        if not size or not block.lines:
            del self.accesses[before:]
            return
        lines = block.lines
        if kernel.lanes == 1:
            header = f"for (uint {flat} = 0; {flat} < {size}u; ++{flat})"
        elif size <= kernel.lanes:
            header = f"if (lane < {size}u)" if size < kernel.lanes else ""
        else:
            turn, count = kernel.turns[flat], -(-size // kernel.lanes)
            if size % kernel.lanes:
                lines = [f"if ({flat} < {size}u) {{", *indent(lines), "}"]
            lines = [f"const uint {flat} = {turn} * {kernel.lanes}u + lane;", *lines]
            header = f"for (uint {turn} = 0; {turn} < {count}u; ++{turn})"
            if any(a.storage.striped for a in self.accesses[before:]):
                self.lines.append("#pragma clang loop unroll(full)")
        self.lines += [f"{header} {{".lstrip(), *indent(lines), "}"]

    def read(self, storage: Storage, offset: str, owner: Hashable, inside: str = "", other: str = "") -> str:
        """An element of a storage; `other` unless `inside`, if there is such a condition."""
        self.accesses.append(Access(storage, False, owner))
        text = self.kernel.place(storage, offset, owner)
        text = f"{inside} ? {text} : {other}" if inside else text
        return self.define(type_of(storage.dtype), text)

    def write(self, storage: Storage, offset: str, value: str, owner: Hashable) -> None:
        self.accesses.append(Access(storage, True, owner))
        self.lines.append(f"{self.kernel.place(storage, offset, owner)} = {value};")

    # Indices

    def index(self, expression: str) -> str:
        return self.define("uint", expression)

    def unravel(self, flat: str, extents: Sequence[int]) -> Index:
        """The indices of an element by its number in row-major order."""
        index, total = [], math.prod(extents)
        stride = total
        for n in extents:
            stride //= max(n, 1)
            if n == 1:
                index.append("0u")
                continue
            text = flat if stride == 1 else f"{flat} / {stride}u"
            if n * stride < total:
                text = f"{_operand(text)} % {n}u"
            index.append(self.index(text))
        self._flats[_canonical(index, extents)] = flat
        return tuple(index)

    def flatten(self, index: Index, extents: Sequence[int], wide: bool = False) -> str:
        """The number of an element in row-major order; 64 bits if `wide`."""
        known = self._flat(index, extents)
        if known is not None:
            return known
        text = ""
        for i, n in zip(index, extents, strict=True):
            if text in ("", "0u"):
                text = f"ulong({i})" if wide and i != "0u" else i
            else:
                text = f"{_operand(text)} * {n}u" if n != 1 else text
                text = text if i == "0u" else f"{text} + {_operand(i)}"
        return self.define("ulong", text) if wide and text not in ("", "0u") else self.index(text or "0u")

    def owns(self, index: Index, extents: Sequence[int]) -> bool:
        """Whether the element is the one that this thread's loop over all elements is at."""
        return self.owner is not None and self._flat(index, extents) == self.owner

    def _flat(self, index: Index, extents: Sequence[int]) -> str | None:
        key, block = _canonical(index, extents), self
        while block is not None:
            if key in block._flats:
                return block._flats[key]
            block = block.parent
        return None

    def _look(self, key: Hashable) -> str | None:
        block: Block | None = self
        while block is not None:
            if key in block._known:
                return block._known[key]
            block = block.parent
        return None


def _canonical(index: Sequence[str], extents: Sequence[int]) -> Hashable:
    return tuple((i, n) for i, n in zip(index, extents, strict=True) if n != 1)


def _operand(text: str) -> str:
    return text if _ATOM.fullmatch(text) or (" + " not in text and " - " not in text) else f"({text})"
