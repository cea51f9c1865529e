"""Adaptive: posterior and throughput against enumeration, choices, ledger, searches, state and losslessness."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.adaptive import Adaptive
from methods.ar import AR
from methods.arms import Arm, Costs, Prior, evaluate_arm, optimistic_counts, throughput
from methods.knapsack import Knapsack
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.contract.window import Window
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.tpt import tpt
from ssd_bench.engine.probe import ModelProbe, mean_cosine
from ssd_bench.model.decoder import Pass
from tests.conftest import LAYERS, VOCAB
from tests.lossless import DIMS, Load, check_greedy, engine_for, loaded, method_of
from tests.methods.test_knapspec import history, rerun
from tests.runs import config

FULL, ROOM, SUBLAYERS = LayerSet.full(LAYERS), 100, 2 * LAYERS


def latency(rest: float, growth: float = 0.1) -> Latency:
    """Sublayers of 1 ms over one node, `growth` more per further node, and `rest` ms."""
    times = [NodeTimes(n, 0.0, 1 + growth * (n - 1), 1 + growth * (n - 1), rest) for n in (1, 64)]
    return Latency(1.0, 0.0, 1.0, passes=tuple(times), draft_rest_ms=rest)


CHEAP, DEAR = latency(0.05), latency(500.0)  # a drafted token costs a fraction of an AR step; nearly all of it


def ready(**options: Any) -> Adaptive:
    method = Adaptive(**{"rows": 3} | options)
    method.check(DIMS)
    return method


class FakeProbe:
    """A model whose sublayers change no stream: evaluations always agree with the full model, or never."""

    n_layers = LAYERS

    def __init__(self, profile: Latency, agrees: bool):
        self.latency, self._agrees = profile, agrees

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
        return hidden.clone()

    def run_sublayers(self, sublayers: Sequence[int], hidden: Tensor, *_: object, **options: object) -> Tensor:
        return hidden.clone()

    def mean_cosine(self, branches: Tensor, direction: Tensor) -> NDArray[np.float32]:
        return mean_cosine(branches, direction).numpy()

    def predict(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape[:-1], dtype=torch.long)

    def predict_confident(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.predict(hidden) + (not self._agrees), torch.full(hidden.shape[:-1], 0.9)

    def token_logits(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        return torch.zeros(*hidden.shape[:-1], len(tokens))


class Play:
    """Steps of a method without a model: `rate` is a drafted token's probability of acceptance."""

    def __init__(self, method: Adaptive, probe: FakeProbe, rate: float, seed: int = 0):
        self.method, self.probe, self.rate = method, probe, rate
        self.rng, self.length = random.Random(seed), 20
        self.ms, self.tokens, self.worst, self.sets = 0.0, 0, 0.0, []
        method.prepare(probe, [])  # type: ignore[arg-type]
        method.start(Prefill([1] * self.length, None))

    def step(self) -> object:
        method, costs = self.method, Costs(self.probe.latency, LAYERS, self.length, 20, True, 3)
        proposal = method.propose(Context(1, self.length, [0], ROOM))
        drafted, accepted, spent = 0, 0, costs.ar_ms
        if isinstance(proposal, LayerDraft):
            drafted = proposal.max_len
            accepted = next((j for j in range(drafted) if self.rng.random() >= self.rate), drafted)
            spent = drafted * costs.draft_ms(proposal.layer_set) + float(costs.verify_ms(proposal.layer_set)[drafted])
            self.sets.append(proposal.layer_set)
        self.ms, self.tokens = self.ms + spent, self.tokens + accepted + 1
        self.worst = max(self.worst, spent / costs.ar_ms)
        self.length += accepted + 1
        return self.observed([0] * (drafted + 1), [0] * (accepted + 1), self.length)

    def observed(self, drafted: Sequence[int], emitted: list[int], length: int) -> object:
        """Observe the verification of a chain, whose first tokens are emitted."""
        tree, taps = TokenTree.chain(drafted), self.method.taps.verify
        hidden = torch.ones(len(taps), len(tree), 4) if taps else None
        logits = torch.eye(1, VOCAB).repeat(len(tree), 1)
        seen = Verification(1, tree, range(len(emitted)), emitted, length, logits, hidden)
        return self.method.observe(seen, self.probe)  # type: ignore[arg-type]


