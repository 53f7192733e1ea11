"""Long accumulations of few programs, shared between programs."""

import functools
import re

import jax
import jax.numpy as jnp
import kernel_cases
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from test_triton import close, interpreted

import tilejax as tj
from tilejax import kernels
from tilejax.backends import interpreter
from tilejax.backends.triton import device, schedule, splits, whole
from tilejax.ir.monoids import identity
from tilejax.ir.verify import verify
from tilejax.transforms.simplify import simplify
from tilejax.transforms.splits import split_loops

F32, I32 = np.float32, np.int32


def traced(kernel, *args, **options):
    this = (kernel if hasattr(kernel, "__wrapped__") else tj.jit(kernel)).__wrapped__._tilejax_kernel
    return this.trace(args, options)


def split_run(kernel, *args, count):
    """The kernel's results in the interpreter, its loops in ``count`` ranges: some loop must be split."""
    program = traced(kernel, *args)
    rewritten = split_loops(program.program, lambda nest, loop: count)
    assert rewritten is not program.program
    verify(rewritten)
    return jax.tree.unflatten(program.results, interpreter.run(rewritten, program.operands))


def is_left(kernel, *args):
    program = simplify(traced(kernel, *args).program)
    return split_loops(program, lambda nest, loop: 2) is program


OPERATIONS = {"add": (tj.add, np.sum), "max": (tj.maximum, np.max), "min": (tj.minimum, np.min)}


def accumulating(op, steps, programs=3, kind="pipeline", rows=2, columns=5, limits=False, **options):
    """``op`` of all rows of ``x`` in ranges that each program reads, from what is in ``out`` before."""
    fn, _ = OPERATIONS[op]

    def kernel(x, bounds):
        none = identity(op, x.dtype)
        out = tj.output((programs, columns), x.dtype)
        r, c = tj.axis("r", rows), tj.axis("c", columns)
        reduce = {"add": tj.sum, "max": tj.max, "min": tj.min}[op]

        @tj.parallel(programs)
        def _(nest):
            i = nest.index()
            pair = [tj.reshape(bounds[tj.coord(i, d), tj.shape(1, 1)], tj.shape()) for d in (0, 1)]
            more = dict(zip(("start", "stop"), pair, strict=True)) if limits else {}
            first = x[tj.coord(i, 0), tj.shape(1, c)]

            @getattr(nest, kind)(tj.axis("k", steps), carry=tj.reshape(first, tj.shape(c)), **more, **options)
            def total(step, total):
                tile = x[tj.coord(step.index() * rows, 0), tj.shape(r, c)]
                inside = tj.iota(r) + step.index() * rows < x.shape[0]
                return fn(total, reduce(tj.where(inside, tile, none), r))

            out(tj.coord(i, 0), tj.shape(1, c)).store(total + 1)

        return out

    return kernel


@settings(deadline=None, max_examples=60)
@given(
    op=st.sampled_from(sorted(OPERATIONS)),
    kind=st.sampled_from(["pipeline", "serial"]),
    steps=st.integers(1, 12),
    programs=st.integers(1, 3),
    count=st.integers(2, 7),
    dtype=st.sampled_from([I32, F32]),
    limits=st.one_of(st.none(), st.lists(st.integers(-3, 15), min_size=6, max_size=6)),
    data=st.integers(0, 99),
)
def test_any_accumulation_in_any_ranges(op, kind, steps, programs, count, dtype, limits, data):
    """The last range may be ragged, some have no steps, and the rows end before the steps do."""
    if kind == "serial" and op == "add":
        dtype = I32  # a float sum keeps its order there
    x = np.random.default_rng(data).integers(-9, 10, (max(2 * steps - 1, 3), 5)).astype(dtype)
    bounds = np.array(limits or [0, steps] * 3, I32).reshape(3, 2)
    kernel = accumulating(op, steps, programs, kind, limits=limits is not None)
    want = []
    for i, (start, stop) in enumerate(bounds[:programs]):
        rows = x[2 * max(start, 0) : 2 * max(min(stop, steps), start, 0)]
        want.append(OPERATIONS[op][1](np.concatenate([x[i : i + 1], rows]), 0) + 1)
    np.testing.assert_array_equal(split_run(kernel, x, bounds, count=count), np.array(want))


