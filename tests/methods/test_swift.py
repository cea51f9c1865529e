"""SWIFT's search: candidates and their score, course and ends, persistence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from torch import Tensor

from methods import swift
from methods.bayesian import suggest
from methods.swift import KAPPA, SWIFT
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, Prefill, Probe
from ssd_bench.contract.optional import Stateful
from ssd_bench.contract.shape import ModelDims
from ssd_bench.cost.tpt import tpt
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.model.decoder import Decoder, Pass
from tests.conftest import LAYERS, VOCAB
from tests.lossless import DIMS, Load, engine_for
from tests.runs import config

PROMPT = [5, 6, 7]
FULL = LayerSet.full(LAYERS)


def made(preset: str = "swift", mode: str = "greedy", **options: Any) -> SWIFT:
    return instantiate(config(preset, f"decode={mode}"), **options)


def for_layers(n_layers: int, n_params: float = 13e9, **options: Any) -> SWIFT:
    method = made(**options)
    method.check(ModelDims("model", n_layers, int(n_params), 4096, VOCAB))
    return method


def cheap(points: Sequence[np.ndarray], scores: Sequence[float], rng: np.random.RandomState, _: float) -> np.ndarray:
    """A quick suggestion that depends on everything that the real one depends on."""
    return (rng.rand(len(points[0])) + 0.37 * np.sum(points, 0) + sum(scores)) % 1


@pytest.fixture(autouse=True)
def _quick_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swift, "suggest", cheap)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LayerSet, list[int], int, float]]:
    """Every candidate with its window, prefix and score, as they come."""
    seen = []
    real = swift.matchness

    def spy(layer_set: LayerSet, tokens: Sequence[int], prefix_len: int, probe: Probe) -> float:
        score = real(layer_set, tokens, prefix_len, probe)
        seen.append((layer_set, list(tokens), prefix_len, score))
        return score

    monkeypatch.setattr(swift, "matchness", spy)
    return seen


def stream(method: SWIFT, decoder: Decoder, prompts: int, new: int = 30) -> list:
    engine = engine_for(decoder, 3 + new, new, frozenset())
    return [engine.generate(method, [p, 6, 7]) for p in range(prompts)]


def checked(**options: Any) -> SWIFT:
    """A method for the tiny model that searches early: γ = 2, half of the inner sublayers skipped."""
    method = made(**{"context_window": 2, "skip_ratio": 0.5, "draft_len": 4, "stop_below": 0.1} | options)
    method.check(DIMS)
    return method


# ---- candidates


@pytest.mark.parametrize(
    ("n_layers", "ratio", "count"),
    [(40, 0.45, 34), (48, 0.5, 46), (80, 0.5, 78), (80, 0.4, 62), (3, 0.5, 1), (4, 1.0, 4), (6, 0.1, 0), (4, 0.0, 0)],
)
def test_every_searched_set_has_its_size_and_spares_first_and_last_block(
    n_layers: int, ratio: float, count: int
) -> None:
    method = for_layers(n_layers, skip_ratio=ratio, bayes_interval=3)
    for _ in range(30):
        point, layer_set = method._next_candidate()
        method._search.steps += 1
        method._search.points.append(point)
        method._search.scores.append(0.5)
        assert len(layer_set.skipped) == count == int(2 * (n_layers - 2) * ratio)
        assert not layer_set.skipped & {0, 1, 2 * n_layers - 2, 2 * n_layers - 1}


@pytest.mark.parametrize(("n_layers", "odd"), [(40, 19), (80, 39), (4, 1), (3, 1)])
def test_the_initial_set_skips_every_odd_block(n_layers: int, odd: int) -> None:
    blocks = tuple(range(1, n_layers - 1, 2))
    draft = for_layers(n_layers).propose(Context(1, 3, [4], 9))
    assert len(blocks) == odd and draft.layer_set == LayerSet.skipping(n_layers, blocks, blocks)


def test_every_beta_th_candidate_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random candidates are registered as 0/1 vectors, suggestions as they are; their largest coordinates count."""
    suggestion, asked = np.array([0.1, 0.9, 0.9, 0.3]), []

    def fixed(points: Sequence[np.ndarray], scores: Sequence[float], *_: object) -> np.ndarray:
        asked.append((len(points), np.stack(points), list(scores)))
        return suggestion

    monkeypatch.setattr(swift, "suggest", fixed)
    monkeypatch.setattr(swift, "matchness", lambda *_: 0.25)
    method = checked(bayes_interval=4)
    method.start(Prefill(PROMPT, None))
    method._committed = [1] * 9
    sets = set()
    for _ in range(12):
        method._score_candidate(12, None)  # type: ignore[arg-type]
        sets.add(method._search.layer_set)
    assert [n for n, _, _ in asked] == [3, 7, 11]
    points = asked[-1][1]
    assert np.array_equal(points[[3, 7]], [suggestion] * 2) and asked[-1][2] == [0.25] * 11
    rest = np.delete(points, [3, 7], axis=0)
    assert set(rest.flatten()) == {0.0, 1.0} and (rest.sum(1) == 2).all()
    method._search.steps = 3
    # coordinates: attention of blocks 1 and 2, then their MLPs
    assert method._next_candidate()[1] == LayerSet.skipping(LAYERS, attn=[2], mlp=[1])


