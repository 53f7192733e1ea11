"""Wrong uses of axes, views and Python itself: each is an error in the user's words, at the user's line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.wrong import ARGUMENTS, Wrong, bench, rejected
from tilejax import kernels

A, S, D, T = tj.AxisError, tj.ShapeError, tj.DtypeError, tj.TileTypeError
RO, SC, BO = tj.ReadOnlyError, tj.ScopeError, tj.BoundsError
UN = tj.UnsupportedError
SHAPE8 = tj.shape(8)
IMAGE = np.ones((6, 8), np.float32)


def assigning(s):
    s.image[0, 1] = 1  # wrong


def branching(s):
    if s.x > 0:  # wrong
        pass


def looping(s):
    for _ in s.x:  # wrong
        pass


def chaining(s):
    return 0 < s.x < 1  # wrong


def branching_on_an_index(s):
    if s.i > 0:  # wrong
        pass


def counting_to_an_index(s):
    for _ in range(s.i):  # wrong
        pass


def forgetting_the_carry(s):
    @s.nest.serial(s.k, carry=0)  # wrong
    def _(step):
        pass


ONE_LINE = {
    # Axes and shapes
    "negative extent": Wrong(A, "axis 'rows'.*-1", lambda s: tj.axis("rows", -1)),
    "float extent": Wrong(A, "axis 'rows'.*2.5", lambda s: tj.axis("rows", 2.5)),
    "bool extent": Wrong(A, "axis 'rows'.*True", lambda s: tj.axis("rows", True)),
    "traced extent": Wrong(A, "axis 'rows'.*static", lambda s: tj.axis("rows", s.i)),
    "tile extent": Wrong(A, "axis 'rows'", lambda s: tj.axis("rows", s.x)),
    "name that is no string": Wrong(A, "name.*3", lambda s: tj.axis(3, 4)),
    "negative positional extent": Wrong(A, "-3", lambda s: tj.shape(4, -3)),
    "shape of a string": Wrong(A, "'m'", lambda s: tj.shape("m")),
    "axis twice": Wrong(A, "m:?.?4.*twice", lambda s: tj.shape(s.m, s.m)),
    "positional extents differ": Wrong(
        S, "add.*4.*8.*equal", lambda s: s.ids[tj.coord(0), tj.shape(4)] + s.ids[tj.coord(0), SHAPE8]
    ),
    "positional extents of where": Wrong(
        S, "where.*3.*4", lambda s: tj.where(tj.ones(tj.shape(3)) > 0, tj.ones(tj.shape(4)), 0)
    ),
    "cdiv by zero": Wrong(S, "cdiv.*0.*zero", lambda s: tj.cdiv(7, 0)),
    # Reading views
    "scalar subscript": Wrong(T, "image.*coord.*lowlevel", lambda s: s.image[0, 1]),
    "row subscript": Wrong(T, "ids.*coord.*lowlevel", lambda s: s.ids[s.i]),
    "shape before the origin": Wrong(
        T, "image.*coord.*shape", lambda s: s.image[tj.shape(s.m, s.n), tj.coord(0, 0)]
    ),
    "slice": Wrong(T, "image.*coord", lambda s: s.image[0:2, :]),
    "origin without a shape": Wrong(T, "image.*shape", lambda s: s.image[tj.coord(0, 0)]),
    "assignment": Wrong(T, "image.*store", assigning),
    "arithmetic on a view": Wrong(T, "image.*view.*load", lambda s: s.image + 1),
    "a view as an operand": Wrong(T, "image.*load", lambda s: tj.exp(s.image)),
    "a reference as an operand": Wrong(T, "image.*load", lambda s: s.x + s.image(*s.at)),
    "matrix product of views": Wrong(T, "image", lambda s: s.image @ s.image),
    "truth of a view": Wrong(T, "image.*truth", lambda s: bool(s.image)),
    "iteration over a view": Wrong(T, "image", lambda s: list(s.image)),
    "tuple as an origin": Wrong(T, "image.*coord", lambda s: s.image((0, 0), tj.shape(s.m, s.n))),
    "tuple as a shape": Wrong(T, r"image.*shape.*\(4, 8\)", lambda s: s.image(tj.coord(0, 0), (4, 8))),
    "bounds that are none": Wrong(T, "image.*Bounds.*'zero'", lambda s: s.image(*s.at, "zero")),
    "rank of the origin": Wrong(S, "image.*2.*1", lambda s: s.image[tj.coord(0), tj.shape(s.m, s.n)]),
    "rank of the shape": Wrong(S, "image.*2.*1", lambda s: s.image[tj.coord(0, 0), tj.shape(s.n)]),
    "float in an origin": Wrong(D, "coord.*1.*float.*1.5", lambda s: tj.coord(0, 1.5)),
    "float tile in an origin": Wrong(D, "coord.*0.*float32", lambda s: tj.coord(tj.sum(s.y, s.n), 0)),
    "tile in an origin": Wrong(
        S, "image.*1.*n:8.*scalar", lambda s: s.image(tj.coord(0, s.ix), tj.shape(s.m, s.n))
    ),
    "string in an origin": Wrong(D, "coord.*str", lambda s: tj.coord("a")),
    "assume past the end": Wrong(
        BO, r"image.*3.*7.*6", lambda s: s.image[tj.coord(3, 0), tj.shape(s.m, s.n), tj.Bounds.ASSUME]
    ),
    "assume before the start": Wrong(
        BO, r"image.*-1", lambda s: s.image[tj.coord(0, -1), tj.shape(s.m, s.n), tj.Bounds.ASSUME]
    ),
    "assume of a store": Wrong(
        BO, r"4.*12.*8", lambda s: s.out(tj.coord(0, 4), tj.shape(s.m, s.n), tj.Bounds.ASSUME).store(s.x)
    ),
    # Fallbacks
    "fallback too large": Wrong(D, "small.*int8.*300.*127", lambda s: s.small(tj.coord(4), SHAPE8).load(300)),
    "fallback too small": Wrong(
        D, "small.*int8.*-129.*-128", lambda s: s.small(tj.coord(4), SHAPE8).load(-129)
    ),
    "fallback not an integer": Wrong(D, "ids.*int32.*0.5", lambda s: s.ids(tj.coord(4), SHAPE8).load(0.5)),
    "NaN for an integer": Wrong(
        D, "ids.*int32.*nan", lambda s: s.ids(tj.coord(4), SHAPE8).load(float("nan"))
    ),
    "2 for a bool": Wrong(D, "flags.*2.*bool", lambda s: s.flags(tj.coord(4), SHAPE8).load(2)),
    "overflow to inf": Wrong(D, "image.*float32.*1e.?300", lambda s: s.image(*s.at).load(1e300)),
    "tile as a fallback": Wrong(S, "image.*fallback.*scalar", lambda s: s.image(*s.at).load(s.y)),
    "traced float for an integer": Wrong(
        D, "ids.*float32.*int32", lambda s: s.ids(tj.coord(4), SHAPE8).load(s.i * jnp.float32(1))
    ),
    # Writing views
    "store to an input": Wrong(RO, "image.*read-only.*update", lambda s: s.image(*s.at).store(s.x)),
    "store to a captured array": Wrong(RO, "read-only.*update", lambda s: tj.view(IMAGE)(*s.at).store(s.x)),
    "store of other extents": Wrong(
        S, "out.store.*m:4.*6, 8", lambda s: s.out(tj.coord(0, 0), tj.shape(6, 8)).store(s.x)
    ),
    "store of another rank": Wrong(
        S, "out.store.*k:5.*m:4", lambda s: s.out(*s.at).store(tj.zeros(tj.shape(s.k)))
    ),
    "store int to float": Wrong(D, "out.store.*int32.*float32.*astype", lambda s: s.out(*s.at).store(s.ix)),
    "store float to int": Wrong(
        D, "ints.store.*float32.*int32.*astype", lambda s: s.ints(tj.coord(0), tj.shape(s.n)).store(s.y)
    ),
    "store weak float to int": Wrong(
        D, "ints.store.*float.*int32.*astype", lambda s: s.ints(tj.coord(0), tj.shape(s.n)).store(2.5)
    ),
    "store wide to narrow": Wrong(
        D, "half.store.*float32.*float16.*astype", lambda s: s.half(*s.at).store(s.x)
    ),
    "store bfloat16 to float16": Wrong(
        D, "bfloat16.*float16.*astype", lambda s: s.half(*s.at).store(s.x.astype(jnp.bfloat16))
    ),
    "store of a view": Wrong(T, "image.*load", lambda s: s.out(*s.at).store(s.image)),
    "store of an array": Wrong(
        T, r"\(4, 8\).*view", lambda s: s.out(*s.at).store(np.ones((4, 8), np.float32))
    ),
    "store of None": Wrong(T, "NoneType", lambda s: s.out(*s.at).store(None)),
    "output in a nest": Wrong(SC, "output.*parallel.*outside", lambda s: tj.output((3,), jnp.float32)),
    "update in a nest": Wrong(SC, "update.*parallel.*outside", lambda s: tj.update(s.image)),
    "lowlevel rank": Wrong(S, "image.*1.*2|1.*image.*2", lambda s: tj.lowlevel.load(s.image, s.i)),
    "lowlevel store to an input": Wrong(
        RO, "image.*read-only", lambda s: tj.lowlevel.store(s.image, 1.0, s.i, 0)
    ),
    "lowlevel fallback": Wrong(D, "ids.*0.5", lambda s: tj.lowlevel.load(s.ids, s.i, fallback=0.5)),
    # Python on tiles
    "if": Wrong(T, "truth.*where", branching),
    "and": Wrong(T, "truth.*&", lambda s: s.x > 0 and s.y > 0),
    "or": Wrong(T, "truth.*&", lambda s: s.x > 0 or s.y > 0),
    "not": Wrong(T, "truth.*~", lambda s: not s.x),
    "chained comparison": Wrong(T, "truth.*&", chaining),
    "if on a rank-0 tile": Wrong(T, "truth", lambda s: 1 if tj.sum(s.y, s.n) > 0 else 0),
    "@": Wrong(T, "@.*mma", lambda s: s.x @ s.y),
    "subscript of a tile": Wrong(T, "m:4.*gather", lambda s: s.x[0]),
    "iteration over a tile": Wrong(T, "m:4", looping),
    "int of a tile": Wrong(T, "int.*not known", lambda s: int(tj.sum(s.ix, s.n))),
    "float of a tile": Wrong(T, "float.*not known", lambda s: float(s.x)),
    "NumPy array of a tile": Wrong(T, "m:4.*numpy", lambda s: np.asarray(s.x)),
    "NumPy array of a view": Wrong(T, "image.*array", lambda s: np.asarray(s.image)),
    "if on an index": Wrong(T, "not known.*where", branching_on_an_index),
    "range of an index": Wrong(T, "not known.*start and stop", counting_to_an_index),
    "int of an index": Wrong(T, "not known", lambda s: int(s.i)),
    "list at an index": Wrong(T, "not known", lambda s: [1, 2][s.i]),
    "NumPy of an index": Wrong(T, "not known", lambda s: np.sqrt(s.i)),
    "jax.numpy of a tile": Wrong(T, "Tile.*functions of tilejax", lambda s: jnp.sum(s.x)),
    "jax.nn of a tile": Wrong(T, "Tile.*functions of tilejax", lambda s: jax.nn.relu(s.x)),
    "lax loop over a tile": Wrong(
        T, "Tile.*functions of tilejax", lambda s: jax.lax.fori_loop(0, 3, lambda _, x: x * 2, s.x)
    ),
    "NumPy of a tile": Wrong(T, "Tile.*functions of tilejax", lambda s: np.sum(s.x)),
    "jax.numpy of a view": Wrong(T, "TensorView.*load a tile", lambda s: jnp.sum(s.image)),
    "arithmetic on a reference": Wrong(T, "MemoryRef.*load a tile", lambda s: s.image(*s.at) * 2),
    "subscript of a nest": Wrong(T, "Nest.*subscript", lambda s: s.nest[s.grid]),
    "body without its carry": Wrong(T, r"1 positional argument.*body\(step, carry\)", forgetting_the_carry),
    "function of too few": Wrong(
        T, "1 positional argument", lambda s: tj.reduce(s.y, s.n, tj.Reducer(lambda a: a, 0.0))
    ),
    "view of strings": Wrong(D, "view.*U5", lambda s: tj.view(np.array(["words"]))),
    "view of complex numbers": Wrong(D, "view.*complex", lambda s: tj.view(np.zeros(3, complex))),
    "view of random keys": Wrong(D, "view.*key", lambda s: tj.view(jax.random.split(jax.random.key(0)))),
    "tile plus a string": Wrong(T, "str", lambda s: s.x + "1"),
    "tile plus an array": Wrong(T, r"\(8,\).*view", lambda s: s.x + np.ones(8, np.float32)),
    "tile plus None": Wrong(T, "NoneType", lambda s: s.x + None),
}


@pytest.mark.parametrize("name", ONE_LINE)
def test_wrong_line(name):
    case = ONE_LINE[name]
    rejected(case, lambda: bench(case.program))


def returns_nothing(image):
    tj.output((3,), image.dtype)


def returns_its_input(image):
    return image


def returns_a_tuple_with_an_input(image):
    return tj.output_like(image), image


def returns_a_number(image):
    return 3


def bad_init_shape(image):
    return tj.output((3, 4), image.dtype, init=np.ones((4, 3), np.float32))  # wrong


def bad_init_value(image):
    return tj.output((3, 4), jnp.int8, init=300)  # wrong


def bad_output_extent(image):
    return tj.output((3, -4), image.dtype)  # wrong


def bad_output_dtype(image):
    return tj.output((3, 4), "floaty")  # wrong


@pytest.mark.parametrize(
    "case",
    [
        Wrong(S, r"init.*\(4, 3\).*\(3, 4\)", bad_init_shape),
        Wrong(D, "init.*int8.*300", bad_init_value),
        Wrong(A, "-4", bad_output_extent),
        Wrong(D, "floaty", bad_output_dtype),
    ],
    ids=lambda case: case.program.__name__,
)
def test_wrong_output(case):
    rejected(case, lambda: tj.jit(case.program)(ARGUMENTS[0]))


@pytest.mark.parametrize("run", [tj.jit, tj.interpret, tj.make_jaxpr])
@pytest.mark.parametrize(
    ("says", "kernel"),
    [
        ("returns_nothing.*tj.output|returns_nothing.*tilejax.output", returns_nothing),
        ("returns_its_input.*image.*update", returns_its_input),
        ("returns_a_tuple_with_an_input.*image.*update", returns_a_tuple_with_an_input),
        ("returns_a_number.*int 3.*output", returns_a_number),
    ],
)
def test_wrong_results(run, says, kernel):
    def call():
        run(kernel)(ARGUMENTS[0])  # wrong

    rejected(Wrong(SC, says, call), call)


def test_wrong_arguments():
    def string():
        tj.interpret(returns_its_input)("cat")  # wrong

    def number():
        tj.jit(3)  # wrong

    def imaginary():
        tj.jit(returns_its_input)(np.ones(3, np.complex64))  # wrong

    def keys():
        tj.interpret(returns_its_input)(jax.random.split(jax.random.key(0)))  # wrong

    def traced():
        jax.jit(tj.interpret(tj.output_like))(IMAGE)  # wrong

    def params(**given):
        def run():
            tj.jit(returns_its_input, compiler_params=given)  # wrong

        return run

    rejected(Wrong(T, "image.*str.*cat.*static", string), string)
    rejected(Wrong(T, "kernel.*int.*3", number), number)
    rejected(Wrong(D, "image.*complex64", imaginary), imaginary)
    rejected(Wrong(D, "image.*key", keys), keys)
    rejected(Wrong(UN, "output_like.*interpret.*traced.*jit", traced), traced)
    for says, run in (
        ("warps.*num_warps", params(warps=4)),
        ("num_warps.*int.*'four'", params(num_warps="four")),
        ("profile.*mlx.*'fast'", params(profile="fast")),
    ):
        rejected(Wrong(UN, says, run), run)


def test_views_of_a_call_that_has_ended():
    kept = []

    def keeping(image):
        kept.append(tj.output_like(image))
        return kept[0]

    def updating():
        tj.jit(lambda image: tj.update(kept[0]))(IMAGE)  # wrong

    def starting():
        tj.interpret(lambda image: tj.output((6, 8), image.dtype, init=kept[0]))(IMAGE)  # wrong

    tj.jit(keeping)(IMAGE)
    for run in (updating, starting):
        rejected(Wrong(SC, "kernel keeping", run), run)


@pytest.mark.parametrize("take", [tj.jit, tj.interpret, tj.make_jaxpr, tj.explain, tj.metal.source])
def test_a_transformed_kernel_is_no_kernel(take):
    """JAX's transformations copy attributes: once the kernel inside was taken in silence."""
    x = np.ones((2, 3), np.float32)
    for made in (jax.grad(kernels.softmax), jax.vmap(kernels.softmax), jax.grad(jax.vmap(kernels.softmax))):
        with pytest.raises(tj.TileTypeError, match="pass the kernel itself"):
            take(made)(x)
    take(jax.jit(kernels.softmax))(x)