def test_nan_infinity_and_identities():
    """A range without steps adds nothing to an extremum of infinities; NaN comes through."""
    x = np.full((5, 5), -np.inf, F32)
    x[3, 1], x[4, 2], x[:, 3] = np.nan, np.inf, 7
    bounds = np.zeros((3, 2), I32)
    got = split_run(accumulating("max", 3), x, bounds, count=2)
    np.testing.assert_array_equal(got, [[-np.inf, np.nan, np.inf, 8, -np.inf]] * 3)
    got = split_run(accumulating("min", 3), -x, bounds, count=3)
    np.testing.assert_array_equal(got, [[np.inf, np.nan, -np.inf, -6, np.inf]] * 3)
    got = split_run(accumulating("max", 3, limits=True), x, bounds, count=5)
    np.testing.assert_array_equal(got, x[:3] + 1)
    least = np.full((5, 5), np.iinfo(I32).min, I32)
    got = split_run(accumulating("max", 3), least, bounds, count=4)
    np.testing.assert_array_equal(got, least[:3] + 1)


def test_several_carries_products_and_two_loops():
    a, b = (np.random.default_rng(i).integers(-3, 4, (7, 11)).astype(F32) for i in (0, 1))
    m, n, k = tj.axis("m", 7), tj.axis("n", 7), tj.axis("k", 2)

    def kernel(a, b):
        out, most = tj.output((7, 7), a.dtype), tj.output((7,), a.dtype)

        @tj.parallel(1)
        def _(nest):
            start = tj.full(tj.shape(m, n), 2.0), tj.full(tj.shape(m), -np.inf), tj.full(tj.shape(), True)

            @nest.pipeline(6, carry=start)
            def sums(step, carry):
                at = tj.coord(0, step.index() * 2)
                left, right = a[at, tj.shape(m, k)], b[at, tj.shape(n, k)]
                acc, greatest, finite = carry
                return (
                    tj.mma(left, right, acc),
                    tj.maximum(tj.max(left, k), greatest),
                    tj.logical_and(finite, tj.all(tj.isfinite(left), tj.shape(m, k))),
                )

            @nest.serial(6, carry=tj.zeros(tj.shape(), jnp.int32))
            def positive(step, count):
                tile = a[tj.coord(0, step.index() * 2), tj.shape(m, k)]
                above = tile > tj.where(sums[2], 0.0, 100.0)
                return count + tj.sum(above.astype(jnp.int32), tj.shape(m, k))

            out(tj.coord(0, 0), tj.shape(m, n)).store(sums[0])
            most(tj.coord(0), tj.shape(m)).store(sums[1] + positive.astype(jnp.float32))

        return out, most

    program = split_loops(simplify(traced(kernel, a, b).program), lambda nest, loop: 3)
    assert [e.params["extents"] for e in program.jaxpr.eqns if e.primitive.name == "tile_parallel"] == [
        (3, 1),
        (3, 1),
        (1,),
    ]
    out, most = split_run(kernel, a, b, count=3)
    np.testing.assert_array_equal(out, a @ b.T + 2)
    np.testing.assert_array_equal(most, np.maximum(a.max(1), 0) + (a > 0).sum())


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_loop_of_two_axes_and_one_that_goes_on(count):
    x = np.arange(4 * 6 * 5, dtype=F32).reshape(4, 6, 5)
    c = tj.axis("c", 5)

    def kernel(x):
        out, two = tj.output((5,), x.dtype), tj.output((5,), x.dtype)

        @tj.parallel(1)
        def _(nest):
            i, j = tj.axis("i", 4), tj.axis("j", 6)

            def tile(a, b):
                return tj.reshape(x[tj.coord(a, b, 0), tj.shape(1, 1, c)], tj.shape(c))

            @nest.pipeline(i, j, carry=tj.zeros(tj.shape(c)))
            def total(step, total):
                return total + tile(step.index(i), step.index(j))

            @nest.pipeline(i, carry=tj.zeros(tj.shape(c)))
            def again(outer, total):
                @outer.pipeline(j, carry=total)
                def inner(step, total):
                    return total + tile(outer.index(i), step.index(j))

                return inner

            out(tj.coord(0), tj.shape(c)).store(total)
            two(tj.coord(0), tj.shape(c)).store(again)

        return out, two

    out, two = split_run(kernel, x, count=count)
    np.testing.assert_array_equal(out, x.sum((0, 1)))
    np.testing.assert_array_equal(two, x.sum((0, 1)))


