"""ConfLayers: confidences, the rule against its formulas and a logged set, persistence, losslessness."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor

from methods import conflayers
from methods.ar import AR
from methods.confidence import Rule, confidence, entropies
from methods.conflayers import ConfLayers
from ssd_bench.contract.method import Context, Probe
from ssd_bench.contract.optional import Stateful
from ssd_bench.contract.shape import ModelDims
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder
from tests.conftest import FAMILIES, LAYERS, VOCAB, save_model
from tests.lossless import Load, check_greedy, decode, engine_for, method_of
from tests.runs import config

PRESETS = ["conflayers", "conflayers_paper", "conflayers_logs", "conflayers_release"]
DEEP = 8
DEEP_DIMS = ModelDims("deep", DEEP, 100_000, 256, VOCAB)
PROMPT = [5, 6, 7]
QUICK: dict[str, Any] = {"context_window": 3, "interval": 2, "stop_below": 0.1}


def made(preset: str = "conflayers", **options: Any) -> ConfLayers:
    return instantiate(config(preset), **options)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A random model of eight blocks: enough for windows and sets to differ."""
    folder = save_model(FAMILIES["llama"](num_hidden_layers=DEEP), tmp_path_factory.mktemp("deep"))
    dtype, kernels = (torch.float64, "torch") if native_problem() else (torch.float32, "native")
    return select("cpu", dtype, kernels).load(Checkpoint(folder), dtype, [torch.device("cpu")])


def run(decoder: Decoder, method: ConfLayers, prompts: Sequence[list[int]] = (PROMPT,), new: int = 40) -> list[Any]:
    engine = engine_for(decoder, max(map(len, prompts)) + new, new, frozenset())
    return [engine.generate(method, prompt) for prompt in prompts]


def ready(method: ConfLayers, dims: ModelDims = DEEP_DIMS) -> ConfLayers:
    method.check(dims)
    return method


# ---- confidence


def test_confidence_is_one_for_one_hot_and_zero_for_constant_outputs() -> None:
    one_hot = 1e4 * torch.eye(50)[:7]
    assert confidence(entropies(one_hot), 50).item() == pytest.approx(1, abs=1e-6)
    assert confidence(entropies(torch.full((7, 50), -3.0)), 50).item() == pytest.approx(0, abs=1e-6)
    spread = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Categorical(logits=spread).entropy()
    assert torch.allclose(entropies(spread), expected, atol=1e-5)
    assert confidence(expected, 50).item() == pytest.approx(1 - expected.mean().item() / math.log(50))


def test_infinite_outputs_have_a_confidence() -> None:
    """Half precision overflows; the clamp keeps the entropy finite."""
    wild = torch.tensor([[math.inf, -math.inf, 0.0], [6e4, 6e4, -6e4]], dtype=torch.float16)
    assert torch.allclose(entropies(wild), torch.tensor([0.0, math.log(2)]), atol=1e-6)


