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
from .storage import Memory, Storage, Stored, Tile, constant, stored
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
    variables = eqn.invars[count + split :]
    carry = [
        _carried(frame, body, var, value, [*held, *initial[:i], *initial[i + 1 :]])
        for i, (var, value) in enumerate(zip(variables, initial, strict=True))
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
                start, stop = (b.element(None, ()) for b in bounds)
                first, last = f"max({start}, 0)", f"min({stop}, {n})"
            header = f"for (int {name} = {first}; {name} < {last}; ++{name})"
            stack.enter_context(kernel.loop(header, not bounds))
            indices.append(index_of(kernel, name, n))
        yield indices


def _carried(frame: Frame, body: Frame, var: Any, value: Value, others: Sequence[Value]) -> Value:
    """Where a carry is from step to step, holding its initial value."""
    kernel = frame.kernel
    assert kernel is not None
    if isinstance(value, Memory):
        return value
    if not value.shape:
        with kernel.step(scoped=False) as block:
            return constant(block.variable(type_of(value.dtype), block.get(value, ())), value.dtype)
    if frame.takes_over(var, value, others):
        assert isinstance(value, Stored)
        value.storage.home = body
        return value
    storage = kernel.allocate(value.dtype, value.size, body)
    return kernel.keep(value, storage)


def _advance(body: Frame, carry: Sequence[Value], results: Sequence[Value]) -> None:
    """Makes the results the carry of the next step, as if all at once."""
    kernel = body.kernel
    assert kernel is not None
    waiting = {
        old.storage: new
        for old, new in zip(carry, results, strict=True)
        if isinstance(old, Stored) and not (isinstance(new, Stored) and new.storage is old.storage)
    }
    while waiting:
        storage = next((s for s in waiting if _is_free(s, waiting)), None)
        if storage is None or not _overwrite(kernel, storage, waiting[storage]):
            storage = storage or next(iter(waiting))
            waiting[storage] = body.copy(waiting[storage])
        else:
            del waiting[storage]
    scalars = [
        (old.element(None, ()), new)  # type: ignore[arg-type]
        for old, new in zip(carry, results, strict=True)
        if isinstance(old, Tile) and not old.shape
    ]
    with kernel.step() as block:
        texts = [block.define(type_of(new.dtype), block.get(new, ())) for _, new in scalars]
        if len(texts) > 1:  # one may be what another was
            kept = [kernel.fresh("v") for _ in texts]
            block.lines += [
                f"const {type_of(new.dtype)} {name} = {text};"
                for name, text, (_, new) in zip(kept, texts, scalars, strict=True)
            ]
            texts = kept
        block.lines += [
            f"{name} = {text};" for (name, _), text in zip(scalars, texts, strict=True) if name != text
        ]


def _is_free(storage: Storage, waiting: dict[Storage, Any]) -> bool:
    """Whether no other carry that is still to come reads a storage."""
    return not any(storage in new.reads for s, new in waiting.items() if s is not storage)


def _overwrite(kernel: Kernel, storage: Storage, value: Tile) -> bool:
    """Stores a carry, unless an element of it needs another element of what it replaces."""
    before, violations = len(kernel.nodes), set(kernel.violations)
    kernel.keep(value, storage)
    written: Any = kernel.nodes[before:]
    if all(a.owner == "flat" for step in written for a in step.accesses if a.storage is storage):
        return True
    kernel.nodes.pop()
    kernel.violations = violations
    return False