def test_what_is_never_split():
    """Floats in order, steps that store, what was stored before, and carries that are read on the way."""
    x, none = np.ones((9, 5), F32), np.zeros((3, 2), I32)
    assert is_left(accumulating("add", 4, kind="serial"), x, none)
    assert is_left(accumulating("add", 4, interval=2), x, none)
    assert not is_left(accumulating("add", 4), x, none)
    assert not is_left(accumulating("max", 4, interval=2), x, none)
    c = tj.axis("c", 5)

    def looping(step, carry=None, before=False):
        def kernel(x):
            out, y = tj.output((5,), x.dtype), tj.update(x)

            @tj.parallel(1)
            def _(nest):
                if before:
                    y(tj.coord(0, 0), tj.shape(1, c)).store(tj.ones(tj.shape(1, c)))
                start = tj.zeros(tj.shape(c)) if carry is None else carry
                body = functools.partial(step, x, y)
                total = nest.pipeline(4, carry=start)(lambda here, total: body(here, total))
                out(tj.coord(0), tj.shape(c)).store(total)

            return out, y

        return kernel

    def row(view, here):
        return tj.reshape(view[tj.coord(here.index(), 0), tj.shape(1, c)], tj.shape(c))

    def stores(x, y, here, total):
        y(tj.coord(here.index(), 0), tj.shape(1, c)).store(tj.ones(tj.shape(1, c)))
        return total + row(x, here)

    assert not is_left(looping(lambda x, y, here, total: total + row(x, here)), x)
    assert not is_left(looping(lambda x, y, here, total: total + row(x, here), before=True), x)
    assert not is_left(looping(lambda x, y, here, total: total + row(y, here)), x)
    assert is_left(looping(lambda x, y, here, total: total + row(y, here), before=True), x)
    assert is_left(looping(stores), x)
    assert is_left(looping(lambda x, y, here, total: total * 2 + row(x, here)), x)
    assert is_left(looping(lambda x, y, here, total: total + total * row(x, here)), x)
    assert is_left(looping(lambda x, y, here, total: row(x, here)), x)

    def after(first, second):
        """A sum of rows that starts where a loop that is no sum ends."""

        def kernel(x):
            out = tj.output((5,), x.dtype)

            @tj.parallel(1)
            def _(nest):
                def row(step):
                    return tj.reshape(x[tj.coord(step.index(), 0), tj.shape(1, c)], tj.shape(c))

                weight = nest.serial(first, carry=tj.ones(tj.shape(c)))(lambda here, w: w * 2 + row(here))
                total = nest.pipeline(second, carry=weight)(lambda here, total: total + weight * row(here))
                out(tj.coord(0), tj.shape(c)).store(total)

            return out

        return kernel

    assert is_left(after(4, 4), x)
    assert not is_left(after(2, 4), x)
    np.testing.assert_array_equal(split_run(after(2, 4), x, count=2), [7 + 4 * 7] * 5)

    def ordered(x):
        out = tj.output((5, 5), x.dtype)
        k, d = tj.axis("k", 2), tj.axis("d", 5)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(4, carry=tj.zeros(tj.shape(d, c)))
            def total(step, acc):
                at = tj.coord(step.index() * 2, 0)
                return tj.mma(x[at, tj.shape(k, d)], x[at, tj.shape(k, c)], acc, allow_reassociation=False)

            out(tj.coord(0, 0), tj.shape(d, c)).store(total)

        return out

    assert is_left(ordered, x)


