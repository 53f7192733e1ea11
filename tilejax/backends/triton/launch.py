"""One parallel nest as one Pallas launch."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ...ir.domains import unravel
from ...transforms.accesses import covers
from . import matrices
from .arrays import check_arrays
from .hazards import loads_what_it_stores, meets
from .instructions import ptx
from .kernel import Kernel, introduce
from .lane_kernel import LaneKernel
from .lanes import Lanes, NotLanes, cell
from .neighbours import Neighbours, Shared, neighbours
from .order import indices_of
from .recut import Matrices, matrices_of
from .room import room_of
from .schedule import check_size, contracts, lane_extents, lanes_of, rows_of, stages_of, warps_of
from .scratch import Need, output
from .scratch import given as scratches
from .sorting import needs_of
from .stream_reductions import pieces_of
from .streams import NotStreams, StreamKernel
from .tiles import View


def launch(
    eqn: Any, values: list[Any], num_warps: int | None, num_stages: int | None, cuda: bool, interpret: bool
) -> list[Any]:
    """The new versions of the views that a `tile_parallel` stores to."""
    params = eqn.params
    extents, body, count = params["extents"], params["body"], params["num_views"]
    split = len(values) - count
    avals = [v.aval for v in eqn.invars]
    if 0 in extents or not count:
        return values[split:]
    check_arrays(eqn)
    rooms = room_of(eqn)
    flat = [_flat(jnp.asarray(v), room) for v, room in zip(values, rooms, strict=True)]
    results = [output(v.shape, v.dtype) for v in flat[split:]]
    # A view that is stored whole need not go in.
    fresh = {i for i in range(split, len(values)) if covers(eqn, i)}
    taken = [i for i in range(len(values)) if i not in fresh]
    places = {i: at for at, i in enumerate(taken)}

    stages = stages_of(eqn, num_stages)

    def given(refs: Sequence[Any]) -> list[Any]:
        inputs, outputs = refs[: len(taken)], refs[len(taken) :]
        out = []
        for i, (aval, room) in enumerate(zip(avals, rooms, strict=True)):
            written = i >= split
            if not aval.shape:
                out.append(plgpu.load(inputs[places[i]].at[np.int32(0)]))
                continue
            ref = outputs[i - split] if written else inputs[places[i]]
            barrier = written and not interpret and meets(eqn, i)
            out.append(View(ref, tuple(aval.shape), room, written, barrier))
        return out

    def one(make: Callable[[], Kernel], needs: Sequence[Need], *refs: Any) -> None:
        evaluator = make()  # it keeps what is traced, so it must not outlive the trace
        evaluator.scratch = scratches(needs, refs[len(taken) + count :], interpret)
        forms = introduce(evaluator.facts, body, extents)
        indices = indices_of(eqn, pl.program_id(0))
        evaluator.facts.indices.update(zip(body.jaxpr.invars, indices, strict=False))
        with ptx(cuda):
            evaluator.run(body, [*indices, *given(refs)], forms)

    def many(lanes: tuple[int, int], beside: Neighbours | None, *refs: Any) -> None:
        axis, width = lanes
        grid = lane_extents(extents, lanes)
        indices = unravel(pl.program_id(0), grid if beside is None else beside.grid(grid))
        lane = indices[axis] * np.int32(width) + lax.iota(np.int32, width)
        inside = lane < np.int32(extents[axis]) if extents[axis] % width else None
        indices[axis] = Lanes((), cell(lane))
        values, shared = given(refs), None if beside is None else Shared()
        with ptx(cuda):
            for number in range(1 if beside is None else beside.count):
                evaluator = LaneKernel(width, inside, shared=shared)
                here, forms = indices, introduce(evaluator.facts, body, extents)
                if beside is not None:
                    here, forms = beside.at(evaluator.facts, indices, forms, number)
                evaluator.run(body, [*here, *values], forms)
            if shared is not None:
                shared.store()

    def matrix(nest: Matrices, *refs: Any) -> None:
        with ptx(cuda):
            matrices.run(nest, pl.program_id(0), given(refs))

    def call(
        kernel: Any,
        extents: Sequence[int],
        warps: int = warps_of(body.jaxpr),
        stages: int = stages,
        needs: Sequence[Need] = (),
    ) -> list[Any]:
        held = [array for need in needs for array in need.arrays(math.prod(extents))]
        out = pl.pallas_call(
            kernel,
            out_shape=[*results, *held],
            grid=(math.prod(extents),),
            input_output_aliases={places[i]: i - split for i in range(split, len(values)) if i not in fresh},
            compiler_params=plgpu.CompilerParams(num_warps=num_warps or warps, num_stages=stages),
            interpret=interpret,
            name="_".join(("tilejax", *params["names"])),
        )(*(flat[i] for i in taken))
        return out[:count]

    def whole(make: Callable[[], Kernel], length: int = 0, warps: int = warps_of(body.jaxpr)) -> list[Any]:
        needs = needs_of(body.jaxpr, length)
        return call(functools.partial(one, make, needs), extents, warps, needs=needs)

    def streamed(length: int, width: int, warps: int) -> list[Any] | None:
        with contextlib.suppress(NotStreams):
            in_order = loads_what_it_stores(eqn)
            return whole(lambda: StreamKernel(length=length, width=width, in_order=in_order), length, warps)
        return None

    out = None
    if (nest := matrices_of(eqn)) is not None:
        out = call(functools.partial(matrix, nest), nest.grid, nest.blocks.warps, num_stages or nest.stages)
    elif (lanes := lanes_of(eqn)) is not None:
        beside, grid = neighbours(eqn, lanes), lane_extents(extents, lanes)
        with contextlib.suppress(NotLanes):
            kernel = functools.partial(many, lanes, beside)
            out = call(kernel, grid) if beside is None else call(kernel, beside.grid(grid), beside.warps)
    elif (rows := pieces_of(body.jaxpr)) is not None:
        out = streamed(*rows)
    elif (rows := rows_of(eqn)) is not None:
        out = streamed(*rows, warps_of(body.jaxpr))
    if out is None:
        check_size(eqn, stages)
        out = whole(lambda: Kernel(contracts(body.jaxpr)))
    return [
        jnp.reshape(o, a.shape) if math.prod(a.shape) else v
        for o, a, v in zip(out, avals[split:], values[split:], strict=True)
    ]


def _flat(array: Any, room: tuple[int, ...]) -> Any:
    """An array as the kernel gets it: in one dimension, zeros up to `room`; an empty one as one element."""
    if not array.size:
        return jnp.zeros((1,), array.dtype)
    if array.shape != room:
        more = [(0, n - own, 0) for n, own in zip(room, array.shape, strict=True)]
        array = lax.pad(array, jnp.zeros((), array.dtype), more)
    return jnp.reshape(array, (-1,))
