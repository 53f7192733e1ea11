"""What a warm call costs beside `jax.jit` of the same arguments, on arrays too small to compute anything."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import tilejax as tj

from .run import Spread, alternate

ARITIES = (1, 2, 4, 8)


def dispatch(seconds: float) -> dict[str, float]:
    """`jax.jit` time / `tj.jit` time of a warm call, by number of arguments and with a static keyword."""
    ratios = {}
    for arity in ARITIES:
        for keyword in (False, True):
            options = {"scale": 2} if keyword else {}
            ours = tj.jit(_kernel, static_argnames="scale")
            theirs = jax.jit(_function, static_argnames="scale")
            xs = [jnp.ones(8)] * arity
            samples = alternate(
                {
                    "tilejax": lambda ours=ours, xs=xs, options=options: ours(*xs, **options),
                    "jnp": lambda theirs=theirs, xs=xs, options=options: theirs(*xs, **options),
                },
                seconds,
            )
            median = {name: Spread.of(times).median for name, times in samples.items()}
            name = f"{arity} argument{'s' * (arity > 1)}{', a static keyword' * keyword}"
            ratios[name] = median["jnp"] / median["tilejax"]
    return ratios


def _kernel(*xs: tj.TensorView, scale: int = 1) -> tj.TensorView:
    y, i = tj.output_like(xs[0]), tj.axis("i", xs[0].shape[0])

    @tj.parallel(1)
    def _(nest: tj.Nest) -> None:
        here = tj.coord(0), tj.shape(i)
        y(*here).store(sum(x[here] for x in xs) * scale)

    return y


def _function(*xs: jax.Array, scale: int = 1) -> jax.Array:
    return sum(xs, jnp.zeros(8)) * scale
