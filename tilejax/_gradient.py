"""Kernels that bring their own backward kernels.

`with_gradient` attaches to a kernel two functions of arrays, made of kernels themselves. Reverse mode then
runs them; forward mode, and all derivatives of higher order, still are those of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend.core import Literal

from .backends.registry import Options
from .ir.program import derivative_p, kernel_p

_ATTRIBUTE = "_tilejax_gradient"


def with_gradient(
    *, backward: Callable[..., Any], forward: Callable[..., Any] | None = None
) -> Callable[[Any], Any]:
    """Decorates a kernel with how it differentiates in reverse.

    `forward(*args, **kwargs)` gives `(results, saved)`, the kernel's results and a pytree of arrays to
    keep; without it the kernel runs, nothing but its arguments is kept and `saved` is `None`.

    `backward(saved, cotangents, *args, **kwargs)` gives a tuple of the cotangents of the arguments, each a
    pytree like its argument and of its dtypes. `cotangents` is a pytree like the results, with `None` for
    one that nothing depends on. A `None` in the tuple, or an argument after its end, has no cotangent here
    (integers, static arguments); who asks for one gets the derivative of the program.
    """

    def decorate(kernel: Any) -> Any:
        setattr(kernel, _ATTRIBUTE, (forward, backward))
        return kernel

    return decorate


@dataclass(frozen=True)
class Backward:
    """The transpose of a kernel's derivative."""

    fn: Callable[[Sequence[Any], Sequence[Any]], list[Any]] = field(compare=False)
    """`fn(known operands, cotangents)`: for each active operand the cotangent, or `None` if it has none
    here. A cotangent that is zero is `None`."""
    key: Any
    """What `fn` was made from. JAX keeps what it compiled for one: those of a repeat must be equal."""

    def batched(self, flags: tuple[bool, ...], size: int) -> Backward:
        """The same over a batch, which the flagged operands of the derivative (known ones, then tangents)
        have first."""

        def fn(known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            axes = [0 if b else None for b in flags[: len(known)]]
            moved = jax.vmap(self.fn, in_axes=(axes, 0), axis_size=size)(list(known), list(cotangents))
            return _unbatched(moved, flags[len(known) :])

        return Backward(fn, (self, flags, size))


@dataclass(frozen=True)
class Gradient:
    """What `with_gradient` said, on the flat operands of one traced kernel."""

    forward: Callable[[Sequence[Any]], tuple[list[Any], Any]] | None = field(compare=False)
    pullback: Callable[[Sequence[Any], Any, Sequence[Any]], list[Any]] = field(compare=False)
    """`pullback(operands, saved, cotangents)`: a cotangent, or `None`, for each operand."""
    key: Any
    """As that of `Backward`."""

    @classmethod
    def of(
        cls,
        fn: Any,
        options: Options,
        rebuild: Callable[[Sequence[Any]], Any],
        offset: int,
        count: int,
        outputs: Any,
    ) -> Gradient | None:
        """The gradient of kernel `fn`, if it has its own. Its kernels run as `options` say.

        `rebuild` gives `(args, kwargs)` for the `count` dynamic leaves, which follow `offset` captured
        arrays among the operands; `outputs` is the pytree of the results.
        """
        rule = getattr(fn, _ATTRIBUTE, None)
        if rule is None:
            return None
        forward_rule, backward_rule = rule
        places, _ = rebuild([_Place(offset + i) for i in range(count)])

        def forward(operands: Sequence[Any]) -> tuple[list[Any], Any]:
            args, kwargs = rebuild(operands[offset:])
            results, saved = _with_options(options, lambda a, k: forward_rule(*a, **k), args, kwargs)
            return jax.tree.leaves(results), saved

        def pullback(operands: Sequence[Any], saved: Any, cotangents: Sequence[Any]) -> list[Any]:
            args, kwargs = rebuild(operands[offset:])
            given = saved, jax.tree.unflatten(outputs, cotangents)
            moved = _with_options(options, lambda g, a, k: backward_rule(*g, *a, **k), given, args, kwargs)
            result: list[Any] = [None] * (offset + count)
            for place, cotangent in zip(places, moved, strict=False):
                leaves = jax.tree.leaves(cotangent, is_leaf=lambda x: x is None)
                for leaf, value in zip(jax.tree.leaves(place), leaves, strict=False):
                    if isinstance(leaf, _Place):
                        result[leaf.operand] = value
            return result

        return cls(forward if forward_rule else None, pullback, object())

    def backward(self, saved: Any, results: int, active: Sequence[int], smooth: Sequence[int]) -> Backward:
        """The transpose of the derivative with the given active operands and, among `results`, smooth ones.
        Its known operands are those of the kernel and the leaves of a pytree like `saved`."""
        tree = jax.tree.structure(saved)

        def fn(known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            count = len(known) - tree.num_leaves
            given = dict(zip(smooth, cotangents, strict=True))
            kept = jax.tree.unflatten(tree, known[count:])
            moved = self.pullback(known[:count], kept, [given.get(i) for i in range(results)])
            return [moved[i] for i in active]

        return Backward(fn, (self, tree, results, tuple(active), tuple(smooth)))

    def batched(self, flags: tuple[bool, ...], size: int) -> Gradient:
        """The same over a batch, which the flagged operands have first."""
        axes = [0 if b else None for b in flags]
        alone = self.forward

        def forward(operands: Sequence[Any]) -> tuple[list[Any], Any]:
            return jax.vmap(alone, in_axes=(axes,), axis_size=size)(list(operands))  # type: ignore[arg-type]

        def pullback(operands: Sequence[Any], saved: Any, cotangents: Sequence[Any]) -> list[Any]:
            each = jax.vmap(self.pullback, in_axes=(axes, 0, 0), axis_size=size)
            return _unbatched(each(list(operands), saved, list(cotangents)), flags)

        return Gradient(forward if alone else None, pullback, (self, flags, size))


@dataclass(frozen=True)
class _Place:
    """Stands for an operand among the arguments."""

    operand: int


def _unbatched(cotangents: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    """Cotangents over a batch: those of operands that had no batch add up."""
    return [ct if b or ct is None else ct.sum(0) for ct, b in zip(cotangents, flags, strict=True)]


def _with_options(options: Options, fn: Callable[..., Any], *args: Any) -> Any:
    """`fn(*args)`, whose kernels that name no backend have these options."""
    if options.backend == "auto":
        return fn(*args)
    leaves, tree = jax.tree.flatten(args)
    arrays = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

    def flat(*values: Any) -> Any:
        given = list(leaves)
        for i, x in zip(arrays, values, strict=True):
            given[i] = x
        return fn(*jax.tree.unflatten(tree, given))

    closed, shape = jax.make_jaxpr(flat, return_shape=True)(*(leaves[i] for i in arrays))
    out = _run(options, closed, [leaves[i] for i in arrays])
    return jax.tree.unflatten(jax.tree.structure(shape), out)


def _run(options: Options, closed: Any, operands: Sequence[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*closed.consts, *operands], strict=True))

    def read(var: Any) -> Any:
        return var.val if isinstance(var, Literal) else env[var]

    for eqn in jaxpr.eqns:
        values, params = [read(v) for v in eqn.invars], eqn.params
        if eqn.primitive in (kernel_p, derivative_p):
            if params["options"].backend == "auto":
                params = {**params, "options": options}
            out = eqn.primitive.bind(*values, **params)
        elif eqn.primitive.name in ("jit", "pjit"):
            out = _run(options, params["jaxpr"], values)
        else:
            out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(params))
            out = out if eqn.primitive.multiple_results else [out]
        env.update(zip(eqn.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]
