"""Wrong nests: carries that change, indices that outlive their nest, wide scopes, programs that race."""

import jax.numpy as jnp
import pytest

import tilejax as tj
from tests.wrong import Wrong, bench, rejected

A, S, D, T, C, SC = tj.AxisError, tj.ShapeError, tj.DtypeError, tj.TileTypeError, tj.CarryError, tj.ScopeError


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


def carry_of_a_named_body(s):
    @s.nest.serial(s.k, carry={"sum": s.x})  # wrong
    def acc(step, carry):
        return {"sum": carry["sum"] > 0}


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


def value_of_an_index_after_its_nest(s):
    @s.nest.serial(s.k)
    def _(step):
        s.kept = jnp.minimum(step.index() * 2 + 1, 3)

    s.out(tj.coord(s.kept, 0), tj.shape(1, 1)).store(1.0)  # wrong


def scalar_carry_after_its_nest(s):
    @s.nest.serial(s.k, carry=0.0)
    def _(step, carry):
        s.kept = carry + 1
        return s.kept

    s.out(tj.coord(0, 0), tj.shape(1, 1)).store(s.kept)  # wrong


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
    Wrong(C, r"serial\(k\).*acc\['sum'\].*float32.*bool", carry_of_a_named_body),
    Wrong(C, r"pipeline\(k\).*\[0\].*m:4.*m:4, n:8", carry_changes_axes),
    Wrong(C, r"serial\(k\).*m:4, n:8.*n:8, m:4", carry_turns_axes),
    Wrong(C, r"serial\(k\).*structure.*\(\*, \*\).*\[\*, \*\]", carry_changes_structure),
    Wrong(C, r"serial\(k\).*carry.*nothing", carry_forgotten),
    Wrong(C, r"pipeline\(k\).*no carry.*carry=", carry_without_one),
    Wrong(C, r"serial\(k\).*carry.*m:4, n:8", carry_scalar_becomes_a_tile),
    Wrong(C, r"serial\(k\).*carry.*int32.*float32", carry_strong_scalar_changes),
    Wrong(SC, r"serial\(k\).*closed", index_after_its_nest),
    Wrong(SC, r"serial\(k\).*closed", index_in_arithmetic_after_its_nest),
    Wrong(SC, r"coord.*serial\(k\).*closed", value_of_an_index_after_its_nest),
    Wrong(SC, r"out.store.*serial\(k\).*closed", scalar_carry_after_its_nest),
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
    "negative interval": Wrong(S, "interval.*1.*-2", lambda s: s.nest.pipeline(s.k, interval=-2)),
    "negative window": Wrong(S, "window.*0.*-1", lambda s: s.nest.pipeline(s.k, window=-1)),
    "fractional window": Wrong(S, "window.*int.*1.5", lambda s: s.nest.pipeline(s.k, window=1.5)),
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
