"""The stack of frames in which a kernel is being traced: the kernel, its nests, functions given to
operations.

A store makes a new version of its view and binds it in the innermost frame. When a nest's frame closes,
the versions that it bound leave the body as outputs, and the nest's results are bound in the frame
around it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .. import _compat
from .._errors import Loc, ScopeError, user_location

if TYPE_CHECKING:
    from .memory import Memory
    from .nest import Nest
    from .view import TensorView


class Frame:
    """One region of a kernel while it is traced.

    `kind` is "kernel", "parallel", "serial", "pipeline" or "function" (one given to an operation, which
    must not touch views).
    """

    def __init__(self, kind: str, label: str, parent: Frame | None):
        self.kind, self.label, self.parent = kind, label, parent
        self.closed = False
        self.versions: dict[TensorView | Memory, Any] = {}
        self.stored: set[Memory] = set()
        self.nest: Nest | None = None
        self.stages: list[str] = []
        self.root: Frame = parent.root if parent else self
        self.jax_trace: Any = None

    def __str__(self) -> str:
        return self.label


_local = threading.local()


def current(what: str) -> Frame:
    """The innermost frame; `ScopeError` outside a kernel."""
    frame = getattr(_local, "frame", None)
    if frame is None:
        raise ScopeError(f"{what} outside a kernel: call it in a function given to tilejax.jit")
    return frame


def current_or_none() -> Frame | None:
    return getattr(_local, "frame", None)


@contextmanager
def frame(kind: str, label: str, *, root: bool = False) -> Iterator[Frame]:
    """Opens a frame inside the current one (or, with `root`, a kernel of its own)."""
    outer = getattr(_local, "frame", None)
    inner = Frame(kind, label, None if root else outer)
    _local.frame = inner
    try:
        yield inner
    finally:
        inner.closed = True
        if inner.jax_trace is not None:
            _closed[inner.jax_trace] = inner.label
        _local.frame = outer


_closed: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""JAX's traces of the frames that have closed, and the labels of these: a scalar that outlives its nest
is named.
"""


def own(tracers: Sequence[Any], owner: Frame) -> None:
    """`tracers`, and whatever is computed from them, belong to `owner`."""
    owner.jax_trace = next(map(_compat.trace_of, tracers), None)


def check_open(value: Any, what: str) -> None:
    """`ScopeError` if `value` is an index of a nest that has closed, or computed from one."""
    jax_trace = _compat.trace_of(value)
    if jax_trace is not None and jax_trace in _closed:
        raise ScopeError(
            f"{what}: an index or a scalar of {_closed[jax_trace]} is used after that nest has closed. "
            "Use it inside, or carry it out"
        )


def version(view: TensorView | Memory) -> Any:
    """The array that `view` (or the memory) holds at this point of the program."""
    here: Frame | None = current(f"load from {view.name}")
    if here and here.kind == "function":
        raise ScopeError(
            f"{view.name} is used in {here}: functions given to operations must not touch views. Load it "
            "before"
        )
    while here is not None:
        if view in here.versions:
            return here.versions[view]
        here = here.parent
    return view.initial


def bind_version(view: TensorView | Memory, array: Any) -> None:
    here = current(f"store to {view.name}")
    if here.kind == "function":
        raise ScopeError(
            f"{view.name} is stored to in {here}: functions given to operations must not touch views"
        )
    here.versions[view] = array


def here() -> Loc | None:
    """The user's line, for the equation that is being made."""
    return user_location()