def test_a_posterior_without_bins_is_a_beta() -> None:
    """Accepted tokens and the first rejected one count; later ones were not tested."""
    arm = Arm(FULL, Prior([], 3.0).counts.copy())
    assert arm.counts.ravel().tolist() == [1.5, 1.5]
    arm.learn(drafted=5, accepted=2, threshold=0, capped=True)
    arm.learn(drafted=4, accepted=4, threshold=0, capped=True)
    arm.learn(drafted=1, accepted=0, threshold=0, capped=True)
    assert arm.counts.ravel() == pytest.approx([1.5 + 2, 1.5 + 6]) and arm.acceptance == pytest.approx(7.5 / 11)
    arm.limit(5.5)
    assert arm.counts.sum() == pytest.approx(5.5) and arm.acceptance == pytest.approx(7.5 / 11)
    arm.forget(Prior([], 3.0), 1.0)
    assert arm.counts.ravel() == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize(
    ("drafted", "accepted", "capped", "high", "low", "either"),
    [
        (4, 4, False, [0, 3], [0, 1], [0, 0]),
        (4, 3, False, [0, 3], [1, 0], [0, 0]),
        (4, 1, False, [1, 1], [0, 0], [0, 0]),
        (1, 0, False, [0, 0], [1, 0], [0, 0]),
        (3, 3, True, [0, 2], [0, 0], [0, 1]),
        (3, 2, True, [0, 2], [0, 0], [1, 0]),
    ],
)
def test_tokens_count_on_the_side_of_the_threshold_that_is_known(
    drafted: int, accepted: int, capped: bool, high: list[int], low: list[int], either: list[int]
) -> None:
    """[rejected, accepted] counts: all but a draft's last token went on, the last did not or was capped."""
    prior = Prior([0.3, 0.6], 3.0)
    arm = Arm(FULL, prior.counts.copy())
    arm.learn(drafted, accepted, 2, capped)
    added = arm.counts - prior.counts
    for outcome in (0, 1):
        assert added[outcome].sum() == pytest.approx(high[outcome] + low[outcome] + either[outcome])
        assert added[outcome, 2] >= high[outcome] - 1e-9
        assert added[outcome, :2].sum() >= low[outcome] - 1e-9
        if not either[outcome]:
            assert added[outcome, 2] == pytest.approx(high[outcome])


def test_tally_puts_tokens_into_the_bins_that_the_engine_compares_with() -> None:
    counts = Prior([0.5], 1.0).tally(torch.tensor([True, True, False]), torch.tensor([0.5, 0.4, 0.9]))
    assert counts.tolist() == [[0, 1], [1, 1]]  # at the threshold drafting goes on


@pytest.mark.parametrize("seed", range(2))
def test_throughput_is_that_of_all_outcomes(seed: int) -> None:
    """Every threshold and length, by enumeration of bins and outcomes of four drafted tokens."""
    rng = np.random.default_rng(seed)
    counts, draft = rng.random((2, 2, 3)) + 0.1, rng.random(2) + 0.1
    verify = 1 + rng.random((2, 5)).cumsum(1)
    rates = throughput(counts, draft, verify)
    assert rates.shape == (2, 3, 4)
    kinds = list(product((0, 1), range(3)))
    for arm, threshold, longest in product(range(2), range(3), range(1, 5)):
        mass, tokens, ms = counts[arm] / counts[arm].sum(), 0.0, 0.0
        for outcomes in product(kinds, repeat=longest):
            chance = np.prod([mass[kind] for kind in outcomes])
            k = next((j + 1 for j, (_, b) in enumerate(outcomes) if b < threshold), longest)
            m = next((j for j in range(k) if not outcomes[j][0]), k)
            tokens, ms = tokens + chance * (m + 1), ms + chance * (k * draft[arm] + verify[arm, k])
        assert rates[arm, threshold, longest - 1] == pytest.approx(tokens / ms)


def test_without_threshold_and_growth_it_is_equation_4() -> None:
    rates = throughput(np.array([[[1.0], [3.0]]]), np.array([0.4]), np.full((1, 8), 2.0))
    assert rates[0, 0] * 1000 == pytest.approx([tpt(0.75, g, 0.4, 2.0) for g in range(1, 8)])


def test_optimism_raises_the_acceptance_by_deviations_of_a_beta() -> None:
    counts = np.array([[[2.0, 1.0], [4.0, 2.0]], [[0.1, 0.1], [9.9, 9.9]]])
    raised = optimistic_counts(counts, 1.0)
    means = raised[:, 1].sum(1) / raised.sum((1, 2))
    assert means[0] == pytest.approx(2 / 3 + (2 / 9 / 10) ** 0.5) and means[1] == 1
    assert raised.sum((1, 2)) == pytest.approx(counts.sum((1, 2)))
    assert np.allclose(optimistic_counts(counts, 0.0), counts)


