"""Explicit memory: snapshots, state that loops carry, what is surely stored, ownership, layouts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from kernel_cases import close, normal

import tilejax as tj
from tests.helpers import both
from tilejax.ir.verify import verify
from tilejax.transforms.simplify import simplify

ONE = tj.axis("one", 1)
AT = tj.coord(0), tj.shape(ONE)


def program(shape, body, dtype=np.float32):
    """A kernel of one program: `body(nest, x)` gives the tile of `shape` to store."""

    def kernel(x):
        y = tj.output(tj.shape(*shape).extents, dtype)

        @tj.parallel(1)
        def _(nest):
            y(tj.coord(*[0] * len(shape)), tj.shape(*shape)).store(body(nest, x))

        return y

    return kernel


def test_a_load_is_a_snapshot():
    def body(nest, x):
        n = tj.axis("n", 4)
        held = tj.memory(tj.shape(n), x.dtype)
        held.store(x[tj.coord(0), tj.shape(n)])
        before = held.load()
        held.store(before * 10)
        middle = held.load()
        held.store(tj.zeros(tj.shape(n)))
        return before + middle + held.load()

    both(program((4,), body), np.arange(4, dtype=np.float32), want=np.float32([0, 11, 22, 33]))


def test_axes_go_as_in_a_store_to_a_view():
    i, j = tj.axis("i", 2), tj.axis("j", 3)

    def body(nest, x):
        held = tj.memory(tj.shape(i, j), jnp.float32)
        held.store(tj.transpose(x[tj.coord(0, 0), tj.shape(i, j)], tj.shape(j, i)))  # by identity
        turned = held.load()
        held.store(tj.iota(j).astype(jnp.float16))  # broadcast, widened
        row = held.load()
        held.store(x[tj.coord(0, 0), tj.shape(2, 3)])  # by position
        whole = held.load()
        held.store(1)  # a weak scalar
        assert held.load().axes == tj.shape(i, j)
        return turned + 10 * row + 100 * whole + 1000 * held.load()

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    both(program((2, 3), body), x, want=101 * x + np.float32([0, 10, 20]) + 1000)


def fibonacci(kind, **loop):
    def kernel(x, *stop):
        y = tj.output((3,), jnp.int32)
        n = tj.axis("n", x.shape[0])

        @tj.parallel(1)
        def _(nest):
            a, b = tj.memory(tj.shape(ONE), jnp.int32), tj.memory(tj.shape(ONE), jnp.int32)
            a.store(0)
            b.store(1)
            bounds = {"stop": stop[0]} if stop else {}

            @getattr(nest, kind)(n, carry=tj.zeros(tj.shape(ONE), jnp.int32), **loop, **bounds)
            def total(step, total):
                before = a.load()
                a.store(b.load())
                b.store(before + b.load())
                return total + before

            for place, value in enumerate((a.load(), b.load(), total)):
                y(tj.coord(place), tj.shape(ONE)).store(value)

        return y

    return kernel


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 9])
@pytest.mark.parametrize(
    ("kind", "loop"), [("serial", {}), ("pipeline", {}), ("pipeline", {"window": 2, "interval": 3})]
)
def test_state_is_carried_by_loops(kind, loop, trips):
    numbers = [0, 1]
    for _ in range(trips):
        numbers.append(numbers[-1] + numbers[-2])
    want = np.int32([numbers[trips], numbers[trips + 1], sum(numbers[:trips])])
    both(fibonacci(kind, **loop), np.zeros(trips, np.int32), want=want)
    both(fibonacci(kind, **loop), np.zeros(9, np.int32), np.int32(trips), want=want)


def test_nested_loops_carry_through_every_level():
    """A histogram of three levels: parallel, serial, pipeline, serial."""

    def kernel(x):
        y = tj.output((x.shape[0],), x.dtype)
        row, outer, inner = tj.axis("row", x.shape[0]), tj.axis("outer", 3), tj.axis("inner", 2)
        last = tj.axis("last", x.shape[3])

        @tj.parallel(row)
        def _(nest):
            total, most = tj.memory(tj.shape(ONE), x.dtype), tj.memory(tj.shape(ONE), x.dtype)
            total.store(0)
            most.store(-100)

            @nest.serial(outer)
            def _(step):
                part = tj.memory(tj.shape(ONE), x.dtype)
                part.store(0)

                @step.pipeline(inner)
                def _(step):
                    @step.serial(last)
                    def _(step):
                        here = tj.coord(*(step.index(a) for a in (row, outer, inner, last)))
                        value = tj.reshape(x[here, tj.shape(1, 1, 1, 1)], tj.shape(ONE))
                        part.store(part.load() + value)
                        most.store(tj.maximum(most.load(), value))

                total.store(total.load() * 2 + part.load())

            y(tj.coord(nest.index()), tj.shape(ONE)).store(total.load() * 1000 + most.load())

        return y

    x = np.random.default_rng(0).integers(-9, 9, (4, 3, 2, 5)).astype(np.float32)
    parts = x.sum((2, 3))
    want = ((parts[:, 0] * 2 + parts[:, 1]) * 2 + parts[:, 2]) * 1000 + x.max((1, 2, 3))
    both(kernel, x, want=want.astype(np.float32))


def test_declared_in_a_step_it_is_fresh_in_each():
    def body(nest, x):
        @nest.serial(3, carry=tj.zeros(tj.shape(ONE)))
        def total(step, total):
            held = tj.memory(tj.shape(ONE), x.dtype)
            held.store(x[tj.coord(step.index()), tj.shape(ONE)])
            return total * 10 + held.load()

        return total

    kernel = program((1,), body)
    both(kernel, np.float32([1, 2, 3]), want=np.float32([123]))
    loop = next(e for e in inner_equations(kernel, np.zeros(3, np.float32)) if "serial" in e.primitive.name)
    assert loop.params["num_carry"] == 1  # the memory does not leave the step


def inner_equations(kernel, *args):
    (nest,) = [e for e in tj.make_jaxpr(kernel)(*args).jaxpr.eqns if e.primitive.name == "tile_parallel"]
    return nest.params["body"].jaxpr.eqns


def test_nested_programs_read_the_memory_around_them():
    def kernel(x):
        y = tj.output_like(x)
        rows, columns = tj.axis("rows", x.shape[0]), tj.axis("columns", x.shape[1])

        @tj.parallel(rows)
        def _(nest):
            held = tj.memory(tj.shape(1, columns), x.dtype)
            held.store(x[tj.coord(nest.index(), 0), tj.shape(1, columns)])

            @nest.serial(2)
            def _(step):
                held.store(held.load() * 2)

            @nest.parallel(columns)
            def _(sub):
                own = tj.memory(tj.shape(1, 1), x.dtype)
                picked = tj.gather(held.load(), sub.index(), columns)
                own.store(tj.reshape(picked, tj.shape(1, 1)))
                own.store(own.load() + 1)
                y(tj.coord(sub.index(rows), sub.index(columns)), tj.shape(1, 1)).store(own.load())

        return y

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    both(kernel, x, want=4 * x + 1)


def test_memories_under_transformations():
    """Powers by a memory that each of `n` steps multiplies, beside a weakly typed carry."""

    def powers(x, n):
        y = tj.output_like(x)
        rows = tj.axis("rows", x.shape[0])

        @tj.parallel(rows)
        def _(nest):
            here = tj.coord(nest.index()), tj.shape(1)
            power, count = tj.memory(tj.shape(1), x.dtype), tj.memory(tj.shape(), jnp.int8)
            power.store(1)
            count.store(0)

            @nest.serial(6, stop=n, carry=0)
            def halves(step, halves):
                power.store(power.load() * x[here])
                count.store(count.load() + 1)
                return halves + 0.5

            y(*here).store(power.load() + halves - count.load().astype(x.dtype) / 2)

        return y

    x, n = np.float32([1, 2, 3]), np.int32([0, 1, 2, 4])
    f = tj.jit(powers)
    for count in n:
        both(powers, x, count, want=(x**count).astype(x.dtype))

    def total(x, n):
        return f(x, n).sum()

    np.testing.assert_array_equal(jax.vmap(f, (None, 0))(x, n), x ** n[:, None])
    np.testing.assert_allclose(jax.grad(total)(x, 4), 4 * x**3)
    np.testing.assert_allclose(jax.hessian(total)(x, 4), np.diag(12 * x**2))
    slopes = jax.vmap(jax.grad(total), (None, 0))(x, n)
    np.testing.assert_allclose(slopes, n[:, None] * x ** np.maximum(n - 1, 0)[:, None])


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, jnp.bfloat16, jnp.float8_e4m3fn])
def test_dtypes(dtype):
    x = np.arange(4).astype(dtype)
    both(through(tj.layout(4, (3,)), dtype), x, want=x)


class TestSurelyStored:
    """A load needs a store on every way to it."""

    @staticmethod
    def trace(body, *args):
        tj.make_jaxpr(program((1,), body))(np.zeros(3, np.float32), *args)

    @pytest.mark.parametrize("bounds", [{}, {"start": 1}, {"stop": 2}, {"start": -5, "stop": 1}])
    def test_a_loop_that_surely_runs(self, bounds):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)

            @nest.serial(3, **bounds)
            def _(step):
                held.store(x[tj.coord(step.index()), tj.shape(ONE)])

            return held.load()

        x = np.float32([5, 6, 7])
        both(program((1,), body), x, want=x[: bounds.get("stop", 3)][-1:])

    @pytest.mark.parametrize(
        ("extent", "bounds"), [(0, {}), (3, {"stop": 0}), (3, {"start": 3}), (3, {"start": 2, "stop": 2})]
    )
    def test_a_loop_that_runs_no_step(self, extent, bounds):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)

            @nest.pipeline(extent, **bounds)
            def _(step):
                held.store(0)

            return held.load()

        with pytest.raises(
            tj.ScopeError, match=rf"(?s)held.*pipeline\({extent}\).*may run no step.*test_memory"
        ):
            self.trace(body)

    def test_a_loop_of_a_traced_range(self):
        def kernel(x, stop):
            y = tj.output((1,), x.dtype)

            @tj.parallel(1)
            def _(nest):
                held = tj.memory(tj.shape(ONE), x.dtype)

                @nest.serial(3, stop=stop)
                def _(step):
                    held.store(1)

                y(*AT).store(held.load())

            return y

        with pytest.raises(tj.ScopeError, match=r"held.*may run no step"):
            tj.jit(kernel)(np.zeros(3, np.float32), 2)

    def test_a_store_after_such_a_loop_or_before_it_helps(self):
        def body(nest, x, first):
            held = tj.memory(tj.shape(ONE), x.dtype)
            if first:
                held.store(7)

            @nest.serial(0)
            def _(step):
                held.store(1)

            if not first:
                held.store(8)
            return held.load()

        x = np.zeros(1, np.float32)
        both(program((1,), lambda n, x: body(n, x, True)), x, want=np.float32([7]))
        both(program((1,), lambda n, x: body(n, x, False)), x, want=np.float32([8]))

    def test_within_the_step_a_load_may_follow(self):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)

            @nest.serial(3, stop=2, carry=tj.zeros(tj.shape(ONE)))
            def total(step, total):
                held.store(x[tj.coord(step.index()), tj.shape(ONE)])
                return total + held.load()

            return total

        both(program((1,), body), np.float32([1, 2, 3]), want=np.float32([3]))

    def test_a_load_before_any_store(self):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)
            return held.load()

        with pytest.raises(tj.ScopeError, match="load of held before anything is stored"):
            self.trace(body)

    def test_the_first_step_reads_before_it_stores(self):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)

            @nest.serial(3)
            def _(step):
                held.store(held.load() + 1)

            return held.load()

        with pytest.raises(tj.ScopeError, match="load of held before anything is stored"):
            self.trace(body)

    def test_a_nested_program_reads_what_its_parent_has_not_stored(self):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)

            @nest.parallel(2)
            def _(sub):
                held.load()

            return held.load()

        with pytest.raises(tj.ScopeError, match="load of held before anything is stored"):
            self.trace(body)


class TestOwnership:
    def test_outside_nests(self):
        def kernel(x):
            tj.memory(tj.shape(ONE), x.dtype)
            return tj.output_like(x)

        with pytest.raises(tj.ScopeError, match="inside a nest"):
            tj.jit(kernel)(np.zeros(1, np.float32))
        with pytest.raises(tj.ScopeError, match="outside a kernel"):
            tj.memory(tj.shape(ONE), jnp.float32)

    def test_a_nested_program_stores_to_its_parents(self):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)
            held.store(0)

            @nest.parallel(2)
            def _(sub):
                @sub.serial(2)
                def _(step):
                    held.store(1)

            return held.load()

        with pytest.raises(tj.ScopeError, match=r"store to held in parallel.*belongs to parallel"):
            TestSurelyStored.trace(body)

    @pytest.mark.parametrize("use", ["load", "store"])
    def test_a_handle_that_escapes_its_step(self, use):
        def body(nest, x):
            kept = []

            @nest.serial(2)
            def _(step):
                held = tj.memory(tj.shape(ONE), x.dtype)
                held.store(0)
                kept.append(held)

            return kept[0].load() if use == "load" else kept[0].store(0)

        with pytest.raises(tj.ScopeError, match=rf"{use} of held outside serial\(2\), which declared it"):
            TestSurelyStored.trace(body)

    def test_a_handle_that_escapes_to_another_kernel(self):
        kept = []

        def body(nest, x):
            kept.append(tj.memory(tj.shape(ONE), x.dtype))
            kept[0].store(0)
            return kept[0].load()

        TestSurelyStored.trace(body)
        with pytest.raises(tj.ScopeError, match="outside parallel"):
            TestSurelyStored.trace(lambda nest, x: kept[0].load())

    def test_in_a_function_given_to_an_operation(self):
        def body(nest, x):
            held = tj.memory(tj.shape(), x.dtype)
            held.store(0)
            add = tj.Reducer(lambda a, b: a + b + held.load(), 0)
            n = tj.axis("n", 3)
            return tj.reduce(x[tj.coord(0), tj.shape(n)], n, add)

        with pytest.raises(tj.ScopeError, match=r"held.*must not touch"):
            TestSurelyStored.trace(body)


class TestRefusals:
    @pytest.mark.parametrize(
        ("stored", "error", "says"),
        [
            (lambda x: x[tj.coord(0), tj.shape(3)], tj.ShapeError, "held.store.*does not fit"),
            (lambda x: tj.zeros(tj.shape(ONE), jnp.int32), tj.DtypeError, "held.store.*int32"),
            (lambda x: 1.5, None, ""),
            (lambda x: x, tj.TileTypeError, "held.store"),
        ],
    )
    def test_tiles_that_do_not_fit(self, stored, error, says):
        def body(nest, x):
            held = tj.memory(tj.shape(ONE), x.dtype)
            held.store(stored(x))
            return held.load()

        if error is None:
            both(program((1,), body), np.zeros(3, np.float32), want=np.float32([1.5]))
            return
        with pytest.raises(error, match=says):
            TestSurelyStored.trace(body)

    def test_arguments_of_memory(self):
        def made(*args):
            return lambda nest, x: tj.memory(*args)

        with pytest.raises(tj.TileTypeError, match="Resource"):
            TestSurelyStored.trace(made(tj.shape(1), jnp.float32, "shared"))
        with pytest.raises(tj.ShapeError, match="memory"):
            TestSurelyStored.trace(made("shape", jnp.float32))
        with pytest.raises(tj.DtypeError, match="memory"):
            TestSurelyStored.trace(made(tj.shape(1), jnp.complex64))


LAYOUTS = {
    "padded": lambda i, j, n, m: tj.layout(tj.shape(i, j), (m + 1, 1)),
    "transposed": lambda i, j, n, m: tj.layout(tj.shape(i, j), (1, n)),
    "reversed": lambda i, j, n, m: tj.IndexMap.strided(tj.shape(i, j), (-m, 1), offset=(n - 1) * m),
    "swizzled": lambda i, j, n, m: tj.IndexMap.from_function(
        tj.shape(i, j), lambda a, b: a * 32 + (b ^ (a & 31)), n * 32
    ),
    "padded and swizzled": lambda i, j, n, m: tj.IndexMap.from_function(
        tj.shape(i, j), lambda a, b: a * 33 + (b ^ (a & 31)), n * 33
    ),
    "rotated": lambda i, j, n, m: tj.IndexMap.from_function(
        tj.shape(i, j), lambda a, b: a * m + (a + b) % m, n * m
    ),
    "planes": lambda i, j, n, m: tj.IndexMap.from_function(
        tj.shape(i, j), lambda a, b: (b % 2, a, b // 2), (2, n, (m + 1) // 2)
    ),
    "composed": lambda i, j, n, m: tj.layout((m, n), (n + 3, 1)).compose(
        tj.IndexMap.permute(tj.shape(i, j), (1, 0))
    ),
}


def product(left, right):
    """A product through memories whose layouts are `left` and `right`, blocks of 12 x 10 and 10 x 7."""

    def manual(a, b):
        c = tj.output((a.shape[0], b.shape[1]), a.dtype)
        gm, gn = tj.axis("gm", tj.cdiv(a.shape[0], 12)), tj.axis("gn", tj.cdiv(b.shape[1], 7))
        kt = tj.axis("kt", tj.cdiv(a.shape[1], 10))
        m, n, k = tj.axis("m", 12), tj.axis("n", 7), tj.axis("k", 10)

        @tj.parallel(gm, gn)
        def _(nest):
            held_a = tj.memory(LAYOUTS[left](m, k, 12, 10), a.dtype)
            held_b = tj.memory(LAYOUTS[right](k, n, 10, 7), b.dtype)
            m0, n0 = nest.index(gm) * 12, nest.index(gn) * 7

            @nest.pipeline(kt, carry=tj.zeros(tj.shape(m, n)))
            def acc(step, acc):
                k0 = step.index() * 10
                held_a.store(a[tj.coord(m0, k0), tj.shape(m, k)])
                held_b.store(b[tj.coord(k0, n0), tj.shape(k, n)])
                return tj.mma(held_a.load(), held_b.load(), acc)

            c(tj.coord(m0, n0), tj.shape(m, n)).store(acc)

        return c

    return manual


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_through_layouts(layout):
    a, b = normal(29, 23), normal(23, 17, seed=1)
    other = "transposed" if layout != "transposed" else "padded"
    slack = 23 * oracle.gemm(np.abs(a), np.abs(b))
    for run in (tj.jit, tj.interpret):
        close(run(product(layout, other))(a, b), oracle.gemm(a, b), np.float32, slack)


def through(index_map, dtype=np.float32):
    """Stores a vector to a memory of this layout, and loads it."""

    def kernel(x):
        y = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            n = tj.axis("n", x.shape[0])
            held = tj.memory(index_map, dtype)
            held.store(x[tj.coord(0), tj.shape(n)])
            y(tj.coord(0), tj.shape(n)).store(held.load())

        return y

    return kernel


def gray(size):
    return tj.IndexMap.from_function(size, lambda x: x ^ (x >> 1), 1 << (size - 1).bit_length())


def digits(size):
    """The bits of the upper and of the lower half of the address change places."""
    bits = (size - 1).bit_length()
    low = bits // 2
    return tj.IndexMap.from_function(
        size, lambda x: ((x & ((1 << low) - 1)) << (bits - low)) + (x >> low), 1 << bits
    )


@pytest.mark.parametrize("size", [1, 31, 32, 257, 1024, 2_097_152])
@pytest.mark.parametrize("make", [gray, digits])
def test_bit_permuted_memories(make, size):
    x = np.arange(size, dtype=np.float32)
    both(through(make(size)), x, want=x, refused="bytes of SHARED" if size > 2**16 else "")
    assert make(size).prove().enumerated == 0


def test_large_memories_that_no_visit_could_prove():
    n, m = 513, 2047
    i, j = tj.axis("i", n), tj.axis("j", m)
    x = np.arange(n * m, dtype=np.float32).reshape(n, m)
    for layout in (tj.shape(i, j), tj.layout((n, m), (m + 1, 1)), tj.layout((n, m), (1, n))):

        def body(nest, x, layout=layout):
            held = tj.memory(layout, x.dtype)
            held.store(x[tj.coord(0, 0), tj.shape(n, m)])
            old = held.load()
            held.store(old + 1)
            return old * 2 - held.load()

        both(program((n, m), body), x, want=x - 1, refused=r"memory held .* bytes of SHARED")


def test_empty_memories():
    both(through(tj.layout(tj.shape(0), (3,))), np.zeros(0, np.float32), want=np.zeros(0, np.float32))


@pytest.mark.parametrize(
    ("index_map", "claim"),
    [
        (tj.layout(tj.shape(4), (0,)), "injective"),
        (tj.IndexMap.strided(tj.shape(4), (2,), codomain=6), "in bounds"),
        (tj.IndexMap.from_function(4, lambda i: i << (i + 61), 4), "total"),
    ],
)
def test_a_layout_that_is_wrong_fails_at_trace(index_map, claim):
    with pytest.raises(tj.LayoutError, match=rf"(?s)memory held: .*not {claim}.*test_memory"):
        tj.make_jaxpr(through(index_map))(np.zeros(4, np.float32))


def test_a_layout_of_which_it_is_not_known_fails_when_compiled():
    size = 2**20 + 1
    index_map = tj.IndexMap.from_function(size, lambda x: (x * x) // 2 + x, 2**41)
    x = np.zeros(size, np.float32)
    tj.make_jaxpr(through(index_map))(x)
    with pytest.raises(tj.LayoutError, match=r"kernel kernel: memory held .*not known to be injective"):
        tj.jit(through(index_map)).lower(x)
    with pytest.raises(tj.LayoutError, match="not known to be injective"):
        jax.grad(lambda x: tj.jit(through(index_map))(x).sum())(x)


def test_the_interpreter_finds_what_no_proof_did():
    size = 2**20 + 1
    x = np.arange(size, dtype=np.float32)
    good = tj.IndexMap.from_function(size, lambda x: x * x + x, 2**41)
    np.testing.assert_array_equal(tj.interpret(through(good))(x), x)
    bad = tj.IndexMap.from_function(size, lambda x: (x - 3) * (x - 4), 2**41)
    with pytest.raises(tj.LayoutError, match=r"(?s)store to held by program .*one address.*test_memory"):
        tj.interpret(through(bad))(x)


def test_simplified_programs_keep_the_rules():
    for kernel, args in ((product("padded", "swizzled"), (normal(9, 9), normal(9, 9))),):
        program = tj.make_jaxpr(kernel)(*args)
        verify(program)
        verify(simplify(program))
        assert "tile_memory" in str(program)
        assert "tile_memory" not in str(simplify(program))
