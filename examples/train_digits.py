"""A transformer learns to read handwritten digits: every layer and the loss are tile kernels, and `jax.grad`
differentiates them.

The digits ship with scikit-learn; the split is that of `examples/digits.py`. It takes well under a minute.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tilejax.kernels import (
    bias_gelu_residual,
    flash_attention,
    gemm,
    layernorm,
    residual_layernorm,
    sparse_cross_entropy,
)

TOKENS, WIDTH, HEADS, CLASSES = 8, 64, 4, 10  # an image is 8 rows of 8 pixels; a row is a token


# --8<-- [start:model]
def logits_of(weights, images):
    """The logits (n, 10) of `images` (n, 64)."""
    x = gemm(images.reshape(-1, TOKENS), weights["embed"])
    x = (x.reshape(-1, TOKENS, WIDTH) + weights["place"]).reshape(-1, WIDTH)

    def heads(name):
        projected = gemm(layernorm(x), weights[name])
        return projected.reshape(-1, TOKENS, HEADS, WIDTH // HEADS).swapaxes(1, 2)

    seen = flash_attention(heads("query"), heads("key"), heads("value"))
    x = residual_layernorm(gemm(seen.swapaxes(1, 2).reshape(-1, WIDTH), weights["mix"]), x)
    x = bias_gelu_residual(gemm(x, weights["hidden"]), weights["bias"], x)
    return gemm(layernorm(x).reshape(-1, TOKENS * WIDTH), weights["classes"])


def loss(weights, images, labels):
    losses, _ = sparse_cross_entropy(logits_of(weights, images), labels)
    return losses.mean()


# --8<-- [end:model]


def initial(key):
    """Normal weights that keep the variance of what they multiply."""
    shapes = {"embed": (TOKENS, WIDTH), "classes": (TOKENS * WIDTH, CLASSES)}
    shapes |= dict.fromkeys(("query", "key", "value", "mix", "hidden"), (WIDTH, WIDTH))
    keys = jax.random.split(key, len(shapes))
    weights = {
        n: jax.random.normal(k, s) / s[0] ** 0.5 for k, (n, s) in zip(keys, shapes.items(), strict=True)
    }
    return weights | {"place": jnp.zeros((TOKENS, WIDTH)), "bias": jnp.zeros(WIDTH)}


@partial(jax.jit, donate_argnums=0)
def train_epoch(state, batches):
    """One step of Adam for each of the `batches`; the new state and the mean loss."""

    def step(state, batch):
        weights, mean, square, count = state
        value, gradient = jax.value_and_grad(loss)(weights, *batch)
        count += 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, gradient)
        scale = 2e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        weights = jax.tree.map(lambda w, m, s: w - scale * m / (jnp.sqrt(s) + 1e-8), weights, mean, square)
        return (weights, mean, square, count), value

    state, values = lax.scan(step, state, batches)
    return state, values.mean()


def main(epochs=15, batch=64) -> float:
    """Train; print the loss and the time as it goes; return the accuracy on the held-out quarter."""
    pixels, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (pixels / 16).astype(np.float32),
        labels.astype(np.int32),
        test_size=0.25,
        random_state=0,
        stratify=labels,
    )
    start = time.perf_counter()
    weights = initial(jax.random.key(0))
    state = (
        weights,
        jax.tree.map(jnp.zeros_like, weights),
        jax.tree.map(jnp.zeros_like, weights),
        jnp.zeros(()),
    )
    rng = np.random.default_rng(0)
    print(f"a transformer on {len(x_train)} digits, {sum(w.size for w in weights.values())} weights")
    for epoch in range(1, epochs + 1):
        order = rng.permutation(len(x_train))[: len(x_train) // batch * batch].reshape(-1, batch)
        state, value = train_epoch(state, (x_train[order], y_train[order]))
        if epoch == 1 or epoch % 5 == 0:
            print(f"  epoch {epoch:2}: loss {value:.4f} after {time.perf_counter() - start:.1f} s")
    answer = np.asarray(jax.jit(logits_of)(state[0], x_test)).argmax(-1)
    accuracy = float((answer == y_test).mean())
    print(f"  {accuracy:.2%} of the {len(y_test)} held out are read right")
    return accuracy


if __name__ == "__main__":
    main()
