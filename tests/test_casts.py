"""Casts: saturation, rounding to nearest even, NaN and inf, and that none is folded away."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import tiles, whole

NAN, INF = float("nan"), float("inf")
X = np.array([NAN, 1, -2, INF, -INF, 0], np.float32)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_float_to_int_saturates_and_nan_gives_zero(dtype):
    info = np.iinfo(dtype)
    x = np.array([NAN, INF, -INF, 3e9, -3e9, 300, -1, -1.9, 1.9, 0.5, -0.5, 5e9], np.float32)

    def fn(a, x):
        return {"float32": x.astype(dtype), "bfloat16": x.astype(jnp.bfloat16).astype(dtype)}

    def saturated(x):
        exact = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0))
        return np.clip(exact, info.min, info.max).astype(np.int64).astype(dtype)

    tiles("i", fn, x, want={"float32": saturated(x), "bfloat16": saturated(x.astype(ml_dtypes.bfloat16))})


def test_every_float16_rounds_to_float8_and_bfloat16_as_ml_dtypes():
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    names = ["float8_e5m2", "float8_e4m3fn", "bfloat16", "float32"]

    def fn(a, x):
        return {name: x.astype(name) for name in names}

    with np.errstate(over="ignore", invalid="ignore"):
        want = {name: x.astype(jnp.dtype(name)) for name in names}
    tiles("i", fn, x, want=want)


def test_float32_rounds_to_narrow_floats_at_ties_overflow_and_nan_payloads():
    ties = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800001, 0xFF800001], np.uint32
    )
    values = np.array(
        [INF, -INF, 1e5, 57344, 61440, 448, 464, 465, -1e9, 65504, 65520, 1e-8, 2**-24], np.float32
    )
    x = np.concatenate([ties.view(np.float32), values])
    names = ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"]

    def fn(a, x):
        return {name: x.astype(name) for name in names}

    with np.errstate(over="ignore", invalid="ignore"):
        want = {name: x.astype(jnp.dtype(name)) for name in names}
    tiles("i", fn, x, want=want)


def test_float8_widens_exactly():
    bits = np.arange(256, dtype=np.uint8)
    e4m3, e5m2 = bits.view(ml_dtypes.float8_e4m3fn), bits.view(ml_dtypes.float8_e5m2)

    def fn(a, x, y):
        return [x.astype(jnp.float32), y.astype(jnp.float32), x.astype(jnp.bfloat16), y.astype(jnp.float16)]

    want = [
        e4m3.astype(np.float32),
        e5m2.astype(np.float32),
        e4m3.astype(ml_dtypes.bfloat16),
        e5m2.astype(np.float16),
    ]
    tiles("i,i", fn, e4m3, e5m2, want=want)


def test_a_cast_down_and_up_is_never_folded_away():
    x = np.array([1.001, 3.14159, 1e-3, 12345.678], np.float32)

    def fn(a, x):
        back = {d: (x * 1.0).astype(d).astype(jnp.float32) for d in ("bfloat16", "float16", "float8_e5m2")}
        return back | {"sum": tj.sum(x.astype(jnp.bfloat16).astype(jnp.float32), a.i) * 1}

    want = {d: x.astype(jnp.dtype(d)).astype(np.float32) for d in ("bfloat16", "float16", "float8_e5m2")}
    total = want["bfloat16"].astype(np.float64).sum().astype(np.float32)
    tiles("i", fn, x, want=want | {"sum": total}, rtol=1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn"])
def test_gpus_are_told_to_round(dtype):
    """XLA folds each of these casts there with the one after it, unless something stands between them."""

    def fn(a, x):
        return (x * 1.0).astype(dtype).astype(jnp.float32)

    x = np.ones(3, np.float32)
    traced = tj.jit(whole("i", fn, x), backend="xla").trace(x)
    texts = {p: traced.lower(lowering_platforms=(p,)).as_text() for p in ("cpu", "cuda")}
    cuts = {p: text.count("stablehlo.reduce_precision") for p, text in texts.items()}
    moves = {p: text.count("stablehlo.bitcast_convert") for p, text in texts.items()}
    assert cuts == dict.fromkeys(texts, int(dtype == "bfloat16"))
    assert moves == {"cpu": 0, "cuda": 0 if dtype == "bfloat16" else 2}


def test_casts_between_integers_bools_and_floats():
    n = np.array([0, 1, -1, 300, -129, 2**31 - 1], np.int32)

    def fn(a, n, x):
        small = {d: n.astype(d) for d in ("int8", "uint8", "bool", "float32", "bfloat16", "uint32")}
        return small | {"truth": x.astype(jnp.bool_), "count": (n > 0).astype(jnp.float32)}

    want = {d: n.astype(jnp.dtype(d)) for d in ("int8", "uint8", "bool", "float32", "bfloat16", "uint32")}
    want |= {"truth": X != 0, "count": (n > 0).astype(np.float32)}
    tiles("i,i", fn, n, X, want=want)


@pytest.mark.parametrize("way", ["one nest", "two nests", "update", "loop"])
def test_what_is_stored_in_bfloat16_is_rounded_when_it_is_read_again(way):
    """A cast of a result needs no protection, unless the program itself widens it again."""

    def kernel(x):
        n = x.shape[0]
        short, wide = tj.output((n,), jnp.bfloat16), tj.output((n,), jnp.float32)
        g, t = tj.axis("g", n // 8), tj.axis("t", 8)

        def narrow(nest, to, source):
            at = tj.coord(nest.index(g) * 8), tj.shape(t)
            to(*at).store(source[at].astype(jnp.bfloat16))

        def widen(nest, source):
            at = tj.coord(nest.index(g) * 8), tj.shape(t)
            wide(*at).store(source[at].astype(jnp.float32))

        if way == "one nest":

            @tj.parallel(g)
            def _(nest):
                narrow(nest, short, x)
                widen(nest, short)

        elif way == "loop":

            @tj.parallel(g)
            def _(nest):
                @nest.serial(2)
                def _(step):
                    narrow(nest, short, x)
                    widen(nest, short)

        else:

            @tj.parallel(g)
            def _(nest):
                narrow(nest, short, x)

            source = tj.update(short) if way == "update" else short

            @tj.parallel(g)
            def _(nest):
                widen(nest, source)

        return wide

    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    want = x.astype(jnp.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(tj.jit(kernel)(x), want)
