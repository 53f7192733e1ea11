"""Dtypes: promotion, weak types, x64, and those of tiles made from nothing."""

from math import erf

import jax
import jax.numpy as jnp
import numpy as np

import tilejax as tj
from tests.helpers import both, tiles, whole

DTYPES = ["bool", "int8", "uint8", "int16", "int32", "uint32", "float16", "bfloat16", "float32"]


NUMBERS = {"True": True, "2": 2, "2.5": 2.5}


def promotions(x64: bool) -> None:
    """Each pair of dtypes, and each dtype with each Python scalar, gives what ``jax.numpy`` gives."""
    dtypes = [*DTYPES, *(["int64", "float64"] if x64 else [])]
    arrays = {d: jnp.ones(3, d) for d in dtypes}
    seen = []

    def fn(a, *xs):
        for d, x in zip(dtypes, xs, strict=True):
            for e, y in zip(dtypes, xs, strict=True):
                seen.append((f"{d} + {e}", (x + y).dtype, (arrays[d] + arrays[e]).dtype))
            for name, n in NUMBERS.items():
                seen.append((f"{d} + {name}", (x + n).dtype, (arrays[d] + n).dtype))
                seen.append(
                    (
                        f"where {d}, {name}",
                        tj.where(x, n, x).dtype,
                        jnp.where(arrays[d] != 0, n, arrays[d]).dtype,
                    )
                )
            seen.append((f"{d} / {d}", (x / x).dtype, (arrays[d] / arrays[d]).dtype))
        return xs[0]

    want = np.ones(3, np.bool_)
    spec = ",".join(["i"] * len(dtypes))
    assert tj.jit(whole(spec, fn, want)).eval_shape(*arrays.values()).dtype == jnp.bool_
    assert len(seen) >= len(dtypes) * (len(dtypes) + 7)
    assert [s for s in seen if s[1] != s[2]] == []


def test_promotion_is_jax_numpys():
    promotions(x64=False)


def test_promotion_under_x64():
    with jax.enable_x64(True):
        promotions(x64=True)


def test_weak_types_stay_weak_through_tiles():
    """``where`` of two Python scalars is weak, so is ``full`` of one; a rank-0 array is not."""

    def fn(a, x, s, w):
        weak = tj.where(x > 0, 2, 1)
        half = tj.where(x > 0, 0.5, -0.5) * weak
        assert (x * weak).dtype == x.dtype
        assert (x * half).dtype == x.dtype
        assert (x + s).dtype == jnp.float32
        assert (x + w).dtype == x.dtype
        return {"weak": x * weak, "half": x + half, "strong": x + s, "python": x + w}

    x = np.array([-1, 1, 2], np.float16)
    want = {"weak": x * np.float16([1, 2, 2]), "half": x + np.float16([-0.5, 1, 1])}
    want |= {"strong": x.astype(np.float32) + 1, "python": x + np.float16(3)}
    tiles("i,,", fn, x, jnp.float32(1), 3.0, want=want)


def test_functions_take_scalars_as_well_as_tiles():
    def fn(a, x, s):
        one = tj.sum(x, a.i)
        return {
            "traced": tj.exp(s) * x,
            "rank0": tj.maximum(one, 3) + x,
            "python": tj.sqrt(4.0) * x,
            "where": tj.where(s > 0, x, 0),
            "numbers": tj.maximum(2, 3.5) + x,
            "index": tj.minimum(a.nest.index(), 5) + x,
        }

    x = np.array([1, 2, 3], np.float32)
    want = {"traced": x * np.float32(1), "rank0": x + 6, "python": x * 2, "where": x * 0, "numbers": x + 3.5}
    tiles("i,", fn, x, jnp.float32(0), want=want | {"index": x})


def test_float64_and_int64_values():
    with jax.enable_x64(True):
        x = np.linspace(0.5, 3, 7)
        n = np.array([2**40, -(2**40), 7], np.int64)

        def fn(a, x, n):
            return {"log": tj.log(x), "erf": tj.erf(x), "x": x * 2.5 + 1, "//": n // 3, "float": n * 0.5}

        want = {
            "log": np.log(x),
            "erf": np.vectorize(erf)(x),
            "x": x * 2.5 + 1,
            "//": n // 3,
            "float": n * 0.5,
        }
        tiles("i,j", fn, x, n, want=want, rtol=1e-14)


def test_making_tiles():
    def kernel():
        outs = {
            "zeros": tj.output((2, 3), jnp.float32),
            "ones": tj.output((2, 3), jnp.int8),
            "full": tj.output((2, 3), jnp.float16),
            "iota": tj.output((2, 3), jnp.int32),
            "fn": tj.output((2, 3), jnp.int32),
            "mixed": tj.output((2, 3), jnp.float32),
        }
        i, j = tj.axis("i", 2), tj.axis("j", 3)

        @tj.parallel(1)
        def _(nest):
            shape = tj.shape(i, j)
            results = {
                "zeros": tj.zeros(shape),
                "ones": tj.ones(shape, jnp.int8),
                "full": tj.full(shape, 2.5, jnp.float16),
                "iota": tj.iota(i) * 10 + tj.iota(j),
                "fn": tj.fromfunction(shape, lambda a, b: a * 10 + b),
                "mixed": tj.iota(j, jnp.float32) / 2 + tj.zeros(shape),
            }
            assert tj.zeros(shape).dtype == tj.ones(shape).dtype == jnp.float32
            assert tj.iota(i).dtype == jnp.int32
            for name, tile in results.items():
                assert tile.dtype == outs[name].dtype, name
                outs[name](tj.coord(0, 0), shape).store(tile)

        return outs

    index = np.arange(2, dtype=np.int32)[:, None] * 10 + np.arange(3, dtype=np.int32)
    want = {
        "zeros": np.zeros((2, 3), np.float32),
        "ones": np.ones((2, 3), np.int8),
        "full": np.full((2, 3), 2.5, np.float16),
        "iota": index,
        "fn": index,
        "mixed": np.broadcast_to(np.arange(3, dtype=np.float32) / 2, (2, 3)),
    }
    both(kernel, want=want)


def test_iota_and_indices_are_int32_under_x64():
    with jax.enable_x64(True):

        def fn(a, x):
            assert tj.iota(a.i).dtype == a.nest.index().dtype == jnp.int32
            assert (tj.iota(a.i) + 1).dtype == jnp.int32
            assert tj.zeros(tj.shape(a.i)).dtype == jnp.float32
            _, indices = tj.sort(x, a.i)
            _, where = tj.top_k(x, a.i, 2)
            assert indices.dtype == where.dtype == jnp.int32
            return tj.argmax(x, a.i), tj.sum(x > 1, a.i), indices

        x = np.array([1.0, 3.0, 2.0])
        result = np.int64(1), np.int64(2), np.array([0, 2, 1], np.int32)
        tiles("i", fn, x, want=result)