def test_suggestions_seek_what_scored_well() -> None:
    """Suggestions stay in the unit cube, repeat with the seed and follow the decisive coordinate."""
    rng = np.random.RandomState(0)
    points = [(rng.rand(4) < 0.5).astype(float) for _ in range(24)]
    scores = [float(point[2]) for point in points]
    first, again, other = (suggest(points, scores, np.random.RandomState(s), KAPPA) for s in (1, 1, 2))
    assert first.shape == (4,) and (first >= 0).all() and (first <= 1).all()
    assert np.array_equal(first, again) and first[2] > 0.5 and other[2] > 0.5


# ---- the score


@pytest.mark.parametrize("window", ["first", "last"])
def test_matchness_is_that_of_the_draft_over_the_window(window: str, decoders: Load, scored: list) -> None:
    """The draft reads the model's own keys and values of what precedes the window, and no others."""
    decoder = decoders("qwen3")
    output = stream(checked(window=window, context_window=5, patience=99, max_score=1.0), decoder, 1)[0].output
    assert len(scored) > 5 and len({score for *_, score in scored}) > 1
    starts = []
    for layer_set, tokens, prefix_len, score in scored:
        sequence = [0, 6, 7, *output]
        assert tokens == sequence[prefix_len : prefix_len + 6]
        rows = decoder.new_cache(64)
        decoder.prefill(torch.tensor(sequence[:prefix_len]), rows)
        hidden = decoder.embed(torch.tensor(tokens))
        hidden, _ = decoder.run(Pass(layer_set.kept, hidden, prefix_len), rows)
        predicted = decoder.logits(hidden).argmax(-1).tolist()
        assert score == sum(p == t for p, t in zip(predicted, tokens[1:])) / 5
        starts.append(prefix_len)
    assert set(starts) == {3} if window == "first" else len(set(starts)) == len(starts)


