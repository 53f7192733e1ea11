"""What the random kernels are written with: draws, lines of source, and what is known of each variable."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

import tilejax as tj

T = TypeVar("T")

LIMITS = {"float32": 2**20, "float16": 2**10, "bfloat16": 2**7}
"""Integers up to these are exact, and so are sums of two and halves."""
FLOATS, INTS = tuple(LIMITS), ("int32", "int8", "uint8")
NUMBERS = ("float32", "float32", "float16", "bfloat16", "int32", "int32", "int8", "uint8")
DTYPES = (*NUMBERS, "bool")
STORED_BOUND = 16
"""No finite float in a view is greater: a loop may store to a view and read it again."""


@dataclass(frozen=True)
class Value:
    """A variable of the kernel: a tile, or a scalar. `bound` is a float's greatest finite magnitude."""

    name: str
    axes: tuple[str, ...]
    dtype: str
    bound: int = 0


@dataclass(frozen=True)
class Index:
    """A nest's index: an int32 scalar in `[0, extent)`."""

    name: str
    extent: int
    is_step: bool


@dataclass(frozen=True)
class Block:
    """A program's own part of one dimension of a view: `size` elements from the source text `base` on."""

    base: str
    size: int
    is_inside: bool
    """All of it is in the view."""
    is_whole: bool = False
    """No program but this one has any of the dimension, inside the view or outside."""


@dataclass(frozen=True)
class Array:
    """A view."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass
class Scope:
    """What the code at one place can use."""

    nest: str
    indices: list[Index] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    memories: list[Value] = field(default_factory=list)
    """Memories that surely hold something."""
    own_memories: list[Value] = field(default_factory=list)
    """Those of them that belong to this program, and not to one around it."""
    blocks: dict[str, list[Block]] = field(default_factory=dict)
    depth: int = 0
    is_pipeline: bool = False

    @property
    def points(self) -> int:
        """How often the code here runs."""
        return math.prod(max(index.extent, 1) for index in self.indices)

    def inside(self, nest: str, indices: list[Index], is_pipeline: bool = False) -> Scope:
        """The scope of the body of a nest in this one."""
        return replace(
            self,
            nest=nest,
            indices=[*self.indices, *indices],
            values=list(self.values),
            memories=list(self.memories),
            own_memories=list(self.own_memories),
            blocks=dict(self.blocks),
            depth=self.depth + 1,
            is_pipeline=is_pipeline,
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel's source text, the arrays that it is called with, and those that it captures."""

    source: str
    args: tuple[Any, ...]
    captured: dict[str, np.ndarray]

    def function(self) -> Any:
        namespace: dict[str, Any] = {"tj": tj, **self.captured}
        exec(compile(self.source, "<kernel>", "exec"), namespace)
        return namespace["kernel"]

    def __repr__(self) -> str:
        arrays = [f"{a.dtype}{list(a.shape)}" + (f" {a.tolist()}" if a.size < 40 else "") for a in self.args]
        return "\n".join(["", self.source, *arrays])


PRELUDE = '''ONE = tj.axis("one", 1)

def entry(view, i):
    """The scalar view[i]."""
    return tj.reshape(view[tj.coord(i), tj.shape(ONE)], tj.shape())
'''


class Text:
    """Draws, and the lines that came of them."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.arrays = np.random.default_rng(seed)
        self.special = self.chance(25)
        self.captured: dict[str, np.ndarray] = {}
        self.axis_lines: list[str] = []
        self.lines: list[str] = []
        self.extents: dict[str, int] = {}
        """Of every tile axis."""
        self._indent = 1
        self._counter = 0

    def pick(self, options: Iterable[T]) -> T:
        return self.random.choice(list(options))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def some(self, options: Iterable[T]) -> tuple[T, ...]:
        """A part of the options, in their order."""
        return tuple(o for o in options if self.chance(70))

    def shuffled(self, options: Iterable[T]) -> tuple[T, ...]:
        options = list(options)
        return tuple(self.random.sample(options, len(options)))

    def emit(self, line: str) -> None:
        self.lines.append("    " * self._indent + line)

    def open(self, line: str) -> None:
        """Begins an indented block."""
        self.emit(line)
        self._indent += 1

    def close(self) -> None:
        if self.lines[-1].endswith(":"):
            self.emit("pass")
        self._indent -= 1

    def fresh(self, prefix: str) -> str:
        self._counter += 1
        return f"{prefix}{self._counter}"

    def let(self, text: str, axes: Iterable[str], dtype: str, bound: int = 0) -> Value:
        """Binds a new variable; a float beyond the limit of its dtype is tamed."""
        name = self.fresh("v")
        self.emit(f"{name} = {text}")
        return self.tame(Value(name, tuple(axes), dtype, bound), LIMITS.get(dtype, 0))

    def tame(self, value: Value, limit: int) -> Value:
        """The same value, or one made of it that keeps within the limit."""
        if value.dtype not in FLOATS or value.bound <= limit:
            return value
        text = self.pick([f"tj.clip({value.name}, {-limit}, {limit})", f"{value.name} % {limit + 1}"])
        name = self.fresh("v")
        self.emit(f"{name} = {text}")
        return replace(value, name=name, bound=limit)

    def nest_axis(self, extent: int, prefix: str) -> str:
        """A new axis for a nest to run over."""
        name = self.fresh(prefix)
        self.axis_lines.append(f'    {name} = tj.axis("{name}", {extent})')
        return name

    def axis(self, extent: int) -> str:
        """A new tile axis."""
        name = self.nest_axis(extent, "x")
        self.extents[name] = extent
        return name

    def extra(self, axes: Sequence[str], low: int = 0) -> str:
        """A tile axis that is not among `axes`, of at least `low` elements."""
        options = [a for a, extent in self.extents.items() if a not in axes and extent >= low]
        return self.pick(options) if options else self.axis(max(low, 2))

    def size(self, axes: Iterable[str]) -> int:
        return math.prod(self.extents[a] for a in axes)

    @staticmethod
    def shape(axes: Iterable[str]) -> str:
        return f"tj.shape({', '.join(axes)})"

    @staticmethod
    def union(*values: Value) -> tuple[str, ...]:
        return tuple(dict.fromkeys(a for v in values for a in v.axes))

    def capture(self, shape: tuple[int, ...], dtype: str) -> str:
        """The name of an array that the kernel closes over."""
        name = self.fresh("K")
        self.captured[name] = self.array(shape, dtype)
        return name

    def array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Small integers; if `special`, some floats are NaN or infinite, integers least or greatest."""
        if dtype == "bool":
            return self.arrays.integers(0, 2, shape).astype(bool)
        array = self.arrays.integers(0 if dtype == "uint8" else -9, 10, shape).astype(getattr(jnp, dtype))
        if not self.special:
            return array
        info = None if dtype in FLOATS else np.iinfo(dtype)
        extremes = np.array([info.min, info.max] if info else [np.nan, np.inf, -np.inf]).astype(array.dtype)
        chosen = extremes[self.arrays.integers(0, len(extremes), shape)]
        return np.where(self.arrays.random(shape) < 0.1, chosen, array)

    def finish(self, args: dict[str, Any]) -> Kernel:
        lines = [PRELUDE, f"def kernel({', '.join(args)}):", *self.axis_lines, *self.lines]
        return Kernel("\n".join(lines), tuple(args.values()), self.captured)
