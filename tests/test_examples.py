"""The examples, at sizes that run in seconds, against values worked out here."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from examples import attention, codebook, digits, ema, gemm, ragged, softmax

f32, i32, i8 = (partial(np.array, dtype=dtype) for dtype in (np.float32, np.int32, np.int8))


def test_digits_are_read_as_well_as_scikit_learn_does(capsys):
    ours, sklearn = digits.digits()
    assert ours > 0.97
    assert ours == pytest.approx(sklearn, abs=1 / 450)
    assert f"{ours:.2%} right" in capsys.readouterr().out


def test_a_tie_of_votes_goes_to_the_least_label():
    points = np.array([[0.0], [1.0], [5.0], [6.0]], np.float32)
    labels = np.array([3, 2, 9, 1], np.int32)
    queries = np.array([[0.4], [5.6], [-2.0]], np.float32)
    answer = digits.classify(queries, points, labels, neighbours=2)
    np.testing.assert_array_equal(answer, [2, 1, 2])
    np.testing.assert_array_equal(digits.classify(queries, points, labels, neighbours=1), [3, 1, 3])


def test_photograph_is_cleaned_and_written_side_by_side(tmp_path):
    path = tmp_path / "picture.png"
    before, after = digits.photograph(str(path))
    assert after < before / 2
    picture = np.asarray(Image.open(path))
    assert picture.shape == (427, 3 * 640)
    noisy, median, edges = np.hsplit(picture.astype(float), 3)
    assert median[101, 201] == np.sort(noisy[100:103, 200:203].ravel())[4]
    w = median[299:302, 399:402]
    gx, gy = (w[:, 2] - w[:, 0]) @ [1, 2, 1], (w[2] - w[0]) @ [1, 2, 1]
    assert edges[300, 400] == int(min(np.hypot(gx, gy) / 2, 255))


def test_gemm_at_even_and_ragged_sizes():
    errors = gemm.main(sizes=((256, 128, 64), (130, 45, 301), (1, 1, 5)))
    assert max(errors.values()) < 1e-4
    np.testing.assert_array_equal(gemm.gemm(f32([[1, 2]]), f32([[3], [5]])), [[13]])


def test_softmax_is_that_of_jax():
    assert softmax.main(rows=130, columns=77) < 1e-6
    y = softmax.softmax(np.log(f32([[1, 2, 5], [4, 4, 8]])))
    np.testing.assert_allclose(y, [[0.125, 0.25, 0.625], [0.25, 0.25, 0.5]], rtol=1e-6)


def test_attention_is_that_of_jnp_and_causal():
    assert attention.main(heads=2, length=300, dim=16) < 1e-5
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 20, 4), np.float32) for _ in range(3))
    o = attention.attention(q, k, v, block_q=8, block_kv=8)
    np.testing.assert_allclose(o[0, 0], v[0, 0], rtol=1e-6)
    scores = q[0, 19].astype(np.float64) @ k[0].T / 2
    weights = np.exp(scores - scores.max())
    np.testing.assert_allclose(o[0, 19], weights @ v[0] / weights.sum(), rtol=1e-4)


def test_ragged_rows_stop_at_their_length():
    assert ragged.main(rows=50, columns=200) < 1e-5
    x = np.array([[1, 2, 3, np.nan], [np.nan] * 4, [4, 5, 6, 9]], np.float32)
    np.testing.assert_array_equal(ragged.ragged_mean(x, i32([3, 0, 4]), block=2), [2, 0, 6])


def test_codebook_is_captured():
    assert codebook.main(rows=70, columns=33) == pytest.approx(0.07, abs=0.02)
    decode = codebook.decoder(f32([10, 20, 30]))
    np.testing.assert_array_equal(decode(i8([[2, 0], [1, 3]])), [[30, 10], [20, 0]])


def test_moving_average_and_logsumexp():
    ema_error, lse_error = ema.main(rows=5, time=200)
    assert ema_error < 1e-5
    assert lse_error < 1e-4
    np.testing.assert_array_equal(ema.ema(f32([[0.5] * 4]), f32([[8, 0, 4, 1]])), [[8, 4, 6, 4]])
    np.testing.assert_allclose(ema.logsumexp(np.log(f32([[1, 2, 5]]))), [np.log(8)], rtol=1e-6)