def test_a_candidate_costs_one_pass_of_its_sublayers_over_the_window(
    decoder: Decoder, scored: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, apply = [], ModelProbe.apply_sublayer

    def noting(probe: ModelProbe, i: int, hidden: Tensor, *rest: int) -> Tensor:
        ran.append((i, hidden.shape[:2]))
        return apply(probe, i, hidden, *rest)

    monkeypatch.setattr(ModelProbe, "apply_sublayer", noting)
    stream(checked(max_score=1.0, bayes_interval=3), decoder, 1)
    assert len(scored) > 5 and ran == [(i, (1, 2)) for layer_set, *_ in scored for i in layer_set.kept]


def test_outputs_shorter_than_the_window_and_two_are_not_searched(decoder: Decoder, scored: list) -> None:
    """γ+2 committed tokens are needed: γ+1 of the window, and one more."""
    method = checked(context_window=7, k_set="chain", bayes_interval=None)
    for new in range(1, 12):
        engine = engine_for(decoder, 3 + new, new, frozenset())
        steps = engine.generate(method, PROMPT).steps
        committed = np.cumsum([step.emitted for step in steps])
        assert len(scored) == (committed >= 9).sum()
        scored.clear()
        method.check(DIMS)


# ---- the course of the search


def test_best_never_falls_and_its_set_drafts(decoder: Decoder, scored: list) -> None:
    """Only strictly better candidates replace it, across prompts; the best-scored set drafts."""
    method = checked(context_window=4, max_score=1.0, patience=999, bayes_interval=3)
    drafted = [step.layer_set for run in stream(method, decoder, 4) for step in run.steps]
    best, expected = 0.0, [method._initial]
    for layer_set, _, _, score in scored:
        if score > best:
            best = score
            expected.append(layer_set)
    assert method._search.best == best > 0 and method._search.layer_set == expected[-1]
    distinct = [s for i, s in enumerate(drafted) if i == 0 or s != drafted[i - 1]]
    assert distinct == [s for i, s in enumerate(expected) if i == 0 or s != expected[i - 1]]


@pytest.mark.parametrize(
    ("options", "scores", "expected"),
    [
        ({"max_steps": 6}, [0.0], 7),  # o > S, as in the code
        ({"patience": 4}, [0.0], 5),
        ({"patience": 4}, [0.0, 0.0, 0.5, 0.0], 8),  # a better one starts the count again
        ({"max_score": 0.5}, [0.25, 0.5, 0.75], 3),  # above, not at
        ({"max_steps": 0}, [0.0], 0),
    ],
)
def test_stops_fire_once(
    options: dict, scores: list, expected: int, decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search ends for good, over all prompts, and forgets its points."""
    given = iter(scores + [scores[-1]] * 999)
    asked = []
    monkeypatch.setattr(swift, "matchness", lambda *_: asked.append(1) or next(given))
    method = checked(**{"bayes_interval": 3} | options)
    runs = stream(method, decoder, 3)
    assert len(asked) == expected < sum(len(run.steps) for run in runs)
    assert not method._search.active and not method._search.points


@pytest.mark.parametrize("interval", [1, 3])
def test_candidates_come_every_interval(interval: int, decoder: Decoder) -> None:
    """Estimates tell when: best matchness, the mean draft length so far, and TPT by the latency profile."""
    method = checked(opt_interval=interval, max_score=1.0, context_window=1, k_set="chain")
    run = stream(method, decoder, 1)[0]
    events = [step for step in run.steps if step.estimate is not None]
    assert events and all((step.index - 1) % interval == 0 for step in events)
    assert len(events) == method._search.steps
    latency = engine_for(decoder, 33, 30, frozenset()).probe.latency
    sets = {step.index: step.layer_set for step in run.steps}
    best = 0.0
    for step in events:
        estimate = step.estimate
        assert estimate is not None and estimate.alpha >= best
        best, length = estimate.alpha, step.context_len + step.emitted
        assert estimate.draft_len == round(sum(s.draft_len for s in run.steps[: step.index]) / step.index)
        chosen = sets.get(step.index + 1, method._search.layer_set)
        times = latency.draft_ms(chosen, length), latency.target_ms(LAYERS, length)
        assert estimate.tokens_per_s == pytest.approx(tpt(best, estimate.draft_len, *times))


def test_score_initial_makes_the_initial_set_the_first_candidate(decoder: Decoder, scored: list) -> None:
    method = checked(score_initial=True, context_window=4, max_score=1.0, bayes_interval=None)
    stream(method, decoder, 1)
    assert scored[0][0] == method._initial and method._search.points[0].tolist() == [1, 0, 1, 0]
    assert method._search.best == max(score for *_, score in scored)
    plain = checked(context_window=4, bayes_interval=None)
    del scored[:]
    stream(plain, decoder, 1)
    assert all(len(layer_set.skipped) == 2 for layer_set, *_ in scored)


# ---- what survives a prompt


def test_state_continues_as_if_nothing_had_happened(decoder: Decoder) -> None:
    """A restored method makes the same candidates, drafts and state, during the search and after."""
    for options in ({"max_score": 1.0, "reset": "on_shift"}, {"max_steps": 2}):
        first = checked(bayes_interval=3, context_window=4, **options)
        assert isinstance(first, Stateful)
        stream(first, decoder, 2, new=16)
        other = checked(bayes_interval=3, context_window=4, seed=99, **options)
        other.restore(first.state())
        assert other.state() == first.state()
        assert first._search.active == bool(first._search.points) == ("max_score" in options)
        ours, theirs = (
            [(run.output, [(s.layer_set, s.estimate) for s in run.steps]) for run in stream(method, decoder, 2, 16)]
            for method in (first, other)
        )
        assert ours == theirs and other.state() == first.state()


def test_a_state_stays_small() -> None:
    """A record keeps one per prompt: 1000 points of 156 coordinates take less than 150 kB."""
    method = for_layers(80)
    for step in range(1000):
        random_one = method._next_candidate()[0]
        method._search.points.append(np.random.RandomState(step).rand(156) if step % 25 == 24 else random_one)
        method._search.scores.append(0.5)
    assert len(method.state()) < 150_000


def after(method: SWIFT, *rates: float) -> list[bool]:
    """Return whether the search restarted after each prompt of these acceptance rates."""
    began = []
    for rate in rates:
        method._accepted, method._drafted, before = round(100 * rate), 100, method._search
        method.start(Prefill(PROMPT, None))
        began.append(method._search is not before)
        if began[-1]:
            assert (method._search.layer_set, method._search.best) == (method._initial, 0.0)
            assert method._search.active and not method._search.points
    return began


def test_reset_says_when_the_search_begins_anew() -> None:
    rates = (0.9, 0.85, 0.7, 0.7, 0.7, 0.5)
    assert after(checked(reset="never"), *rates) == [False] * 6
    assert after(checked(reset="on_instance"), *rates) == [True] * 6
    # 0.7 < (0.9 + 0.85) / 2 - 0.1, and then the mean is that of the prompts since
    assert after(checked(reset="on_shift"), *rates) == [False, False, True, False, False, True]
    assert after(checked(reset="on_shift", shift_drop=0.3), *rates)[:5] == [False] * 5
    silent = checked(reset="on_shift")
    after(silent, 0.9)
    silent.start(Prefill(PROMPT, None))  # nothing was drafted: no rate
    assert silent._search.prompts == 1


def test_resets_do_not_repeat_the_candidates(decoder: Decoder, scored: list) -> None:
    method = checked(reset="on_instance", max_score=1.0, max_steps=1, bayes_interval=None, context_window=1)
    sets = []
    for _ in range(6):
        stream(method, decoder, 1)
        sets.append(tuple(layer_set for layer_set, *_ in scored))
        scored.clear()
    assert len(set(sets)) > 1 and set(map(len, sets)) == {2}


def test_r_falls_where_it_cannot_reach_the_acceptance_rate() -> None:
    """r falls by 0.1 after low acceptance once the search is over, never to an empty set."""
    method = for_layers(80, 70e9, reduce_below=0.7)
    assert after(method, 0.6) == [False] and method._ratio == 0.5  # still searching
    method._search.active = False
    assert after(method, 0.7) == [False]
    assert after(method, 0.6) == [True] and method._ratio == 0.4
    assert len(method._next_candidate()[1].skipped) == 62
    for _ in range(9):
        method._search.active = False
        after(method, 0.1)
    assert method._ratio == 0.1
    plain = for_layers(80, 70e9)
    plain._search.active = False
    assert after(plain, 0.1) == [False] and plain._ratio == 0.5
