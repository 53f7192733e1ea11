"""Every kind of nest in one kernel: parallel, serial, pipeline and a reduction."""

from __future__ import annotations

import tilejax as tj

from .checks import accumulator, check_rank, sum_type
from .window import View, destination


def structured_sum(x: tj.TensorView, *, out: View | None = None) -> View:
    """The sum of each row of `x` `(rows, phases, steps, lanes)`, as `jnp.sum(x, (1, 2, 3))`."""
    check_rank("structured_sum", 4, x=x)
    row, phase, step, lane = map(tj.axis, ("row", "phase", "step", "lane"), x.shape)
    r, p, s = tj.axis("local_row", 1), tj.axis("local_phase", 1), tj.axis("local_step", 1)
    dtype = sum_type(x.dtype)
    acc_dtype, y = accumulator(dtype), destination(out, x.shape[:1], dtype)

    @tj.parallel(row)
    def _(nest: tj.Nest):
        @nest.serial(phase, carry=tj.zeros(tj.shape(r), acc_dtype))
        def total(phase_nest, so_far):
            @phase_nest.pipeline(step, carry=so_far, window=2)
            def phase_total(step_nest, so_far):
                step_nest.stage("load")
                origin = tj.coord(nest.index(row), phase_nest.index(phase), step_nest.index(step), 0)
                value = x[origin, tj.shape(r, p, s, lane)].astype(acc_dtype)
                step_nest.stage("consume")
                return so_far + tj.sum(value, tj.shape(p, s, lane))

            return phase_total

        y(tj.coord(nest.index(row)), tj.shape(r)).store(total.astype(y.dtype))

    return y