def test_costs_are_those_of_all_parts() -> None:
    """AR verifies nothing; an exit leaves the blocks before it to one node; an evaluation runs the rest."""
    costs, exit_set = Costs(latency(2.0), LAYERS, 10, 4, True, 5), LayerSet.exit(LAYERS, 1)
    assert costs.ar_ms == pytest.approx(SUBLAYERS + 2)
    assert costs.draft_ms(exit_set) == pytest.approx(2 + 2) and costs.draft_ms(FULL) == pytest.approx(costs.ar_ms)
    assert costs.verify_ms(exit_set) == pytest.approx([costs.ar_ms + 6 * 0.1 * k for k in range(5)])
    whole = Costs(latency(2.0), LAYERS, 10, 4, False, 5).verify_ms(exit_set)
    assert whole == pytest.approx([costs.ar_ms + 8 * 0.1 * k for k in range(5)])
    assert costs.evaluation_ms(exit_set) == pytest.approx(2)
    assert costs.evaluation_ms(LayerSet(LAYERS, frozenset([1, 3]))) == pytest.approx(5 * 1.4 + 2)
    started = Costs(replace(latency(2.0), draft_start_ms=0.7), LAYERS, 10, 4, True, 5).verify_ms(exit_set)
    assert started - costs.verify_ms(exit_set) == pytest.approx([0, 0.7, 0.7, 0.7, 0.7])


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_the_grids_best_and_never_below_ar(seed: int) -> None:
    """Random posteriors and profiles: the arm is within the margin of the best, with its best γ and threshold."""
    rng = random.Random(seed)
    method = ready(margin=rng.choice([0.0, 0.03]), draft_len=5, reuse_prefix=rng.random() < 0.5)
    profile = latency(rng.choice([0.0, 1.0, 8.0]), rng.choice([0.0, 0.1, 0.5]))
    for arm in method._pool.arms:
        arm.counts = np.array([[rng.random() for _ in range(5)], [5 * rng.random() for _ in range(5)]])
        arm.evaluated = rng.random() < 0.8
    method.start(Prefill([1] * 30, None))
    method._set_latency(profile)
    method._plan(30)
    costs = Costs(profile, LAYERS, 30, 5, method.reuse_prefix, 3)
    best = {}
    for arm in method._pool.arms:
        sets = np.array([costs.draft_ms(arm.layer_set)]), costs.verify_ms(arm.layer_set)[None]
        rates = throughput(arm.counts[None], *sets)[0]
        cells = {(t, g): rates[t, g - 1] for t in range(5) for g in range(1, 6)}
        best[arm] = max(cells.items(), key=lambda item: item[1])
    top, bar = max((best[arm][1] for arm in best if arm.evaluated), default=0.0), (1 + method.margin) / costs.ar_ms
    choice = method._choice
    assert (choice is None) == (top <= bar)
    if choice is not None:
        threshold = choice.draft.stop_below and [0.3, 0.5, 0.7, 0.85].index(choice.draft.stop_below) + 1
        cell, rate = best[choice.arm]
        assert choice.arm.evaluated and cell == (threshold, choice.draft.max_len) and rate == pytest.approx(choice.rate)
        assert choice.rate > bar and choice.rate * (1 + method.margin) >= top


def test_it_drafts_where_drafts_are_cheap_and_right() -> None:
    play = Play(ready(), FakeProbe(CHEAP, agrees=True), rate=0.95)
    for _ in range(100):
        play.step()
    assert play.sets and play.ms < 0.8 * play.tokens * Costs(CHEAP, LAYERS, 20, 1, True, 3).ar_ms


def test_it_is_ar_where_a_draft_costs_a_target_step() -> None:
    """No posterior could pay, so nothing is explored."""
    play = Play(ready(), FakeProbe(DEAR, agrees=True), rate=1.0)
    for _ in range(300):
        assert play.step() is None
    assert not play.sets and not play.method._ledger.explored and not play.method.taps.verify


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("agrees", [True, False])
def test_losses_stay_within_the_allowance(agrees: bool, rate: float) -> None:
    """Evaluations that promise everything and drafts that keep nothing: bounded by stake, regret and one step."""
    method = ready(stake=4, regret=0.02)
    play, costs = Play(method, FakeProbe(CHEAP, agrees), rate), Costs(CHEAP, LAYERS, 20, 10, True, 3)
    for _ in range(600):
        play.step()
        lost = play.ms / costs.ar_ms - play.tokens + method._ledger.explored
        assert lost <= 4 + 0.02 * play.tokens + play.worst
    ledger = method._ledger
    assert ledger.gain == pytest.approx(play.tokens - play.ms / costs.ar_ms, abs=1e-6)
    profit = method.profit * max(0.0, ledger.layer_gain)
    assert ledger.explored <= 4 + 0.02 * play.tokens / 2 + profit + play.worst
    assert agrees or not play.sets


