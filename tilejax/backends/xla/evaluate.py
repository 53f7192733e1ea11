"""The evaluator: reads a program once, every value being that of all programs of the grid at once.

It is optimistic. Every axis of a parallel nest starts as an atom; where a rule cannot go on so, it notes in
the plan what must be a loop (or a whole, untrimmed dimension) and the evaluation starts again. With every
axis a loop this is the sequential program.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from ..._errors import UnsupportedError
from ...ir.domains import unravel
from ...ir.jaxprs import CALLS, called, variables
from ...transforms.accesses import covers
from ...transforms.affine import Affine
from ...transforms.simplify import simplify
from . import access, bfloat16, contract, elementwise, gather, nans, order, stack, tile_ops
from .fold import fold_steps
from .value import Atom, Group, Plan, Restart, Val, constant, dense, regroup, to_dense, unify

_MAX_RESTARTS = 200

TEMPORARY_BYTES = 2**25
"""The budget of a temporary, unless `compiler_params` says otherwise."""


def compile_program(
    program: Any,
    budget: int,
    differentiable: bool = False,
    notes: Any = None,
    platforms: tuple[str, ...] = ("cpu",),
) -> Any:
    """The program as a closed jaxpr of `lax` primitives on whole arrays, right on each of the platforms; one
    that reverse mode takes, on any platform, if it is to be differentiable. The dict `notes` is given what
    became of equations (`Plan.notes`)."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    gpu = not {"cuda", "rocm"}.isdisjoint(platforms)
    plan = Plan(
        budget=budget,
        differentiable=differentiable,
        notes={} if notes is None else notes,
        drops_nan="cpu" in platforms,
        widens=set(platforms) == {"cpu"},
        doubles_bytes=differentiable or gpu,
        folds=gpu and not differentiable,
    )
    program = simplify(program)
    plan.bare = _only_leaves(program.jaxpr)
    for _ in range(_MAX_RESTARTS):
        try:
            return jax.make_jaxpr(lambda *arrays: _Evaluator(plan).whole(program, arrays))(*avals)
        except Restart:
            plan.depth = 0
            plan.notes.clear()
    raise AssertionError("the plan of a program did not settle")


def _only_leaves(jaxpr: Any) -> bool:
    """Whether a program is one nest, whose results go out as they are and which loads none of them."""
    nests = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "tile_parallel"]
    read = variables(v for eqn in jaxpr.eqns for v in eqn.invars)
    if len(nests) != 1 or read & set(nests[0].outvars):
        return False
    (nest,) = nests
    first = len(nest.invars) - nest.params["num_views"]
    return all(covers(nest, i) for i in range(first, len(nest.invars)))


@dataclass
class _Evaluator:
    plan: Plan
    active: list[Atom] = field(default_factory=list)
    """The grid axes that are atoms here, all of which a store must tell apart."""

    def whole(self, program: Any, arrays: Sequence[Any]) -> list[Any]:
        return [to_dense(self.plan, v) for v in self.results(program, [dense(a) for a in arrays])]

    def run(self, closed: Any, vals: Sequence[Val]) -> list[Val]:
        jaxpr = closed.jaxpr
        env: dict[Any, Val] = dict(zip(jaxpr.invars, vals, strict=True))
        env.update(zip(jaxpr.constvars, (dense(jnp.asarray(c)) for c in closed.consts), strict=True))
        for eqn in jaxpr.eqns:
            self.equation(eqn, env)
        return [self.read(env, v) for v in jaxpr.outvars]

    def read(self, env: dict[Any, Val], var: Any) -> Val:
        if not isinstance(var, Literal):
            return env[var]
        aval: Any = var.aval
        return constant(var.val, aval.dtype, tuple(aval.shape))

    def equation(self, eqn: Any, env: dict[Any, Val]) -> None:
        if eqn.primitive.name not in _TAKES_WINDOWS:
            for var in eqn.invars:
                if not isinstance(var, Literal):
                    env[var] = stack.opened(self.plan, env[var])  # once, for all that read it
        vals = [self.read(env, v) for v in eqn.invars]
        out = self.apply(eqn, vals)
        if (nan := nans.follow(self.plan, eqn, vals)) is not None:
            out = [replace(v, nan=nan) for v in out]
        env.update(zip(eqn.outvars, out, strict=True))

    def results(self, closed: Any, vals: Sequence[Val]) -> list[Val]:
        """What a body gives to somebody who looks at it."""
        out = [stack.unstack(self.plan, v) for v in self.run(closed, vals)]
        nans.exactly(self.plan, out)
        return out

    def apply(self, eqn: Any, vals: list[Val]) -> list[Val]:
        name, params, plan = eqn.primitive.name, eqn.params, self.plan
        plan.here = eqn
        if name in elementwise.ELEMENTWISE:
            aval: Any = eqn.outvars[0].aval
            return [elementwise.apply(plan, eqn.primitive, params, vals, tuple(aval.shape), aval.dtype)]
        if (body := called(eqn)) is not None:
            return self.run(body, vals)
        if name not in _TAKES_STACKS:
            vals = [stack.unstack(plan, v) for v in vals]
        if name in _SHAPE_RULES:
            return [_SHAPE_RULES[name](plan, *vals, **params)]
        if name in _TILE_RULES:
            out = _TILE_RULES[name](plan, *vals, **params)
            return out if isinstance(out, list) else [out]
        if name in _NEST_RULES:
            return _NEST_RULES[name](self, eqn, vals)
        if name in ("copy", "copy_p"):
            return vals
        if name.startswith("tile_") and "loc" in params:  # a kernel called on arrays has none
            raise UnsupportedError(f"{name}: the xla backend has no rule for it", loc=params.get("loc"))
        return elementwise.generic(plan, eqn.primitive, params, vals, [v.aval for v in eqn.outvars])


