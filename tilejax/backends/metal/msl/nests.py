"""Nests inside a program: loops that the group runs together, or sub-programs of one thread each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ....ir.types import Scope
from ....transforms.affine import Affine
from .evaluate import Frame, Value, rule
from .kernel import Kernel
from .storage import Memory, Storage, Stored, Tile, constant, text_of
from .types import INT32, type_of


def index_of(kernel: Kernel, name: str, extent: int) -> Tile:
    """The index of a nest that is a variable of that name."""
    kernel.extents[name] = extent
    return constant(name, INT32, Affine(0, {name: 1}))


def unraveled(kernel: Kernel, flat: str, extents: Sequence[int]) -> tuple[list[str], list[Tile]]:
    """Statements that take the number of a point of a row-major domain apart, and its indices."""
    lines, indices, stride = [], [], math.prod(extents)
    for n in extents:
        text = flat if stride == math.prod(extents) else f"{flat} % {stride}u"
        stride //= n
        if n == 1:
            indices.append(constant("0", INT32, Affine()))
            continue
        name = kernel.fresh("p")
        lines.append(f"const int {name} = int({text}{f' / {stride}u' if stride > 1 else ''});")
        indices.append(index_of(kernel, name, n))
    return lines, indices


@rule("tile_stage")
def _stage(frame: Frame, eqn: Any) -> list[Value]:
    """Cuts a pipeline, whose steps are done in order here."""
    return []


@rule("tile_parallel")
def _parallel(frame: Frame, eqn: Any, *values: Value) -> list[Value]:
    kernel, params = frame.kernel, eqn.params
    assert kernel is not None
    extents, views = params["extents"], values[len(values) - params["num_views"] :]
    if 0 in extents:
        return list(views)
    count, number = math.prod(extents), kernel.fresh("n")
    if params["scope"] is Scope.WORKER and kernel.lanes > 1:
        header = f"for (uint {number} = lane; {number} < {count}u; {number} += {kernel.lanes}u)"
        loop = kernel.alone(header)
    else:
        loop = kernel.loop(f"for (uint {number} = 0; {number} < {count}u; ++{number})", True)
    with loop:
        lines, indices = unraveled(kernel, number, extents)
        if lines:
            with kernel.step(scoped=False) as block:
                block.lines += lines
        Frame(kernel, frame.name, frame).run(params["body"].jaxpr, [*indices, *values])
    return list(views)


@rule("tile_serial", "tile_pipeline")
def _loop(frame: Frame, eqn: Any, *values: Value) -> list[Value]:
    """Steps one after another: a schedule may not change results, and this one is the simplest."""
    kernel, params = frame.kernel, eqn.params
    assert kernel is not None
    extents, count = params["extents"], params["num_bounds"]
    for value in values[len(values) - params["num_carry"] :]:
        if isinstance(value, Memory):
            frame.protect(value.stored.storage, after=0)
    values = tuple(map(frame.read, eqn.invars))
    bounds, operands = values[:count], values[count:]
    split = len(operands) - params["num_carry"]
    held, initial = operands[:split], operands[split:]
    views = held[split - params["num_views"] :]
    if 0 in extents:
        return [*views, *initial]
    body = Frame(kernel, frame.name, frame)
    carry = [
        _carried(frame, body, value, [*held, *initial[:i], *initial[i + 1 :]])
        for i, value in enumerate(initial)
    ]
    with _domain(kernel, extents, bounds) as indices:
        results = body.run(params["body"].jaxpr, [*indices, *held, *carry])
        _advance(body, carry, results[params["num_views"] :])
    for value in carry:
        if isinstance(value, Stored):
            value.storage.home = frame
    return [*views, *carry]


@contextmanager
def _domain(kernel: Kernel, extents: Sequence[int], bounds: Sequence[Any]) -> Iterator[list[Tile]]:
    with ExitStack() as stack:
        indices = []
        for n in extents:
            name = kernel.fresh("p")
            first, last = "0", str(n)
            if bounds:
                start, stop = map(text_of, bounds)
                first, last = f"max({start}, 0)", f"min({stop}, {n})"
            header = f"for (int {name} = {first}; {name} < {last}; ++{name})"
            stack.enter_context(kernel.loop(header, not bounds))
            indices.append(index_of(kernel, name, n))
        yield indices


def _carried(frame: Frame, body: Frame, value: Value, others: Sequence[Value]) -> Value:
    """Where a carry is from step to step, holding its initial value."""
    kernel = frame.kernel
    assert kernel is not None
    if isinstance(value, Memory):
        return value
    if not value.shape:
        with kernel.step(scoped=False) as block:
            return constant(block.variable(type_of(value.dtype), block.get(value, ())), value.dtype)
    storage = frame.dying(value, others)
    if storage:
        storage.home = body
        return value
    return kernel.keep(value, kernel.allocate(value.dtype, value.size, body))


def _advance(body: Frame, carry: Sequence[Value], results: Sequence[Value]) -> None:
    """Makes the results the carry of the next step, as if all at once."""
    pairs = [(old, new) for old, new in zip(carry, results, strict=True) if isinstance(new, Tile)]
    waiting = {
        old.storage: new
        for old, new in pairs
        if isinstance(old, Stored) and not (isinstance(new, Stored) and new.storage is old.storage)
    }
    while waiting:
        storage = next((s for s in waiting if _is_free(s, waiting)), None)
        if storage is None or not _overwrite(body, storage, waiting[storage]):
            storage = storage or next(iter(waiting))
            waiting[storage] = body.copy(waiting[storage])
        else:
            del waiting[storage]
    _assign(body, [(text_of(old), new) for old, new in pairs if isinstance(old, Tile) and not old.shape])


def _assign(body: Frame, scalars: Sequence[tuple[str, Tile]]) -> None:
    """Assigns the scalars to variables; where there are several, one may be what another was."""
    assert body.kernel is not None
    with body.kernel.step() as block:
        texts = [block.get(new, ()) for _, new in scalars]
        if len(scalars) > 1:
            names = [body.kernel.fresh("v") for _ in scalars]
            for name, text, (_, new) in zip(names, texts, scalars, strict=True):
                block.add(f"const {type_of(new.dtype)} {name} = {text};")
            texts = names
        for (name, _), text in zip(scalars, texts, strict=True):
            block.add(f"{name} = {text};")


def _is_free(storage: Storage, waiting: dict[Storage, Tile]) -> bool:
    """Whether no other carry that is still to come reads a storage."""
    return not any(storage in new.reads for s, new in waiting.items() if s is not storage)


def _overwrite(body: Frame, storage: Storage, value: Tile) -> bool:
    """Stores a carry, unless an element of it needs another element of what it replaces."""
    kernel = body.kernel
    assert kernel is not None
    before, violations = len(kernel.nodes), set(kernel.violations)
    kernel.keep(value, storage)
    written: Any = kernel.nodes[before:]
    if all(a.owner == "flat" for step in written for a in step.accesses if a.storage is storage):
        return True
    kernel.nodes.pop()
    kernel.violations = violations
    return False
