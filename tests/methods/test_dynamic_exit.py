"""DEL: statistics by hand and against a plain pass, choice, drafting modes, presets, losslessness."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.ar import AR
from methods.dynamic_exit import DEL, Array, ShadowStatistics, best_exit, tpl_table
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.cost.latency import Latency
from ssd_bench.engine.sampling import verify_greedy
from ssd_bench.model.decoder import Decoder
from tests.conftest import CONTEXT, LAYERS
from tests.lossless import DIMS, FAMILIES, Load, check_greedy, decode, loaded, method_of

GRID = (0, 17)
PRESETS = ("del", "del_knapspec")
PROMPTS = ([5, 6, 7], list(range(3, 50)), [9])


class Watched(DEL):
    """Keeps every step's exit, γ*, verification and counts afterwards."""

    def start(self, prefill: Prefill) -> None:
        super().start(prefill)
        self.seen: list[tuple[int, int, Verification, Array]] = []

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        used = self._exit, self._gamma
        estimate = super().observe(verification, probe)
        self.seen.append((*used, verification, self._statistics.counts.copy()))
        return estimate


class HeadlessProbe:
    """A probe of a model whose streams are logits."""

    latency = Latency(1.0, 0.0, 1.0)
    heads = 0

    def predict(self, hidden: Tensor) -> Tensor:
        return hidden.argmax(-1)

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        self.heads = hidden[..., 0].numel()
        return hidden.argmax(-1), hidden.float().softmax(-1).amax(-1)


HEADLESS: Any = HeadlessProbe()


def streams(*rows: Sequence[tuple[int, float]]) -> Tensor:
    """[rows, columns, 3] streams that predict a token of three with a probability."""
    probs = torch.tensor([[[(1 - p) / 2] * 3 for _, p in row] for row in rows])
    for row, values in enumerate(rows):
        for column, (token, p) in enumerate(values):
            probs[row, column, token] = p
    return probs.log()


def seen(step: int, length: int, *rows: Sequence[tuple[int, float]], drafts: int = 1) -> Verification:
    """A verification by its exits' predictions and, as the last row, the target's; exit `drafts` drafted."""
    return verified(step, length, streams(*rows), drafts)


def verified(step: int, length: int, states: Tensor, drafts: int) -> Verification:
    tokens = states.argmax(-1).tolist()
    tree = TokenTree.chain([0, *tokens[drafts - 1][:-1]])
    path, bonus = verify_greedy(tree, tokens[-1])
    emitted = [*(tree.tokens[node] for node in path[1:]), bonus]
    return Verification(step, tree, path, emitted, length, states[-1], states[:-1])


def of_three_blocks(**options: object) -> DEL:
    method = DEL(**options)  # type: ignore[arg-type]
    method.check(ModelDims("three", 3, 1000, CONTEXT, 3))
    return method


def choose(alphas: Sequence[float], n_layers: int, grid: tuple[int, int] = GRID) -> tuple[int, int]:
    return best_exit(np.array(alphas), n_layers, grid)


def test_statistics_by_hand() -> None:
    """Two exits, ω = 1/2: decayed once per update, whatever its columns; an empty kind has no mean."""
    statistics = ShadowStatistics(2, 0.5)
    statistics.update(np.array([[True, False], [True, True]]), np.array([[0.8, 0.4], [0.6, 0.2]]))
    statistics.update(np.array([[False], [True]]), np.array([[0.2], [1.0]]))
    np.testing.assert_allclose(statistics.counts, [[0.5, 1.5], [2.0, 0.0]])
    np.testing.assert_allclose(statistics.sums, [[0.4, 0.4], [1.4, 0.0]])
    assert statistics.acceptance().tolist() == pytest.approx([0.25, 1.0])
    assert statistics.threshold(1) == pytest.approx((0.8 + 0.4 / 1.5) / 2)
    assert statistics.threshold(2) == pytest.approx(0.7)


