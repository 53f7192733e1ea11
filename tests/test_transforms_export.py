"""jax.export: artifacts run in a process that has never heard of tilejax."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from jax import export

import tilejax as tj
from tests.helpers import normal
from tilejax import kernels


def softmax(x):
    e = np.exp(np.asarray(x, np.float64))
    return e / e.sum(-1, keepdims=True)


def slope(x):
    """The gradient of `(softmax(x) ** 2).sum()`."""
    p = softmax(x)
    return 2 * p * (p - (p * p).sum(-1, keepdims=True))


def loss(x):
    return (kernels.softmax(x) ** 2).sum()


CHILD = """
    import sys

    import numpy as np
    from jax import export

    folder, *names = sys.argv[1:]
    for name in names:
        with open(f"{folder}/{name}.bin", "rb") as file:
            artifact = export.deserialize(bytearray(file.read()))
        with np.load(f"{folder}/{name}.npz") as arrays:
            args = [arrays[key] for key in sorted(arrays)]
        out = artifact.call(*args)
        np.savez(f"{folder}/{name}.out.npz", *(out if isinstance(out, (list, tuple)) else [out]))
    assert not any(name.split(".")[0] == "tilejax" for name in sys.modules)
"""


def test_artifacts_run_in_a_process_without_tilejax(tmp_path):
    x, labels = normal(3, 5), np.int32([1, 4, 0])
    batch, a, b = normal(4, 3, 5, seed=1), normal(3, 4), normal(4, 5, seed=1)
    q, k = normal(1, 2, 6, 4), normal(1, 2, 6, 4, seed=1)
    scores = np.where(
        np.tril(np.ones((6, 6))), np.einsum("bhqd,bhsd->bhqs", q, k, dtype=np.float64) / 2, -np.inf
    )
    cases = {
        "softmax": (kernels.softmax, (x,), [softmax(x)]),
        "gemm": (kernels.gemm, (a, b), [a.astype(np.float64) @ b]),
        "sort": (kernels.sort, (x,), [np.sort(x, -1), np.argsort(x, -1)]),
        "attention": (
            lambda q, k: kernels.flash_attention(q, k, k, causal=True, block_q=4, block_kv=2),
            (q, k),
            [softmax(scores) @ k],
        ),
        "vmapped": (jax.vmap(kernels.softmax), (batch,), [softmax(batch)]),
        "gradient": (jax.grad(loss), (x,), [slope(x)]),
        "vmapped_gradient": (jax.vmap(jax.grad(loss)), (batch,), [slope(batch)]),
        "cross_entropy_gradient": (
            jax.grad(lambda x, labels: kernels.sparse_cross_entropy(x, labels)[0].sum()),
            (x, labels),
            [softmax(x) - np.eye(5)[labels]],
        ),
    }
    for name, (f, args, _) in cases.items():
        artifact = export.export(jax.jit(f))(*args)
        (tmp_path / f"{name}.bin").write_bytes(artifact.serialize())
        np.savez(tmp_path / f"{name}.npz", *args)
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(tmp_path), *cases]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    for name, (_, _, want) in cases.items():
        with np.load(tmp_path / f"{name}.out.npz") as arrays:
            got = [arrays[key] for key in sorted(arrays)]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6, err_msg=name)


def test_an_artifact_differentiates():
    """`vjp_order` of the artifact holds the backward kernels."""
    x, t = normal(3, 5), normal(3, 5, seed=1)
    artifact = export.export(jax.jit(kernels.softmax))(x)
    again = export.deserialize(artifact.serialize(vjp_order=1))
    (got,) = jax.vjp(again.call, x)[1](t)
    (want,) = jax.vjp(kernels.softmax, x)[1](t)
    np.testing.assert_allclose(got, want, atol=1e-6)


def symbolic(*shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_jax_34988_a_symbolic_batch_under_vmap():
    (b,) = export.symbolic_shape("b")
    mapped = export.export(jax.jit(jax.vmap(kernels.softmax)))(symbolic(b, 3, 4))
    gradients = export.export(jax.jit(jax.vmap(jax.grad(loss))))(symbolic(b, 3, 4))
    of_all = export.export(jax.jit(jax.grad(lambda x: jax.vmap(loss)(x).sum())))(symbolic(b, 3, 4))
    for size in (1, 2, 7):
        x = normal(size, 3, 4)
        np.testing.assert_allclose(mapped.call(x), softmax(x), atol=1e-6)
        np.testing.assert_allclose(gradients.call(x), slope(x), atol=1e-6)
        np.testing.assert_allclose(of_all.call(x), slope(x), atol=1e-6)


def test_jax_34988_a_symbolic_batch_of_one_of_two_operands():
    weights = normal(4, 2)
    (b,) = export.symbolic_shape("b")
    run = jax.vmap(kernels.gemm, in_axes=(0, None))
    forward = export.export(jax.jit(run))(symbolic(b, 3, 4), weights)
    backward = export.export(jax.jit(jax.grad(lambda a, w: run(a, w).sum(), argnums=1)))(
        symbolic(b, 3, 4), weights
    )
    for size in (1, 5):
        a = normal(size, 3, 4, seed=1)
        np.testing.assert_allclose(
            forward.call(a, weights), a.astype(np.float64) @ weights, rtol=1e-5, atol=1e-5
        )
        want = np.repeat(a.sum((0, 1))[:, None], 2, 1)
        np.testing.assert_allclose(backward.call(a, weights), want, rtol=1e-5, atol=1e-5)


def test_jax_34988_symbols_of_several_exports_do_not_meet():
    for _ in range(2):
        (b,) = export.symbolic_shape("b")
        artifact = export.export(jax.jit(jax.vmap(jax.vmap(kernels.row_sum))))(symbolic(b, 2, 3, 4))
        np.testing.assert_array_equal(artifact.call(np.ones((3, 2, 3, 4), np.float32)), np.full((3, 2, 3), 4))


def test_jax_34988_what_must_be_static_is_named():
    b, n = export.symbolic_shape("b, n")
    for f, args, message in (
        (
            kernels.softmax,
            (symbolic(b, 4),),
            r"argument x has shape \(b, 4\): dimension 0, b, must be static",
        ),
        (
            jax.grad(loss),
            (symbolic(3, 2 * n),),
            r"argument x has shape \(3, 2\*n\): dimension 1, 2\*n, must be static",
        ),
        (
            jax.vmap(kernels.gemm, in_axes=(0, None)),
            (symbolic(b, 3, n), symbolic(n, 2)),
            r"argument a has shape \(3, n\): dimension 1, n, must be static",
        ),
    ):
        with pytest.raises(tj.ShapeError, match=message):
            export.export(jax.jit(f))(*args)


def test_a_named_tuple_comes_back_as_one():
    x, target, p = normal(4, 5), normal(4, 5, seed=1), np.full((4, 5), 0.25, np.float32)
    exported = export.export(jax.jit(kernels.row_statistics))(x, target, p)
    got = export.deserialize(exported.serialize()).call(x, target, p)
    assert type(got) is type(kernels.row_statistics(x, target, p))
    np.testing.assert_allclose(got.sum, x.astype(np.float64).sum(-1), rtol=1e-5)
    np.testing.assert_array_equal(got.argmax, x.argmax(-1))
