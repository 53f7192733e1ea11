"""What values are: NaN, casts, shifts, integer division, masked rows. As in JAX on every backend."""

import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, tiles

NAN, INF = float("nan"), float("inf")


X = np.array([NAN, 1, -2, INF, -INF, 0], np.float32)


Y = np.array([0, NAN, -3, INF, NAN, -0.0], np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_max_min_and_clip_propagate_nan(dtype):
    x, y = X.astype(jnp.dtype(dtype)), Y.astype(jnp.dtype(dtype))

    def fn(a, x, y):
        return {
            "max": tj.maximum(x, y),
            "min": tj.minimum(x, y),
            "max number": tj.maximum(x, 1.5),
            "number min": tj.minimum(0.5, x),
            "clip": tj.clip(x, -1, 1),
            "clamp": tj.minimum(tj.maximum(x, -1), 1),
            "nan bound": tj.maximum(x, NAN),
            "reduce": tj.max(x, a.i),
            "reduce min": tj.min(y, a.i),
            "of finite": tj.max(tj.where(tj.isfinite(x), x, 0), a.i),
        }

    want = {"max": np.maximum(X, Y), "min": np.minimum(X, Y), "max number": np.maximum(X, 1.5)}
    want |= {"number min": np.minimum(0.5, X), "clip": np.clip(X, -1, 1), "clamp": np.clip(X, -1, 1)}
    want |= {"nan bound": np.full(6, NAN), "reduce": NAN, "reduce min": NAN, "of finite": 1}
    want = {k: np.asarray(v, np.float32).astype(jnp.dtype(dtype)) for k, v in want.items()}
    tiles("i,i", fn, x, y, want=want)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_argmax_and_argmin_take_the_first_nan(dtype):
    rows = [
        [NAN, 6, 8],
        [1, NAN, 8],
        [2, NAN, NAN],
        [NAN, NAN, NAN],
        [5, 5, 1],
        [-INF, INF, INF],
        [0, -0.0, 0],
    ]
    x = np.array(rows, np.float32).astype(jnp.dtype(dtype))

    def fn(a, x):
        return tj.argmax(x, a.j), tj.argmin(x, a.j)

    want = [0, 1, 1, 0, 0, 1, 0], [0, 1, 1, 0, 2, 0, 0]
    tiles("ij", fn, x, want=tuple(np.array(w, np.int32) for w in want))


def test_comparisons_with_nan_are_false_but_for_unequal():
    def fn(a, x, y):
        return {"<": x < y, "<=": x <= y, ">": x > y, "==": x == x, "!=": x != x, "isnan": tj.isnan(x)}

    want = {"<": X < Y, "<=": X <= Y, ">": X > Y, "==": X == X, "!=": X != X, "isnan": np.isnan(X)}
    tiles("i,i", fn, X, Y, want=want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_shifts_past_the_width_give_zero_or_the_sign(dtype):
    width = np.iinfo(dtype).bits
    x = np.array([1, 5, 100, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    counts = [0, 1, width - 1, width, width + 1, 100]

    def fn(a, x, s):
        left = {f"<< {c}": x << c for c in counts} | {f">> {c}": x >> c for c in counts}
        return left | {"<< tile": x << s, ">> tile": x >> s}

    def left(x, c):
        return (
            np.array([(int(v) << c) % 2**width if c < width else 0 for v in x])
            .astype(np.uint64)
            .astype(dtype)
        )

    def right(x, c):
        return np.array([int(v) >> c for v in x]).astype(dtype)

    s = np.array([0, width, width + 7, 1, 120], dtype)
    want = {f"<< {c}": left(x, c) for c in counts} | {f">> {c}": right(x, c) for c in counts}
    want["<< tile"] = np.concatenate([left(x[i : i + 1], int(c)) for i, c in enumerate(s)])
    want[">> tile"] = np.concatenate([right(x[i : i + 1], int(c)) for i, c in enumerate(s)])
    tiles("i,i", fn, x, s, want=want)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float32", "float16", "bfloat16"])
def test_floor_division_and_remainder_floor(dtype):
    x = np.array([-7, 7, -7, 7, -8, 8, 0], jnp.dtype(dtype))
    y = np.array([2, -2, -2, 2, 4, -4, 5], jnp.dtype(dtype))

    def fn(a, x, y):
        return {"//": x // y, "%": x % y, "// 2": x // 2, "% 2": x % 2, "-7 //": -7 // y, "-7 %": -7 % y}

    e, f = x.astype(np.float64), y.astype(np.float64)
    want = {"//": e // f, "%": e % f, "// 2": e // 2, "% 2": e % 2, "-7 //": -7 // f, "-7 %": -7 % f}
    tiles("i,i", fn, x, y, want={k: v.astype(jnp.dtype(dtype)) for k, v in want.items()})


def test_integer_arithmetic_wraps():
    x = np.array([127, -128, 100], np.int8)
    n = np.array([2**31 - 1, -(2**31), 2**30], np.int32)

    def fn(a, x, n):
        return {"x+1": x + 1, "-x": -x, "x*x": x * x, "n+n": n + n, "abs": tj.abs(x), "n*3": n * 3}

    with np.errstate(over="ignore"):
        want = {
            "x+1": x + np.int8(1),
            "-x": -x,
            "x*x": x * x,
            "n+n": n + n,
            "abs": np.abs(x),
            "n*3": n * np.int32(3),
        }
    tiles("i,i", fn, x, n, want=want)


def test_integer_division_by_zero_gives_some_value_and_no_fault():
    def kernel(x):
        out = tj.output_like(x)

        @tj.parallel(1)
        def _(nest):
            at = tj.coord(0), tj.shape(3)
            junk = x[at] // (x[at] * 0) + x[at] % (x[at] * 0)
            out(*at).store(tj.where(x[at] > 1, x[at], junk * 0))

        return out

    both(kernel, np.array([1, 2, 3], np.int32), want=np.array([0, 2, 3], np.int32))


def test_mean_and_division_follow_ieee():
    x = np.array([1, -1, 0], np.float32)

    def fn(a, x):
        return {
            "1/0": x / 0,
            "inf-inf": (x / 0) - (x / 0),
            "sqrt": tj.sqrt(x),
            "log": tj.log(x),
            "0*": 0 * (x / 0),
        }

    with np.errstate(all="ignore"):
        want = {"1/0": x / np.float32(0), "sqrt": np.sqrt(x), "log": np.log(x)}
    want |= {"inf-inf": np.full(3, NAN, np.float32), "0*": np.full(3, NAN, np.float32)}
    tiles("i", fn, x, want=want)


def test_a_row_of_attention_with_every_key_masked_is_zero():
    """Online softmax over two key blocks, masked by a row's own length: none, some, all of the keys."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 6)).astype(np.float32)
    lengths, values = np.array([0, 2, 3, 6], np.int32), rng.standard_normal((6, 2)).astype(np.float32)

    def kernel(scores, lengths, values):
        out = tj.output((4, 2), jnp.float32)
        blocks, m, s, d = tj.axis("blocks", 2), tj.axis("m", 4), tj.axis("s", 3), tj.axis("d", 2)

        @tj.parallel(1)
        def _(nest):
            length = lengths[tj.coord(0), tj.shape(m)]
            start = tj.full(tj.shape(m), -1e30), tj.zeros(tj.shape(m)), tj.zeros(tj.shape(m, d))

            @nest.pipeline(blocks, carry=start)
            def end(step, carry):
                peak, total, acc = carry
                k0 = step.index() * 3
                valid = tj.iota(s) + k0 < length
                score = tj.where(valid, scores[tj.coord(0, k0), tj.shape(m, s)], -1e30)
                new = tj.maximum(peak, tj.max(score, s))
                weight = tj.where(valid, tj.exp(score - new), 0)
                scale = tj.exp(peak - new)
                acc = tj.mma(weight, values[tj.coord(k0, 0), tj.shape(s, d)], acc * scale)
                return new, total * scale + tj.sum(weight, s), acc

            _, total, acc = end
            out(tj.coord(0, 0), tj.shape(m, d)).store(tj.where(total > 0, acc / total, 0))

        return out

    want = np.zeros((4, 2))
    for i, n in enumerate(lengths):
        if n:
            p = np.exp(scores[i, :n].astype(np.float64))
            want[i] = p / p.sum() @ values[:n]
    both(kernel, scores, lengths, values, want=want.astype(np.float32), rtol=1e-5, atol=1e-6)


def test_bool_arithmetic_follows_jax():
    p, q = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)

    def fn(a, p, q):
        return {
            "+": p + q,
            "*": p * q,
            "p*2": p * 2,
            "max": tj.maximum(p, q),
            "sum": tj.sum(p & q, a.i),
            "<": p < q,
        }

    jp, jq = jnp.asarray(p), jnp.asarray(q)
    want = {
        "+": jp + jq,
        "*": jp * jq,
        "p*2": jp * 2,
        "max": jnp.maximum(jp, jq),
        "sum": np.int32(1),
        "<": jp < jq,
    }
    tiles("i,i", fn, p, q, want=want)
