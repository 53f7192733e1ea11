"""Kernels that bring their own backward kernels.

`with_gradient` attaches to a kernel two functions of arrays, made of kernels themselves. Reverse mode then
runs them; forward mode, and all derivatives of higher order, still are those of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ATTRIBUTE = "_tilejax_gradient"


def with_gradient(
    *, backward: Callable[..., Any], forward: Callable[..., Any] | None = None
) -> Callable[[Any], Any]:
    """Decorates a kernel with how it differentiates in reverse.

    `forward(*args, **kwargs)` gives `(results, saved)`, the kernel's results and a pytree of arrays to
    keep; without it the kernel runs and nothing but its arguments is kept. `backward(saved, cotangents,
    *args, **kwargs)` gives the tuple of the cotangents of the arguments, each a pytree like its argument,
    `None` for one that has none (integers, static arguments).
    """

    def decorate(kernel: Any) -> Any:
        setattr(kernel, _ATTRIBUTE, (forward, backward))
        return kernel

    return decorate


@dataclass(frozen=True, eq=False)
class Backward:
    """The transpose of a kernel's derivative: `fn(known, cotangents)` gives the cotangents of the active
    operands."""

    fn: Callable[[Sequence[Any], Sequence[Any]], list[Any]]

    def batched(self, flags: tuple[bool, ...], size: int) -> Backward:
        """The same over a batch, which the flagged operands of the derivative (known ones, then tangents)
        have first."""

        def fn(known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            axes = [0 if b else None for b in flags[: len(known)]]
            moved = jax.vmap(self.fn, in_axes=(axes, 0), axis_size=size)(list(known), list(cotangents))
            return [ct if b else ct.sum(0) for ct, b in zip(moved, flags[len(known) :], strict=True)]

        return Backward(fn)


@dataclass(frozen=True, eq=False)
class Gradient:
    """What `with_gradient` said, on the flat operands of one traced kernel."""

    forward: Callable[[Sequence[Any]], tuple[list[Any], list[Any]]]
    pullback: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]
    """`pullback(operands, saved, cotangents)`: a cotangent, or None, for each operand."""

    @classmethod
    def of(
        cls,
        fn: Any,
        run: Callable[..., Any],
        rebuild: Callable[[Sequence[Any]], Any],
        offset: int,
        outputs: Any,
    ) -> Gradient | None:
        """The gradient of kernel `fn`, if it has its own.

        `run` is the kernel on arrays. `rebuild` gives `(args, kwargs)` for the dynamic leaves, which follow
        `offset` captured arrays among the operands, and `outputs` is the pytree of the results.
        """
        rule = getattr(fn, _ATTRIBUTE, None)
        if rule is None:
            return None
        forward_rule, backward_rule = rule
        kept: list[Any] = []

        def forward(operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            args, kwargs = rebuild(operands[offset:])
            results, saved = forward_rule(*args, **kwargs) if forward_rule else (run(*args, **kwargs), ())
            leaves, tree = jax.tree.flatten(saved)
            kept[:] = [tree]
            return jax.tree.leaves(results), leaves

        def pullback(operands: Sequence[Any], saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            args, kwargs = rebuild(operands[offset:])
            moved = backward_rule(
                jax.tree.unflatten(kept[0], saved), jax.tree.unflatten(outputs, cotangents), *args, **kwargs
            )
            leaves = jax.tree.leaves(tuple(moved), is_leaf=lambda x: x is None)
            return [*[None] * offset, *leaves[: len(operands) - offset]]

        return cls(forward, pullback)

    def backward(
        self, primals: Sequence[Any], outs: Sequence[Any], active: tuple[int, ...], smooth: tuple[int, ...]
    ) -> Backward:
        """The transpose of the derivative with the given active operands and smooth results."""
        count = len(primals)
        rough = {i: (x.shape, x.dtype) for i, x in enumerate(outs) if i not in smooth}
        total = len(outs)

        def fn(known: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            given = iter(cotangents)
            full = [
                np.zeros(rough[i][0], jax.dtypes.float0) if i in rough else next(given) for i in range(total)
            ]
            moved = self.pullback(known[:count], known[count:], full)
            return [
                jnp.zeros(known[i].shape, known[i].dtype) if moved[i] is None else moved[i] for i in active
            ]

        return Backward(fn)

    def batched(self, flags: tuple[bool, ...], size: int) -> Gradient:
        """The same over a batch, which the flagged operands have first."""
        axes = [0 if b else None for b in flags]

        def forward(operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            return jax.vmap(self.forward, in_axes=(axes,), axis_size=size)(list(operands))

        def pullback(operands: Sequence[Any], saved: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            present: list[bool] = []

            def each(operands: Any, saved: Any, cotangents: Any) -> list[Any]:
                moved = self.pullback(operands, saved, cotangents)
                present[:] = [ct is not None for ct in moved]
                return [ct for ct in moved if ct is not None]

            moved = iter(
                jax.vmap(each, in_axes=(axes, 0, 0), axis_size=size)(
                    list(operands), list(saved), list(cotangents)
                )
            )
            return [
                None if not there else next(moved) if b else next(moved).sum(0)
                for there, b in zip(present, flags, strict=True)
            ]

        return Gradient(forward, pullback)