def test_gains_of_copies_pay_for_no_exploration() -> None:
    """They say nothing about layer sets."""
    method = ready(stake=4, regret=0.001, profit=0.5)
    play, text = Play(method, FakeProbe(CHEAP, agrees=False), rate=0.0), [1, 2, 3, 4] * 2600
    method.start(Prefill(text[:40], None))
    output = 1
    while output < 5_000:
        proposal = method.propose(Context(1, 40 + output, text[40 : 40 + output], ROOM))
        assert isinstance(proposal, TokenTree)
        emitted = text[40 + output : 40 + output + len(proposal)]  # every copied token is accepted
        output += len(emitted)
        play.observed(proposal.tokens, emitted, 40 + output)
    ledger = method._ledger
    assert ledger.gain > 4000 and ledger.layer_gain == 0
    assert 0 < ledger.explored <= 4 + 0.001 / 2 * ledger.tokens


def test_searches_that_bring_nothing_become_rare() -> None:
    """Each waits until the next, twice as expensive, is affordable; its set does not draft before an evaluation."""
    method = ready(stake=40, regret=0.2, interval=1)
    play, at = Play(method, FakeProbe(CHEAP, agrees=False), rate=0.0), [0]
    for _ in range(2500):
        before = method._ledger.searches
        event = play.step()
        if method._ledger.searches > before:
            at.append(play.tokens)
            assert event is not None and method._estimate(play.length).draft_len == 0
    assert len(at) >= 4 and not play.sets and method._ledger.failures == method._ledger.searches == len(at) - 1
    assert at[-1] - at[-2] > 1.5 * (at[-2] - at[-3]) and len(method._pool.arms) <= method.pool


def test_a_search_that_brings_something_is_no_failure() -> None:
    method = ready(stake=100, exits=[0.9], uniform=[], margin=0.0)
    play = Play(method, FakeProbe(CHEAP, agrees=True), rate=1.0)
    for _ in range(100):
        play.step()
    assert any(arm.search_number and arm.layer_set in play.sets for arm in method._pool.arms)
    assert method._ledger.failures < method._ledger.searches


def test_a_search_adds_candidates_of_the_knapsack(decoders: Load) -> None:
    """Untried arms with discounted tokens, none of them an arm already."""
    states, probe = history(decoders("qwen3"))
    probe.latency = latency(0.5)
    method = ready(rows=4, min_similarity=-1.0, shortlist=2, selected=0.5)
    method.start(Prefill([1], None))
    method._set_latency(probe.latency)
    given = len(method._pool.arms)
    method._search(states, 15, probe)
    found = method._pool.arms[given:]
    knapsack = Knapsack(states.float(), 11, (1, 1), 0.6, -1.0, True, False, states.dtype)
    candidates = {candidate.layer_set: candidate for candidate in knapsack.run(probe)}
    assert len(found) == 2 and method._ledger.explored > 0
    for arm in found:
        matches = probe.predict(candidates[arm.layer_set].hidden) == probe.predict(states[-1])
        added = arm.counts - method._pool.prior.counts
        assert not arm.evaluated and arm.search_number == 1 and added.sum() == pytest.approx(0.5 * 4)
        assert added[1].sum() == pytest.approx(0.5 * int(matches.sum()))
    method._search(states, 15, probe)
    sets = [arm.layer_set for arm in method._pool.arms if arm.layer_set.window is None]
    assert len(set(sets)) == len(sets) and FULL not in sets