@pytest.mark.parametrize("norm", [True, False])
def test_probe_logits_are_the_heads(norm: bool, decoders: Load) -> None:
    for dtype in (torch.float64, torch.bfloat16):
        decoder = decoders("qwen2", dtype)
        streams = torch.randn(2, 3, decoder.arch.width, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
        logits = ModelProbe(decoder, decoder.new_cache(8)).logits(streams, norm)
        read = streams.to(decoder.arithmetic.activations)
        if norm:
            read = F.rms_norm(read, decoder.weights.norm.shape, decoder.weights.norm, decoder.arch.eps)
        rounded = read.to(decoder.arithmetic.inputs).to(read.dtype)
        expected = F.linear(rounded, decoder.weights.head.to(read.dtype)).float()
        assert logits.dtype == torch.float32
        # where products round, an ulp of the norm can tip a rounding
        atol = 1e-5 if decoder.arithmetic.inputs == decoder.arithmetic.activations else 2e-3
        torch.testing.assert_close(logits, expected, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("signal", ["raw", "lm_head"])
@pytest.mark.parametrize("place", ["prompt_gap", "true_prefix"])
def test_confidences_are_those_of_the_full_model(
    signal: str, place: str, decoders: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last cached tokens, read after the prompt alone, or at their positions."""
    monkeypatch.setattr(conflayers, "LOGITS", 2 * VOCAB)  # two positions at a time
    decoder, window, seen = decoders("qwen3"), 4, []

    class Watched(ConfLayers):
        def _confidences(self, length: int, probe: Probe) -> Tensor:
            found = super()._confidences(length, probe)
            seen.append((length, found))
            return found

    method = Watched(
        signal=signal, estimate_context=place, context_window=window, interval=2, head_norm=False, stop_accepted=99
    )
    output = decode(decoder, method, PROMPT, 40).output
    assert len(seen) > 2
    for length, found in seen:
        committed = (PROMPT + output)[:length]
        assert length > len(PROMPT) + window + 1
        tokens = committed if place == "true_prefix" else PROMPT + committed[-window:]
        with torch.inference_mode():
            rows = decoder.new_cache(64)
            _, states = decoder.prefill(torch.tensor(tokens), rows, range(2 * LAYERS + 1))
        outputs = states.diff(dim=0)[2:-2, -window:]  # type: ignore[union-attr]
        scores = outputs if signal == "raw" else outputs @ decoder.weights.head.T
        expected = torch.stack([confidence(entropies(s), s.shape[-1]) for s in scores])
        assert torch.allclose(found, expected, atol=1e-5)


# ---- decoding


def test_a_restored_search_continues_identically(deep: Decoder) -> None:
    options = QUICK | {"interval": 6, "min_skip_ratio": 0.2, "lam": 0.1}
    prompts = [PROMPT, [9, 8, 7, 6], [1], [30, 31]]
    whole, restored = (ready(made("conflayers_release", **options)) for _ in range(2))
    assert isinstance(whole, Stateful)
    run(deep, whole, prompts[:2])
    restored.restore(whole.state())
    assert restored.state() == whole.state() and whole._search.iteration > 1
    traces = [
        [(g.output, [(s.layer_set, s.draft_len, s.estimate) for s in g.steps]) for g in run(deep, one, prompts[2:])]
        for one in (whole, restored)
    ]
    assert traces[0] == traces[1] and restored.state() == whole.state()


def test_tree_and_chain_give_the_same_text(deep: Decoder) -> None:
    prompts = [PROMPT, [9, 8, 7, 6]]
    nodes, outputs = [], []
    for k_set in ("code", "chain"):
        generations = run(deep, ready(made(k_set=k_set, **QUICK)), prompts)
        outputs.append([generation.output for generation in generations])
        nodes.append(max(step.tree_nodes - step.draft_len for g in generations for step in g.steps))
    assert outputs[0] == outputs[1] == [decode(deep, AR(), prompt, 40).output for prompt in prompts]
    assert nodes[0] > 1 and nodes[1] == 1


# ---- losslessness


def test_presets_with_random_settings_are_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> ConfLayers:
        return method_of(
            rng.choice(PRESETS),
            context_window=rng.choice([1, 3, 8]),
            interval=rng.choice([2, 4]),
            k_set=rng.choice(["paper", "code", "chain"]),
            lam=rng.choice([None, -1.0, 0.0, 0.4]),
            draft_len=rng.choice([1, 4, 25]),
            stop_below=rng.choice([0.0, 0.1, 0.8]),
            max_iterations=rng.choice([2, 100]),
            stop_accepted=rng.choice([0.0, 4.0]),
            head_norm=rng.random() < 0.5,
            reuse_prefix=rng.random() < 0.5,
            centred=rng.random() < 0.5,
            extra_round=rng.random() < 0.5,
            abort_below=rng.choice([None, 1.0]),
            trial_by_prompt=rng.random() < 0.5,
        )

    assert check_greedy(make, decoders) > 25


# ---- settings


def test_presets_hold_the_published_settings() -> None:
    for preset in PRESETS:
        method = ready(made(preset), ModelDims("llama2_13b", 40, 1, 4096, VOCAB))
        assert method.name == preset and not method.reuse_prefix
        assert (method.context_window, method.interval, method.max_iterations) == (100, 30, 100)
        assert method.min_skip_ratio == 0.4
        assert (method._rule.base_window, method._rule.window_scale, method._least) == (2, 5, 16)
        assert method._rule.dtype is np.float16
        draft = method.propose(Context(1, 9, [1], 9))
        assert draft.layer_set.skip_attn == draft.layer_set.skip_mlp == tuple(range(1, 39, 2))
        assert (draft.max_len, draft.stop_below) == (25, 0.8)
        code = preset in ("conflayers_logs", "conflayers_release")
        assert draft.widths == tuple(zip((0.95, 0.8, 0.5, 0.0), (3, 5, 8, 10) if code else (1, 3, 5, 10)))
        paper = preset == "conflayers_paper"  # none of the steps that only the code has
        assert method._rule.centred == method.extra_round == method.trial_by_prompt == (not paper)
        assert method.abort_below == (None if paper else 1)
        assert (method.signal == "lm_head") == (method.estimate_context == "true_prefix") == paper
        assert (method.lambda_mode == "adaptive") == (preset == "conflayers_release")
        assert method._search.lam == (0.0 if preset == "conflayers_release" else 0.4)
        assert (method.stop_rule, method.stop_rate) == ("acc_and_rate" if code else "acc_only", 0.95)


def test_model_dependent_settings() -> None:
    """The logs' λ by model; Qwen's largest window by name."""
    large = ModelDims("Qwen2.5-Math-72B", 80, 1, 4096, VOCAB)
    assert ready(made("conflayers_logs"), ModelDims("llama2_70b", 80, 1, 4096, VOCAB))._search.lam == 0.45
    assert ready(made("conflayers_logs"), large)._search.lam is None
    assert ready(made("conflayers_logs", lam=0.2), large)._search.lam == 0.2
    assert ready(made(), large)._rule.max_scale == 26
    assert ready(made(cap_window=False), large)._rule.max_scale is None
    assert ready(made())._rule.max_scale is None and ready(made(cap_window=True))._rule.max_scale == 2


# ---- the rule, from confidences to blocks: a logged set, its formulas by hand, λ and windows


# L = 40, λ = 0.4: the normalised confidences of a search round of the authors' logs, and the set that they logged
LOGGED = np.fromstring(
    """
    -0.2795 -0.2795 -0.279 -0.2788 -0.278 -0.277 -0.2761 -0.2754 -0.2734 -0.2705 -0.2717 -0.2708 -0.2676 -0.268
    -0.267 -0.2642 -0.2644 -0.2664 -0.265 -0.2637 -0.2249 -0.2622 -0.2603 -0.261 -0.2578 -0.1755 -0.2617 0.9546
    -0.2666 -0.2494 -0.2576 -0.251 -0.2413 -0.2434 -0.2455 -0.1 2.906 5.13
    """,
    sep=" ",
).astype(np.float16)
LOGGED_SET = [2, 4, 11, 12, 14, 15, 18, 20, 22, 24, 25, 27, 29, 30, 31, 34, 35, 36]
LLAMA_13B = Rule(40, np.float16, 2, 5, None)


def test_golden_vector() -> None:
    """The set in the authors' log for these confidences."""
    assert LLAMA_13B.skipped_blocks(LOGGED, 0.4) == LOGGED_SET
    assert set(LLAMA_13B.windows(LOGGED)) == {2, 3, 4, 5, 6}


def test_golden_vector_with_a_half_precision_threshold_loses_block_4() -> None:
    """The released code's choice on NumPy 2: the subtraction also rounds."""
    means, deviations = LLAMA_13B.neighbour_statistics(LOGGED)
    below = np.flatnonzero(means - np.float16(0.4) * deviations > LOGGED) + 1
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
    """Random confidences, in double precision."""
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n_layers, lam = int(rng.integers(6, 50)), float(rng.uniform(-1, 1))
        rule = Rule(n_layers, np.float64, 2, 5, None)
        scores = rule.normalise(rng.random(n_layers - 2))
        assert scores.mean() == pytest.approx(0, abs=1e-9) and scores.std() == pytest.approx(1, abs=1e-4)
        assert (rule.windows(scores), rule.skipped_blocks(scores, lam)) == by_hand(scores.tolist(), n_layers, lam)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_larger_lambdas_skip_less(dtype: type) -> None:
    """|S(λ)| never rises: every set holds the next one."""
    for seed in range(8):
        rule = Rule(32, dtype, 2, 5, None)
        scores = rule.normalise(np.random.default_rng(seed).random(30).astype(dtype))
        sets = [set(rule.skipped_blocks(scores, lam / 10)) for lam in range(-20, 40, 3)]
        assert all(smaller <= larger for larger, smaller in zip(sets, sets[1:]))
        assert len(sets[0]) > len(sets[-1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("centred", [True, False])
def test_a_calibrated_lambda_skips_as_many_blocks_as_asked(centred: bool, dtype: type) -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        n_layers = int(rng.integers(6, 40))
        rule = Rule(n_layers, dtype, 2, 5, None, centred)
        confidences, count = torch.from_numpy(rng.random(2 * (n_layers - 2))), int(rng.integers(0, n_layers - 1))
        lam = rule.calibrated_lambda(confidences, count)
        least = len(rule.choose(confidences, -1e6))  # a block whose neighbours are equal may be out of reach
        assert lam is not None or least < count
        assert lam is None or len(rule.choose(confidences, lam)) == max(count, len(rule.choose(confidences, 1e6)))


def test_without_the_codes_map_the_gradient_is_only_rescaled() -> None:
    """The mean may be anywhere, windows are others, and the logged set does not come out."""
    plain = Rule(40, np.float16, 2, 5, None, centred=False)
    gradient = np.gradient(np.gradient(LOGGED))
    assert LLAMA_13B.rescale(gradient).mean() == pytest.approx(0.5, abs=0.01)
    assert (plain.rescale(gradient).min(), plain.rescale(gradient).max()) == (0, 1)
    expected = (gradient.astype(np.float64) - gradient.min()) / float(gradient.max() - gradient.min())
    assert np.allclose(plain.rescale(gradient), expected, atol=2e-3)
    assert plain.windows(LOGGED) != LLAMA_13B.windows(LOGGED) and plain.skipped_blocks(LOGGED, 0.4) != LOGGED_SET


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_windows_are_at_least_two_wide(dtype: type) -> None:
    """And at most w0 + V; a run of equal gradients makes them wider."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scores = Rule(32, dtype, 2, 5, None).normalise(rng.random(30).astype(dtype))
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
        assert rule.rescale(zeros).tolist() == [0.5] * (n_layers - 2)
        assert rule.windows(zeros)[-1] == 2 + int(5 * (n_layers - 2) * 0.5 * (n_layers - 2) / n_layers)