def test_thresholds_are_never_nan() -> None:
    """The mismatches' mean without matches, 0.5 without either; a kind decayed to dust is empty."""
    statistics = ShadowStatistics(1, 0.5)
    assert statistics.threshold(1) == 0.5
    statistics.update(np.array([[False]]), np.array([[0.3]]))
    assert statistics.threshold(1) == pytest.approx(0.3)
    for _ in range(1200):
        statistics.update(np.array([[True]]), np.array([[0.9]]))
    assert statistics.threshold(1) == pytest.approx(0.9)
    with pytest.raises(AssertionError, match="no shadow token"):
        ShadowStatistics(1, 0.5).acceptance()


def test_two_steps_by_hand() -> None:
    """Prompt columns always count, verified ones up to the exit's first error; then E, γ* and τ."""
    method, probe = of_three_blocks(decay=0.5), HEADLESS
    prompt = streams([(1, 0.9), (0, 0.8), (2, 0.5)], [(1, 0.9), (0, 0.9), (1, 0.6)], [(2, 0.9), (0, 0.9), (1, 0.9)])
    method.start(Prefill([0, 1, 2], prompt))  # its first position is not in the window of min(32, P - 1)
    first = method.propose(Context(1, 3, [0], 20))
    assert (first.layer_set, first.max_len, first.stop_below) == (LayerSet.exit(3, 1), 1, 0.0)
    step = seen(1, 4, [(1, 0.4), (0, 0.7)], [(2, 0.5), (1, 0.6)], [(2, 0.9), (0, 0.9)])
    estimate = method.observe(step, probe)
    np.testing.assert_allclose(method._statistics.counts, [[1.0, 2.0], [3.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(method._statistics.sums, [[0.8, 0.9], [2.0, 0.0]], rtol=1e-6)
    assert estimate is not None and (estimate.alpha, estimate.draft_len) == (1.0, 17)
    assert estimate.tokens_per_s == pytest.approx(1000 * 18 / (3 + 17 * 2) / 2)  # TPL over a block's 2 ms
    second = method.propose(Context(2, 4, [0, 0], 20))
    assert (second.layer_set, second.max_len) == (LayerSet.exit(3, 2), 18)
    assert second.stop_below == pytest.approx(2 / 3)
    step = seen(
        2, 6, [(1, 0.6), (1, 0.5), (2, 0.5)], [(0, 0.9), (0, 0.4), (2, 0.8)], [(0, 0.9), (1, 0.9), (2, 0.9)], drafts=2
    )
    estimate = method.observe(step, probe)
    np.testing.assert_allclose(method._statistics.counts, [[1.5, 2.0], [2.5, 1.0]], rtol=1e-6)
    np.testing.assert_allclose(method._statistics.sums, [[0.9, 1.05], [1.9, 0.4]], rtol=1e-6)
    assert estimate is not None and estimate.draft_len == 1 and estimate.alpha == pytest.approx(3 / 7)
    assert estimate.tokens_per_s == pytest.approx(1000 * (10 / 7) / 4 / 2)
    third = method.propose(Context(3, 6, [0] * 4, 20))
    assert third.layer_set == LayerSet.exit(3, 1) and third.stop_below == pytest.approx((0.6 + 0.525) / 2)


class Complete:
    """DEL's choice as its codes make it: heads over all positions, then columns that do not count dropped."""

    def __init__(self, method: DEL, prompt: Tensor | None):
        self.exit, self.gamma, self._prompt, self._method = 1, 1, prompt, method
        self.statistics = ShadowStatistics(method._n_layers - 1, method.decay)

    def observe(self, verification: Verification, probe: Probe) -> None:
        assert verification.hidden is not None
        states, target, prompt = verification.hidden, verification.logits.argmax(-1), 0
        if self._prompt is not None:
            prompt = self._prompt.shape[1]
            states = torch.cat([self._prompt[:-1], states], dim=1)
            target = torch.cat([probe.predict(self._prompt[-1]), target])
            self._prompt = None
        tokens, confidence = probe.predict_confident(states)
        match, counted = tokens == target, len(target)
        errors = (~match[self.exit - 1, prompt:]).nonzero().flatten()
        if self.gamma and len(errors):
            counted = prompt + int(errors[0]) + 1
        self.statistics.update(match[:, :counted].numpy(), confidence[:, :counted].numpy())
        self.exit, self.gamma = best_exit(self.statistics.acceptance(), self._method._n_layers, self._method._grid)


class Compared(DEL):
    """Makes every choice both ways."""

    def start(self, prefill: Prefill) -> None:
        super().start(prefill)
        self.complete = Complete(self, self._prompt_states)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        if not verification.last:
            self.complete.observe(verification, probe)
        estimate = super().observe(verification, probe)
        assert (self._exit, self._gamma) == (self.complete.exit, self.complete.gamma)
        np.testing.assert_array_equal(self._statistics.counts, self.complete.statistics.counts)
        np.testing.assert_allclose(self._statistics.sums, self.complete.statistics.sums, rtol=1e-6)
        return estimate


def some_options(rng: random.Random, cap: int) -> dict[str, Any]:
    low = rng.choice([0, 0, 1])
    return {
        "gamma_mode": rng.choice(["dynamic", "tpl_star"]),
        "draft_cap": rng.choice([1, 3, cap]),
        "allow_zero_draft": rng.random() < 0.5,
        "decay": rng.choice([0.0, 0.5, 0.95, 1.0]),
        "window": rng.choice([0, 1, 4, 32]),
        "draft_len_grid": (low, rng.choice([low, 3, 17])),
        "reuse_prefix": rng.random() < 0.5,
    }


def random_states(generator: torch.Generator, n_layers: int, likeness: float, n: int) -> Tensor:
    """[L, n, 5] streams that grow similar to the last one."""
    made = torch.randn(n_layers, n, 5, generator=generator)
    return made + likeness * made[-1] * torch.linspace(0.2, 1.0, n_layers)[:, None, None]


def test_heads_over_positions_that_count_choose_as_heads_over_all() -> None:
    """Random exits agree more or less with the target; rejected drafts cost no heads."""
    zero = spared = 0
    for seed in range(200):
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        n_layers = rng.randint(2, 6)
        states = partial(random_states, generator, n_layers, rng.choice([0.0, 1.0, 3.0]))
        method, probe = Compared(**some_options(rng, 18)), HeadlessProbe()
        method.check(ModelDims("random", n_layers, 1000, CONTEXT, 5))
        length = rng.choice([1, 2, 9, 40])
        method.start(Prefill([0] * length, states(length) if method.taps.prefill else None))
        for step in range(1, 7):
            used, gamma, window = method._exit, method._gamma, method._prompt_states
            nodes = 1 + min(rng.randint(0, 6), method.propose(Context(step, length, [0], 20)).max_len)
            made = verified(step, length, states(nodes), used)
            method.observe(made, probe)  # type: ignore[arg-type]
            counted = len(made.path) if gamma else nodes
            assert probe.heads == (n_layers - 1) * (counted + (0 if window is None else window.shape[1]))
            zero, spared = zero + (gamma == 0 and len(made.path) < nodes), spared + (counted < nodes)
    assert zero > 50 and spared > 50


WRONG = ([(0, 0.6)] * 3, [(0, 0.6)] * 3, [(1, 0.9)] * 3)  # both exits err at every position


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 18),
        ({"draft_cap": 10}, 10),
        ({"gamma_mode": "tpl_star"}, 1),
        ({"allow_zero_draft": True}, 0),
        ({"allow_zero_draft": True, "gamma_mode": "tpl_star"}, 0),
    ],
)
def test_no_agreement_at_all(options: dict, length: int) -> None:
    """All-zero rates: E = 1, γ* = 0. Still drafted unless switched off, and then columns after a rejection count."""
    method, probe = of_three_blocks(window=0, decay=1.0, **options), HEADLESS
    assert method.taps.prefill == ()
    method.start(Prefill([0, 1], None))
    for step, count in ((1, 1), (2, 4), (3, 7)):  # the first step counts one column of three, up to the error
        estimate = method.observe(seen(step, 9, *WRONG), probe)
        assert estimate is not None and (estimate.alpha, estimate.draft_len) == (0.0, 0)
        assert estimate.tokens_per_s == pytest.approx(1000 / 6)  # that of decoding without drafts
        assert method._statistics.counts.tolist() == [[0, count]] * 2
        draft = method.propose(Context(step + 1, 9, [0], 20))
        assert (draft.layer_set, draft.max_len) == (LayerSet.exit(3, 1), length)


