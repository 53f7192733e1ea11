"""A kernel lowered for a Metal platform, and that module run by XLA on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import export
from jax.extend.mlir import ir
from jax.interpreters import mlir

WHITELIST = frozenset(
    """
    abs add and bitcast_convert broadcast_in_dim case ceil clamp compare concatenate constant convert cosine
    divide dot_general dynamic_slice dynamic_update_slice exponential exponential_minus_one floor gather iota
    is_finite log log_plus_one logistic maximum minimum multiply negate not optimization_barrier or pad power
    reduce remainder reshape return reverse round_nearest_even rsqrt select shift_left
    shift_right_arithmetic shift_right_logical sign sine slice sort sqrt subtract tanh transpose while xor
    """.split()  # noqa: SIM905
)
"""What both jax-mps and metaljax run."""
FUNCTIONS = {"func.func", "func.call", "func.return"}
PLATFORMS = ("METAL", "metal", "mps", "mtl")


def lowered(
    fn: Callable[..., Any], *args: Any, platforms: str | Sequence[str] = "METAL", **kwargs: Any
) -> tuple[export.Exported, list[Any]]:
    """`fn` exported for Metal at `args`, of which those that are no arrays are part of it, and the arrays."""
    arrays = [a for a in args if hasattr(a, "shape")]

    def call(*given: Any) -> Any:
        left = iter(given)
        return fn(*(next(left) if hasattr(a, "shape") else a for a in args), **kwargs)

    names = [platforms] if isinstance(platforms, str) else list(platforms)
    off = [export.DisabledSafetyCheck.platform()]
    return export.export(jax.jit(call), platforms=names, disabled_checks=off)(*arrays), arrays


def emulated(fn: Callable[..., Any], platform: str = "METAL") -> Callable[..., Any]:
    """`fn` through the module for `platform`, which is in the whitelist."""

    def call(*args: Any, **kwargs: Any) -> Any:
        exported, arrays = lowered(fn, *args, platforms=platform, **kwargs)
        check_module(exported.mlir_module())
        return exported.call(*arrays)

    return call


def operations(text: str) -> Iterator[Any]:
    """All operations of a module, each before those in its regions."""
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        yield from _inside(module.operation)


def _inside(op: Any) -> Iterator[Any]:
    for region in op.regions:
        for block in region:
            for inner in block.operations:
                yield inner.operation
                yield from _inside(inner.operation)


def check_module(text: str) -> None:
    """A module holds nothing that the plugins do not run."""
    for op in operations(text):
        assert op.name in FUNCTIONS or op.name.removeprefix("stablehlo.") in WHITELIST, op.name
        types = " ".join(str(v.type) for v in (*op.operands, *op.results))
        assert not any(kind in types for kind in ("f64", "complex", "f8E")), types
        assert "TOTALORDER" not in str(op.attributes)
        if op.name == "stablehlo.reduce":
            assert len(op.results) == 1
            assert op.operands[0].type.rank <= 4