@pytest.fixture
def few_cores(monkeypatch):
    """A device so small that small cases are too few programs for it."""
    for module in (splits, schedule):
        monkeypatch.setattr(module, "cores", lambda: 6)
    monkeypatch.setattr(splits, "LEAST", 2)
    monkeypatch.setattr(splits, "LONG", 4)


@pytest.mark.usefixtures("few_cores")
def test_kernels_on_a_small_device():
    """Segments are lanes and splits at once; a NaN stays in its own."""
    ids, values = np.arange(90, dtype=I32) % 23 - 1, kernel_cases.normal(90, 3)
    values[5, 1], values[40, 0] = np.nan, np.inf
    got = shared(kernels.segment_sum, ids, values[:, 0], 21, block_items=4)
    close(got, oracle.segment_sum(ids, values[:, 0], 21))
    close(shared(kernels.segment_sum, ids, values, 3, block_items=7), oracle.segment_sum(ids, values, 3))
    a, b = kernel_cases.normal(5, 70), kernel_cases.normal(70, 9, seed=1)
    close(shared(kernels.gemm, a, b, block_m=8, block_n=8, block_k=8), a.astype(float) @ b, 1e-4)
    x = kernel_cases.normal(64, 5)
    got = shared(accumulating("add", 33), x, np.zeros((3, 2), I32))
    close(got, x.astype(float).sum(0) + x[:3] + 1, 1e-4)


@pytest.mark.usefixtures("few_cores")
def test_a_scalar_of_a_grid_without_axes():
    """Its total is no view that is loaded."""
    x, r = np.arange(70, dtype=F32), tj.axis("r", 2)

    def kernel(x):
        out = tj.output((1,), x.dtype)

        @tj.parallel()
        def _(nest):
            @nest.pipeline(35, carry=tj.zeros(tj.shape()))
            def total(step, total):
                return total + tj.sum(x[tj.coord(step.index() * 2), tj.shape(r)], r)

            out(tj.coord(0), tj.shape(1)).store(total)

        return out

    np.testing.assert_array_equal(shared(kernel, x), [x.sum()])


def shared(kernel, *args, **options):
    """The kernel's results from its Pallas bodies, of which some share the steps of a loop."""
    program = simplify(traced(kernel, *args, **options).program)
    assert splits.split(program) is not program
    return interpreted(kernel, *args, **options)


@pytest.fixture
def many_places(monkeypatch):
    """Comparing is slow: what selects by an id is always added by address."""
    monkeypatch.setattr(whole, "WORTH", 0)
    monkeypatch.setattr(whole, "RATIO", 0)


@pytest.mark.usefixtures("many_places")
def test_sums_by_address():
    """Ids before and past the segments count nowhere, and a NaN stays in its own."""
    ids, values = np.arange(90, dtype=I32) * 7 % 23 - 1, kernel_cases.normal(90, 3)
    values[5, 1], values[40, 0] = np.nan, np.inf
    for items in (values[:, 0], values):
        got = by_address(kernels.segment_sum, ids, items, 21, block_items=8)
        close(got, oracle.segment_sum(ids, items, 21))

    def histogram(ids):
        out = tj.output((9,), jnp.int32)
        places, item = tj.axis("places", 3), tj.axis("item", 90)

        @tj.parallel(3)
        def _(nest):
            place = tj.iota(places) + nest.index() * 3
            found = ids[tj.coord(0), tj.shape(item)] == place
            out(tj.coord(nest.index() * 3), tj.shape(places)).store(tj.sum(found, item).astype(jnp.int32))

        return out

    np.testing.assert_array_equal(by_address(histogram, ids), np.bincount(ids[ids >= 0])[:9])


