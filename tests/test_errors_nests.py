"""Wrong nests: carries that change, indices that outlive their nest, wide scopes, programs that race."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.wrong import ARGUMENTS, Wrong, bench, rejected

A, S, D, T, C, SC = tj.AxisError, tj.ShapeError, tj.DtypeError, tj.TileTypeError, tj.CarryError, tj.ScopeError
LEAKED: list = []


def carry_changes_dtype(s):
    @s.nest.serial(s.k, carry={"acc": tj.zeros(tj.shape(s.m), jnp.float16)})  # wrong
    def _(step, carry):
        return {"acc": carry["acc"] + s.z}


def carry_changes_axes(s):
    @s.nest.pipeline(s.k, carry=(tj.zeros(tj.shape(s.m)), 0))  # wrong
    def _(step, carry):
        return carry[0] + s.y, carry[1]


def carry_turns_axes(s):
    @s.nest.serial(s.k, carry=tj.zeros(tj.shape(s.m, s.n)))  # wrong
    def _(step, carry):
        return tj.transpose(carry, tj.shape(s.n, s.m))


def carry_changes_structure(s):
    @s.nest.serial(s.k, carry=(0, s.x))  # wrong
    def _(step, carry):
        return [carry[0], carry[1]]


def carry_forgotten(s):
    @s.nest.serial(s.k, carry=s.x)  # wrong
    def _(step, carry):
        s.out(*s.at).store(carry)


def carry_without_one(s):
    @s.nest.pipeline(s.k)  # wrong
    def _(step):
        return s.x


def carry_scalar_becomes_a_tile(s):
    @s.nest.serial(s.k, carry=0.0)  # wrong
    def _(step, carry):
        return carry + s.x


def carry_strong_scalar_changes(s):
    @s.nest.serial(s.k, carry=jnp.int32(0))  # wrong
    def _(step, carry):
        return carry + 0.5


def index_after_its_nest(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = step.index()

    s.out(tj.coord(s.kept, 0), tj.shape(1, 1)).store(1.0)  # wrong


def index_in_arithmetic_after_its_nest(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = step.index()

    tj.add(s.x, s.kept)  # wrong


def tile_after_its_nest(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = s.x * step.index()

    s.out(*s.at).store(s.kept)  # wrong


def tile_after_its_nest_as_a_carry(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = s.x * step.index()

    s.nest.serial(s.k, carry=s.kept)(lambda step, c: c)  # wrong


def nest_after_it_closed(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = step

    s.kept.index()  # wrong


def outer_nest_opens_a_loop_inside_another(s):
    @s.nest.serial(s.k)
    def _(step):
        s.nest.serial(s.m)(lambda inner: None)  # wrong


def stage_of_the_outer_pipeline(s):
    @s.nest.pipeline(s.k)
    def _(step):
        @step.serial(s.m)
        def _(inner):
            step.stage("late")  # wrong


def stage_in_serial(s):
    @s.nest.serial(s.k)
    def _(step):
        step.stage("load")  # wrong


def index_of_two_axes_without_saying_which(s):
    @s.nest.serial(s.k, s.m)
    def _(step):
        step.index()  # wrong


def widening(s):
    @s.nest.parallel(s.m, scope=tj.Scope.VECTOR)
    def _(inner):
        inner.parallel(s.n, scope=tj.Scope.WORKER)(lambda sub: None)  # wrong


CASES = [
    Wrong(C, r"serial\(k\).*acc.*float16.*float32.*astype", carry_changes_dtype),
    Wrong(C, r"pipeline\(k\).*\[0\].*m:4.*m:4, n:8", carry_changes_axes),
    Wrong(C, r"serial\(k\).*m:4, n:8.*n:8, m:4", carry_turns_axes),
    Wrong(C, r"serial\(k\).*structure.*\(\*, \*\).*\[\*, \*\]", carry_changes_structure),
    Wrong(C, r"serial\(k\).*carry.*nothing", carry_forgotten),
    Wrong(C, r"pipeline\(k\).*no carry.*carry=", carry_without_one),
    Wrong(C, r"serial\(k\).*carry.*m:4, n:8", carry_scalar_becomes_a_tile),
    Wrong(C, r"serial\(k\).*carry.*int32.*float32", carry_strong_scalar_changes),
    Wrong(SC, r"serial\(k\).*closed", index_after_its_nest),
    Wrong(SC, r"serial\(k\).*closed", index_in_arithmetic_after_its_nest),
    Wrong(SC, r"serial\(k\).*closed", tile_after_its_nest),
    Wrong(SC, r"serial\(k\).*closed", tile_after_its_nest_as_a_carry),
    Wrong(SC, r"serial\(k\).*closed", nest_after_it_closed),
    Wrong(SC, r"serial.*parallel\(grid\).*serial\(k\)", outer_nest_opens_a_loop_inside_another),
    Wrong(SC, r"stage.*pipeline\(k\).*serial\(m\)", stage_of_the_outer_pipeline),
    Wrong(SC, r"stage.*load.*serial\(k\).*pipeline", stage_in_serial),
    Wrong(A, r"index.*serial\(k, m\)", index_of_two_axes_without_saying_which),
    Wrong(SC, "WORKER.*VECTOR", widening),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program.__name__)
def test_wrong_nest(case):
    rejected(case, lambda: bench(case.program))


ONE_LINE = {
    "index of an axis that is not there": Wrong(
        A, r"k:5.*parallel\(grid\)|parallel\(grid\).*k:5", lambda s: s.nest.index(s.k)
    ),
    "index of an int": Wrong(A, "0", lambda s: s.nest.index(0)),
    "interval of 0": Wrong(
        S, "interval.*1.*0", lambda s: s.nest.pipeline(s.k, interval=0)(lambda step: None)
    ),
    "start on a domain of two axes": Wrong(
        A, r"serial\(k, m\).*start.*2", lambda s: s.nest.serial(s.k, s.m, start=1)
    ),
    "stop on a domain of two axes": Wrong(
        A, r"pipeline\(k, m\).*stop.*2", lambda s: s.nest.pipeline(s.k, s.m, stop=s.i)
    ),
    "float stop": Wrong(D, r"serial\(k\).*stop.*float.*2.5", lambda s: s.nest.serial(s.k, stop=2.5)),
    "tile as a stop": Wrong(S, r"serial\(k\).*stop.*scalar.*n:8", lambda s: s.nest.serial(s.k, stop=s.ix)),
    "axis twice in a domain": Wrong(A, "twice", lambda s: s.nest.serial(s.k, s.k)),
    "negative domain": Wrong(A, "serial.*-2", lambda s: s.nest.serial(-2)),
    "domain of a string": Wrong(A, "parallel.*'rows'", lambda s: s.nest.parallel("rows")),
    "tj.parallel in a nest": Wrong(SC, r"parallel\(grid\)", lambda s: tj.parallel(s.k)(lambda nest: None)),
    "a loop over no function": Wrong(T, r"serial\(k\).*int", lambda s: s.nest.serial(s.k)(3)),
    "a carry that is a view": Wrong(
        T, "image", lambda s: s.nest.serial(s.k, carry=s.image)(lambda step, c: c)
    ),
    "a carry that is a string": Wrong(
        T, "str", lambda s: s.nest.serial(s.k, carry="zero")(lambda step, c: c)
    ),
    "a scope that is none": Wrong(T, "Scope.*'worker'", lambda s: s.nest.parallel(s.k, scope="worker")),
    "a parallel body that returns": Wrong(
        SC, r"parallel\(k\).*return", lambda s: s.nest.parallel(s.k)(lambda nest: s.x)
    ),
}


@pytest.mark.parametrize("name", ONE_LINE)
def test_wrong_line(name):
    case = ONE_LINE[name]
    rejected(case, lambda: bench(case.program))


@pytest.mark.parametrize("scope", ["DEVICE", "GROUP", "SUBGROUP"])
def test_scopes_that_the_cpu_has_not(scope):
    def kernel(x):
        out = tj.output_like(x)

        @tj.parallel(2, scope=tj.Scope[scope])  # wrong
        def _(nest):
            out(tj.coord(nest.index()), tj.shape(1)).store(1)

        return out

    case = Wrong(tj.UnsupportedError, f"{scope}.*(cpu|xla).*WORKER", kernel)
    rejected(case, lambda: tj.jit(kernel)(np.ones(2, np.float32)))


def test_scopes_that_the_cpu_has():
    def kernel(x):
        out = tj.output_like(x)

        @tj.parallel(2, scope=tj.Scope.WORKER)
        def _(nest):
            @nest.parallel(3, scope=tj.Scope.VECTOR)
            def _(sub):
                at = tj.coord(nest.index(), sub.index()), tj.shape(1, 1)
                out(*at).store(x[at] + 1)

        return out

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(tj.jit(kernel)(x), x + 1)


def everyone_stores_the_same(x):
    out = tj.output_like(x)

    @tj.parallel(4)
    def _(nest):
        out(tj.coord(0), tj.shape(2)).store(1)  # wrong

    return out


def tiles_overlap(x):
    out = tj.output_like(x)
    blocks = tj.axis("blocks", 3)

    @tj.parallel(blocks)
    def _(nest):
        out(tj.coord(nest.index() * 3), tj.shape(4)).store(1)  # wrong

    return out


def a_grid_axis_is_not_used(x):
    out = tj.output_like(x)
    i, j = tj.axis("i", 4), tj.axis("j", 2)

    @tj.parallel(i, j)
    def _(nest):
        out(tj.coord(nest.index(i) * 2), tj.shape(2)).store(1)  # wrong

    return out


def reads_what_the_neighbour_stores(x):
    y = tj.update(x)
    rows = tj.axis("rows", 7)

    @tj.parallel(rows)
    def _(nest):
        i = nest.index()
        left = y[tj.coord(i + 1), tj.shape(1)]
        y(tj.coord(i), tj.shape(1)).store(left)  # wrong

    return y


@pytest.mark.parametrize(
    "case",
    [
        Wrong(tj.RaceError, r"out.*(parallel\(4\)|axis0)", everyone_stores_the_same),
        Wrong(tj.RaceError, r"out.*blocks", tiles_overlap),
        Wrong(tj.RaceError, r"out.*j", a_grid_axis_is_not_used),
    ],
    ids=lambda case: case.program.__name__,
)
@pytest.mark.parametrize("run", [tj.jit, tj.interpret, tj.make_jaxpr])
def test_a_race_that_can_be_proved(case, run):
    rejected(case, lambda: run(case.program)(np.ones(9, np.float32)))


def test_a_race_that_the_interpreter_finds():
    with pytest.raises(tj.RaceError, match=r"(?s)rows.*test_errors_nests\.py"):
        tj.interpret(reads_what_the_neighbour_stores)(np.ones(9, np.float32))


def test_outside_a_kernel():
    def parallel():
        tj.parallel(3)  # wrong

    def output():
        tj.output((3,), jnp.float32)  # wrong

    def load():
        LEAKED[0][tj.coord(0, 0), tj.shape(1, 1)]  # wrong

    def leaking(image):
        LEAKED.append(image)
        return tj.output_like(image)

    tj.jit(leaking)(ARGUMENTS[0])
    rejected(Wrong(SC, "parallel.*kernel", parallel), parallel)
    rejected(Wrong(SC, "output.*kernel", output), output)
    rejected(Wrong(SC, "image.*kernel", load), load)
