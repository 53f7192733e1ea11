"""Random kernels, as source text: what the fuzzer feeds to the compiler and to the interpreter.

A kernel is written top down. A nest picks what it stores, a store asks for an expression of its axes and
dtype, and an expression picks an operation that gives them and asks for operands. So every kernel is well
typed. Its stores are disjoint by construction: a parallel nest splits each view that it writes into one block
a program, and its body stays in its block.

Values stay small integers, so that every order of a sum is exact: of each float value the writer knows a
bound, and tames (clips, or takes the remainder of) what would pass the limit of its dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz_expressions import Axes, Expressions
from tests.fuzz_text import DTYPES, FLOATS, STORED_BOUND, Array, Block, Index, Kernel, Scope, Value


def random_kernel(seed: int) -> Kernel:
    """Any kernel that the language allows, more or less."""
    return _Writer(seed).kernel()


class _Writer(Expressions):
    """Writes kernels, nests and accesses. The last arguments are an index array `I` and a scalar `n`."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.views: list[Array] = []
        self.written: set[str] = set()
        """The views that the outermost nest that is being written stores to."""

    def kernel(self) -> Kernel:
        args: dict[str, Any] = {}
        for i in range(self.number(1, 3)):
            name, shape, dtype = f"A{i}", self.some_extents(1, 3), self.pick(DTYPES)
            if i > 0 and self.chance(15):
                self.declare(name, shape, dtype, f"tj.view({self.capture(shape, dtype)})")
            else:
                args[name] = self.array(shape, dtype)
                self.views.append(Array(name, shape, dtype))
        args |= {"I": self.arrays.integers(-3, 10, 8).astype(np.int32), "n": np.int32(self.number(-1, 5))}
        for extent in [1, 1, 1, *self.some_extents(3, 4), *([0] if self.chance(15) else [])]:
            self.axis(extent)
        outputs = [self.output(i) for i in range(self.number(1, 2))]
        for _ in range(self.number(1, 2)):
            written = [v for v in outputs if self.chance(70)] or outputs[:1]
            self.written = {v.name for v in written}
            self.parallel(Scope("tj"), written)
            if self.chance(10):
                source = self.pick(outputs)
                outputs.append(
                    self.declare(self.fresh("U"), source.shape, source.dtype, f"tj.update({source.name})")
                )
        self.emit(f"return {', '.join(v.name for v in outputs)}")
        return self.finish(args)

    def some_extents(self, low: int, high: int) -> tuple[int, ...]:
        return tuple(self.pick([1, 2, 3, 4, 5, 6, 7, 8, 8, 11, 12]) for _ in range(self.number(low, high)))

    def declare(self, name: str, shape: tuple[int, ...], dtype: str, text: str) -> Array:
        self.emit(f"{name} = {text}")
        self.views.append(Array(name, shape, dtype))
        return self.views[-1]

    def output(self, number: int) -> Array:
        if self.chance(20):
            source = self.pick(v for v in self.views if v.name.startswith("A"))
            return self.declare(f"O{number}", source.shape, source.dtype, f"tj.update({source.name})")
        shape, dtype = self.some_extents(1, 3), self.pick(DTYPES)
        if self.chance(4):
            shape = (0, *shape[1:])
        init = self.capture(shape, dtype) if self.chance(50) else self.pick([0, 1])
        return self.declare(f"O{number}", shape, dtype, f"tj.output({shape}, {dtype!r}, init={init})")

    # Nests

    def parallel(self, scope: Scope, written: list[Array]) -> None:
        """A parallel nest whose programs store to `written`, each to its own block."""
        extents = [self.pick([2, 3, 1, 4, 5] if i == 0 else [2, 1, 3]) for i in range(self.number(0, 3))]
        if extents and self.chance(4):
            extents[0] = 0
        axes = [self.nest_axis(extent, "g") for extent in extents]
        indices = [Index(f"i_{axis}", extent, False) for axis, extent in zip(axes, extents, strict=True)]
        nest = self.fresh("n")
        body = scope.inside(nest, indices)
        body.own_memories = []
        shares = {v.name: self.split(scope.blocks.get(v.name) or self.whole(v), indices) for v in written}
        body.blocks = {name: blocks for name, blocks in shares.items() if all(b.size for b in blocks)}
        self.emit(f"@{scope.nest}.parallel({', '.join(axes)})")
        self.open(f"def _({nest}):")
        for axis, index in zip(axes, indices, strict=True):
            self.emit(f"{index.name} = {nest}.index({axis})")
        self.statements(body)
        self.close()

    def whole(self, view: Array) -> list[Block]:
        """The view and perhaps some more around it."""
        margins = [(self.pick([0, 0, 0, 0, 1, 2]), self.pick([0, 0, 0, 1, 3])) for _ in view.shape]
        return [
            Block(f"{-a}", a + n + b, a + b == 0, True) for n, (a, b) in zip(view.shape, margins, strict=True)
        ]

    def split(self, blocks: list[Block], indices: list[Index]) -> list[Block]:
        """One program's share: every index divides one dimension. The first to do so may leave the view."""
        blocks = list(blocks)
        for index in indices:
            dim = self.number(0, len(blocks) - 1)
            block, programs = blocks[dim], max(index.extent, 1)
            share = block.size // programs
            if block.is_whole and self.chance(70):
                share = -(-block.size // programs)
            place = f"({index.extent - 1} - {index.name})" if self.chance(15) else index.name
            is_inside = block.is_inside and share * programs <= block.size
            blocks[dim] = Block(f"{block.base} + {place} * {share}", share, is_inside)
        return blocks

    def loop_header(self, scope: Scope, carry: str | None) -> tuple[list[Index], bool]:
        is_pipeline = self.chance(50)
        extents = [self.pick([2, 3, 1, 4, 5, 0])] + ([self.pick([2, 1])] if self.chance(15) else [])
        axes = [self.nest_axis(extent, "s") for extent in extents]
        options = [] if carry is None else [f"carry={carry}"]
        if is_pipeline:
            options += [f"window={self.number(1, 3)}"] if self.chance(30) else []
            options += ["interval=2"] if self.chance(10) else []
        if len(axes) == 1 and self.chance(35):
            options += [f"start={self.loop_bound(scope, extents[0])}"] if self.chance(40) else []
            options += [f"stop={self.loop_bound(scope, extents[0])}"]
        kind = "pipeline" if is_pipeline else "serial"
        self.emit(f"@{scope.nest}.{kind}({', '.join([*axes, *options])})")
        return [Index(f"i_{a}", extent, True) for a, extent in zip(axes, extents, strict=True)], is_pipeline

    def loop_bound(self, scope: Scope, extent: int) -> str:
        """A `start` or `stop`, which may lie outside the axis."""
        options = [str(self.number(-1, extent + 1)), "n", f"entry(I, {self.number(0, 7)})"]
        options += [f"{i.name} + {self.number(0, 2)}" for i in scope.indices]
        options += [f"entry(I, {i.name})" for i in scope.indices]
        return self.pick(options + self.scalars(scope))

    def statements(self, scope: Scope) -> None:
        """The body of a nest. One that has no block to store to computes for nothing."""
        for _ in range(self.number(1, 3)):
            if scope.is_pipeline and self.chance(20):
                self.emit(f'{scope.nest}.stage("{self.fresh("stage")}")')
            kinds = [self.store] * 5 + [self.store_element] if scope.blocks else [self.value]
            kinds += [self.memory]
            kinds += [self.store_memory] * 2 if scope.own_memories else []
            kinds += [self.loop] * 2 if scope.depth < 4 and scope.points < 100 else []
            kinds += [self.sub_programs] if scope.depth < 3 and scope.points < 100 else []
            self.pick(kinds)(scope)

    def loop(self, scope: Scope) -> None:
        """A loop without a carry: it stores."""
        indices, is_pipeline = self.loop_header(scope, None)
        step = self.fresh("n")
        self.open(f"def _({step}):")
        self.statements(self.enter(scope, step, indices, is_pipeline))
        self.close()

    def sub_programs(self, scope: Scope) -> None:
        self.parallel(scope, [v for v in self.views if v.name in scope.blocks])

    def value(self, scope: Scope) -> None:
        self.expression(scope, self.some(self.extents)[:2], self.pick(DTYPES), 1)

    def memory(self, scope: Scope) -> None:
        """Declares a memory, in this order of its elements or in another, and stores to it."""
        axes = self.shuffled(self.some(self.extents)[:3])
        dtype = self.pick(DTYPES)
        layout = self.shape(axes)
        if self.chance(40):
            layout = f"tj.IndexMap.permute({layout}, {self.shuffled(range(len(axes)))})"
        name = self.fresh("m")
        self.emit(f"{name} = tj.memory({layout}, {dtype!r})")
        memory = Value(name, axes, dtype, STORED_BOUND)
        scope.own_memories.append(memory)
        self.fill(scope, memory)
        scope.memories.append(memory)

    def store_memory(self, scope: Scope) -> None:
        self.fill(scope, self.pick(scope.own_memories))

    def fill(self, scope: Scope, memory: Value) -> None:
        value = self.tame(self.expression(scope, memory.axes, memory.dtype, self.number(1, 2)), memory.bound)
        self.emit(f"{memory.name}.store({value.name})")

    # Access

    def tile_axes(self, room: list[int], wanted: Axes) -> Axes:
        """A different tile axis for each dimension, of at most that room; rather one of the wanted."""
        chosen: list[str] = []
        for extent in room:
            fits = [a for a in self.extents if self.extents[a] <= extent and a not in chosen]
            wishes = [a for a in fits if a in wanted]
            long = [a for a in fits if self.extents[a] > 1]
            chosen.append(
                self.pick(next(p for p in (wishes, long, fits) if p and (p is fits or self.chance(80))))
            )
        return tuple(chosen)

    def inside(self, scope: Scope, blocks: list[Block], axes: Axes | None) -> str:
        """A coord such that the tile is in the block, whatever the step; an element without `axes`."""
        starts = []
        for dim, block in enumerate(blocks):
            extent = self.extents[axes[dim]] if axes else 1
            terms, free = [block.base], block.size - extent
            for index in scope.indices:
                last = index.extent - 1
                if index.is_step and 0 < last <= free and self.chance(60):
                    most = free // last
                    stride = self.pick(sorted({1, min(max(extent, 1), most), most}))
                    place = f"({last} - {index.name})" if self.chance(15) else index.name
                    terms.append(f"{place} * {stride}")
                    free -= last * stride
            if free and self.chance(50):
                terms.append(str(self.number(0, free)))
            starts.append(" + ".join(terms))
        return ", ".join(starts)

    def anywhere(self, scope: Scope, extent: int, length: int) -> tuple[str, bool]:
        """A start for a tile in a dimension of `length`, and whether the tile is surely inside.

        Often it follows a block that the program stores to."""
        if scope.blocks and self.chance(35):
            block = self.pick(b for blocks in scope.blocks.values() for b in blocks)
            steps = [f" + {i.name} * {extent}" for i in scope.indices if i.is_step and self.chance(40)]
            return f"{block.base} + {self.pick([0, 0, 0, 1, -1, 2])}{''.join(steps)}", False
        for _ in range(6):
            terms, low, high = self.affine(scope, extent, length)
            if low > -2 and high + extent < length + 3:
                break
        is_affine = not self.chance(20)
        if not is_affine:
            options = [f"entry(I, {self.number(0, 7)})", "n"]
            for index in scope.indices:
                options += [f"entry(I, {index.name})", f"{index.name} // 2", f"{index.name} % 2 * {extent}"]
            terms.append(self.pick(options + self.scalars(scope)))
        return " + ".join(terms), is_affine and low >= 0 and high + extent <= length

    def affine(self, scope: Scope, extent: int, length: int) -> tuple[list[str], int, int]:
        """The terms of a sum of multiples of the indices, its least and its greatest value."""
        low = high = self.pick([0, 0, 0, 1, 2, -1, -2, length - extent, length])
        terms = [str(low)]
        for index in scope.indices:
            if self.chance(45):
                stride = self.pick([extent, extent, 1, 2, extent + 1, -1, -extent])
                terms.append(f"{index.name} * {stride}")
                end = stride * max(index.extent - 1, 0)
                low, high = low + min(0, end), high + max(0, end)
        return terms, low, high

    def scalars(self, scope: Scope) -> list[str]:
        return [v.name for v in scope.values if not v.axes and v.dtype == "int32"]

    def load(self, scope: Scope, axes: Axes, dtype: str) -> Value:
        """A view that the nest writes is read inside the program's own block, others anywhere."""
        views = [v for v in self.views if v.name not in self.written or v.name in scope.blocks]
        alike = [v for v in views if v.dtype == dtype]
        view = self.pick(alike if alike and self.chance(60) else views)
        dtype = view.dtype
        blocks = scope.blocks.get(view.name)
        room = [block.size for block in blocks] if blocks else [extent + 2 for extent in view.shape]
        chosen = self.tile_axes(room, axes)
        if blocks:
            origin, is_inside = self.inside(scope, blocks, chosen), all(block.is_inside for block in blocks)
        else:
            places = zip(chosen, view.shape, strict=True)
            starts = [self.anywhere(scope, self.extents[axis], length) for axis, length in places]
            origin, is_inside = ", ".join(text for text, _ in starts), all(sure for _, sure in starts)
        where = f"tj.coord({origin}), {self.shape(chosen)}"
        if is_inside and self.chance(50):
            text = f"{view.name}[{where}, tj.Bounds.ASSUME]"
        elif self.chance(25):
            text = f"{view.name}({where}).load({self.fallback(dtype)})"
        else:
            text = f"{view.name}[{where}]"
        value = self.let(text, chosen, dtype, STORED_BOUND)
        return self.remove(value, tuple(a for a in chosen if a not in axes))

    def load_element(self, scope: Scope) -> Value:
        view = self.pick(v for v in self.views if v.name not in self.written or v.name in scope.blocks)
        if view.name in scope.blocks:
            origin = self.inside(scope, scope.blocks[view.name], None)
        else:
            origin = ", ".join(self.anywhere(scope, 1, length)[0] for length in view.shape)
        condition = f", where={self.expression(scope, (), 'bool', 1).name}" if self.chance(50) else ""
        text = f"tj.lowlevel.load({view.name}, {origin}{condition}, fallback={self.fallback(view.dtype)})"
        return self.let(text, (), view.dtype, STORED_BOUND)

    def fallback(self, dtype: str) -> str:
        if dtype in FLOATS and self.special:
            return self.pick(['float("-inf")', 'float("nan")', "3"])
        return self.pick(["0", "1"] if dtype == "bool" else ["1", "3", "7"])

    def store(self, scope: Scope) -> None:
        view = self.pick(v for v in self.views if v.name in scope.blocks)
        blocks = scope.blocks[view.name]
        if self.chance(60) and max(block.size for block in blocks) <= 8:
            chosen = tuple(self.axis(block.size) for block in blocks)
        else:
            chosen = self.tile_axes([block.size for block in blocks], ())
        narrow = {"float32": "bfloat16", "int32": "int8"}
        dtype = narrow[view.dtype] if view.dtype in narrow and self.chance(10) else view.dtype
        value = self.expression(scope, chosen, dtype, self.number(1, 3))
        value = self.tame(value, STORED_BOUND)
        origin = self.inside(scope, blocks, chosen)
        bounds = ", tj.Bounds.ASSUME" if all(block.is_inside for block in blocks) and self.chance(50) else ""
        self.emit(f"{view.name}(tj.coord({origin}), {self.shape(chosen)}{bounds}).store({value.name})")

    def store_element(self, scope: Scope) -> None:
        view = self.pick(v for v in self.views if v.name in scope.blocks)
        value = self.tame(self.expression(scope, (), view.dtype, 2), STORED_BOUND)
        where = f", where={self.expression(scope, (), 'bool', 1).name}" if self.chance(50) else ""
        origin = self.inside(scope, scope.blocks[view.name], None)
        self.emit(f"tj.lowlevel.store({view.name}, {value.name}, {origin}{where})")
