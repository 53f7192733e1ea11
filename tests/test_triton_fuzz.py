"""Random kernels through the Triton bodies in Pallas's interpreter, seeds as for `test_fuzz.py`. What is done
to large arrays, long loops and many programs alone is done to small ones."""

from typing import Any

import jax
import numpy as np
import pytest
from test_triton import interpreted
from test_triton_lowering import for_cuda

import tilejax as tj
from tests.fuzz_kernels import random_kernel
from tests.fuzz_patterns import random_pattern
from tests.fuzz_text import Kernel
from tests.test_fuzz import agrees, seeds
from tilejax.backends.triton import (
    blocks,
    launch,
    lower,
    merges,
    pieces,
    prefetch,
    schedule,
    sorting,
    splits,
    whole,
)
from tilejax.ir.jaxprs import equations

WIDTH = 4
"""Of the pieces of a row."""


def rows(nest: Any) -> tuple[int, int] | None:
    shapes = [v.aval.shape for e in equations(nest.params["body"].jaxpr.eqns) for v in schedule.tiles_of(e)]
    longest = max((n for shape in shapes for n in shape), default=0)
    return (longest, WIDTH) if longest > WIDTH else None


def lanes(nest: Any) -> tuple[int, int] | None:
    """Two of any programs are one, along the last axis."""
    axes = [i for i, n in enumerate(nest.params["extents"]) if n > 1]
    eqns = equations(nest.params["body"].jaxpr.eqns)
    stores = any(e.primitive.name == "tile_store" for e in eqns)
    return (axes[-1], 2) if axes and stores else None


def shares(nest: Any, eqn: Any) -> int:
    n = eqn.invars[0].aval.shape[eqn.params["axis"]]
    return next((parts for parts in (3, 2) if n % parts == 0 and n // parts >= eqn.params["k"]), 1)


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops, rows and selections are shared between programs, sorts go through memory, the sums of products
    are cut, and loads run ahead."""
    for module in (splits, schedule, blocks):
        monkeypatch.setattr(module, "cores", lambda: 6)
    for module, name, value in (
        (splits, "LONG", 2),
        (splits, "LEAST", 1),
        (pieces, "HELD", 0),
        (pieces, "BYTES", 8),
        (pieces, "IN_ORDER", 2),
        (splits, "rows", rows),
        (launch, "rows_of", rows),
        (sorting, "_LONG", 2),
        (sorting, "_FEW", 1),
        (merges, "BLOCK", 4),
        (lower, "shares", shares),
        (prefetch, "pays", lambda pipeline: len(pipeline.params["extents"]) == 1),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are lanes, and ids are addresses."""
    for module in (launch, splits, prefetch, pieces):
        monkeypatch.setattr(module, "lanes_of", lanes)
    monkeypatch.setattr(whole, "WORTH", 0)
    monkeypatch.setattr(whole, "RATIO", 0)


def bodies(kernel: Kernel, seed: int) -> tuple[Any, Any]:
    fn = kernel.function()
    want = jax.tree.map(np.asarray, tj.interpret(fn)(*kernel.args))
    return lambda: interpreted(fn, *kernel.args), want


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("seed", seeds(110, 116))
def test_kernels_in_parts(seed: int):
    agrees(bodies, random_kernel(seed), seed)


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("seed", seeds(48, 54))
def test_patterns_in_parts(seed: int):
    agrees(bodies, random_pattern(seed), seed)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("seed", seeds(0, 6))
def test_kernels_as_lanes(seed: int):
    agrees(bodies, random_kernel(seed), seed)


@pytest.mark.usefixtures("joined")
@pytest.mark.parametrize("seed", seeds(16, 22))
def test_patterns_as_lanes(seed: int):
    agrees(bodies, random_pattern(seed), seed)


@pytest.mark.parametrize("seed", [6, 24, *seeds(7, 14)])
def test_kernels_are_lowered(seed: int):
    """For CUDA, whose rules for constants are others than the interpreter's."""
    kernel = random_kernel(seed)
    args = [jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype) for x in kernel.args]
    program = tj.make_jaxpr(kernel.function())(*kernel.args)
    nests = [e.params for e in program.jaxpr.eqns if e.primitive.name == "tile_parallel"]
    runs = any(p["num_views"] and 0 not in p["extents"] for p in nests)
    assert ("xla.gpu.triton" in for_cuda(kernel.function(), *args)) == runs
