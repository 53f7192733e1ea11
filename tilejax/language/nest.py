"""Nests: `parallel`, `serial` and `pipeline`, decorators that trace their body once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import _compat
from .._errors import AxisError, CarryError, ScopeError, ShapeError, TileTypeError, structure
from ..ir import primitives as ir
from ..ir.types import Scope
from . import trace
from .axis import Axis, Shape, as_index, check_extent
from .memory import Memory
from .tile import Tile, as_tile
from .view import TensorView

_MAX_CARRY_TRACES = 4  # a weak leaf can change its type once per level: int, float, a strong dtype


class Nest:
    """The domain of a nest while its body is traced: gives indices, opens nests inside."""

    def __init__(
        self, frame: trace.Frame, axes: Shape, indices: Sequence[Any], parent: Nest | None, scope: Scope
    ):
        self._frame, self._axes, self._parent, self._scope = frame, axes, parent, scope
        self._indices = tuple(indices)
        frame.nest = self

    def __repr__(self) -> str:
        return str(self._frame)

    def index(self, axis: Axis | None = None) -> Any:
        """The int32 index along `axis`, of this nest or one around it; without an axis, that of a domain
        of rank one.
        """
        self._check_open("index")
        if axis is None:
            if len(self._axes) != 1:
                raise AxisError(
                    f"index() is for a nest of one axis, but {self} has {len(self._axes)}: name one"
                )
            return self._indices[0]
        if not isinstance(axis, Axis):
            raise AxisError(
                f"index: {axis!r} is not an axis; positional axes have no name, so make the nest over "
                "tilejax.axis(...)"
            )
        nest: Nest | None = self
        while nest is not None:
            for own, index in zip(nest._axes, nest._indices, strict=True):
                if own is axis:
                    return index
            nest = nest._parent
        raise AxisError(f"index: neither {self} nor a nest around it has axis {axis!r}")

    def parallel(
        self, *axes: Any, scope: Scope = Scope.AUTOMATIC
    ) -> Callable[[Callable[[Nest], None]], None]:
        """Independent sub-programs of this program; see `tilejax.parallel`."""
        self._check_innermost("parallel")
        if not isinstance(scope, Scope):
            raise TileTypeError(f"parallel: the scope must be a tilejax.Scope, got {scope!r}")
        if Scope.AUTOMATIC not in (scope, self._scope):
            order = list(Scope)
            if order.index(scope) < order.index(self._scope):
                raise _scope_widens(scope, self._scope)
        return _parallel(axes, scope, self)

    def serial(
        self, *axes: Any, carry: Any = None, start: Any = 0, stop: Any = None
    ) -> Callable[[Callable[..., Any]], Any]:
        """A loop in order over `axes`: the decorated `body(step)` or `body(step, carry) -> carry`
        becomes the final carry.

        `carry` is a pytree of tiles and scalars that keeps its axes, shapes and dtypes (`CarryError`
        else). For one axis, `start` and `stop` (ints or traced scalars) restrict the loop, clipped to
        the axis. Zero trips give the initial carry.
        """
        self._check_innermost("serial")
        return _loop("serial", axes, carry, start, stop, self, {})

    def pipeline(
        self,
        *axes: Any,
        carry: Any = None,
        window: int = 0,
        interval: int = 1,
        start: Any = 0,
        stop: Any = None,
    ) -> Callable[[Callable[..., Any]], Any]:
        """As `serial`, but steps may overlap and a float `carry + f(step)` or `mma` may be reassociated;
        nothing else that a user can see changes.

        `window` (0: the compiler's choice, 1: no overlap) and `interval` (>= 1) are hints.
        """
        self._check_innermost("pipeline")
        hints = {"window": _hint("window", window, 0), "interval": _hint("interval", interval, 1)}
        return _loop("pipeline", axes, carry, start, stop, self, hints)

    def stage(self, name: str) -> None:
        """Cuts the body of a pipeline: what follows belongs to stage `name`."""
        self._check_innermost("stage")
        if self._frame.kind != "pipeline":
            raise ScopeError(f"stage({name!r}) in {self}: only a pipeline has stages")
        self._frame.stages.append(str(name))
        ir.stage_p.bind(name=str(name), loc=trace.here())

    def _check_open(self, what: str) -> None:
        if self._frame.closed:
            raise ScopeError(f"{what} of {self} after that nest has closed")

    def _check_innermost(self, what: str) -> None:
        self._check_open(what)
        here = trace.current(what)
        if here is not self._frame:
            raise ScopeError(f"{what} of {self} inside {here}: use the innermost nest's own method")


def innermost() -> Nest | None:
    """The nest that is being traced."""
    here = trace.current_or_none()
    while here is not None and here.nest is None:
        here = here.parent
    return here.nest if here else None


def parallel(*axes: Any, scope: Scope = Scope.AUTOMATIC) -> Callable[[Callable[[Nest], None]], None]:
    """Decorates `body(nest)`: runs it once for every point of `axes` (axes, ints or a `shape`),
    independently.

    No two programs may touch the same element of a view if one of them stores it. Several nests in a
    kernel run one after another.
    """
    here = trace.current("parallel")
    if here.kind != "kernel":
        raise ScopeError(f"tilejax.parallel inside {here}: use the nest's own parallel(...)")
    if not isinstance(scope, Scope):
        raise TileTypeError(f"parallel: the scope must be a tilejax.Scope, got {scope!r}")
    return _parallel(axes, scope, None)


def _hint(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ShapeError(f"pipeline: {name} must be an int >= {least}, got {value!r}")
    return int(value)


def _scope_widens(inner: Scope, outer: Scope) -> ScopeError:
    return ScopeError(
        f"parallel: scope {inner.name} inside {outer.name} widens it; nested scopes may only narrow"
    )


def _domain(axes: tuple[Any, ...], what: str) -> Shape:
    flat: list[Any] = []
    for a in axes:
        flat.extend(a) if isinstance(a, Shape) else flat.append(a)
    for a in flat:
        if not isinstance(a, Axis):
            check_extent(a, f"{what}: domain")
    named = [a for a in flat if isinstance(a, Axis)]
    if len({id(a) for a in named}) != len(named):
        raise AxisError(f"{what}{tuple(flat)}: an axis appears twice")
    return Shape(flat)


def _label(kind: str, domain: Shape) -> str:
    return f"{kind}({', '.join(a.name if isinstance(a, Axis) else str(a) for a in domain)})"


def _names(domain: Shape) -> tuple[str, ...]:
    return tuple(a.name if isinstance(a, Axis) else f"axis{i}" for i, a in enumerate(domain))


def _parallel(
    axes: tuple[Any, ...], scope: Scope, parent: Nest | None
) -> Callable[[Callable[[Nest], None]], None]:
    domain = _domain(axes, "parallel")
    label = _label("parallel", domain)

    def decorate(body: Callable[[Nest], None]) -> None:
        _check_callable(body, label)
        inner_scope = scope if scope is not Scope.AUTOMATIC or parent is None else parent._scope

        def run(indices: Sequence[Any], _: Sequence[Any], frame: trace.Frame) -> list[Any]:
            if body(Nest(frame, domain, indices, parent, inner_scope)) is not None:
                raise ScopeError(
                    f"{label}: the body of a parallel nest returns nothing; its programs store to views"
                )
            return []

        traced = _trace_body("parallel", label, domain, run, [])
        traced.bind(ir.parallel_p, [], [], names=_names(domain), extents=domain.extents, scope=scope)

    return decorate


def _loop(
    kind: str, axes: tuple[Any, ...], carry: Any, start: Any, stop: Any, parent: Nest, hints: dict[str, int]
) -> Any:
    domain = _domain(axes, kind)
    label = _label(kind, domain)
    bounds = _bounds(label, domain, start, stop)
    surely = _runs(domain, bounds)

    def decorate(body: Callable[..., Any]) -> Any:
        _check_callable(body, label)
        state = _Carry(carry, label, getattr(body, "__name__", "_"))
        stages: list[str] = []

        def run(indices: Sequence[Any], values: Sequence[Any], frame: trace.Frame) -> list[Any]:
            nest = Nest(frame, domain, indices, parent, parent._scope)
            result = body(nest) if carry is None else body(nest, state.unflatten(values))
            stages[:] = frame.stages
            if carry is None:
                if result is not None:
                    raise CarryError(
                        f"{label}: the body returns a value, but the nest has no carry: give {kind}(..., "
                        "carry=initial)"
                    )
                return []
            return state.flatten_result(result)

        for _ in range(_MAX_CARRY_TRACES):
            traced = _trace_body(kind, label, domain, run, state.avals())
            if not state.adopt(traced.out_avals):
                break
        primitive = ir.serial_p if kind == "serial" else ir.pipeline_p
        params = {**hints, "stages": tuple(stages)} if kind == "pipeline" else {}
        out = traced.bind(
            primitive,
            bounds,
            state.initial(),
            names=_names(domain),
            extents=domain.extents,
            num_bounds=len(bounds),
            **params,
        )
        traced.bind_memories(surely, label)
        return None if carry is None else state.unflatten(out)

    return decorate


def _check_callable(body: Any, label: str) -> None:
    if not callable(body):
        raise TileTypeError(f"{label} decorates a function body(nest), got {type(body).__name__}")


def _bounds(label: str, domain: Shape, start: Any, stop: Any) -> list[Any]:
    if stop is None and isinstance(start, int) and start == 0:
        return []
    if len(domain) != 1:
        raise AxisError(f"{label}: start and stop are for a nest of one axis, but it has {len(domain)}")
    limits = (start, domain.extents[0] if stop is None else stop)
    values = [as_index(v, f"{label}: {name}") for v, name in zip(limits, ("start", "stop"), strict=True)]
    return [np.int32(v) if isinstance(v, int) else v for v in values]


def _runs(domain: Shape, bounds: list[Any]) -> bool:
    """Whether a loop surely runs a step."""
    if 0 in domain.extents or not all(isinstance(b, np.generic) for b in bounds):
        return False
    return not bounds or max(bounds[0], 0) < min(bounds[1], domain.extents[0])


class _Carry:
    """A loop's carry: its pytree, the kind of each leaf, and the arrays that it starts as."""

    def __init__(self, carry: Any, label: str, name: str):
        self.label = label
        keyed, self.tree = jax.tree_util.tree_flatten_with_path(carry)
        root = f"carry {name}" if name.isidentifier() and name != "_" else "carry"
        self.names = [f"{root}{jax.tree_util.keystr(path)}" for path, _ in keyed]
        self.leaves = [leaf if isinstance(leaf, Tile) else None for _, leaf in keyed]
        self.tiles = [
            as_tile(leaf, f"{label}: {name}") for (_, leaf), name in zip(keyed, self.names, strict=True)
        ]
        self.dtypes: list[Any] = [t.dtype for t in self.tiles]
        self.weak = [t.weak_type for t in self.tiles]

    def avals(self) -> list[Any]:
        return [
            jax.ShapeDtypeStruct(t.shape, d, weak_type=w)
            for t, d, w in zip(self.tiles, self.dtypes, self.weak, strict=True)
        ]

    def initial(self) -> list[Any]:
        return [
            jax.lax.convert_element_type(t.value, d) for t, d in zip(self.tiles, self.dtypes, strict=True)
        ]

    def unflatten(self, values: Sequence[Any]) -> Any:
        """The carry as the user sees it: tiles where tiles were given, scalars where scalars were."""
        leaves = [v if was is None else Tile(v, was.axes) for v, was in zip(values, self.leaves, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def flatten_result(self, result: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(result)
        if tree != self.tree:
            got = "nothing" if result is None else structure(tree)
            raise CarryError(
                f"{self.label}: the body must return the next carry, of the structure "
                f"{structure(self.tree)}, but returned {got}"
            )
        out = []
        for leaf, was, name, dtype, weak in zip(
            leaves, self.tiles, self.names, self.dtypes, self.weak, strict=True
        ):
            tile = as_tile(leaf, f"{self.label}: {name}")
            value = tile.value
            if tile.axes != was.axes:
                if tile.ndim or not tile.weak_type:
                    raise CarryError(
                        f"{self.label}: {name} must keep its axes {was.axes}, but the body returned "
                        f"{tile.axes}"
                    )
                value = jax.lax.broadcast(value, was.shape)
            if not weak:
                if tile.dtype != dtype and not (
                    tile.weak_type and jax.dtypes.result_type(tile.value, dtype) == dtype
                ):
                    raise CarryError(
                        f"{self.label}: {name} must keep its dtype {dtype}, but the body returned "
                        f"{tile.dtype}; use astype({dtype})"
                    )
                value = jax.lax.convert_element_type(value, dtype)
            out.append(value)
        return out

    def adopt(self, avals: Sequence[Any]) -> bool:
        """Takes for weak leaves the types that the body gave; whether any changed, so that the body must
        be traced again.
        """
        changed = False
        for i, aval in enumerate(avals):
            if self.weak[i] and (aval.dtype != self.dtypes[i] or not aval.weak_type):
                self.dtypes[i] = jax.dtypes.result_type(self.tiles[i].value, aval.dtype)
                self.weak[i] = aval.weak_type
                changed = True
        return changed


class _Traced:
    """A traced body: what it captured, which views and memories of frames around it it wrote, and the jaxpr
    that says so by position."""

    def __init__(
        self,
        jaxpr: Any,
        consts: list[Any],
        views: list[TensorView],
        memories: list[Memory],
        num_indices: int,
        num_carry: int,
    ):
        self.out_avals = [v.aval for v in jaxpr.outvars[len(views) : len(views) + num_carry]]
        self.views, self.memories, self.num_carry = views, memories, num_carry
        self.before = [trace.version(v) for v in (*views, *memories)]
        places = [next(i for i, c in enumerate(consts) if c is old) for old in self.before]
        others = [i for i in range(len(consts)) if i not in places]
        self.consts = [consts[i] for i in others]
        order = [jaxpr.constvars[i] for i in others + places[: len(views)]]
        states = [jaxpr.constvars[i] for i in places[len(views) :]]
        self.body = _compat.close(jaxpr, num_indices, order, states)
        self.after: list[Any] = []

    def bind(self, primitive: Any, bounds: list[Any], carry: list[Any], **params: Any) -> list[Any]:
        """Emits the nest, binds the new versions of the views that it wrote, returns the final carry."""
        views, states = self.before[: len(self.views)], self.before[len(self.views) :]
        loop = {} if primitive is ir.parallel_p else {"num_carry": self.num_carry + len(states)}
        out = primitive.bind(
            *bounds,
            *self.consts,
            *views,
            *carry,
            *states,
            **params,
            **loop,
            num_views=len(views),
            body=self.body,
            loc=trace.here(),
        )
        count = len(views)
        for view, new in zip(self.views, out[:count], strict=True):
            trace.bind_version(view, new)
        self.after = out[count + self.num_carry :]
        return out[count : count + self.num_carry]

    def bind_memories(self, surely: bool, label: str) -> None:
        """Binds the new states of the memories that a loop wrote; `surely` if it runs a step."""
        for memory, state in zip(self.memories, self.after, strict=True):
            memory.bind(state, surely, label)


def _trace_body(
    kind: str, label: str, domain: Shape, run: Callable[..., list[Any]], carry: list[Any]
) -> _Traced:
    views: list[TensorView] = []
    memories: list[Memory] = []

    def body(*values: Any) -> list[Any]:
        with trace.frame(kind, label) as frame:
            trace.own(values, frame)
            out = run(values[: len(domain)], values[len(domain) :], frame)
            views[:] = [v for v in frame.versions if not isinstance(v, Memory)]
            memories[:] = [m for m in frame.versions if isinstance(m, Memory) and m.frame is not frame]
            new = frame.versions
            return [*(new[v] for v in views), *out, *(new[m] for m in memories)]

    indices = [jax.ShapeDtypeStruct((), np.int32)] * len(domain)
    jaxpr, consts = _compat.trace(body, [*indices, *carry])
    for const in consts:
        trace.check_open(const, label)
    return _Traced(jaxpr, consts, views, memories, len(domain), len(carry))
