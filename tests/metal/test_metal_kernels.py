"""Every documented kernel for every Metal platform: the modules run by XLA on the CPU, against the oracle."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from emulate import PLATFORMS, check_module, emulated, lowered
from metal_cases import DTYPES, KERNELS, REFUSED, refusals, table

import tilejax as tj
from tilejax import kernels


class Lowered(Exception):
    """A kernel was lowered and need not run."""


def only_lower(platform):
    def run(kernel):
        def call(*args, **kwargs):
            exported, _ = lowered(kernel, *args, platforms=platform, **kwargs)
            check_module(exported.mlir_module())
            raise Lowered

        return call

    return run


def test_every_documented_kernel_is_here():
    assert set(KERNELS) == set(kernels.__all__) - {"Window"}


def check_lowers(name, platform, dtype):
    refused = (platform, dtype, name) in REFUSED
    with pytest.raises(tj.UnsupportedError if refused else Lowered) as error:
        KERNELS[name](only_lower(platform), DTYPES[dtype])
    if refused:
        message = r"kernel \w+: tile_mma .*bfloat16.*jax-metal.*\n  at .*kernels/\w+.py:\d+ in"
        assert re.search(message, str(error.value))


SOME = [
    ("METAL", "float16"),
    ("METAL", "bfloat16"),
    ("metal", "float32"),
    ("mps", "bfloat16"),
    ("mtl", "float16"),
]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_lowers(name):
    for platform, dtype in SOME:
        check_lowers(name, platform, dtype)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_lowers_for_all(name):
    for platform, dtype in itertools.product(PLATFORMS, DTYPES):
        check_lowers(name, platform, dtype)


def check_values(name, platform, dtype):
    KERNELS[name](lambda kernel: emulated(kernel, platform), DTYPES[dtype])


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_values(name):
    check_values(name, "METAL", "float32")


@pytest.mark.parametrize("name", sorted({n for _, _, n in REFUSED} | {"cumsum", "exp", "softmax", "top_k"}))
def test_values_of_short_floats(name):
    check_values(name, "METAL", "float16")
    check_values(name, "mps", "bfloat16")


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("platform", ["METAL", "mps"])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_values_of_all(name, platform, dtype):
    if (platform, dtype, name) not in REFUSED:
        check_values(name, platform, dtype)


def gradients(kernel):
    """Compares the gradients through the module with those of the CPU's own form, which other tests hold to
    formulas."""

    def call(*args, **kwargs):
        smooth = [
            i for i, a in enumerate(args) if hasattr(a, "dtype") and jnp.issubdtype(a.dtype, np.floating)
        ]

        def gradient(*arrays):
            def loss(*floats):
                given = list(args)
                for i, x in zip(smooth, floats, strict=True):
                    given[i] = x
                results = jax.tree.leaves(kernel(*given, **kwargs))
                return sum(jnp.sin(r).sum() for r in results if jnp.issubdtype(r.dtype, np.floating))

            return jax.grad(loss, argnums=tuple(range(len(smooth))))(*arrays)

        floats = [np.nan_to_num(args[i], posinf=1, neginf=-1) for i in smooth]
        for got, want in zip(emulated(gradient)(*floats), jax.jit(gradient)(*floats), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        raise Lowered

    return call


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_gradients_of_all(name):
    with pytest.raises(Lowered):
        KERNELS[name](gradients, np.float32)


def test_the_table_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "metal.md").read_text()
    assert table() in page
    assert refusals() in page