@pytest.mark.parametrize(("cap", "length"), [(18, 17), (4, 4)])
def test_tpl_star_drafts_gamma_up_to_the_cap_without_a_threshold(cap: int, length: int) -> None:
    method = of_three_blocks(gamma_mode="tpl_star", draft_cap=cap, window=0)
    method.start(Prefill([0, 1], None))
    assert method.propose(Context(1, 2, [0], 20)).max_len == 1
    method.observe(seen(1, 3, *[[(1, 0.9)] * 2] * 3), HEADLESS)
    assert method.propose(Context(2, 3, [0], 20)) == LayerDraft(LayerSet.exit(3, 1), length, 0.0, searched=True)


def test_tpl_is_its_formula_and_its_maximum_the_first() -> None:
    alphas = np.array([0.5, 0.8, 0.97])
    table = tpl_table(alphas, 4, (0, 5))
    for row, alpha in enumerate(alphas.tolist()):
        for gamma in range(6):
            expected = sum(alpha**i for i in range(gamma + 1)) / (4 + gamma * (row + 1))
            assert table[row, gamma].item() == pytest.approx(expected, rel=1e-12)
    assert choose([0.0] * 79, 80) == (1, 0) and choose([1.0] * 79, 80) == choose([1.0], 2) == (1, 17)
    assert choose([0.5, 0.6], 4) == (1, 1)  # 1.5 / 5 = 0.3 is above 1.6 / 6 and 1/4
    assert choose([0.0, 0.9, 0.9], 4) == (2, 3)  # 3.439 / 10 is above 2.71 / 8, 4.0951 / 12 and all that exit 3 has
    assert choose([0.0, 0.0], 4, (1, 3)) == (1, 1)


