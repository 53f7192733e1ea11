"""Inclusive scans along an axis: four named ones, and any associative operator over a pytree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilejax as tj
from tests.helpers import both, normal, tiles

SCANS = {"cumsum": np.add, "cummax": np.maximum, "cummin": np.minimum, "cumprod": np.multiply}


def scanned(ufunc, x, axis, reverse=False):
    return (
        np.flip(ufunc.accumulate(np.flip(x, axis), axis=axis), axis)
        if reverse
        else ufunc.accumulate(x, axis=axis)
    )


@pytest.mark.parametrize("shape", [(32, 64), (5, 1), (1, 7), (3, 4, 5)])
def test_every_scan_on_every_axis_in_both_directions(shape):
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    names = "ijk"[: len(shape)]

    def fn(a, x):
        return {
            f"{scan} {name} {reverse}": getattr(tj, scan)(x, getattr(a, name), reverse=reverse)
            for scan in SCANS
            for name in names
            for reverse in (False, True)
        }

    want = {
        f"{scan} {name} {reverse}": scanned(ufunc, x.astype(np.float64), axis, reverse).astype(np.float32)
        for scan, ufunc in SCANS.items()
        for axis, name in enumerate(names)
        for reverse in (False, True)
    }
    tiles(names, fn, x, want=want)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32"])
def test_scans_of_integers_keep_their_dtype_and_of_bool_count(dtype):
    x = np.array([1, 0, 1, 1, 1], np.bool_) if dtype == "bool" else np.array([100, 27, 1, 3, 2], dtype)

    def fn(a, x):
        return {name: getattr(tj, name)(x, a.i) for name in SCANS if name == "cumsum" or dtype != "bool"}

    want = {
        name: ufunc.accumulate(x.astype(np.int64)).astype(np.int32 if dtype == "bool" else dtype)
        for name, ufunc in SCANS.items()
        if name == "cumsum" or dtype != "bool"
    }
    assert want["cumsum"].dtype == jnp.cumsum(x).dtype
    tiles("i", fn, x, want=want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_float_scans_carry_in_float32(dtype):
    ones = np.ones(1000, jnp.dtype(dtype))
    tenth = np.full(1000, 0.1, jnp.dtype(dtype))

    def fn(a, ones, tenth):
        return {
            "ones": tj.cumsum(ones, a.i),
            "tenth": tj.cumsum(tenth, a.i),
            "back": tj.cumsum(ones, a.i, reverse=True),
        }

    count = np.arange(1, 1001)
    want = {"ones": count, "tenth": count * tenth[0].astype(np.float64), "back": count[::-1]}
    want = {k: v.astype(np.float32).astype(jnp.dtype(dtype)) for k, v in want.items()}
    # Sums of 0.1 in float32 may differ in the last bits: at most one unit of the narrow dtype after rounding.
    tiles("i,i", fn, ones, tenth, want=want, rtol=1e-2 if dtype == "bfloat16" else 1e-3)
    tiles("i,i", lambda a, o, t: tj.cumsum(o, a.i), ones, tenth, want=want["ones"])


def test_float_scans_agree_with_float64():
    x = normal(4, 1000)

    def fn(a, x):
        return tj.cumsum(x, a.j)

    tiles("ij", fn, x, want=np.cumsum(x.astype(np.float64), 1).astype(np.float32), rtol=1e-4, atol=1e-4)


def test_scans_propagate_nan_from_its_place_on():
    x = np.array([1, 3, np.nan, 2, np.inf], np.float32)

    def fn(a, x):
        return {name: getattr(tj, name)(x, a.i) for name in SCANS}

    with np.errstate(invalid="ignore"):
        want = {name: ufunc.accumulate(x) for name, ufunc in SCANS.items()}
    assert np.isnan(want["cummax"]).tolist() == [False, False, True, True, True]
    tiles("i", fn, x, want=want)


def test_one_inf_does_not_spoil_what_comes_before_or_beside_it():
    x = np.ones((2, 300), np.float32)
    x[0, 150] = np.inf
    tiles("ij", lambda a, x: tj.cumsum(x, a.j), x, want=np.cumsum(x, 1))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16])
def test_associative_scan_of_a_linear_recurrence(reverse, n):
    """``h[i] = f[i] * h[i-1] + x[i]`` as a scan of pairs; the operator does not commute."""
    f, x = normal(3, n), normal(3, n, seed=1)

    def combine(a, b):
        return {"f": a["f"] * b["f"], "x": a["x"] * b["f"] + b["x"]}

    def fn(a, f, x):
        return tj.associative_scan(combine, {"f": f, "x": x}, a.j, reverse=reverse)

    step = -1 if reverse else 1
    hf, hx = np.zeros((3, n)), np.zeros((3, n))
    last_f, last_x = np.ones(3), np.zeros(3)
    for i in range(n)[::step]:
        last_f, last_x = last_f * f[:, i], last_x * f[:, i] + x[:, i]
        hf[:, i], hx[:, i] = last_f, last_x
    want = {"f": hf.astype(np.float32), "x": hx.astype(np.float32)}
    library = jax.lax.associative_scan(combine, {"f": f, "x": x}, axis=1, reverse=reverse)
    np.testing.assert_allclose(library["x"], want["x"], rtol=1e-4, atol=1e-4)
    tiles("ij,ij", fn, f, x, want=want, rtol=1e-4, atol=1e-4)


def test_associative_scan_takes_named_functions_any_axis_and_one_tile():
    x = np.random.default_rng(0).integers(-3, 4, (4, 5, 3)).astype(np.int32)

    def fn(a, x):
        return {
            "add": tj.associative_scan(tj.add, x, a.i),
            "max": tj.associative_scan(tj.maximum, x, a.j, reverse=True),
            "first": tj.associative_scan(lambda a, b: a, x, a.k),
            "last": tj.associative_scan(lambda a, b: b, x, a.k, reverse=True),
        }

    want = {"add": np.cumsum(x, 0), "max": scanned(np.maximum, x, 1, True)}
    want |= {"first": np.broadcast_to(x[:, :, :1], x.shape), "last": x}
    tiles("ijk", fn, x, want={k: v.astype(np.int32) for k, v in want.items()})


def test_associative_scan_works_in_the_dtype_of_the_tile():
    x = np.full(300, 1.0, jnp.bfloat16)

    def fn(a, x):
        return tj.associative_scan(lambda a, b: tj.maximum(a, b) + 0, x, a.i)

    tiles("i", fn, x, want=x)


def test_associative_scan_may_capture_and_mix_dtypes():
    """Segmented sum: the flag restarts the sum; ``scale`` is captured."""
    flags = np.array([1, 0, 0, 1, 0, 1, 1, 0], np.bool_)
    x = np.arange(1, 9, dtype=np.float32)

    def fn(a, flags, x, scale):
        def combine(p, q):
            return p[0] | q[0], tj.where(q[0], q[1], p[1] + q[1] * (scale / scale))

        return tj.associative_scan(combine, (flags, x), a.i)[1]

    want, total = [], 0.0
    for flag, value in zip(flags, x, strict=True):
        total = value if flag else total + value
        want.append(total)
    tiles("i,i,", fn, flags, x, jnp.float32(2), want=np.array(want, np.float32))


def test_scans_over_an_empty_axis_are_empty():
    def fn(a, x):
        empty = tj.axis("empty", 0)
        none = tj.zeros(tj.shape(a.i, empty)) + x
        return {"sum": tj.cumsum(none, empty), "user": tj.associative_scan(tj.add, none, empty)}

    tiles("i", fn, np.ones(3, np.float32), want=dict.fromkeys(["sum", "user"], np.zeros((3, 0), np.float32)))


def test_a_scan_whose_carry_crosses_blocks():
    """The blocked inclusive scan of the documented kernel, over a ragged tail."""
    x = np.random.default_rng(0).integers(-5, 6, (3, 10)).astype(np.int32)

    def kernel(x):
        out = tj.output_like(x)
        rows, blocks, r, c = tj.axis("rows", 3), tj.axis("blocks", 3), tj.axis("r", 1), tj.axis("c", 4)

        @tj.parallel(rows)
        def _(nest):
            @nest.serial(blocks, carry=tj.zeros(tj.shape(r), jnp.int32))
            def _(step, total):
                at = tj.coord(nest.index(), step.index() * 4), tj.shape(r, c)
                tile = tj.cumsum(x[at], c) + total
                out(*at).store(tile)
                return tj.gather(tile, 3, c)

        return out

    both(kernel, x, want=np.cumsum(x, 1, dtype=np.int32))
