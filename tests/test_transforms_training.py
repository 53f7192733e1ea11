"""The transformer of the examples: its gradient is that of the same model in `jnp`, and it learns to read."""

import re
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from examples import train_digits
from tests import jnp_reference


def test_gradients_are_those_of_jnp(monkeypatch):
    pixels, labels = load_digits(return_X_y=True)
    images, labels = (pixels[:6] / 16).astype(np.float32), labels[:6].astype(np.int32)
    weights = train_digits.initial(jax.random.key(1))
    value, gradient = jax.jit(jax.value_and_grad(train_digits.loss))(weights, images, labels)
    for name, plain in {
        "gemm": jnp.matmul,
        "layernorm": jnp_reference.layernorm,
        "residual_layernorm": lambda x, residual: jnp_reference.layernorm(x + residual),
        "bias_gelu_residual": jnp_reference.bias_gelu_residual,
        "flash_attention": jnp_reference.attention,
        "sparse_cross_entropy": jnp_reference.sparse_cross_entropy,
    }.items():
        monkeypatch.setattr(train_digits, name, plain)
    with jax.default_matmul_precision("float32"):  # which GPUs would round to fewer bits
        want, wanted = jax.jit(jax.value_and_grad(lambda *args: train_digits.loss(*args)))(
            weights, images, labels
        )
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for name, expected in wanted.items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(gradient[name], expected, rtol=0, atol=2e-5 * scale, err_msg=name)


def test_it_learns_within_a_minute(capsys):
    start = time.perf_counter()
    accuracy = train_digits.main(epochs=10)
    assert time.perf_counter() - start < 60
    assert accuracy > 0.95
    out = capsys.readouterr().out
    assert f"{accuracy:.2%} of the 450 held out" in out
    losses = [float(x) for x in re.findall(r"loss (\S+)", out)]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