@pytest.mark.parametrize(("family", "prompt"), zip(FAMILIES, PROMPTS))
def test_statistics_are_those_of_a_plain_pass(family: str, prompt: list[int], decoders: Load) -> None:
    """Rates and thresholds follow from one pass over prompt and output: only accepted positions count."""
    decoder, decay = decoders(family), 0.9
    method = Watched(decay=decay, draft_len_grid=(1, 17), draft_cap=5)
    made = decode(decoder, method, prompt, 30)
    tokens = torch.tensor(prompt + made.output)
    blocks = tuple(range(2, 2 * LAYERS + 1, 2))
    _, states = decoder.prefill(tokens, decoder.new_cache(len(tokens) + 1), blocks)
    assert states is not None
    logits = torch.stack([decoder.logits(state) for state in states])
    match = logits[:-1].argmax(-1) == logits[-1].argmax(-1)
    confidence = logits[:-1].softmax(-1).amax(-1)
    expected = ShadowStatistics(LAYERS - 1, decay)
    begin = len(prompt) - min(32, len(prompt) - 1)
    for _, _, verification, counts in method.seen[:-1]:  # nothing is counted after the last
        rows = counts.sum(1)
        np.testing.assert_allclose(rows, rows[0])  # every exit has as many tokens
        some = slice(begin, verification.length)
        expected.update(match[:, some].numpy(), confidence[:, some].numpy())
        begin = verification.length
        np.testing.assert_allclose(counts, expected.counts)
    np.testing.assert_allclose(method._statistics.sums, expected.sums, atol=1e-6)
    assert len(method.seen) == len(made.steps) > 3
    assert [step.estimate.draft_len >= 1 for step in made.steps if step.estimate] == [True] * (len(made.steps) - 1)