@pytest.mark.parametrize("skipped", [(), (2, 3, 4, 5, 6, 7), (0, 5), (3,)])
def test_an_evaluation_is_what_the_set_would_have_drafted(skipped: tuple[int, ...], decoders: Load) -> None:
    """The same predictions as running the subset alone; the full model agrees with itself."""
    states, probe = history(decoders("llama"))
    layer_set, target, prior = LayerSet(LAYERS, frozenset(skipped)), probe.predict(states[-1]), Prior([0.3, 0.6], 1.0)
    arm = Arm(layer_set, prior.counts)
    counts = evaluate_arm(probe, prior, arm, states[layer_set.first_changed], target, 15)
    ids, confidence = probe.predict_confident(rerun(states, probe, layer_set))
    assert np.array_equal(counts, Prior([0.3, 0.6], 1.0).tally(ids == target, confidence))
    assert counts.sum() == 4 and (skipped or counts[0].sum() == 0)


def test_an_evaluation_reads_the_window(decoders: Load) -> None:
    """One position is what a draft with the window computes; a window of the whole context is none."""
    states, probe = history(decoders("qwen3"), r=1)
    window, prior = Window(1, 4), Prior([0.3, 0.6], 1.0)
    drafted = Pass(tuple(range(2 * LAYERS)), states[0].clone(), 11, row=12, unread=window.unread(11))
    hidden, _ = probe._decoder.run(drafted, probe._cache)  # type: ignore[attr-defined]
    ids, confidence = probe.predict_confident(hidden.clone())
    for target in (ids, ids + 1):
        arm = Arm(replace(FULL, window=window), prior.counts)
        assert arm.layer_set.first_changed == 0
        counts = evaluate_arm(probe, prior, arm, states[0], target, 12)
        assert np.array_equal(counts, prior.tally(ids == target, confidence))
    arm = Arm(replace(FULL, window=Window(4, 8)), prior.counts)
    whole = evaluate_arm(probe, prior, arm, states[0], probe.predict(states[-1]), 12)
    assert whole[1].sum() == 1 and not torch.allclose(hidden, states[-1])


def test_windows_are_for_long_contexts() -> None:
    """Considered from twice their positions on, and combined with the layer set in use."""
    profile = Latency(1.0, 0.01, 1.0)  # attention over 512 positions takes 6 ms, over 4,096 takes 42
    method = ready(windows=[[4, 508]], exits=[0.5], uniform=[], margin=0.0)
    method.start(Prefill([1] * 30, None))
    method._set_latency(profile)
    for arm in method._pool.arms:
        arm.counts, arm.evaluated = arm.counts + np.array([[0.0], [50.0]]), True
    method._plan(1000)
    assert method._choice is not None and method._choice.draft.layer_set.window is None and len(method._pool.arms) == 2
    method._pool.arms[0].counts = method._pool.prior.counts * [[50], [1]]
    method._plan(4096)
    assert method._choice.draft.layer_set == method._choice.arm.layer_set == replace(FULL, window=Window(4, 508))
    method._pool.arms[0].counts = method._pool.prior.counts + np.array([[0.0], [500.0]])
    method._pool.arms[1].counts = method._pool.prior.counts * [[50], [1]]
    for _ in range(2):
        method._plan(4096)
        derived = [arm for arm in method._pool.arms if arm.derived]
        expected = replace(method._pool.arms[0].layer_set, window=Window(4, 508))
        assert [(arm.layer_set, arm.evaluated) for arm in derived] == [(expected, False)]


def test_costs_with_a_window_are_those_of_the_positions_that_it_reads() -> None:
    costs, exit_set = Costs(Latency(1.0, 0.01, 1.0), LAYERS, 2000, 4, True, 5), LayerSet.exit(LAYERS, 1)
    for recent in (1, 700, 1995, 2500):
        cost = costs.draft_ms(replace(exit_set, window=Window(4, recent)))
        assert cost == pytest.approx(1 + 0.01 * min(2000, recent + 4) + 1) and cost <= costs.draft_ms(exit_set)
    assert costs.draft_ms(replace(exit_set, window=Window(4, 1996))) == costs.draft_ms(exit_set)
    windowed = replace(exit_set, window=Window(4, 10))
    assert costs.verify_ms(windowed)[0] == pytest.approx(costs.ar_ms)  # nothing is reused


def lively(rng: random.Random, copies: int | None = None) -> Adaptive:
    """Settings under which it evaluates, searches and drafts within a few tokens."""
    copies = rng.choice([0, 2, 16]) if copies is None else copies
    return method_of(
        "adaptive",
        rows=rng.randint(1, 3),
        interval=rng.randint(1, 4),
        stake=60,
        margin=0.0,
        optimism=3.0,
        prior=rng.choice([2.5, 200.0]),
        min_similarity=rng.choice([-1.0, 0.5]),
        draft_len=rng.randint(1, 6),
        thresholds=rng.choice([[], [0.05, 0.2], [0.3, 0.5, 0.7, 0.85]]),
        selected=rng.random(),
        reuse_prefix=rng.random() < 0.5,
        exits=[0.25, 0.8],
        uniform=rng.choice([[], [0.2]]),
        lookup_len=copies,
        windows=rng.choice([[], [[1, 3]], [[0, 1], [2, 5]]]),
    )


