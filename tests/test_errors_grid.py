"""Wrong grids: scopes that the device has not, programs that race, use outside a kernel."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.wrong import ARGUMENTS, Wrong, bench, rejected

SC = tj.ScopeError
LEAKED: list = []


@pytest.mark.usefixtures("on_cpu")
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


@pytest.mark.usefixtures("on_cpu")
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
    with pytest.raises(tj.RaceError, match=r"(?s)rows.*test_errors_grid\.py"):
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


def computes_with_an_index_of_a_closed_loop(x):
    out = tj.output_like(x)
    steps = tj.axis("steps", 3)

    @tj.parallel(2)  # wrong
    def _(nest):
        kept = []
        nest.serial(steps)(lambda step: kept.append(step.index()))
        out(tj.coord(kept[0] * 2), tj.shape(1)).store(1)

    return out


def computes_with_an_index_of_a_closed_grid(x):
    kept = []
    tj.parallel(2)(lambda nest: kept.append(nest.index()))
    return tj.output(x.shape, x.dtype, init=kept[0] * 1.0)


def test_values_of_jax_that_outlive_their_nest():
    """JAX computed with the index after its nest, so the nest around is the nearest that can be named."""
    x = np.ones(4, np.float32)
    case = Wrong(SC, r"parallel\(2\).*serial\(steps\).*closed", computes_with_an_index_of_a_closed_loop)
    rejected(case, lambda: tj.jit(case.program)(x))

    def call():
        tj.jit(computes_with_an_index_of_a_closed_grid)(x)  # wrong

    rejected(Wrong(SC, r"closed_grid.*parallel\(2\).*closed", call), call)


def adds_what_no_index_holds(s):
    return s.out(tj.coord(s.i + 2**31, 0), tj.shape(1, 1))  # wrong


def takes_an_element_of_an_index(s):
    return s.out(tj.coord(s.i[0], 0), tj.shape(1, 1))  # wrong


@pytest.mark.parametrize(
    "case",
    [
        Wrong(tj.DtypeError, r"kernel kernel: 2147483648 does not fit.*int32", adds_what_no_index_holds),
        Wrong(tj.TileTypeError, "kernel kernel: an index.*no elements", takes_an_element_of_an_index),
    ],
)
def test_what_jax_says_of_scalars_has_a_line(case):
    rejected(case, lambda: bench(case.program))


def test_users_own_errors_stay_theirs():
    def kernel(x):
        @tj.parallel(2)
        def _(nest):
            raise error

    for error in (OverflowError("mine"), IndexError("mine")):
        with pytest.raises(type(error), match="mine"):
            tj.jit(kernel)(np.ones(4, np.float32))


def test_the_next_kernel_is_not_disturbed_by_one_that_failed():
    def failing(x):
        @tj.parallel(2)
        def _(nest):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tj.jit(failing)(np.ones(4, np.float32))
    for program in (computes_with_an_index_of_a_closed_loop, everyone_stores_the_same):
        with pytest.raises(tj.TileError):
            tj.interpret(program)(np.ones(9, np.float32))
    np.testing.assert_array_equal(tj.jit(tj.update)(np.ones(4, np.float32)), np.ones(4))
