"""The NumPy interpreter against hand-written values: what primitives mean, and the faults it must find."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tilejax as tj
from tests.helpers import same
from tilejax import BoundsError, RaceError
from tilejax.backends.interpreter import RULES, run
from tilejax.ir import primitives as ir
from tilejax.ir.types import Bounds, Order

pytestmark = pytest.mark.usefixtures("on_cpu")  # JAX divides exactly there
F32 = np.float32
NAN, INF = np.nan, np.inf
I32_MIN, I32_MAX = -(2**31), 2**31 - 1


def f32(*values: Any) -> np.ndarray:
    return np.array(values, F32)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def interpreted(fn: Any, *args: Any) -> Any:
    """The results of `fn`, a function of arrays that binds primitives; one alone is not in a list."""
    program = jax.make_jaxpr(fn)(*args)
    results = run(program, args)
    return results[0] if len(results) == 1 else results


def test_every_tile_primitive_has_a_rule():
    assert set(ir.PRIMITIVES) - set(RULES) == set()


# JAX's elementwise primitives


FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, -1.5, 2.5, 3.5, -2.5, 7.25, -100.0, 88.0, 1e-3, INF, -INF, NAN]
UNARY = [
    *(lax.neg, lax.abs, lax.sign, lax.floor, lax.ceil, lax.exp, lax.exp2, lax.expm1, lax.log, lax.log1p),
    *(lax.sqrt, lax.rsqrt, lax.cbrt, lax.tanh, lax.sin, lax.cos, lax.tan, lax.asin, lax.acos, lax.atan),
    *(lax.sinh, lax.cosh, lax.asinh, lax.acosh, lax.atanh, lax.logistic, lax.erf, lax.erfc, lax.is_finite),
    *(lax.square, jnp.round, lax.round, jax.nn.relu, lambda x: x**3, lambda x: x**-2, lax.erf_inv),
]


@pytest.mark.parametrize("fn", UNARY, ids=lambda fn: getattr(fn, "__name__", "integer_pow"))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_unary_of_special_values_is_what_jax_says(fn, dtype):
    """Within a few ulps of what JAX says in f32: its functions are approximations, and rough ones in bf16."""
    x = np.array(FLOATS, dtype)
    got, want = interpreted(fn, x), fn(jnp.asarray(x, F32))
    want = np.asarray(want.astype(dtype) if want.dtype == F32 else want)
    assert got.dtype == want.dtype
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=16 * eps, atol=3e-7)


BINARY = [
    *(lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.pow, lax.atan2),
    *(lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge, jnp.floor_divide, jnp.remainder),
]


@pytest.mark.parametrize("fn", BINARY, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_binary_of_special_values_is_what_jax_says(fn, dtype):
    x, y = np.array([(a, b) for a in FLOATS for b in FLOATS], dtype).T
    got, want = interpreted(fn, x, y), np.asarray(fn(jnp.asarray(x), jnp.asarray(y)))
    eps = float(jnp.finfo(dtype).eps) if fn in (lax.pow, lax.atan2) else 0.0
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=3 * eps, atol=1e-38)


INTEGER_BINARY = [
    *(lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or),
    *(lax.bitwise_xor, lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic),
    *(lax.eq, lax.lt, lax.ge, jnp.floor_divide, jnp.remainder, jnp.power),
]


@pytest.mark.parametrize("fn", INTEGER_BINARY, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32])
def test_binary_of_integers_is_what_jax_says(fn, dtype):
    """Also past the width, by zero, and where they wrap."""
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, info.max, 0, 1, 2, 3, 7, 8, 31, 33, 100], dtype)
    values = np.concatenate([values, (-values).astype(dtype)])
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    if fn is jnp.power:
        x, y = x[y < 20], y[y < 20]
        x, y = x[y >= 0], y[y >= 0]
    same(interpreted(fn, x, y), np.asarray(fn(jnp.asarray(x), jnp.asarray(y))))


def test_integer_division_by_zero_is_silent():
    assert interpreted(lax.div, i32(7, -7, I32_MIN), i32(0, 0, -1)).tolist() == [-1, -1, I32_MIN]
    assert interpreted(lax.rem, i32(7, -7, I32_MIN), i32(0, 0, -1)).tolist() == [7, -7, 0]


def test_div_truncates_and_rem_has_the_sign_of_the_dividend():
    x, y = i32(7, -7, 7, -7), i32(2, 2, -2, -2)
    assert interpreted(lax.div, x, y).tolist() == [3, -3, -3, 3]
    assert interpreted(lax.rem, x, y).tolist() == [1, -1, 1, -1]


def test_shifts_past_the_width():
    x, count = i32(1, -8, -8, 5), i32(32, 40, -1, 0)
    assert interpreted(lax.shift_left, x, count).tolist() == [0, 0, 0, 5]
    assert interpreted(lax.shift_right_logical, x, count).tolist() == [0, 0, 0, 5]
    assert interpreted(lax.shift_right_arithmetic, x, count).tolist() == [0, -1, -1, 5]


@pytest.mark.parametrize(
    ("dtype", "want"),
    [
        (np.int32, [0, I32_MAX, I32_MIN, I32_MAX, I32_MIN, -1, 300, 2]),
        (np.uint8, [0, 255, 0, 255, 0, 0, 255, 2]),
        (np.int8, [0, 127, -128, 127, -128, -1, 127, 2]),
    ],
)
def test_float_to_integer_saturates_and_truncates(dtype, want):
    x = f32(NAN, INF, -INF, 3e9, -3e9, -1.75, 300, 2.9)
    assert interpreted(lambda x: lax.convert_element_type(x, dtype), x).tolist() == want


def test_casts_wrap_integers_and_round_floats_to_even():
    x = i32(300, -1, 128)
    assert interpreted(lambda x: lax.convert_element_type(x, np.int8), x).tolist() == [44, -1, -128]
    ties = f32(1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, NAN)
    got = interpreted(lambda x: lax.convert_element_type(x, jnp.bfloat16), ties).astype(F32)
    np.testing.assert_array_equal(got, f32(1, 1 + 2**-6, INF, NAN))
    big = f32(1e5, -INF, 448, 57344)
    e4m3 = interpreted(lambda x: lax.convert_element_type(x, jnp.float8_e4m3fn), big).astype(F32)
    np.testing.assert_array_equal(e4m3, f32(NAN, NAN, 448, NAN))
    e5m2 = interpreted(lambda x: lax.convert_element_type(x, jnp.float8_e5m2), big).astype(F32)
    np.testing.assert_array_equal(e5m2, f32(INF, -INF, 448, 57344))
    to_bool = interpreted(lambda x: lax.convert_element_type(x, np.bool_), f32(0.0, -0.0, 0.25, NAN))
    assert to_bool.tolist() == [False, False, True, True]


def test_halves_round_to_even_or_away():
    x = f32(0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997)
    assert interpreted(jnp.round, x).tolist() == [0, 2, 2, 0, -2, 0]
    assert interpreted(lax.round, x).tolist() == [1, 2, 3, -1, -3, 0]


def test_bf16_is_rounded_once_per_operation():
    """256 + 1 stays 256 twice: nothing is carried in f32 between the two additions."""
    x, one = np.array([256], jnp.bfloat16), np.array([1], jnp.bfloat16)
    assert interpreted(lambda x, one: (x + one) + one, x, one).astype(F32).tolist() == [256]


def test_what_moves_elements():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    turned = interpreted(lambda x: lax.rev(lax.transpose(x, (1, 0)), (0,)), x)
    assert turned.tolist() == [[2, 5], [1, 4], [0, 3]]
    assert interpreted(lambda x: lax.slice(x, (0, 0), (2, 3), (1, 2)), x).tolist() == [[0, 2], [3, 5]]
    assert interpreted(lambda x: lax.broadcast_in_dim(x[0], (2, 3), (1,)), x).tolist() == [[0, 1, 2]] * 2
    assert interpreted(lambda: lax.broadcasted_iota(np.int32, (2, 3), 1)).tolist() == [[0, 1, 2]] * 2
    assert interpreted(lambda x: lax.concatenate([x, x], 1), x).shape == (2, 6)
    assert interpreted(lambda x: lax.pad(x, 9, ((0, 0, 0), (-1, 1, 0))), x).tolist() == [[1, 2, 9], [4, 5, 9]]
    picked = interpreted(lambda p, x: lax.select_n(p, x, -x), np.array(True), x)
    assert picked.tolist() == [[0, -1, -2], [-3, -4, -5]]
    low, x, high = f32(1), f32(NAN, 0, 5), f32(3)
    np.testing.assert_array_equal(interpreted(lambda x: lax.clamp(F32(1), x, F32(3)), x), f32(NAN, 1, 3))
    assert interpreted(lax.clamp, low, f32(2), high).tolist() == [2]


# Access


def load(view, *starts, shape, fallback=0, bounds=Bounds.ZERO):
    fallback = np.asarray(fallback, view.dtype)
    starts = [np.int32(s) if isinstance(s, int) else s for s in starts]
    return ir.load_p.bind(view, *starts, fallback, shape=shape, bounds=bounds, name="A", loc=None)[0]


def store(view, tile, *starts, bounds=Bounds.ZERO):
    starts = [np.int32(s) if isinstance(s, int) else s for s in starts]
    return ir.store_p.bind(view, tile, *starts, bounds=bounds, name="C", loc=None)[0]


@pytest.mark.parametrize(
    ("start", "want"),
    [
        (0, [1, 2, 3, 4]),
        (3, [4, 5, -9, -9]),
        (-2, [-9, -9, 1, 2]),
        (5, [-9] * 4),
        (-4, [-9] * 4),
        (I32_MIN, [-9] * 4),
        (I32_MAX, [-9] * 4),
    ],
)
def test_load_gives_the_fallback_outside(start, want):
    assert interpreted(lambda x: load(x, start, shape=(4,), fallback=-9), f32(1, 2, 3, 4, 5)).tolist() == want


@pytest.mark.parametrize(
    ("start", "want"),
    [
        (1, [0, 7, 8, 9, 0]),
        (3, [0, 0, 0, 7, 8]),
        (-1, [8, 9, 0, 0, 0]),
        (5, [0] * 5),
        (-3, [0] * 5),
        (I32_MIN, [0] * 5),
        (I32_MAX, [0] * 5),
    ],
)
def test_store_drops_what_is_outside(start, want):
    assert interpreted(lambda c, x: store(c, x, start), np.zeros(5, F32), f32(7, 8, 9)).tolist() == want


def test_a_load_is_a_snapshot():
    def fn(x):
        before = load(x, 0, shape=(2,))
        return before, load(store(x, f32(5, 6), 0), 0, shape=(2,))

    before, after = interpreted(fn, f32(1, 2))
    assert (before.tolist(), after.tolist()) == ([1, 2], [5, 6])


# Contraction and reduction


def mma(a, b, acc, la, lb, lc, reassociate=True):
    return ir.mma_p.bind(
        a,
        b,
        acc,
        a_labels=la,
        b_labels=lb,
        acc_labels=lc,
        allow_reassociation=reassociate,
        precision=None,
        loc=None,
    )[0]


@pytest.mark.parametrize("reassociate", [True, False])
def test_mma_of_two_contracted_a_batch_and_a_broadcast_label(reassociate):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (2, 3, 4, 5)).astype(F32), rng.integers(-4, 5, (5, 2, 6, 3)).astype(F32)
    acc = rng.integers(-4, 5, (6, 7, 2, 4)).astype(F32)
    labels = (0, 1, 2, 3), (3, 0, 4, 1), (4, 5, 0, 2)
    got = interpreted(lambda a, b, acc: mma(a, b, acc, *labels, reassociate), a, b, acc)
    want = acc.copy()
    for batch in range(2):
        for k0 in range(3):
            for k1 in range(5):
                outer = np.multiply.outer(b[k1, batch, :, k0], a[batch, k0, :, k1])
                want[:, :, batch, :] += outer[:, None, :]
    np.testing.assert_array_equal(got, want)


def test_mma_int8_accumulates_in_int32_and_mixes_with_uint8():
    a, b = np.full((1, 4), 100, np.int8), np.full((4, 1), 200, np.uint8)
    got = interpreted(lambda a, b, c: mma(a, b, c, (0, 1), (1, 2), (0, 2)), a, b, np.zeros((1, 1), np.int32))
    assert got.tolist() == [[80000]]
    assert got.dtype == np.int32


def test_ordered_mma_adds_one_product_after_the_other():
    """2**24 + 1 + 1 in f32 stays 2**24; in any better order it is 2**24 + 2."""
    a, b, acc = f32(1, 1).reshape(1, 2), f32(1, 1).reshape(2, 1), f32(2**24).reshape(1, 1)
    labels = (0, 1), (1, 2), (0, 2)
    ordered = interpreted(lambda a, b, acc: mma(a, b, acc, *labels, False), a, b, acc)
    assert ordered.tolist() == [[2**24]]
    assert interpreted(lambda a, b, acc: mma(a, b, acc, *labels), a, b, acc).tolist() == [[2**24 + 2]]


def reduce(x, op, axes, order=Order.UNORDERED_TREE):
    return ir.reduce_p.bind(x, op=op, axes=axes, order=order, loc=None)[0]


@pytest.mark.parametrize("order", list(Order))
def test_reduce_each_op_over_two_axes(order):
    x = np.random.default_rng(0).integers(-3, 4, (2, 3, 4)).astype(F32)
    for op, fn in [("add", np.sum), ("mul", np.prod), ("max", np.max), ("min", np.min)]:
        got = interpreted(lambda x, op=op: reduce(x, op, (2, 0), order), x)
        np.testing.assert_array_equal(got, fn(x, axis=(0, 2)))
    truth = x > 1
    got = interpreted(lambda x: reduce(x, "and", (1,), order), truth)
    np.testing.assert_array_equal(got, truth.all(1))
    got = interpreted(lambda x: reduce(x, "or", (1,), order), truth)
    np.testing.assert_array_equal(got, truth.any(1))


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_])
def test_reduce_of_an_empty_axis_is_the_identity(order, dtype):
    x = np.zeros((2, 0), dtype)
    for op in ["and", "or"] if dtype == np.bool_ else ["add", "mul"]:
        got = interpreted(lambda x, op=op: reduce(x, op, (1,), order), x)
        assert got.dtype == dtype
        assert got.astype(F32).tolist() == [op in ("mul", "and")] * 2


def test_max_and_min_give_nan_for_any_nan():
    x = f32([1, NAN, 3], [NAN, 5, 6], [1, 2, 3])
    for dtype in (F32, jnp.bfloat16):
        got = interpreted(lambda x: (reduce(x, "max", (1,)), reduce(x, "min", (1,))), x.astype(dtype))
        np.testing.assert_array_equal(np.stack(got).astype(F32), f32([NAN, NAN, 3], [NAN, NAN, 1]))


def test_integer_sums_wrap_in_their_dtype():
    assert interpreted(lambda x: reduce(x, "add", (0,)), np.array([100, 100], np.int8)).tolist() == -56
    assert interpreted(lambda x: reduce(x, "mul", (0,)), i32(2**20, 2**13)).tolist() == 0


BIG = 2.0**25


@pytest.mark.parametrize(
    ("order", "want"),
    [
        # f32: BIG + 1 is BIG, BIG + 3 is BIG + 4
        (Order.FOLD_LEFT, ((BIG + 0) + 0) + 0),
        (Order.FOLD_RIGHT, BIG + 4),  # 1 + (1 + (1 + 0)) = 3
        (Order.ORDERED_TREE, BIG + 0),  # (BIG + 1) + (1 + 1)  -> BIG + 2 ties to even: BIG
        (Order.UNORDERED_TREE, BIG + 4),
    ],
)
def test_the_order_of_a_float_sum(order, want):
    x = f32(BIG, 1, 1, 1)
    assert interpreted(lambda x: reduce(x, "add", (0,), order), x).tolist() == want


def fold(x, identity, fn, axes, order, *consts):
    scalar = np.zeros((), x.dtype)
    body = jax.make_jaxpr(fn)(*consts, scalar, scalar)
    return ir.fold_p.bind(x, identity, *consts, axes=axes, order=order, fn=body, loc=None)[0]


@pytest.mark.parametrize(
    ("order", "n", "want"),
    [
        # fn(a, b) = 2a + b, e = 1
        (Order.FOLD_LEFT, 3, ((1 * 2 + 10) * 2 + 20) * 2 + 30),
        (Order.FOLD_RIGHT, 3, 2 * 10 + (2 * 20 + (2 * 30 + 1))),
        (Order.ORDERED_TREE, 1, 2 * 1 + 10),
        (Order.ORDERED_TREE, 2, 2 * (2 * 1 + 10) + 20),
        (Order.ORDERED_TREE, 3, 2 * (2 * (2 * 1 + 10) + 20) + 30),
        (Order.ORDERED_TREE, 5, 2 * (2 * (2 * (2 * 1 + 10) + 20) + (2 * 30 + 40)) + 50),
        (Order.FOLD_LEFT, 0, 1),
        (Order.FOLD_RIGHT, 0, 1),
        (Order.ORDERED_TREE, 0, 1),
    ],
)
def test_the_order_of_a_reducer_that_does_not_associate(order, n, want):
    x = 10 * np.arange(1, n + 1, dtype=np.int32)
    got = interpreted(lambda x, e: fold(x, e, lambda a, b: 2 * a + b, (0,), order), x, np.int32(1))
    assert got.tolist() == want


def test_a_reducer_over_axes_in_the_order_given_with_a_captured_scalar():
    """`fn(a, b) = k * a + b` reads the elements as digits, so it shows their order."""
    x = np.arange(1, 9, dtype=np.int32).reshape(2, 2, 2)

    def fn(x, k):
        return fold(x, np.int32(0), lambda k, a, b: k * a + b, (2, 0), Order.FOLD_LEFT, k)

    assert interpreted(fn, x, np.int32(10)).tolist() == [1526, 3748]


def test_argmax_and_argmin_take_the_first_nan_else_the_first_extremum():
    x = f32([NAN, 6, 8], [1, NAN, 8], [2, NAN, NAN], [5, 5, 1], [1, 1, 5])

    def fn(x):
        return [
            ir.argreduce_p.bind(x, op=op, axis=1, index_dtype=np.dtype(np.int32), loc=None)[0]
            for op in ("max", "min")
        ]

    for dtype in (F32, jnp.bfloat16):
        greatest, least = interpreted(fn, x.astype(dtype))
        assert (greatest.tolist(), least.tolist()) == ([0, 1, 1, 0, 2], [0, 1, 1, 2, 0])
        assert greatest.dtype == np.int32


# Scans, gather, order


def scan(x, op, axis=0, reverse=False):
    return ir.scan_p.bind(x, op=op, axis=axis, reverse=reverse, loc=None)[0]


def test_scans_both_ways_on_each_axis():
    x = np.random.default_rng(0).integers(-3, 4, (3, 4)).astype(F32)
    for op, ufunc in [("add", np.add), ("mul", np.multiply), ("max", np.maximum), ("min", np.minimum)]:
        for axis in (0, 1):
            got = interpreted(lambda x, op=op, axis=axis: scan(x, op, axis), x)
            np.testing.assert_array_equal(got, ufunc.accumulate(x, axis))
            got = interpreted(lambda x, op=op, axis=axis: scan(x, op, axis, reverse=True), x)
            np.testing.assert_array_equal(got, ufunc.accumulate(x[::-1, ::-1], axis)[::-1, ::-1])


def test_scans_keep_nan_wrap_integers_and_take_empty_axes():
    np.testing.assert_array_equal(interpreted(lambda x: scan(x, "max"), f32(1, NAN, 3)), f32(1, NAN, NAN))
    assert interpreted(lambda x: scan(x, "add"), np.array([100, 100, 1], np.int8)).tolist() == [100, -56, -55]
    assert interpreted(lambda x: scan(x, "add", 1), np.zeros((2, 0), F32)).shape == (2, 0)


def associative_scan(fn, *tiles, axis=0, reverse=False, consts=()):
    rest = [jax.ShapeDtypeStruct(t.shape[:axis] + t.shape[axis + 1 :], t.dtype) for t in tiles]
    body = jax.make_jaxpr(fn)(*consts, *rest, *rest)
    operands = (*consts, *tiles)
    return ir.associative_scan_p.bind(
        *operands, num_consts=len(consts), axis=axis, reverse=reverse, fn=body, loc=None
    )


def test_reverse_scan_of_an_exponential_moving_average():
    f, x = f32(1, 1.5, 0.8, 2), f32(1, -1, 0.5, 2)
    got = interpreted(
        lambda f, x: associative_scan(lambda fa, xa, fb, xb: [fa * fb, fb * xa + xb], f, x, reverse=True),
        f,
        x,
    )
    np.testing.assert_allclose(np.stack(got), f32([2.4, 2.4, 1.6, 2], [3.15, 2.15, 2.1, 2]), rtol=1e-6)


def test_an_associative_scan_of_matrices_keeps_the_order_of_its_operands():
    x = np.random.default_rng(0).integers(-2, 3, (2, 5, 2)).astype(np.int32)

    def fn(x, k):
        """Concatenation-like: `a` of the earlier, `b` of the later, `k` captured."""
        return associative_scan(lambda k, a, b: [a * 0 + b + k], x, axis=1, consts=(k,))[0]

    want = x.copy()
    want[:, 1:] += 3
    np.testing.assert_array_equal(interpreted(fn, x, np.int32(3)), want)


def gather(tile, *coords, shape, dims, coord_dims, fallback=0):
    fallback = np.asarray(fallback, tile.dtype)
    return ir.gather_p.bind(tile, *coords, fallback, shape=shape, dims=dims, coord_dims=coord_dims, loc=None)[
        0
    ]


def test_gather_rows_and_fall_back_at_both_ends():
    x = np.arange(6, dtype=F32).reshape(3, 2)
    index = i32(2, -1, 0, 3, I32_MIN)
    got = interpreted(
        lambda x, i: gather(x, i, shape=(2, 5), dims=(None, 0), coord_dims=((1,),), fallback=-7), x, index
    )
    assert got.tolist() == [[4, -7, 0, -7, -7], [5, -7, 1, -7, -7]]


def test_gather_along_an_axis_and_by_two_coordinates():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    along = i32([2, 0], [1, 1])
    got = interpreted(lambda x, i: gather(x, i, shape=(2, 2), dims=(0, None), coord_dims=((0, 1),)), x, along)
    assert got.tolist() == [[2, 0], [4, 4]]
    row, column = i32(0, 1, 2), np.int32(1)
    got = interpreted(
        lambda x, r, c: gather(x, r, c, shape=(3,), dims=(None, None), coord_dims=((0,), ())), x, row, column
    )
    assert got.tolist() == [1, 4, 0]
    # The dimensions of a coordinate may stand in another order in the result.
    turned = interpreted(
        lambda x, i: gather(x, i, shape=(2, 2), dims=(0, None), coord_dims=((1, 0),)), x, along
    )
    assert turned.tolist() == [[2, 1], [3, 4]]


def test_gather_from_an_empty_axis_is_all_fallback():
    got = interpreted(
        lambda x, i: gather(x, i, shape=(2,), dims=(None,), coord_dims=((0,),), fallback=4),
        np.zeros(0, F32),
        i32(0, 1),
    )
    assert got.tolist() == [4, 4]


def sort(x, descending, axis=0):
    return ir.sort_p.bind(x, axis=axis, descending=descending, loc=None)


def top_k(x, k, largest, axis=0):
    return ir.top_k_p.bind(x, axis=axis, k=k, largest=largest, loc=None)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_sort_is_stable_with_nan_greatest_and_zeros_tied(dtype):
    x = np.array([NAN, -0.0, 0.0, -NAN, INF, -1, -0.0], dtype)
    values, indices = interpreted(lambda x: sort(x, False), x)
    assert indices.tolist() == [5, 1, 2, 6, 4, 0, 3]
    np.testing.assert_array_equal(values.astype(F32), f32(-1, 0, 0, 0, INF, NAN, NAN))
    values, indices = interpreted(lambda x: sort(x, True), x)
    assert indices.tolist() == [0, 3, 4, 1, 2, 6, 5]
    np.testing.assert_array_equal(values.astype(F32), f32(NAN, NAN, INF, 0, 0, 0, -1))
    assert indices.dtype == np.int32


def test_sort_of_integers_bools_and_empty_axes():
    assert interpreted(lambda x: sort(x, True), np.array([3, 255, 3, 0], np.uint8))[1].tolist() == [
        1,
        0,
        2,
        3,
    ]
    assert interpreted(lambda x: sort(x, True), np.array([False, True, True]))[1].tolist() == [1, 2, 0]
    assert interpreted(lambda x: sort(x, False), i32(I32_MAX, I32_MIN, 0))[1].tolist() == [1, 2, 0]
    values, indices = interpreted(lambda x: sort(x, True, 1), np.zeros((2, 0), F32))
    assert (values.shape, indices.shape) == ((2, 0), (2, 0))
    x = i32([3, 1], [1, 2])
    assert interpreted(lambda x: sort(x, False, 0), x)[0].tolist() == [[1, 1], [3, 2]]


def test_top_k_counts_nan_as_greatest():
    x = f32(1, NAN, 3, -NAN, 3)
    assert interpreted(lambda x: top_k(x, 3, True), x)[1].tolist() == [1, 3, 2]
    assert interpreted(lambda x: top_k(x, 5, False), x)[1].tolist() == [0, 2, 4, 1, 3]
    values, indices = interpreted(lambda x: top_k(x, 0, True), x)
    assert (values.shape, indices.shape, indices.dtype) == ((0,), (0,), np.int32)
    x = i32([3, 9, 4], [8, 7, 7])
    assert interpreted(lambda x: top_k(x, 2, True, axis=1), x)[0].tolist() == [[9, 4], [8, 7]]


# Faults, planted in kernels whose origins come from arrays, so that nothing is known before they run


T = tj.axis("t", 2)
ONE = tj.axis("one", 1)


def entry(view: Any, i: Any) -> Any:
    """The scalar `view[i]`."""
    return tj.reshape(view[tj.coord(i), tj.shape(ONE)], tj.shape())


def touch(bounds: Any = tj.Bounds.ZERO, load_first: bool = True) -> Any:
    """Program `g` reads two elements of an output at `loads[g]` and stores two at `stores[g]`."""

    def kernel(loads, stores):
        out = tj.output((8,), np.float32)
        g = tj.axis("g", stores.extent(0))

        @tj.parallel(g)
        def _(nest):
            i = nest.index(g)
            here, there = tj.coord(entry(loads, i)), tj.coord(entry(stores, i))
            tile = out[here, tj.shape(T), bounds] if load_first else tj.ones(tj.shape(T))
            out(there, tj.shape(T), bounds).store(tile + 1)
            if not load_first:
                out[here, tj.shape(T), bounds]

        return out

    return kernel


AWAY = 100  # outside the view of 8: reads fall back, stores are dropped


def fault(error: Any, kernel: Any, *args: Any) -> str:
    """The message of the error that interpreting `kernel` raises, which names a line of this file."""
    with pytest.raises(error) as caught:
        tj.interpret(kernel)(*args)
    assert caught.value.loc.file == __file__
    return str(caught.value)


@pytest.mark.parametrize("start", [-1, 7, 8, AWAY])
def test_a_load_outside_under_assume(start):
    outside = start if start < 0 or start >= 8 else 8
    message = fault(BoundsError, touch(tj.Bounds.ASSUME), i32(0, start), i32(0, 2))
    assert f"load of element ({outside},) of out, which has shape (8,), by program (g=1)" in message


@pytest.mark.parametrize("start", [-1, 7, 8, AWAY])
def test_a_store_outside_under_assume(start):
    outside = start if start < 0 or start >= 8 else 8
    message = fault(BoundsError, touch(tj.Bounds.ASSUME), i32(4, 0), i32(start, 0))
    assert f"store of element ({outside},) of out, which has shape (8,), by program (g=0)" in message


def test_assume_inside_and_zero_outside_are_no_faults():
    assert tj.interpret(touch(tj.Bounds.ASSUME))(i32(0, 2), i32(0, 6)).tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert tj.interpret(touch())(i32(-1, AWAY), i32(-1, 7)).tolist() == [1, 0, 0, 0, 0, 0, 0, 1]


def test_the_line_and_the_nests_of_a_fault():
    def kernel(x, starts):
        out = tj.output((4,), np.float32)
        g, h, s = tj.axis("g", 2), tj.axis("h", 1), tj.axis("s", 3)

        @tj.parallel(g, h)
        def _(nest):
            @nest.serial(s)
            def _(step):
                at = tj.coord(entry(starts, step.index()), nest.index(g))
                x[at, tj.shape(1, 1), tj.Bounds.ASSUME]

        return out

    message = fault(BoundsError, kernel, np.zeros((3, 2), F32), i32(0, 3, 1))
    assert "load of element (3, 0) of x, which has shape (3, 2), by program (g=0, h=0), step (s=1)" in message
    assert f"test_interpreter.py:{kernel.__code__.co_firstlineno + 9}" in message


def test_two_programs_that_store_one_element():
    message = fault(RaceError, touch(), i32(AWAY, AWAY, AWAY), i32(0, 4, 5))
    assert "program (g=2) stores element (5,) of out, which was also stored by program (g=1)" in message


@pytest.mark.parametrize("load_first", [True, False])
def test_a_program_that_reads_what_an_earlier_one_stored(load_first):
    message = fault(RaceError, touch(load_first=load_first), i32(AWAY, 1), i32(0, 4))
    assert "program (g=1) reads element (1,) of out, which was stored by program (g=0)" in message


@pytest.mark.parametrize("load_first", [True, False])
def test_a_program_that_reads_what_a_later_one_stores(load_first):
    message = fault(RaceError, touch(load_first=load_first), i32(5, AWAY, 4), i32(0, 2, 4))
    assert "program (g=2) stores element (5,) of out, which was read by program (g=0)" in message


def test_dropped_stores_own_elements_and_shared_reads_are_no_races():
    assert tj.interpret(touch())(i32(6, 6, 7), i32(AWAY, AWAY, -1)).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    own = i32(2, 4, 0)
    assert tj.interpret(touch(load_first=False))(own, own).tolist() == [2, 2, 2, 2, 2, 2, 0, 0]


def test_a_later_nest_may_touch_what_an_earlier_one_stored():
    def kernel(x):
        out, g = tj.output((4,), x.dtype), tj.axis("g", 2)

        @tj.parallel(g)
        def _(nest):
            out(tj.coord(nest.index(g) * 2), tj.shape(T)).store(x[tj.coord(nest.index(g) * 2), tj.shape(T)])

        @tj.parallel(1)
        def _(nest):
            whole = out[tj.coord(0), tj.shape(4)]
            out(tj.coord(-1), tj.shape(4)).store(whole)

        return out

    assert tj.interpret(kernel)(f32(1, 2, 3, 4)).tolist() == [2, 3, 4, 4]


def nested(sub_programs: int) -> Any:
    """Program `g` stores two elements at `2 * g`; then its sub-program `h` reads one at `loads[g, h]` and
    stores one at `stores[g, h]`."""

    def kernel(loads, stores):
        out = tj.output((8,), np.float32)
        g, h = tj.axis("g", 2), tj.axis("h", sub_programs)

        @tj.parallel(g)
        def _(nest):
            out(tj.coord(2 * nest.index(g)), tj.shape(T)).store(tj.ones(tj.shape(T)))

            @nest.parallel(h)
            def _(sub):
                at = tj.coord(nest.index(g), sub.index(h)), tj.shape(1, 1)
                load, store = (tj.reshape(view[at], tj.shape()) for view in (loads, stores))
                out(tj.coord(store), tj.shape(1)).store(out[tj.coord(load), tj.shape(1)] + 10)

        return out

    return kernel


def test_sub_programs_may_touch_what_their_parent_stored():
    loads, stores = i32([0, 0], [3, 3]), i32([1, 4], [2, 5])
    assert tj.interpret(nested(2))(loads, stores).tolist() == [1, 11, 11, 1, 11, 11, 0, 0]


def test_sub_programs_race_with_each_other():
    message = fault(RaceError, nested(2), i32([0, 0], [3, 3]), i32([4, 4], [5, 6]))
    assert "program (h=1) stores element (4,) of out, which was also stored by program (h=0)" in message
    message = fault(RaceError, nested(2), i32([0, 4], [3, 3]), i32([4, 7], [5, 6]))
    assert "program (h=1) reads element (4,) of out, which was stored by program (h=0)" in message


def test_sub_programs_race_in_the_name_of_their_parents():
    message = fault(RaceError, nested(1), i32([0], [3]), i32([4], [4]))
    assert "program (g=1) stores element (4,) of out, which was also stored by program (g=0)" in message
    message = fault(RaceError, nested(1), i32([0], [1]), i32([4], [5]))
    assert "program (g=1) reads element (1,) of out, which was stored by program (g=0)" in message


def test_two_runs_of_a_nested_parallel_in_one_program_do_not_race():
    def kernel(x):
        out, g, s, h = tj.output((2,), x.dtype), tj.axis("g", 1), tj.axis("s", 3), tj.axis("h", 2)

        @tj.parallel(g)
        def _(nest):
            @nest.serial(s)
            def _(step):
                @step.parallel(h)
                def _(sub):
                    # Each step shifts: a sub-program reads what another one stored a step before.
                    at, shape = tj.coord((sub.index(h) + step.index()) % 2), tj.shape(1)
                    out(at, shape).store(out[at, shape] * 2 + x[at, shape])

        return out

    assert tj.interpret(kernel)(f32(1, 3)).tolist() == [7, 21]


def test_serial_stores_are_seen_by_later_steps_of_the_program():
    def kernel(x):
        out, s = tj.update(x), tj.axis("s", 4)

        @tj.parallel(1)
        def _(nest):
            @nest.serial(s)
            def _(step):
                out(tj.coord(step.index() + 1), tj.shape(1)).store(
                    out[tj.coord(step.index()), tj.shape(1)] + out[tj.coord(step.index() + 1), tj.shape(1)]
                )

        return out

    assert tj.interpret(kernel)(f32(1, 2, 3, 4, 5)).tolist() == [1, 3, 6, 10, 15]


def test_reading_an_array_while_storing_to_its_update_is_no_race():
    captured = np.arange(4, dtype=F32)

    def kernel(x):
        source, g = tj.view(captured), tj.axis("g", 2)
        out = tj.update(source)

        @tj.parallel(g)
        def _(nest):
            out(tj.coord(2 * nest.index(g)), tj.shape(T)).store(source[tj.coord(1), tj.shape(T)])

        return out

    assert tj.interpret(kernel)(f32(0)).tolist() == [1, 2, 1, 2]
    assert tj.jit(kernel)(f32(0)).tolist() == [1, 2, 1, 2]
