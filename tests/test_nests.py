"""Parallel, serial and pipeline nests: domains, carries, trip counts, and the order of their stores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal

X = normal(7, 6)


KINDS = ["serial", "pipeline"]


@pytest.mark.parametrize("x64", [False, True])
def test_domains_of_several_axes_run_row_major(x64):
    def kernel():
        out = tj.output((2, 3), jnp.int32)
        final = tj.output((1,), jnp.int32)
        i, j = tj.axis("i", 2), tj.axis("j", 3)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(i, j, carry=0)
            def order(step, count):
                out(tj.coord(step.index(i), step.index(j)), tj.shape(1, 1)).store(count)
                return count + 1

            @nest.serial(tj.shape(i, j), carry=order)
            def order(step, value):
                return value * 2 + step.index(j) - step.index(i)

            final(tj.coord(0), tj.shape(1)).store(order)

        return out, final

    value = 6
    for a, b in np.ndindex(2, 3):
        value = value * 2 + b - a
    with jax.enable_x64(x64):
        both(kernel, want=(np.arange(6, dtype=np.int32).reshape(2, 3), np.array([value], np.int32)))


def test_index_looks_in_the_ancestors_from_any_depth():
    """structured_sum of the seed: parallel, serial, pipeline and reduce nested."""
    x = normal(3, 2, 4, 5)

    def kernel(x):
        out = tj.output((3,), x.dtype)
        row, phase, tick = (tj.axis(n, e) for n, e in zip(["row", "phase", "tick"], x.shape, strict=False))
        lane, r = tj.axis("lane", 5), tj.axis("r", 1)

        @tj.parallel(row)
        def _(nest):
            @nest.serial(phase, carry=tj.zeros(tj.shape(r)))
            def total(outer, total):
                @outer.pipeline(tick, carry=total, window=2)
                def total(inner, total):
                    inner.stage("load")
                    assert inner.index(row).dtype == jnp.int32
                    origin = tj.coord(inner.index(row), inner.index(phase), inner.index(), 0)
                    value = x[origin, tj.shape(1, 1, 1, lane)]
                    inner.stage("sum")
                    return total + tj.reshape(tj.sum(value, lane), tj.shape(r))

                return total

            out(tj.coord(nest.index(row)), tj.shape(r)).store(total)

        return out

    both(kernel, x, want=x.astype(np.float64).sum((1, 2, 3)).astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize("scope", [tj.Scope.AUTOMATIC, tj.Scope.WORKER, tj.Scope.VECTOR])
def test_parallel_inside_parallel_and_inside_serial(scope):
    """Sub-programs read what their parent stored before them, and the parent reads what they stored."""

    def kernel(x):
        y = tj.update(x)
        out = tj.output((7,), x.dtype)
        rows, cols, c, steps = tj.axis("rows", 7), tj.axis("cols", 6), tj.axis("c", 6), tj.axis("steps", 3)

        @tj.parallel(rows)
        def _(nest):
            i = nest.index()

            @nest.serial(steps)
            def _(step):
                y(tj.coord(i, 0), tj.shape(1, 2)).store(step.index().astype(x.dtype))

                @step.parallel(cols, scope=scope)
                def _(sub):
                    at = tj.coord(sub.index(rows), sub.index(cols)), tj.shape(1, 1)
                    y(*at).store(y[at] * 2 + sub.index(steps))

            line = y[tj.coord(i, 0), tj.shape(1, c)]
            out(tj.coord(i), tj.shape(1)).store(tj.reshape(tj.sum(line, c), tj.shape(1)))

        return y, out

    x = np.arange(42, dtype=np.float32).reshape(7, 6)
    y = x.copy()
    for s in range(3):
        y[:, :2] = s
        y = y * 2 + s
    refused = "scope VECTOR, which backend triton does not have" if scope is tj.Scope.VECTOR else ""
    both(kernel, x, want=(y, y.sum(1)), refused=refused)


def test_parallel_takes_axes_shapes_and_ints():
    def kernel(x):
        outs = [tj.output((2, 3), jnp.int32) for _ in range(3)]
        i, j = tj.axis("i", 2), tj.axis("j", 3)

        def store(out, a, b):
            out(tj.coord(a, b), tj.shape(1, 1)).store(a * 3 + b)

        @tj.parallel(i, j)
        def _(nest):
            store(outs[0], nest.index(i), nest.index(j))

        @tj.parallel(tj.shape(i, j))
        def _(nest):
            store(outs[1], nest.index(i), nest.index(j))

        @tj.parallel(6)
        def _(nest):
            store(outs[2], nest.index() // 3, nest.index() % 3)

        return outs

    both(kernel, X, want=[np.arange(6, dtype=np.int32).reshape(2, 3)] * 3)


def test_an_empty_grid_and_empty_loops_store_nothing():
    def kernel(x):
        y, z = tj.update(x), tj.update(x)
        none, rows = tj.axis("none", 0), tj.axis("rows", 7)

        @tj.parallel(rows, none)
        def _(nest):
            y(tj.coord(nest.index(rows), nest.index(none)), tj.shape(1, 1)).store(0)

        @tj.parallel(rows)
        def _(nest):
            @nest.serial(none, rows)
            def _(step):
                z(tj.coord(nest.index(), 0), tj.shape(1, 1)).store(0)

        return y, z

    both(kernel, X, want=(X, X))


def test_indices_are_int32_scalars_with_floor_arithmetic():
    def kernel():
        out = tj.output((5, 4), jnp.int32)
        i = tj.axis("i", 5)

        @tj.parallel(i)
        def _(nest):
            n = nest.index(i)
            assert n.dtype == jnp.int32
            for j, value in enumerate([(n - 3) // 2, (n - 3) % 2, (n - 3) // -2, tj.cdiv(n - 3, 2)]):
                out(tj.coord(n, j), tj.shape(1, 1)).store(value)

        return out

    n = np.arange(5) - 3
    both(kernel, want=np.stack([n // 2, n % 2, n // -2, -(-n // 2)], 1).astype(np.int32))
