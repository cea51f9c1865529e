"""The rule of ConfLayers, from confidences to blocks: a logged set, its formulas by hand, λ and windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from methods.confidence import Rule

# L = 40, λ = 0.4: the normalised confidences of a search round of the authors' logs, and the set that they logged
LOGGED = [
    -0.279541015625, -0.279541015625, -0.279052734375, -0.27880859375, -0.278076171875, -0.277099609375,
    -0.276123046875, -0.275390625, -0.2734375, -0.2705078125, -0.271728515625, -0.270751953125, -0.267578125,
    -0.26806640625, -0.26708984375, -0.26416015625, -0.264404296875, -0.266357421875, -0.264892578125,
    -0.263671875, -0.224853515625, -0.26220703125, -0.26025390625, -0.260986328125, -0.2578125, -0.175537109375,
    -0.26171875, 0.95458984375, -0.2666015625, -0.2493896484375, -0.257568359375, -0.2509765625, -0.2413330078125,
    -0.243408203125, -0.2454833984375, -0.0999755859375, 2.90625, 5.12890625,
]  # fmt: skip
LOGGED_SET = [2, 4, 11, 12, 14, 15, 18, 20, 22, 24, 25, 27, 29, 30, 31, 34, 35, 36]
LLAMA_13B = Rule(40, np.float16, 2, 5, None)


def test_golden_vector() -> None:
    """The set that the authors' log shows for these confidences."""
    scores = np.array(LOGGED, np.float16)
    assert LLAMA_13B.skipped(scores, 0.4) == LOGGED_SET
    assert set(LLAMA_13B.windows(scores)) == {2, 3, 4, 5, 6}


def test_golden_vector_with_a_half_precision_threshold_loses_block_4() -> None:
    """What the released code would choose on NumPy 2: the subtraction rounds, too."""
    scores = np.array(LOGGED, np.float16)
    means, deviations = LLAMA_13B.neighbours(scores)
    below = np.flatnonzero(scores < means - np.float16(0.4) * deviations) + 1
    assert below.tolist() == [block for block in LOGGED_SET if block != 4]


def by_hand(scores: list[float], n_layers: int, lam: float, scale: int = 5) -> tuple[list[int], list[int]]:
    """Windows and skipped blocks by the formulas, in Python numbers."""

    def difference(x: list[float]) -> list[float]:
        inner = [(x[i + 1] - x[i - 1]) / 2 for i in range(1, len(x) - 1)]
        return [x[1] - x[0], *inner, x[-1] - x[-2]]

    gradient = difference(difference(scores))
    count = next((i for i, g in enumerate(gradient) if g != gradient[0]), len(gradient))
    low, high = min(gradient), max(gradient)
    shares = [(g - low) / (high - low + 1e-8) for g in gradient]
    mean = sum(shares) / len(shares)
    slope = min(0.5 / (max(shares) - mean), 0.5 / (mean - min(shares)))
    shares = [min(1.0, max(0.0, 0.5 + slope * (share - mean))) for share in shares]
    widths, blocks = [], []
    for i, score in enumerate(scores):
        widths.append(2 + math.floor(scale * count * shares[i] * (i + 1) / n_layers))
        near = [s for j, s in enumerate(scores) if j != i and abs(j - i) <= widths[-1] // 2]
        middle = sum(near) / len(near)
        deviation = math.sqrt(sum((s - middle) ** 2 for s in near) / len(near))
        if score < middle - lam * deviation:
            blocks.append(i + 1)
    return widths, blocks


def test_the_rule_is_that_of_the_formulas() -> None:
    """In double precision, over random confidences."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n_layers, lam = int(rng.integers(6, 50)), float(rng.uniform(-1, 1))
        rule = Rule(n_layers, np.float64, 2, 5, None)
        scores = rule.normalised(rng.random(n_layers - 2))
        assert scores.mean() == pytest.approx(0, abs=1e-9) and scores.std() == pytest.approx(1, abs=1e-4)
        assert (rule.windows(scores), rule.skipped(scores, lam)) == by_hand(scores.tolist(), n_layers, lam)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_larger_lambdas_skip_less(dtype: type) -> None:
    """|S(λ)| never rises: every set holds the next one."""
    for seed in range(8):
        rule = Rule(32, dtype, 2, 5, None)
        scores = rule.normalised(np.random.default_rng(seed).random(30).astype(dtype))
        sets = [set(rule.skipped(scores, lam / 10)) for lam in range(-20, 40, 3)]
        assert all(smaller <= larger for larger, smaller in zip(sets, sets[1:]))
        assert len(sets[0]) > len(sets[-1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("centred", [True, False])
def test_a_calibrated_lambda_skips_as_many_blocks_as_asked(centred: bool, dtype: type) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        n_layers = int(rng.integers(6, 40))
        rule = Rule(n_layers, dtype, 2, 5, None, centred)
        confidences, count = torch.from_numpy(rng.random(2 * (n_layers - 2))), int(rng.integers(0, n_layers - 1))
        lam = rule.calibrated(confidences, count)
        least = len(rule.choose(confidences, -1e6))  # a block whose neighbours are equal may be out of reach
        assert lam is not None or least < count
        assert lam is None or len(rule.choose(confidences, lam)) == max(count, len(rule.choose(confidences, 1e6)))


def test_without_the_codes_map_the_gradient_is_only_rescaled() -> None:
    """The mean may be anywhere, windows are others, and the logged set does not come out."""
    plain = Rule(40, np.float16, 2, 5, None, centred=False)
    scores = np.array(LOGGED, np.float16)
    gradient = np.gradient(np.gradient(scores))
    assert LLAMA_13B.rescaled(gradient).mean() == pytest.approx(0.5, abs=0.01)
    assert (plain.rescaled(gradient).min(), plain.rescaled(gradient).max()) == (0, 1)
    expected = (gradient.astype(np.float64) - gradient.min()) / float(gradient.max() - gradient.min())
    assert np.allclose(plain.rescaled(gradient), expected, atol=2e-3)
    assert plain.windows(scores) != LLAMA_13B.windows(scores) and plain.skipped(scores, 0.4) != LOGGED_SET


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_windows_are_at_least_two_wide(dtype: type) -> None:
    """And at most w0 + V; a run of equal gradients makes them wider."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        scores = Rule(32, dtype, 2, 5, None).normalised(rng.random(30).astype(dtype))
        assert all(2 <= w <= 7 for w in Rule(32, dtype, 2, 5, None).windows(scores))
        assert Rule(32, dtype, 12, 0, None).windows(scores) == [12] * 30
    line = np.array([0.0, 0, 0, 0, 0, 1, 3, 2, 5, 1], dtype)  # three leading gradients are equal
    assert max(Rule(12, dtype, 2, 5, None).windows(line)) == 7 and max(Rule(12, dtype, 2, 5, 5).windows(line)) == 3


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_equal_confidences_do_not_crash(dtype: type) -> None:
    """The gradient is 0.5 everywhere, and no block lies below its neighbours."""
    for n_layers in (4, 5, 33):
        rule = Rule(n_layers, dtype, 2, 5, None)
        for value in (0.0, 0.1, 1.0):
            assert rule.choose(torch.full((2 * (n_layers - 2),), value), -0.4) == []
        zeros = np.zeros(n_layers - 2, dtype)
        assert rule.rescaled(zeros).tolist() == [0.5] * (n_layers - 2)
        assert rule.windows(zeros)[-1] == 2 + int(5 * (n_layers - 2) * 0.5 * (n_layers - 2) / n_layers)
