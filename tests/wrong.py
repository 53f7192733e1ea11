"""Wrong programs: a workbench that puts one line into a kernel, and what its error has to say."""

import linecache
import os
import re
from collections.abc import Callable, Iterator
from types import CodeType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj

BUILTIN: dict[type[tj.TileError], type[Exception]] = {
    tj.AxisError: ValueError,
    tj.ShapeError: ValueError,
    tj.LayoutError: ValueError,
    tj.DtypeError: TypeError,
    tj.CarryError: TypeError,
    tj.ReadOnlyError: TypeError,
    tj.TileTypeError: TypeError,
    tj.ScopeError: ValueError,
    tj.BoundsError: IndexError,
    tj.RaceError: RuntimeError,
    tj.UnsupportedError: NotImplementedError,
}
# What belongs to us, to JAX or to the compiler, and never to a user.
INTERNAL = [
    "AssertionError",
    "UnexpectedTracerError",
    "stablehlo",
    "module @",
    "JitTracer",
    "Traced<",
    "jax._src",
]


class Wrong(NamedTuple):
    """A program with a mistake: its error's class, what the message says (a regex), and the program.

    The mistake is on the line marked ``# wrong``, or on the program's first line.
    """

    error: type[tj.TileError]
    says: str
    program: Callable[..., Any]


def line_of(program: Callable[..., Any]) -> int:
    code = program.__code__
    for number in sorted(set(_lines(code))):
        if "# wrong" in linecache.getline(code.co_filename, number):
            return number
    return code.co_firstlineno


def _lines(code: CodeType) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _lines(const)


def rejected(case: Wrong, run: Callable[[], Any]) -> None:
    """``run`` raises the error of ``case``: class, built-in class, words, file and line, nothing internal."""
    with pytest.raises(case.error) as caught:
        run()
    error = caught.value
    message = str(error)
    assert isinstance(error, BUILTIN[case.error])
    assert re.search(case.says, message, re.DOTALL), f"{case.says!r} is not in: {message}"
    place = f"{os.path.basename(case.program.__code__.co_filename)}:{line_of(case.program)}"
    assert re.search(re.escape(place) + r"\b", message), f"{place} is not in: {message}"
    assert [word for word in INTERNAL if word in message] == []
    causes = []
    while error := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        causes.append(type(error))
    assert not {AssertionError, jax.errors.UnexpectedTracerError} & set(causes)


def bench(program: Callable[[SimpleNamespace], Any]) -> None:
    """Runs ``program(s)`` inside a nest of two programs, where ``s`` holds what a line may need.

    Views: ``image`` float32 (6, 8), ``ids`` int32 (8,), ``small`` int8 (8,), ``flags`` bool (8,), and the
    outputs ``out`` float32 (6, 8), ``half`` float16 (6, 8), ``ints`` int32 (8,).
    Axes: ``m`` 4, ``n`` 8, ``k`` 5, ``empty`` 0, and ``grid`` 2, whose index is ``i``.
    Tiles: ``x`` (m, n), ``y`` (n), ``z`` (m), ``ix`` int32 (n), ``i8`` int8 (n), ``h`` float16 (m, n).
    """

    def kernel(image, ids, small, flags):
        out = tj.output((6, 8), jnp.float32)
        half = tj.output((6, 8), jnp.float16)
        ints = tj.output((8,), jnp.int32)
        s = SimpleNamespace(image=image, ids=ids, small=small, flags=flags, out=out, half=half, ints=ints)
        s.m, s.n, s.k, s.empty = (
            tj.axis(name, e) for name, e in [("m", 4), ("n", 8), ("k", 5), ("empty", 0)]
        )
        s.grid = tj.axis("grid", 2)

        @tj.parallel(s.grid)
        def _(nest):
            s.nest, s.i = nest, nest.index()
            s.at = tj.coord(0, 0), tj.shape(s.m, s.n)
            s.x = image[s.at]
            s.y, s.z = tj.sum(s.x, s.m), tj.sum(s.x, s.n)
            s.ix, s.i8 = ids[tj.coord(0), tj.shape(s.n)], small[tj.coord(0), tj.shape(s.n)]
            s.h = s.x.astype(jnp.float16)
            program(s)

        return s.out

    tj.jit(kernel)(*ARGUMENTS)


ARGUMENTS = (
    np.ones((6, 8), np.float32),
    np.arange(8, dtype=np.int32),
    np.ones(8, np.int8),
    np.ones(8, np.bool_),
)
