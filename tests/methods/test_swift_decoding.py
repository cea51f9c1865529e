"""SWIFT's decoding: its trees, equality with a chain, losslessness, presets and settings."""

from __future__ import annotations

import random

import pytest
import torch

from methods import swift
from methods.ar import AR
from methods.bayesian import suggest
from methods.fixed_layers import FixedLayers
from methods.swift import SWIFT
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Probe, Verification
from ssd_bench.model.decoder import Decoder
from tests.lossless import DIMS, Load, check_greedy, check_sampled, decode, engine_for
from tests.methods.test_swift import PROMPT, cheap, checked, for_layers, made, stream

PRESETS = ("swift", "swift_code")


@pytest.fixture(autouse=True)
def _quick_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "suggest", cheap)


# ---- trees


@pytest.mark.parametrize("k_set", ["paper", "code"])
def test_tree_logits_and_cache_are_those_of_the_tokens_in_a_row(k_set: str, decoders: Load) -> None:
    """Any root-to-node path has the logits of its tokens fed in sequence; compaction keeps the right rows."""
    decoder, trees = decoders("qwen2"), []

    class Watched(SWIFT):
        def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
            trees.append(verification)
            return super().observe(verification, probe)

    method = Watched(context_window=2, skip_ratio=0.25, draft_len=4, stop_below=0.1, max_score=1.0, k_set=k_set)
    method.check(DIMS)
    engine = engine_for(decoder, 33, 30, frozenset())
    output = engine.generate(method, PROMPT).output
    rng = random.Random(0)
    fresh = decoder.new_cache(64)
    for seen in trees:
        tree, before = seen.tree, seen.length - len(seen.path)
        assert not tree.is_chain
        node = rng.randrange(len(tree))
        path = [i for i in range(len(tree)) if tree.mask()[node, i]]
        tokens = (PROMPT + output)[:before] + [tree.tokens[i] for i in path]
        last, _ = decoder.prefill(torch.tensor(tokens), fresh)
        assert torch.allclose(decoder.logits(last)[0], seen.logits[node], atol=1e-5)
    assert any(list(seen.path) != list(range(len(seen.path))) for seen in trees)  # siblings were accepted, rows moved
    decoder.prefill(torch.tensor(PROMPT + output[:-1]), fresh)
    for ours, new in zip(engine.cache.keys + engine.cache.values, fresh.keys + fresh.values):
        assert torch.allclose(ours[:, : fresh.length], new[:, : fresh.length])


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_k_of_one_is_a_chain_with_a_fixed_threshold(mode: str, decoder: Decoder) -> None:
    """Every step without siblings and search is that of `FixedLayers` with the uniform set."""
    ours = made(k_set="chain", max_steps=0, draft_len=5, stop_below=0.2)
    theirs = FixedLayers(skip_attn=[1], skip_mlp=[1], draft_len=5, stop_below=0.2)
    for seed in range(2):
        runs = [decode(decoder, method, PROMPT, 30, seed=seed, mode=mode) for method in (ours, theirs)]
        assert runs[0].output == runs[1].output
        traces = [[(s.layer_set, s.draft_len, s.accepted_len, s.stop_reason) for s in run.steps] for run in runs]
        assert traces[0] == traces[1] and {trace[-1] for trace in traces[0]} >= {"confidence"}


def test_no_early_stopping_drafts_to_the_cap(decoder: Decoder) -> None:
    run = stream(checked(stop_below=0.0, draft_len=6, bayes_interval=None), decoder, 1)[0]
    assert all(step.draft_len == 6 for step in run.steps if step.stop_reason == "length")
    assert {step.stop_reason for step in run.steps} <= {"length", "budget"}