def test_greedy_output_is_ar(decoders: Load) -> None:
    assert check_greedy(lively, decoders) > 12


@pytest.mark.parametrize("copies", [0, 4])
def test_a_restored_method_continues_identically(copies: int, decoders: Load) -> None:
    def settled(state: bytes | None) -> Adaptive:
        method = lively(random.Random(1), copies)
        method.check(DIMS)
        with torch.inference_mode():
            method.prepare(engine.probe, [])
        if state is not None:
            method.restore(state)
        return method

    engine = engine_for(loaded(decoders, "qwen3", compiled=True), 100, 60, frozenset())
    first = settled(None)
    engine.generate(first, [5, 6, 7])
    second = settled(first.state())
    made = [engine.generate(method, [8, 9, 10, 11]) for method in (first, second)]
    traces = [[(s.layer_set, s.draft_len, s.accepted_len, s.estimate) for s in run.steps] for run in made]
    assert traces[0] == traces[1] and first.state() == second.state()
    if copies:
        assert any(step[0] is None and step[1] for step in traces[0])
    else:
        assert any(step[0] is not None for step in traces[0]) and any(step[3] is not None for step in traces[0])


def test_drafts_with_rounded_weights_check_copies(decoders: Load) -> None:
    """Losslessly, in fewer passes than tokens; later drafts count as cheaper, also after a restart."""
    decoder = loaded(decoders, "llama", compiled=True)
    decoder.quantise(4)
    engine = engine_for(decoder, 200, 120, frozenset())
    rounded = tuple(NodeTimes(nodes, 0.0, 0.1, 0.1, 0.0) for nodes in (1, 64))
    profile = replace(latency(0.05, growth=0.2), int4_passes=rounded, int4_draft_rest_ms=0.01)
    engine.probe = ModelProbe(decoder, engine.cache, profile)  # verified nodes are dear, so that few copies pay alone
    ar = [engine.generate(AR(), prompt).output for prompt in ([5, 6, 7], [9, 8])]
    for lookup_len in (0, 16):
        options = {"int4": True, "lookup_len": lookup_len, "stake": 60, "interval": 2, "rows": 2, "margin": 0.0}
        first, second = ready(**options), ready(**options)
        for method in (first, second):
            method.prepare(engine.probe, [])
        made = [engine.generate(first, [5, 6, 7])]
        second.restore(first.state())
        made += [engine.generate(method, [9, 8]) for method in (first, second)]
        assert [run.output for run in made] == [*ar, ar[1]] and first.state() == second.state()
        drafts = [step for run in made for step in run.steps if step.layer_set and step.layer_set.rounded]
        drafted = sum(step.draft_len for step in drafts)
        calls = sum(work.calls for step in drafts for work in step.work if work.part == "draft" and work.heads)
        passes, tokens = json.loads(first.state())["nested"]
        assert drafted > 60 and (calls < drafted, passes < tokens) == (lookup_len > 0, lookup_len > 0)


def test_first_arms_fit_the_model() -> None:
    method = Adaptive()
    method.check(ModelDims("deep", 30, 1, 128, VOCAB))
    sets = [arm.layer_set for arm in method._pool.arms]
    assert [s.first_changed // 2 for s in sets[:5]] == [4, 8, 11, 15, 19]
    assert [len(s.skipped) for s in sets[5:]] == [15, 27, 0] and method._pool.arms[7].layer_set.window == Window(4, 508)
    method.check(ModelDims("flat", 2, 1, 128, VOCAB))
    assert [arm.layer_set for arm in method._pool.arms] == [LayerSet.exit(2, 1), LayerSet(2, window=Window(4, 508))]


def test_the_preset_holds_the_defaults() -> None:
    named = {name: p.default for name, p in inspect.signature(Adaptive).parameters.items()}
    preset = config("adaptive").items()
    settings = {name: tuple(v) if hasattr(v, "__iter__") and not isinstance(v, str) else v for name, v in preset}
    assert settings.pop("_target_") == "methods.adaptive.Adaptive" and settings == named