def by_address(kernel, *args, **options):
    """The kernel's results, of which some programs became a scatter."""
    plain = simplify(traced(kernel, *args, **options).program)
    rewritten = whole.scattered(plain, ("cpu",))
    assert [e.primitive.name for e in rewritten.jaxpr.eqns].count("tile_parallel") == 0
    assert any(e.primitive.name == "scatter-add" for e in rewritten.jaxpr.eqns)
    return interpreted(kernel, *args, **options)


@pytest.mark.usefixtures("many_places")
def test_what_is_not_added_by_address():
    """Extrema of what an id selects, and ids that are no data."""

    def greatest(ids, x):
        out = tj.output((9,), x.dtype)
        item = tj.axis("item", 90)

        @tj.parallel(9)
        def _(nest):
            here = ids[tj.coord(0), tj.shape(item)] == nest.index()
            value = tj.where(here, x[tj.coord(0), tj.shape(item)], -1.0)
            both = tj.max(value, item) + 0 * tj.sum(value, item)
            out(tj.coord(nest.index()), tj.shape(1)).store(tj.broadcast_to(both, tj.shape(1)))

        return out

    ids, x = np.arange(90, dtype=I32) % 10, np.arange(90, dtype=F32)
    plain = simplify(traced(greatest, ids, x).program)
    assert whole.scattered(plain, ("cpu",)) is plain
    np.testing.assert_array_equal(interpreted(greatest, ids, x), np.arange(80, 89))


def lowered(kernel, *args, **options):
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=132, platform="gpu")
    fn = functools.partial(tj.jit(kernel, backend="triton").trace, **options)
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        text = fn(*args).lower(lowering_platforms=("cuda",)).as_text()
    return [int(n) for n in re.findall(r"grid_x = (\d+)", text)], text.count('"stablehlo.scatter"')


def test_two_launches_and_their_grids():
    s, bf16 = jax.ShapeDtypeStruct, jnp.bfloat16
    blocks = {"block_m": 64, "block_n": 64, "block_k": 128}
    for (m, k, n), grids in {
        (128, 65536, 128): [132, 4],
        (512, 16384, 512): [128, 64],
        (1024, 1024, 1024): [256],
    }.items():
        assert lowered(kernels.gemm, s((m, k), bf16), s((k, n), bf16), **blocks) == (grids, 0)
    ids, values = s((10**6,), I32), s((10**6,), F32)
    assert lowered(kernels.segment_sum, ids, values, 300) == ([1026, 1], 0)
    assert lowered(kernels.segment_sum, ids, values, 1000) == ([], 2)
    assert lowered(kernels.segment_sum, ids, values, 10**5) == ([], 2)
    assert lowered(kernels.segment_sum, ids, s((10**6, 64), F32), 1000) == ([], 2)


@pytest.mark.parametrize(
    ("programs", "kind", "lanes"),
    [
        (256, "serial", None),
        (2000, "serial", (0, 8)),
        (10**5, "serial", (0, 128)),
        (256, "pipeline", (0, 128)),
    ],
)
def test_few_programs_with_long_tiles_stand_alone(programs, kind, lanes):
    """Unless the steps of their loops are shared, they are more than the lanes of a launch that is idle."""
    args = np.zeros((programs, 5), F32), np.zeros((programs, 2), I32)
    nest = simplify(traced(accumulating("add", 40, programs, kind, rows=64), *args).program).jaxpr.eqns[-1]
    assert schedule.lanes_of(nest) == lanes


def test_the_device_says_how_many_programs_it_runs():
    small = AbstractDevice(device_kind="NVIDIA A10", num_cores=72, platform="gpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=small)):
        assert device.cores() == 72
    assert device.cores() == 132 or jax.default_backend() == "gpu"
