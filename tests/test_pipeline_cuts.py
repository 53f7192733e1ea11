"""What a pipeline may load one step ahead, and what it is told where it may not."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tilejax.transforms.hazards import hazard
from tilejax.transforms.pipeline import find_cuts

X = np.arange(40, dtype=np.float32).reshape(10, 4)
R, C = tj.axis("r", 1), tj.axis("c", 4)


def cuts(body, *args, window=0, interval=1, carry=None, steps=5, start=0, stop=None):
    """The cuts of a kernel of one pipeline, whose step is ``body(step, x, y[, carry])``: ``x`` is an argument
    and ``y`` its updated copy."""

    def kernel(x):
        y = tj.update(x)
        axis = tj.axis("steps", steps)

        @tj.parallel(tj.axis("programs", 2))
        def _(nest):
            at = nest.index() * 5

            def step(step, *carry):
                return body(step, x, y, at + step.index(), *carry)

            nest.pipeline(axis, carry=carry, window=window, interval=interval, start=start, stop=stop)(step)

        return y

    return [cut for _, cut in find_cuts(tj.make_jaxpr(kernel)(X)).values()]


def row(view, i):
    return view(tj.coord(i, 0), tj.shape(R, C))


def only(body, **options):
    (cut,) = cuts(body, **options)
    return cut


def loaded_ahead(cut):
    return [eqn.params["name"] for eqn in cut.ahead if eqn.primitive.name == "tile_load"]


def test_an_argument_is_loaded_ahead_of_stores_to_its_updated_copy():
    def body(step, x, y, i):
        row(y, i).store(row(x, 9 - i).load() * 2)

    cut = only(body)
    assert cut.overlapped
    assert cut.reason.startswith("the loads of x (test_pipeline_cuts.py:")
    assert loaded_ahead(cut) == ["x"]


def test_rows_that_are_provably_apart_are_loaded_ahead_of_the_store():
    def body(step, x, y, i):
        row(y, i).store(row(y, i).load() + row(x, i).load())

    assert loaded_ahead(only(body)) == ["y", "x"]


def test_two_columns_of_one_view_are_apart_whatever_the_rows():
    def body(step, x, y, i):
        left = y[tj.coord(i, 0), tj.shape(1, 2)]
        y(tj.coord(9 - i, 2), tj.shape(1, 2)).store(left)

    assert only(body).overlapped


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_row_that_the_step_before_stored_is_not_loaded_ahead(ahead):
    def body(step, x, y, i):
        rows = y[tj.coord(i, 0), tj.shape(pair, C)]
        row(y, i + ahead).store(row(x, i).load() + tj.sum(rows, pair))

    pair = tj.axis("pair", 2)
    cut = only(body, steps=3)
    assert loaded_ahead(cut) == ["x"]  # the argument may be, y not
    assert cut.overlapped


def test_the_hazard_is_named_with_both_lines():
    def body(step, x, y, i):
        old = row(y, i).load()
        row(y, i + 1).store(old)

    line = body.__code__.co_firstlineno
    cut = only(body)
    assert not cut.overlapped
    assert cut.reason == (
        f"the load of y (test_pipeline_cuts.py:{line + 1}) may read what the store "
        f"(test_pipeline_cuts.py:{line + 2}) of the step before wrote"
    )


def test_a_place_that_is_no_sum_of_indices_may_be_anywhere():
    def body(step, x, y, i):
        row(y, i).store(row(y, i * i).load())

    cut = only(body)
    assert not cut.overlapped
    assert "may read what the store" in cut.reason


def test_an_index_that_the_carry_holds_may_be_anywhere():
    """Though it starts as a constant."""

    def body(step, x, y, i, at):
        tile = row(y, i).load()
        row(y, at).store(tile)
        return at + 1

    assert not only(body, carry=np.int32(9)).overlapped


def test_a_place_that_depends_on_the_carry():
    def body(step, x, y, i, at):
        tile = row(x, at).load()
        row(y, i).store(tile)
        return at + tj.max(tile, tj.shape(R, C)).astype(jnp.int32)

    cut = only(body, carry=np.int32(0))
    assert not cut.overlapped
    assert "the load of x (test_pipeline_cuts.py" in cut.reason
    assert "depends on what the step before returns" in cut.reason


def test_a_place_read_from_another_array_runs_ahead_with_its_load():
    def body(step, x, y, i):
        place = tj.reshape(x[tj.coord(i, 0), tj.shape(1, 1)], tj.shape()).astype(jnp.int32)
        row(y, i).store(row(x, place).load() * 2)

    cut = only(body)
    assert loaded_ahead(cut) == ["x", "x"]


def test_a_load_after_a_store_to_the_same_view():
    def body(step, x, y, i):
        row(y, i).store(1)
        row(y, i).store(row(y, i).load() + 1)

    cut = only(body)
    assert not cut.overlapped
    assert "comes after a store to the same view" in cut.reason


def test_stores_of_nests_inside_count():
    def body(step, x, y, i):
        tile = row(y, i).load()

        @step.serial(tj.axis("inner", 2))
        def _(sub):
            row(y, i + sub.index()).store(tile)

        @step.parallel(tj.axis("columns", 4))
        def _(sub):
            y(tj.coord(i, sub.index()), tj.shape(1, 1)).store(0)

    cut = only(body)
    assert not cut.overlapped
    assert "may read what the store" in cut.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 1}, "window=1 asks for no overlap"),
        ({"interval": 3}, "interval=3 keeps the steps apart, and so in order"),
        ({"steps": 1}, "it has no second step"),
        ({"steps": 0}, "it has no second step"),
        ({"start": 2, "stop": 3}, "it has no second step"),
        ({"start": 4, "stop": 2}, "it has no second step"),
    ],
)
def test_hints_and_trip_counts(options, reason):
    def body(step, x, y, i):
        row(y, i).store(row(x, i).load())

    cut = only(body, **options)
    assert (cut.overlapped, cut.reason, cut.ahead) == (False, reason, ())


def test_nothing_to_load():
    assert only(lambda step, x, y, i: row(y, i).store(1)).reason == "its steps load nothing themselves"


def staged(*parts):
    """A step of stages a, b, ... each a function of step, x, y, i and what the part before gave."""

    def body(step, x, y, i):
        given = None
        for name, part in zip("abcdefg", parts, strict=False):
            step.stage(name)
            given = part(step, x, y, i, given)

    return body


def load(step, x, y, i, given):
    return row(x, i).load()


def square(step, x, y, i, given):
    return given * given


def store(step, x, y, i, given):
    row(y, i).store(given)


def test_the_cut_is_the_end_of_the_last_stage_that_loads():
    cut = only(staged(load, square, store))
    assert cut.reason.startswith("all before stage b, with the loads of x (")
    assert loaded_ahead(cut) == ["x"]
    second = only(staged(load, lambda step, x, y, i, given: given + row(x, i + 1).load(), square, store))
    assert second.reason.startswith("all before stage c")
    assert loaded_ahead(second) == ["x", "x"]


def test_a_stage_that_stores_before_the_cut_keeps_the_order():
    cut = only(staged(load, store, load, store))
    assert cut.reason.startswith("all before stage b")
    cut = only(staged(lambda *a: store(*a[:4], 1), load, store))
    assert not cut.overlapped
    assert cut.reason.startswith("y is stored to (test_pipeline_cuts.py:")


def test_loads_in_the_last_stage_only():
    cut = only(staged(lambda *a: None, lambda *a: store(*a[:4], load(*a))))
    assert (cut.overlapped, cut.reason) == (False, "nothing is loaded before the last stage")


def test_a_nest_that_only_loads_may_run_ahead():
    def sum_of_rows(step, x, y, i, given):
        @step.serial(tj.axis("inner", 3), carry=tj.zeros(tj.shape(R, C)))
        def total(sub, total):
            return total + row(x, i + sub.index()).load()

        return total

    cut = only(staged(sum_of_rows, store))
    assert cut.overlapped
    assert "loads of x" in cut.reason


def test_memories_of_a_step_have_two_versions_and_others_keep_the_order():
    def manual(inside):
        def kernel(x):
            y = tj.output_like(x)

            @tj.parallel(1)
            def _(nest):
                stage = None if inside else tj.memory(tj.shape(R, C), x.dtype)

                @nest.pipeline(tj.axis("steps", 5))
                def _(step):
                    step.stage("load")
                    held = tj.memory(tj.shape(R, C), x.dtype) if inside else stage
                    held.store(row(x, step.index()).load())
                    step.stage("use")
                    row(y, step.index()).store(held.load() * 2)

            return y

        np.testing.assert_array_equal(tj.interpret(kernel)(X)[:5], X[:5] * 2)
        ((_, cut),) = find_cuts(tj.make_jaxpr(kernel)(X)).values()
        return cut

    assert manual(inside=True).overlapped
    cut = manual(inside=False)
    assert not cut.overlapped
    assert cut.reason.startswith("memory stage (test_pipeline_cuts.py:")
    assert "declared outside of the steps, which store to it" in cut.reason


def test_memory_read_before_the_refill():
    """A load from a memory that outlasts the step is never ahead of the store of the step before."""

    def kernel(x):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            held = tj.memory(tj.shape(R, C), x.dtype)
            held.store(tj.zeros(tj.shape(R, C)))

            @nest.pipeline(tj.axis("steps", 5), window=2)
            def _(step):
                old, new = held.load(), row(x, step.index()).load()
                row(y, step.index()).store(old)
                held.store(new)

        return y

    want = np.zeros_like(X)
    want[1:5] = X[:4]
    for run in (tj.jit, tj.interpret):
        np.testing.assert_array_equal(run(kernel)(X), want)
    ((_, cut),) = find_cuts(tj.make_jaxpr(kernel)(X)).values()
    assert loaded_ahead(cut) == ["x"]


def affine_loop(load, store, trips):
    """Each step loads and stores part of ``y``; a part is (stride, offset, extent)."""
    (a, b, m), (c, d, k) = load, store
    part = tj.axis("part", m)

    def kernel(x):
        y = tj.update(x)

        @tj.parallel(1)
        def _(nest):
            @nest.pipeline(tj.axis("steps", trips), carry=0.0)
            def _(step, total):
                tile = y[tj.coord(step.index() * a + b), tj.shape(part)]
                y(tj.coord(step.index() * c + d), tj.shape(k)).store(total)
                return total + tj.sum(tile, part)

        return y

    return tj.make_jaxpr(kernel)(np.zeros(12, np.float32))


def meets(load, store, distance, trips, inside=range(-100, 100)):
    """Whether some step's store and the load of `distance` steps later have an element in common."""
    (a, b, m), (c, d, k) = load, store
    pairs = [(a * (i + distance) + b, c * i + d) for i in range(trips - distance)]
    return any(set(range(p, p + m)) & set(range(q, q + k)) & set(inside) for p, q in pairs)


def test_affine_places_against_every_step():
    """A cut, and an early load, are refused wherever they would read a store; and, with one stride for both,
    only there, or where they would outside of the view."""
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        trips = int(rng.integers(2, 6))
        load, store = ((*map(int, rng.integers([-2, 0, 1], [4, 12, 4])),) for _ in range(2))
        program = affine_loop(load, store, trips)
        ((_, cut),) = find_cuts(program).values()
        (nest,) = (e for e in program.jaxpr.eqns if e.primitive.name == "tile_parallel")
        if cut.overlapped:
            assert not meets(load, store, 1, trips, range(12))
        if hazard(nest, 3) is None:
            assert not any(meets(load, store, d, trips, range(12)) for d in (1, 2, 3))
        if load[0] == store[0]:
            assert cut.overlapped != meets(load, store, 1, trips)
        refused += not cut.overlapped
    assert 50 < refused < 250