def test_saved_states_verify_as_a_whole_pass_does(decoders: Load, rests: list[int]) -> None:
    """Same tokens, choices, logits and states (float32) with and without reuse, which every exit uses."""
    exits = set()
    for family in ("llama", "qwen3"):
        for prompt in PROMPTS:
            runs = []
            for reuse in (True, False):
                rests.clear()
                method = Watched(reuse_prefix=reuse, draft_cap=4)
                output = decode(loaded(decoders, family, compiled=True), method, prompt, 30).output
                used = [2 * exit_layer for exit_layer, _, v, _ in method.seen if len(v.tree) > 1]
                assert rests == (used if reuse else [])
                exits |= set(used)
                runs.append((output, [(e, g) for e, g, _, _ in method.seen], [v for _, _, v, _ in method.seen]))
            assert runs[0][:2] == runs[1][:2]
            for saved, whole in zip(runs[0][2], runs[1][2]):
                torch.testing.assert_close(saved.logits, whole.logits, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(saved.hidden, whole.hidden, atol=1e-4, rtol=1e-4)
    assert exits == {2, 4, 6}


def test_first_step_drafts_one_token_then_up_to_the_cap(decoder: Decoder) -> None:
    made = decode(decoder, DEL(draft_cap=5), PROMPTS[1], 40)
    lengths = [step.draft_len for step in made.steps]
    assert lengths[0] == 1 and 1 <= max(lengths[1:]) <= 5
    assert made.steps[0].layer_set == LayerSet.exit(LAYERS, 1)
    assert all(step.layer_set in [LayerSet.exit(LAYERS, e) for e in range(1, LAYERS)] for step in made.steps)


def test_greedy_equals_ar_with_any_settings(decoders: Load) -> None:
    def make(rng: random.Random) -> DEL:
        return DEL(**some_options(rng, 18)) if rng.random() < 0.8 else method_of(rng.choice(PRESETS))

    assert check_greedy(make, decoders) > 12


def test_sampling_counts_the_accepted_path(decoder: Decoder) -> None:
    """Even if the draw was not the exit's or the target's likeliest token."""
    method, rejected = Watched(decay=1.0, draft_len_grid=(1, 17), window=0), 0
    for prompt in PROMPTS:
        decode(decoder, method, prompt, 40, mode="sample")
        total = 0
        for _, _, verification, counts in method.seen[:-1]:
            total += len(verification.path)
            assert (counts.sum(1) == total).all()
            rejected += len(verification.path) < len(verification.tree)
    assert rejected


def test_zero_drafts_are_plain_steps_that_still_learn(decoder: Decoder) -> None:
    """A step without a draft emits one token, counts its position, and may lead out of γ* = 0."""
    method = Watched(allow_zero_draft=True, decay=0.5)
    plain = 0
    for prompt in PROMPTS:
        made = decode(decoder, method, prompt, 40)
        assert made.output == decode(decoder, AR(), prompt, 40).output
        before = np.zeros((LAYERS - 1, 2))
        for step, (_, gamma, _, counts) in zip(made.steps[:-1], method.seen):
            if gamma == 0:
                assert (step.draft_len, step.tree_nodes, step.emitted) == (0, 1, 1)
                np.testing.assert_allclose(counts.sum(1), 0.5 * before.sum(1) + 1)
                plain += 1
            before = counts
    assert plain


def test_presets() -> None:
    made = {name: method_of(name) for name in PRESETS}
    assert {name: method.name for name, method in made.items()} == {name: name for name in PRESETS}
    caps = {"del": 18, "del_knapspec": 10}
    for name, method in made.items():
        method.check(DIMS)
        assert (method.draft_cap, method._grid, method.decay, method.window) == (caps[name], GRID, 0.95, 32)
        assert method.gamma_mode == "dynamic" and not method.allow_zero_draft and method.reuse_prefix
        assert method.taps.verify == (2, 4, 6) and method.taps.prefill == (2, 4, 6, 8)
