"""Modules outside of JAX: portable artifacts, the interpreter of the specification, and IREE's compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import iree.compiler
import numpy as np
import oracle
import pytest
from emulate import lowered
from jax import export
from kernel_cases import normal
from metal_cases import KERNELS

import tilejax as tj
from tilejax import kernels
from tilejax.backends.metal.profiles import PROFILES

X = normal(3, 5)


@pytest.mark.parametrize("platform", ["METAL", "mps"])
@pytest.mark.parametrize(
    "name", ["softmax", "gemm", "cumsum", "sort", "flash_attention", "conv2d", "segment_sum"]
)
def test_portable_artifacts(name, platform):
    version = PROFILES["jax-metal" if platform == "METAL" else "mlx"].version

    def run(kernel):
        def call(*args, **kwargs):
            exported, arrays = lowered(kernel, *args, platforms=platform, **kwargs)
            portable = tj.metal.portable(exported)
            assert f"StableHLO_v{version}".encode() in portable.mlir_module_serialized
            again = export.deserialize(portable.serialize())
            assert again.platforms == (platform,)
            return again.call(*arrays)

        return call

    KERNELS[name](run, np.float32)


def test_portable_artifacts_are_of_metal():
    exported = export.export(kernels.softmax, platforms=["cpu"])(X)
    with pytest.raises(
        tj.UnsupportedError, match="softmax is exported for cpu: a portable artifact for Metal"
    ):
        tj.metal.portable(exported)
    for wrong in (3, kernels.softmax):
        with pytest.raises(
            tj.TileTypeError, match=r"portable: expected what jax\.export.*export the function"
        ):
            tj.metal.portable(wrong)


REFERENCE = """
    import sys

    import numpy as np
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters import mlir

    for name in sys.argv[2:]:
        with np.load(f"{sys.argv[1]}/{name}.npz") as arrays, mlir.make_ir_context():
            args = [ir.DenseElementsAttr.get(arrays[key]) for key in sorted(arrays)]
            module = ir.Module.parse(open(f"{sys.argv[1]}/{name}.mlir").read())
            out = [np.asarray(x) for x in stablehlo.eval_module(module, args)]
        np.savez(f"{sys.argv[1]}/{name}.out.npz", *out)
"""


def test_the_reference_interpreter(tmp_path):
    """The interpreter of the StableHLO specification, in a process of its own: it ends the process if it
    does not know something."""
    a, b, ids = normal(3, 4), normal(4, 5, seed=1), np.int32([0, 2, -1, 2])
    x = X.copy()
    x[0, 1:3] = [np.nan, -0.0]
    image, filters = normal(1, 4, 4, 2), normal(2, 2, 2, 3, seed=1)
    cases = {
        "softmax": (kernels.softmax, (X,), [oracle.softmax(X)]),
        "cumsum": (kernels.cumsum, (X,), [oracle.cumsum(X)]),
        "gemm": (kernels.gemm, (a, b), [oracle.gemm(a, b)]),
        "sort": (kernels.sort, (x,), [np.sort(x, 1), oracle.order(x)]),
        "segments": (lambda i, v: kernels.segment_sum(i, v, 3), (ids, a.T), oracle.segment_sum(ids, a.T, 3)),
        "conv2d": (kernels.conv2d, (image, filters), [oracle.conv2d(image, filters)]),
    }
    for name, (fn, args, _) in cases.items():
        exported, arrays = lowered(fn, *args)
        (tmp_path / f"{name}.mlir").write_text(exported.mlir_module())
        np.savez(tmp_path / f"{name}.npz", *map(np.ascontiguousarray, arrays))
    command = [sys.executable, "-c", textwrap.dedent(REFERENCE), str(tmp_path), *cases]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    for name, (_, _, want) in cases.items():
        with np.load(tmp_path / f"{name}.out.npz") as arrays:
            for key, wanted in zip(sorted(arrays), want, strict=True):
                np.testing.assert_allclose(
                    arrays[key].astype(np.float64), wanted, rtol=1e-5, atol=1e-5, err_msg=name
                )


def compiled_to_metal(folder, kernel):
    """`kernel` as a function that compiles its module and tells of the sources that come out."""

    def call(*args, **kwargs):
        exported, _ = lowered(kernel, *args, **kwargs)
        iree.compiler.compile_str(
            exported.mlir_module(),
            input_type="stablehlo",
            target_backends=["metal-spirv"],
            extra_args=[
                "--iree-metal-compile-to-metallib=false",
                f"--iree-hal-dump-executable-binaries-to={folder}",
            ],
        )
        raise _Compiled

    return call


class _Compiled(Exception):
    """A module was compiled; what it computes is tested elsewhere."""


def check_compiles(folder, name, dtype):
    with pytest.raises(_Compiled):
        KERNELS[name](lambda kernel: compiled_to_metal(folder, kernel), dtype)
    sources = [file for file in os.listdir(folder) if file.endswith(".metal")]
    assert sources or name == "copy"  # nothing is computed
    for file in sources:
        assert "kernel void" in (folder / file).read_text()


@pytest.mark.parametrize("name", ["softmax", "gemm"])
def test_iree_compiles_the_module(name, tmp_path):
    check_compiles(tmp_path, name, np.float32)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_iree_compiles_all_modules(name, dtype, tmp_path):
    check_compiles(tmp_path, name, dtype)
