"""The error classes, and where in the user's code an error happened."""

from __future__ import annotations

import dis
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from traceback import walk_tb
from types import CodeType
from typing import Any

import jax
import numpy as np

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_KERNELS = os.path.join(_PACKAGE, "kernels") + os.sep
_LANGUAGE = os.path.join(_PACKAGE, "language") + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INTERNAL = (
    _PACKAGE,
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
    "<frozen ",
    _LIBRARY + "contextlib.py",
    _LIBRARY + "functools.py",
)


@dataclass(frozen=True)
class Loc:
    """A place in the user's code. It rides on program equations, so any two compare equal: where a
    kernel was written is not part of what it computes."""

    file: str
    line: int
    function: str
    caller: Loc | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loc)

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    __repr__ = __str__

    def describe(self) -> str:
        """Full path and function; for a line of `tilejax.kernels`, also the line that called it."""
        text = f"{self.file}:{self.line} in {self.function}"
        return f"{text}, called from {self.caller.describe()}" if self.caller else text


def user_location(error: BaseException | None = None) -> Loc | None:
    """The innermost frame that is neither ours nor JAX's, of this call or of where `error` was raised; a
    documented kernel's line counts as a user's.
    """
    frames = _stack() if error is None else _raised_at(error)
    return location_of((code.co_filename, line, code.co_name) for code, line in frames)


def location_of(frames: Iterable[tuple[str, int, str]]) -> Loc | None:
    """The first of `frames`, each a file, a line and a function, that is neither ours nor JAX's."""
    inner = None
    for file, line, function in frames:
        if file.startswith(_KERNELS):
            inner = inner or (file, line, function)
        elif not file.startswith(_INTERNAL):
            place = Loc(file, line, function)
            return Loc(*inner, caller=place) if inner else place
    return Loc(*inner) if inner else None


def _stack() -> Iterator[tuple[CodeType, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _raised_at(error: BaseException) -> Iterator[tuple[CodeType, int]]:
    return reversed([(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)])


def assigned_name() -> str | None:
    """The variable that the user's statement assigns the call being made to, where it is a plain `name =
    call(...)`.
    """
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_LANGUAGE):
        frame = frame.f_back
    after = (
        i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti and i.opname != "CACHE"
    )
    instruction = next(after, None)
    if instruction is None or not instruction.opname.startswith(
        ("STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL")
    ):
        return None
    name = instruction.argval  # a pair where the bytecode joins a store and a load
    return name if isinstance(name, str) else name[0]


def structure(tree: Any) -> str:
    """A pytree's structure as a message shows it: `(*, *)` for a pair."""
    return str(tree).removeprefix("PyTreeDef(").removesuffix(")")


class TileError(Exception):
    """Base of all tilejax errors. The message ends with the user's file and line."""

    def __init__(self, message: str, *, loc: Loc | None = None):
        self.loc = loc if loc is not None else user_location()
        super().__init__(f"{message}\n  at {self.loc.describe()}" if self.loc else message)


class AxisError(TileError, ValueError):
    """A bad axis: its extent, its use, or an axis that is not there."""


class ShapeError(TileError, ValueError):
    """Shapes, ranks or extents that do not fit."""


class LayoutError(TileError, ValueError):
    """A layout that is not total, in bounds and injective."""


class DtypeError(TileError, TypeError):
    """A dtype that does not fit, or a value that the dtype cannot hold."""


class CarryError(TileError, TypeError):
    """A loop's carry that changes its structure, axes or dtype."""


class ReadOnlyError(TileError, TypeError):
    """A store to a view that the kernel may only read."""


class TileTypeError(TileError, TypeError):
    """A Python construct that tiles and views do not take."""


class ScopeError(TileError, ValueError):
    """Something used outside the nest or the place that it belongs to."""


class BoundsError(TileError, IndexError):
    """An access outside a view that promised to stay inside."""


class RaceError(TileError, RuntimeError):
    """Two programs of one parallel nest that touch the same element."""


class UnsupportedError(TileError, NotImplementedError):
    """Something that the chosen backend or device cannot do."""


_VALUE_ASKED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_NAMES_OURS = re.compile(r"'(Tile|TensorView|MemoryRef|Nest)'|tilejax\.language\.")


_OF_MESHES = re.compile("varying manual axes|ManualAxisType")


def explained(error: Exception, kernel: str) -> TileError | None:
    """What Python, NumPy or JAX raised in a kernel as its author should read it; None if it is not about
    the language.
    """
    loc = user_location(error)
    text = str(error).splitlines()[0] if str(error) else ""
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return ScopeError(
            f"kernel {kernel}: a value made in a nest is used after that nest has closed, or in another "
            "call. Carry it out of the nest, or store it to a view",
            loc=loc,
        )
    if isinstance(error, _VALUE_ASKED):
        return TileTypeError(
            f"kernel {kernel}: Python asks for the value of an index or a scalar, which is not known while "
            "tracing: `if`, `while`, `and`, `or`, `not`, `range`, `int`, `max` and NumPy don't work on it. "
            "Use tilejax.where, maximum, & | ~ and a loop's start and stop, or name the argument in "
            "static_argnames",
            loc=loc,
        )
    if isinstance(error, TileError):
        return None
    if isinstance(error, (ValueError, AssertionError)) and _OF_MESHES.search(text):
        return TileTypeError(
            f"kernel {kernel}: a captured index or scalar varies over mesh axes of jax.shard_map, but tiles "
            "and indices know no mesh. Give it to the kernel as an argument",
            loc=loc,
        )
    if isinstance(error, OverflowError) and text.startswith("An overflow was encountered while parsing"):
        return DtypeError(
            f"kernel {kernel}: {text.rpartition(' ')[2]} does not fit the dtype of the index or the scalar "
            "that it meets; indices are int32. Cast that first, to a dtype that holds both",
            loc=loc,
        )
    if isinstance(error, IndexError) and text.startswith("Too many indices: array is 0-dimensional"):
        return TileTypeError(
            f"kernel {kernel}: an index or a scalar is one number and has no elements: use it as it is",
            loc=loc,
        )
    if not isinstance(error, TypeError):
        return None
    if _NAMES_OURS.search(text):
        return TileTypeError(
            f"kernel {kernel}: {text.rstrip('.')}: tiles take Python's operators and the functions of "
            "tilejax, not those of jax.numpy or numpy; from a view load a tile, "
            "A[tilejax.coord(...), tilejax.shape(...)]",
            loc=loc,
        )
    if "positional argument" in text and next(_raised_at(error))[0].co_filename.startswith(_PACKAGE):
        return TileTypeError(
            f"kernel {kernel}: {text}: it is called as body(nest), as body(step, carry) if its loop has a "
            "carry, or with the elements that its operation combines",
            loc=loc,
        )
    return None