def test_widths_follow_the_confidence() -> None:
    """(1, 3, 5, 10) in the paper, (3, 5, 8, 10) in the greedy code; one candidate throughout needs no widths."""

    def width(method: SWIFT, confidence: float) -> int:
        method.check(DIMS)
        widths = method.propose(Context(1, 3, [4], 9)).widths
        return next((k for bound, k in widths if confidence > bound), 1)

    confidences = (0.97, 0.95, 0.8, 0.6, 0.5, 1e-9)
    assert [width(made(), c) for c in confidences] == [1, 3, 5, 5, 10, 10]
    assert [width(made("swift_code"), c) for c in confidences] == [3, 5, 8, 8, 10, 10]
    assert [width(made("swift_code", "sample"), c) for c in confidences] == [1, 3, 5, 5, 10, 10]
    assert [width(made(k_set=[10, 10, 10, 10]), c) for c in confidences] == [10] * 6  # Fig. 2a
    chain = made(k_set="chain")
    assert width(chain, 0.1) == 1 and chain.propose(Context(1, 3, [4], 9)).widths == ()


# ---- lossless


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_with_random_settings_are_lossless(preset: str, decoders: Load) -> None:
    def make(rng: random.Random) -> SWIFT:
        return made(
            preset,
            skip_ratio=rng.choice([0.0, 0.3, 0.5, 1.0]),
            context_window=rng.randint(1, 6),
            window=rng.choice(["first", "last"]),
            opt_interval=rng.randint(1, 3),
            bayes_interval=rng.choice([None, 1, 3]),
            max_score=1.0,
            score_initial=rng.random() < 0.5,
            draft_len=rng.choice([1, 2, 4, 4, 25]),
            stop_below=rng.choice([0.0, 0.1, 0.8]),
            seed=rng.randrange(99),
        )

    assert check_greedy(make, decoders) > 12


def test_a_search_with_real_suggestions_is_lossless(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "suggest", suggest)
    options = {"context_window": 2, "bayes_interval": 4, "max_steps": 7, "draft_len": 3, "max_score": 1.0}
    run = decode(decoder, made(**options), PROMPT, 30)
    assert run.output == decode(decoder, AR(), PROMPT, 30).output
    assert sum(step.estimate is not None for step in run.steps) >= 4


def test_the_sampled_distribution_is_kept_while_searching(decoders: Load) -> None:
    method = made(mode="sample", context_window=1, window="last", draft_len=2, stop_below=0.1, max_score=1.0)
    check_sampled(lambda: method, decoders, position=3)
    assert method._search.steps > 50


# ---- settings


def test_presets_hold_the_published_settings() -> None:
    paper, code = made(), made("swift_code")
    shared = ("opt_interval", "bayes_interval", "max_steps", "patience", "draft_len", "stop_below", "window", "reset")
    for method, name, gamma, most in ((paper, "swift", 32, 0.95), (code, "swift_code", 50, 0.93)):
        assert [getattr(method, setting) for setting in shared] == [1, 25, 1000, 300, 25, 0.8, "first", "never"]
        assert (method.name, method.context_window, method.max_score) == (name, gamma, most)
        assert not method.score_initial and method.reduce_below is None and not method.reuse_prefix
    assert [for_layers(40, n)._ratio for n in (7e9, 13e9, 34e9, 70e9)] == [0.45, 0.45, 0.5, 0.5]
    code.check(DIMS)
    assert code._ratio == 0.45


# ---- the frozen set of a domain shift


def test_the_search_ends_after_its_prompts_and_nothing_begins_anew(decoder: Decoder) -> None:
    """Figure 4 of ConfLayers: the best set then drafts for good, even with a state restored in between."""
    options = {"search_prompts": 2, "reset": "on_instance", "bayes_interval": None, "max_score": 1.0}
    method = checked(**options)
    sets: list[set[object]] = []
    for prompt in range(5):
        run = stream(method, decoder, 1)[0]
        sets.append({step.layer_set for step in run.steps})
        if prompt == 3:
            state = method.state()
            method = checked(**options)
            method.restore(state)
    assert not method._search.active and len(sets[0]) > 1
    assert len(sets[2] | sets[3] | sets[4]) == 1
    open_end = checked(**options | {"search_prompts": None})
    stream(open_end, decoder, 3)
    assert open_end._search.active
