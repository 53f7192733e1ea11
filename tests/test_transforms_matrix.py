"""jvp, vjp, vmap and jit, their pairs and triples, of every documented kernel, against the same function in
`jnp`. In float64, where a wrong derivative can't hide behind rounding."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.jnp_reference import REFERENCES
from tilejax import kernels

Function = Callable[..., Any]


def _direction(x: jax.Array, at: int) -> Any:
    """Some tangent of `x`, different for each position `at`."""
    return jnp.cos(jnp.arange(x.size, dtype=x.dtype) * (1 + at)).reshape(x.shape)


def _smooth(tree: Any) -> list[jax.Array]:
    return [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]


def jvp(f: Function) -> Function:
    def run(*args: jax.Array) -> Any:
        return jax.jvp(f, args, tuple(_direction(x, i) for i, x in enumerate(args)))

    return run


def vjp(f: Function) -> Function:
    def run(*args: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *args: _smooth(f(*args)), *args)
        return pull([_direction(x, i) for i, x in enumerate(out)])

    return run


def vmap(f: Function) -> Function:
    """Over a batch of two, in the last place of the first argument and the first of the others; of three
    arguments the second has no batch."""

    def run(*args: jax.Array) -> Any:
        axes: list[int | None] = [-1, *(0 for _ in args[1:])]
        if len(args) == 3:
            axes[1] = None
        moved = [
            x if d is None else jnp.stack([x, x[::-1] * 1.25], d) for x, d in zip(args, axes, strict=True)
        ]
        return jax.vmap(f, in_axes=tuple(axes), out_axes=-1)(*moved)

    return run


TRANSFORMS = (jvp, vjp, vmap)
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Each program runs once: it is the compilation that takes time."""
WORDS = [(t,) for t in TRANSFORMS] + list(product(TRANSFORMS, repeat=2)) + list(permutations(TRANSFORMS))


def _compose(word: tuple[Any, ...], f: Function, jit_at: int | None) -> Function:
    """The transforms of `word`, the last one innermost, with `jax.jit` around the inner `jit_at` of them."""
    for i, transform in enumerate(reversed(word)):
        f = transform(jax.jit(f) if i == jit_at else f)
    return f


def _all(f: Function, smooth: list[int], args: list[Any], jit: bool) -> Function:
    """All of the compositions of `f` in one program, as a function of the floating arguments."""

    def run(*floats: jax.Array) -> Any:
        def part(*floats: jax.Array) -> Any:
            full = list(args)
            for i, x in zip(smooth, floats, strict=True):
                full[i] = x
            return f(*full)

        results = {}
        for n, word in enumerate(WORDS):
            composed = _compose(word, part, n % (len(word) + 1) if jit else None)
            results[" ".join(t.__name__ for t in word)] = composed(*floats)
        return results

    # Compiled ahead, it is gone after the test; jit would keep it.
    return jax.jit(run).lower(*(args[i] for i in smooth)).compile(QUICK)


@pytest.mark.parametrize("name", REFERENCES)
def test_every_composition_is_that_of_jnp(name):
    reference = REFERENCES[name]
    with jax.enable_x64(True):
        smooth = [i for i, x in enumerate(reference.args) if x.dtype.kind == "f"]
        args = [x.astype(np.float64) if i in smooth else x for i, x in enumerate(reference.args)]
        floats = [args[i] for i in smooth]
        got = _all(reference.kernel, smooth, args, True)(*floats)
        want = _all(reference.jnp, smooth, args, False)(*floats)
        assert jax.tree.structure(got) == jax.tree.structure(want)
        for (path, w), g in zip(jax.tree.leaves_with_path(want), jax.tree.leaves(got), strict=True):
            where = jax.tree_util.keystr(path)
            assert g.dtype == w.dtype, where
            if g.dtype == jax.dtypes.float0:  # the tangent of an integer has no values
                assert g.shape == w.shape, where
                continue
            np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10, err_msg=where)


def test_the_matrix_has_every_kernel():
    public = {name for name in kernels.__all__ if name != "Window"}
    assert public == set(REFERENCES)
