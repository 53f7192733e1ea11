"""Ring attention: equal to one device's, with its gradient, in one process and in two."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from examples import ring_attention
from tests.helpers import normal

ROOT = Path(__file__).parent.parent


def test_all_devices(capsys):
    difference, gradient = ring_attention.main(heads=2, length=96, dim=8)
    assert difference < 1e-5
    assert gradient < 1e-5
    count = jax.device_count()
    assert f"on {count} devices of 1 process(es), {96 // count} positions each" in capsys.readouterr().out


def test_blocks_that_divide_nothing_and_a_future_that_is_skipped():
    """One part of the keys at a time, blocks of 5 and 3: the state after all of them is the attention."""
    q, k, v = (normal(1, 7, 4, seed=i) for i in range(3))
    state = jnp.full((1, 7), -jnp.inf), jnp.zeros((1, 7)), jnp.zeros((1, 7, 4))
    untouched = ring_attention.attend(q, k, v * np.nan, *state, 0, 10, block_q=5, block_kv=3)
    for got, want in zip(untouched, state, strict=True):
        np.testing.assert_array_equal(got, want)
    for start in (4, 0):  # in any order
        keys, values = k[:, start : start + 4], v[:, start : start + 4]
        state = ring_attention.attend(q, keys, values, *state, 0, start, block_q=5, block_kv=3)
    scores = np.where(np.tril(np.ones((7, 7))), q[0].astype(np.float64) @ k[0].T / 2, -np.inf)
    weights = np.exp(scores)
    np.testing.assert_allclose(
        state[2][0] / state[1][0, :, None], weights / weights.sum(1)[:, None] @ v[0], rtol=1e-5
    )
    np.testing.assert_allclose(state[0][0], scores.max(1), rtol=1e-6, atol=1e-7)


def test_two_processes_of_one_host():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "examples.ring_attention", "--coordinator", address, "--processes", "2"]
    sizes = ["--cpu-devices", "1", "--length", "128"]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    children = [
        subprocess.Popen(
            [*command, "--process", str(i), *sizes],
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    results = [child.communicate(timeout=300) for child in children]
    for child, (out, err) in zip(children, results, strict=True):
        assert child.returncode == 0, err
        (line,) = [line for line in out.splitlines() if "largest difference" in line]
        numbers = [float(word) for word in line.replace(",", " ").split() if word[0].isdigit()]
        assert len(numbers) == 2
        assert max(numbers) < 1e-5
    assert "on 2 devices of 2 process(es), 64 positions each" in results[0][0]