def _load(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    view, *starts, fallback = vals
    if fallback.entries() or view.atoms():
        raise ev.plan.demote([*fallback.atoms(), *view.atoms()])
    return [
        access.load(ev.plan, view, starts, fallback, shape=eqn.params["shape"], bounds=eqn.params["bounds"])
    ]


def _store(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    view, tile, *starts = vals
    return [access.store(ev.plan, view, tile, starts, ev.active, bounds=eqn.params["bounds"])]


def _fold(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    return [tile_ops.fold(ev.plan, ev.results, *vals, **eqn.params)]


def _associative_scan(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    return tile_ops.associative_scan(ev.plan, ev.results, *vals, **eqn.params)


def _parallel(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    """`tile_parallel`: atoms for the axes that may be, a loop over the others."""
    params = eqn.params
    extents, num_views, body = params["extents"], params["num_views"], params["body"]
    consts, views = vals[: len(vals) - num_views], vals[len(vals) - num_views :]
    if 0 in extents or not num_views:
        return views
    keys = [(id(body.jaxpr), i) for i in range(len(extents))]
    pieces = [ev.plan.loops.get(key, 1) for key in keys]
    atoms = [Atom(k, n // p) if n > p else None for k, n, p in zip(keys, extents, pieces, strict=True)]
    inner = _Evaluator(ev.plan, [*ev.active, *(a for a in atoms if a)])
    ev.plan.note(pieces, eqn)

    def programs(position: Any, arrays: Sequence[Any]) -> list[Any]:
        indices = [_piece(at, a) for at, a in zip(_unravel(position, pieces), atoms, strict=True)]
        held = [dense(bfloat16.numbers(a, v.dtype)) for a, v in zip(arrays, views, strict=True)]
        out = inner.results(body, [*indices, *consts, *held])
        return [to_dense(ev.plan, v) for v in out]

    def piece(position: Any, kept: Sequence[Any]) -> list[Any]:
        return [bfloat16.bits(ev.plan, a) for a in programs(position, kept)]

    arrays = [to_dense(ev.plan, v) for v in views]
    count = math.prod(pieces)
    if count > 1:
        kept = [bfloat16.bits(ev.plan, a) for a in arrays]
        kept = lax.fori_loop(np.int32(0), np.int32(count), piece, kept)
        return [dense(bfloat16.numbers(a, v.dtype)) for a, v in zip(kept, views, strict=True)]
    ev.plan.reduced, ev.plan.temporary = [], 0
    out = programs(0, arrays)
    if (restart := _streams(ev, atoms, out)) is not None:
        raise restart
    return [dense(a) for a in out]


def _streams(ev: _Evaluator, atoms: Sequence[Atom | None], out: Sequence[Any]) -> Restart | None:
    """A restart in pieces, if a nest has temporaries over the budget: padded views, or several arrays that
    it reduces to much smaller results. XLA fuses one computation with its reduction, but keeps in memory what
    several are made of. A loop updates small results in place; large ones had better be what a fusion writes.
    """
    plan = ev.plan
    reduced, outermost = sum(plan.reduced), next((a for a in atoms if a is not None), None)
    if ev.active or plan.depth or plan.differentiable or outermost is None:
        return None
    if len(plan.reduced) < 2 or 8 * sum(a.nbytes for a in out) > reduced:
        reduced = 0
    size = reduced + plan.temporary
    return plan.stream(outermost, size) if size > plan.budget else None


def _index(atom: Atom | None) -> Val:
    return Val((), np.dtype(np.int32), affine=Affine(0, {atom: 1} if atom else {}))


def _piece(at: Val, atom: Atom | None) -> Val:
    """The index along an axis of which piece `at` is being run."""
    if atom is None:
        return at
    form = at.affine
    assert form is not None
    n = atom.extent
    base = None if form.base is None else form.base * np.int32(n)
    return Val(
        (), np.dtype(np.int32), affine=Affine(form.const * n, {atom: 1}, base, form.lo * n, form.hi * n)
    )


def _unravel(position: Any, extents: Sequence[int]) -> list[Val]:
    """The indices of a point of a row-major domain, each with its range."""
    if isinstance(position, int):
        return [constant(int(i), np.int32) for i in np.unravel_index(position, extents)]
    return [
        Val((), np.dtype(np.int32), affine=Affine(0, {}, index, 0, n - 1)) if n > 1 else constant(0, np.int32)
        for index, n in zip(unravel(position, extents), extents, strict=True)
    ]


def _loop(ev: _Evaluator, eqn: Any, vals: list[Val]) -> list[Val]:
    """`tile_serial` and `tile_pipeline`: folded into one reduction where that is the same, else one loop
    with the whole grid inside."""
    params = eqn.params
    extents, num_bounds, num_views, num_carry = (
        params[k] for k in ("extents", "num_bounds", "num_views", "num_carry")
    )
    body = params["body"]
    bounds, rest = vals[:num_bounds], vals[num_bounds:]
    carry = rest[len(rest) - num_carry :]
    views = rest[len(rest) - num_carry - num_views : len(rest) - num_carry]
    consts = rest[: len(rest) - num_carry - num_views]
    count = math.prod(extents)
    if count == 0:
        return [*views, *carry]
    keys = [(id(body.jaxpr), i) for i in range(len(extents))]
    cut = any(k in ev.plan.loops for k in keys)
    if not (num_bounds or num_views or cut) and count > 1:
        steps = [Atom(k, n) if n > 1 else None for k, n in zip(keys, extents, strict=True)]
        folded = fold_steps(
            ev,
            body,
            [_index(a) for a in steps],
            consts,
            carry,
            [a for a in steps if a],
            eqn.primitive.name == "tile_pipeline",
        )
        if folded is not None:
            ev.plan.note("folded", eqn)
            return folded
    masked = ev.plan.differentiable and any(b.affine is None or not b.affine.is_constant for b in bounds)
    if dependent := [a for b in bounds for a in b.atoms()]:
        raise ev.plan.demote(dependent)
    lo, hi = _range(bounds, count)

    def step(position: Any, arrays: list[Any], layouts: Sequence[tuple[Group, ...]]) -> list[Val]:
        held = [dense(bfloat16.numbers(a, v.dtype)) for a, v in zip(arrays, views, strict=False)]
        state = [
            Val(v.shape, v.dtype, a, g) for v, a, g in zip(carry, arrays[num_views:], layouts, strict=True)
        ]
        ev.plan.depth += 1
        out = ev.results(body, [*_unravel(position, extents), *consts, *held, *state])
        ev.plan.depth -= 1
        return out

    arrays = [to_dense(ev.plan, v) for v in views]
    ev.plan.note("cut" if cut else "loop", eqn)
    if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= 1:
        ev.plan.note("one step", eqn)
        if hi <= lo:
            return [*views, *carry]
        held = [*(dense(a) for a in arrays), *carry]
        return ev.run(body, [*_unravel(lo, extents), *consts, *held])
    layouts = _settle(ev, carry, arrays, step)

    def trip(position: Any, arrays: list[Any]) -> list[Any]:
        out = step(position, arrays, layouts)
        state = [regroup(ev.plan, v, g) for v, g in zip(out[num_views:], layouts, strict=True)]
        return [*(bfloat16.bits(ev.plan, to_dense(ev.plan, v)) for v in out[:num_views]), *state]

    kept = [bfloat16.bits(ev.plan, a) for a in arrays]
    start = [*kept, *(regroup(ev.plan, v, g) for v, g in zip(carry, layouts, strict=True))]
    first, last = (np.int32(n) if isinstance(n, int) else n for n in (lo, hi))
    if masked:
        # Reverse mode needs a static range. A step outside of the asked one is not run: of what it would
        # compute, though nobody reads it, the derivative may be infinite.
        def guarded(position: Any, arrays: list[Any]) -> list[Any]:
            inside = lax.ge(position, lax.convert_element_type(first, position.dtype))
            inside &= lax.lt(position, lax.convert_element_type(last, position.dtype))
            return lax.cond(inside, functools.partial(trip, position), list, arrays)

        out = lax.fori_loop(np.int32(0), np.int32(count), guarded, start)
    else:
        out = lax.fori_loop(first, last, trip, start)
    state = [Val(v.shape, v.dtype, a, g) for v, a, g in zip(carry, out[num_views:], layouts, strict=True)]
    stored = [dense(bfloat16.numbers(a, v.dtype)) for a, v in zip(out, views, strict=False)]
    return [*stored, *state]


def _range(bounds: list[Val], count: int) -> tuple[Any, Any]:
    """The first step and the one after the last, clipped to the domain: ints where they are static."""
    if not bounds:
        return 0, count
    out = []
    for bound in bounds:
        scalar = access.to_scalar(bound)
        if isinstance(scalar, np.generic):
            out.append(min(max(int(scalar), 0), count))
        else:
            out.append(lax.clamp(np.int32(0), scalar, np.int32(count)))
    return out[0], out[1]


def _settle(
    ev: _Evaluator, carry: list[Val], arrays: list[Any], step: Callable[..., list[Val]]
) -> list[tuple[Group, ...]]:
    """The groups that the carry keeps over the loop: those that it starts with and those that a step gives
    it, until nothing is added."""
    layouts = [unify([v]) if v.array is not None else tuple((e,) for e in v.entries()) for v in carry]
    num_views = len(arrays)
    while True:
        found: list[list[Group]] = []

        def trial(*flat: Any, layouts=layouts, found=found) -> Any:
            out = step(flat[0], list(flat[1:]), layouts)
            found[:] = [
                list(v.groups) if v.array is not None else [(e,) for e in v.entries()]
                for v in out[num_views:]
            ]
            return [to_dense(ev.plan, v) for v in out[:num_views]]

        shapes = [
            jax.ShapeDtypeStruct([ev.plan.length(g, v.shape) for g in lay], v.dtype)
            for v, lay in zip(carry, layouts, strict=True)
        ]
        jax.eval_shape(
            trial,
            jax.ShapeDtypeStruct((), np.int32),
            *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays),
            *shapes,
        )
        new = [
            unify([Val(v.shape, v.dtype, 0, lay), Val(v.shape, v.dtype, 0, tuple(out))])
            for v, lay, out in zip(carry, layouts, found, strict=True)
        ]
        if all(set(a) == set(b) for a, b in zip(new, layouts, strict=True)):
            return layouts
        layouts = new


_SHAPE_RULES: dict[str, Any] = {
    "broadcast_in_dim": elementwise.broadcast_in_dim,
    "transpose": elementwise.transpose,
    "squeeze": elementwise.squeeze,
    "reshape": elementwise.reshape,
    "iota": elementwise.iota,
}

_TILE_RULES: dict[str, Any] = {
    "tile_stage": lambda plan, **_: [],
    "tile_memory": lambda plan, *, dtype, layout, **_: constant(0, dtype, layout.extents),
    "tile_mma": contract.mma,
    "tile_reduce": tile_ops.reduce,
    "tile_argreduce": tile_ops.argreduce,
    "tile_scan": tile_ops.scan,
    "tile_gather": gather.gather,
    "tile_sort": order.sort,
    "tile_top_k": order.top_k,
}

_TAKES_STACKS = frozenset({*_SHAPE_RULES, "tile_mma", "tile_reduce", "tile_gather", "tile_sort", "copy"})

_TAKES_WINDOWS = frozenset(
    {"broadcast_in_dim", "transpose", "squeeze", "tile_mma", "tile_gather", "copy", *CALLS}
)

_NEST_RULES: dict[str, Any] = {
    "tile_load": _load,
    "tile_store": _store,
    "tile_fold": _fold,
    "tile_associative_scan": _associative_scan,
    "tile_parallel": _parallel,
    "tile_serial": _loop,
    "tile_pipeline": _loop,
}

RULES = frozenset({*_TILE_RULES, *_NEST_RULES})
"""The tile primitives that this backend takes."""
