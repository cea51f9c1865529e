"""KnapSpec: the knapsack against brute force and its recurrences, schedule, presets, switches, losslessness."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from methods.ar import AR
from methods.knapsack import AcceptanceRates, Branch, Knapsack, directions, integer_weights
from methods.knapspec import KnapSpec
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, Prefill, Probe
from ssd_bench.contract.shape import ModelDims
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.tpt import tpt
from ssd_bench.engine.probe import ModelProbe, mean_cosine
from ssd_bench.model.decoder import Decoder, Pass
from tests.conftest import CONTEXT, LAYERS, VOCAB
from tests.lossless import DIMS, Load, check_greedy, decode, engine_for, loaded, method_of, prepare
from tests.runs import config

EQUAL = Latency(1.0, 0.0, 1.0)
LENGTH = 15  # committed tokens of `history`


def history(decoder: Decoder, r: int = 4, before: int = 11, seed: int = 0) -> tuple[Tensor, Probe]:
    """States [2L+1, r, d] of the last r of before + r committed tokens, and a probe on that cache."""
    ids = torch.randint(VOCAB, (before + r,), generator=torch.Generator().manual_seed(seed))
    cache = decoder.new_cache(64)
    decoder.prefill(ids[:before], cache)
    taps = tuple(range(2 * decoder.arch.n_layers + 1))
    _, states = decoder.run(Pass(decoder.all_sublayers, ids[before:], before, taps=taps), cache)
    cache.commit(range(r))
    probe = ModelProbe(decoder, cache, EQUAL)
    assert states is not None
    return states, probe


def solve(states: Tensor, probe: Probe, pair: tuple[int, int] = (1, 1), **options: object) -> list[Branch]:
    settings: dict[str, Any] = {"budget": 0.5, "min_similarity": -1.0, "strict": False, "protect": False} | options
    return Knapsack(states.float(), LENGTH - 4, pair, dtype=states.dtype, **settings).run(probe)


def rerun(states: Tensor, probe: Probe, layer_set: LayerSet) -> Tensor:
    """Final stream [r, d] of one subset, run alone."""
    hidden = states[:1]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, 11)
    return hidden[0]


def weight(layer_set: LayerSet, pair: tuple[int, int]) -> int:
    return pair[0] * len(layer_set.skip_attn) + pair[1] * len(layer_set.skip_mlp)


@pytest.mark.parametrize(("family", "pair"), [("llama", (1, 1)), ("qwen2", (1, 2)), ("qwen3", (3, 1))])
def test_candidates_are_what_their_sets_compute(family: str, pair: tuple[int, int], decoders: Load) -> None:
    """Backtracked weights sum to j, and running S alone gives g[2L][j] and its cosine."""
    states, probe = history(decoders(family))
    candidates = solve(states, probe, pair)
    assert len(candidates) > 3
    for candidate in candidates:
        assert weight(candidate.layer_set, pair) == candidate.weight <= sum(pair) * LAYERS // 2
        alone = rerun(states, probe, candidate.layer_set)
        assert torch.allclose(alone, candidate.hidden, atol=1e-5)
        assert mean_cosine(alone[None], directions(states[-1])).item() == pytest.approx(candidate.similarity, abs=1e-5)


def test_zero_weight_is_the_full_model(decoders: Load) -> None:
    """The j = 0 path reproduces every X^(i), and the model's predictions (α̂ = 1)."""
    states, probe = history(decoders())
    first = solve(states, probe)[0]
    assert first.weight == 0 and first.layer_set == LayerSet.full(LAYERS)
    assert torch.allclose(first.hidden, states[-1])
    assert torch.allclose(rerun(states, probe, first.layer_set), states[-1])
    assert torch.equal(probe.predict(first.hidden), probe.predict(states[-1]))


@pytest.mark.parametrize("seed", range(3))
def test_dp_is_at_most_brute_force(seed: int, decoders: Load) -> None:
    """The DP's cosine is at most that weight's best subset's, and mostly equal."""
    states, probe = history(decoders(("llama", "qwen2", "qwen3")[seed]), r=3, seed=seed)
    pair = (1, 2)
    best: dict[int, float] = {}
    for size in range(2 * LAYERS + 1):
        for skipped in combinations(range(2 * LAYERS), size):
            layer_set = LayerSet(LAYERS, frozenset(skipped))
            if weight(layer_set, pair) <= 6:
                value = mean_cosine(rerun(states, probe, layer_set)[None], directions(states[-1])).item()
                best[weight(layer_set, pair)] = max(value, best.get(weight(layer_set, pair), -1.0))
    found = {c.weight: c.similarity for c in solve(states, probe, pair)}
    assert found.keys() == best.keys()
    assert all(found[j] <= best[j] + 1e-6 for j in found)
    assert sum(found[j] >= best[j] - 1e-6 for j in found) >= len(found) / 2


def test_protected_blocks_are_never_skipped(decoders: Load) -> None:
    states, probe = history(decoders())
    for candidate in solve(states, probe, protect=True):
        assert not candidate.layer_set.skipped & {0, 1, 2 * LAYERS - 2, 2 * LAYERS - 1}


def test_search_takes_the_highest_tpt(decoders: Load) -> None:
    """The first maximum of TPT over all candidates and γ, by each one's own α̂."""
    states, probe = history(decoders("qwen3"))
    probe.latency = Latency(0.7, 1e-3, 0.3)
    method = KnapSpec(strict=False, min_similarity=-1.0)
    method.check(DIMS)
    candidates = solve(states, probe)
    layer_set, estimate = method._best(candidates, states, 15, probe)
    target, table = probe.predict(states[-1]), []
    for candidate in candidates:
        alpha = float((probe.predict(candidate.hidden) == target).float().mean())
        draft, full = probe.latency.draft_ms(candidate.layer_set, 15), probe.latency.target_ms(LAYERS, 15)
        table += [(tpt(alpha, g, draft, full), candidate.layer_set, g, alpha) for g in range(1, 11)]
    best = max(table, key=lambda row: row[0])
    assert (estimate.tokens_per_s, layer_set, estimate.draft_len, estimate.alpha) == best


@pytest.mark.parametrize("seed", range(4))
def test_agreement_is_that_of_the_whole_vocabulary(seed: int, decoders: Load) -> None:
    """Bounds never fall below the rate from full predictions, which settling a branch gives."""
    states, probe = history(decoders("llama"), seed=seed)
    branches = torch.stack([candidate.hidden for candidate in solve(states, probe)])
    rates = (probe.predict(branches) == probe.predict(states[-1])).float().mean(-1).tolist()
    agreement = AcceptanceRates(probe, states[-1], branches)
    assert len(set(rates)) > 1
    for index in reversed(range(len(branches))):
        assert all(bound >= rate for bound, rate in zip(agreement.bounds(), rates))
        agreement.settle(index)
        assert agreement.bounds()[index] == rates[index]


def test_integer_weights() -> None:
    assert integer_weights(Latency(1.0, 0.01, 1.0), 100, None) == (2, 1)
    assert integer_weights(Latency(3.4, 0.0, 1.0), 100, None) == (1, 3)
    assert integer_weights(Latency(1.0, 0.0, 9.0), 100, 5) == (5, 1)
    assert integer_weights(Latency(1.2, 0.0, 1.0), 100, None) == (1, 1)


@pytest.mark.parametrize(("family", "interval"), [("llama", 1), ("qwen2", 4), ("qwen3", 6), ("llama", 64)])
def test_any_interval_searches_and_is_lossless(family: str, interval: int, decoders: Load) -> None:
    decoder = loaded(decoders, family, compiled=True)
    made = decode(decoder, KnapSpec(interval=interval, draft_len=2, min_similarity=-1.0, warmup="full"), [5, 6, 7], 40)
    assert made.output == decode(decoder, AR(), [5, 6, 7], 40).output
    events = [step.index for step in made.steps if step.estimate is not None]
    assert events == list(range(6, len(made.steps), interval)) and events  # none after the last
    assert all(step.layer_set == LayerSet.full(LAYERS) for step in made.steps[:6])


def test_interval_follows_model_size() -> None:
    small, large = KnapSpec(), KnapSpec()
    small.check(DIMS)
    large.check(ModelDims("large", LAYERS, 14 * 10**9, CONTEXT, VOCAB))
    assert (small._steps, large._steps) == (64, 128)


@pytest.mark.parametrize(
    ("interval", "capture_steps", "tapped"),
    [
        (64, 5, [2, 3, 4, 5, 6, 66, 67, 68, 69, 70]),
        (30, 1, [2, 32, 62]),
        (2, 3, list(range(2, 80))),
        (64, 2**63 - 1, list(range(2, 80))),
    ],
)
def test_states_are_tapped_only_before_a_search(interval: int, capture_steps: int, tapped: list[int]) -> None:
    method = KnapSpec(interval=interval, capture_steps=capture_steps)
    method.check(DIMS)
    method.start(Prefill([1], None))
    steps = []
    for step in range(1, 80):
        method.propose(Context(step, step, [1], 9))
        steps += [step] * bool(method.taps.verify)
    assert steps == tapped


# ---- switches: each preset holds its source's values, each switch has its effect, and all are lossless


FULL = LayerSet.full(LAYERS)
BEGINNINGS = [{"warmup": "full"}, {"warmup": "ar"}, {"warmup": "ar", "search_on": "prefill", "prefill_tokens": 4}]
PUBLISHED = {  # in the paper, in the released code
    "interval": (None, 64),
    "capture_steps": (5, 5),
    "min_similarity": (0.5, 0.5),
    "strict": (True, False),
    "budget": (0.5, 0.5),
    "weight_cap": (None, 5),
    "protect_first_last": (False, True),
    "include_zero_skip": (True, False),
    "draft_len_grid": ([1, 10], [0, 17]),
    "draft_len": (10, 10),
    "stop_below": (0.7, 0.7),
    "warmup": ("ar", "full"),
    "search_on": ("steps", "steps"),
}
OURS = {"reuse_prefix": False, "prefill_tokens": 32, "draft_window": None, "draft_weights": "full"}


def search(probe: Probe, states: torch.Tensor, **options: Any) -> tuple[LayerSet, Estimate | None]:
    """One search event with these settings; without pruning by default."""
    method = KnapSpec(**{"min_similarity": -1.0} | options)
    method.check(DIMS)
    return method.search(states, LENGTH, probe)


def test_presets_hold_the_published_settings() -> None:
    for column, preset in enumerate(("knapspec", "knapspec_code")):
        settings = OmegaConf.to_container(config(preset))
        assert isinstance(settings, dict) and settings.pop("_target_") == "methods.knapspec.KnapSpec"
        published = {name: values[column] for name, values in PUBLISHED.items()}
        assert settings == published | OURS | {"name": preset}


@pytest.mark.parametrize(
    ("preset", "weights", "protect"), [("knapspec", (12, 1), False), ("knapspec_code", (5, 1), True)]
)
def test_presets_reach_the_knapsack(
    preset: str, weights: tuple, protect: bool, decoders: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attention twelve times as slow as an MLP weighs 12, capped 5; protection and budget go along."""
    states, probe = history(decoders())
    probe.latency = Latency(1.0, 0.0, 12.0)
    method = instantiate(config(preset))
    method.check(DIMS)
    seen: list[Knapsack] = []
    monkeypatch.setattr(Knapsack, "run", lambda self, probe: seen.append(self) or [])
    assert method.search(states, LENGTH, probe) == (FULL, None)  # no survivor: the full set
    assert (seen[0].weights, seen[0].protect, seen[0].strict) == (weights, protect, preset == "knapspec")
    assert (seen[0].budget, seen[0].min_similarity, seen[0].prefix_len) == (0.5, 0.5, LENGTH - 4)


@pytest.mark.parametrize("budget", [0.0, 0.25, 0.5, 1.0])
def test_the_budget_bounds_the_skipped_weight(budget: float, decoders: Load) -> None:
    """Up to ⌊budget K⌋, K = 4 (2 + 1): reached, and not exceeded."""
    assert solve(*history(decoders()), (2, 1), budget=budget)[-1].weight == int(budget * 12)


def test_strict_drops_a_cosine_equal_to_the_threshold(decoders: Load) -> None:
    states, probe = history(decoders())
    everything = solve(states, probe, (2, 1))

    def at(candidate: Branch, strict: bool) -> list[LayerSet]:
        floor = torch.tensor(candidate.similarity).item()
        found = solve(states, probe, (2, 1), min_similarity=floor, strict=strict)
        assert all(c.similarity >= floor for c in found)
        return [c.layer_set for c in found]

    kept = [c for c in everything if c.layer_set in at(c, strict=False)]
    assert kept and all(c.layer_set not in at(c, strict=True) for c in kept)


def test_the_candidate_of_least_weight_can_be_left_out(decoders: Load) -> None:
    """The full set drafts either way with no other choice, but only the paper has an estimate for it."""
    states, probe = history(decoders())
    assert search(probe, states, budget=0.0, include_zero_skip=False) == (FULL, None)
    layer_set, estimate = search(probe, states, budget=0.0, include_zero_skip=True)
    assert layer_set == FULL and estimate is not None and estimate.alpha == 1
    probe.latency = Latency(1.0, 0.0, 1.0)
    assert search(probe, states, include_zero_skip=False)[0] != FULL


@pytest.mark.parametrize("grid", [(0, 0), (3, 3), (1, 10), (0, 17)])
def test_the_estimate_stays_within_the_grid(grid: tuple[int, int], decoders: Load) -> None:
    """γ = 0 everywhere is AR's speed; a wider grid never estimates less."""
    states, probe = history(decoders("qwen3"))
    _, estimate = search(probe, states, draft_len_grid=grid)
    _, widest = search(probe, states, draft_len_grid=(0, 17))
    assert estimate is not None and widest is not None and grid[0] <= estimate.draft_len <= grid[1]
    assert estimate.tokens_per_s <= widest.tokens_per_s
    if grid == (0, 0):
        assert estimate.tokens_per_s == pytest.approx(1000 / probe.latency.target_ms(LAYERS, LENGTH))


def test_presets_with_random_settings_are_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> KnapSpec:
        return method_of(
            rng.choice(["knapspec", "knapspec_code"]),
            interval=rng.choice([1, 2, 5, 9, 64]),
            capture_steps=rng.choice([1, 1, 2, 6]),
            min_similarity=rng.choice([-1.0, -1.0, 0.0, 0.5]),
            budget=rng.random(),
            weight_cap=rng.choice([None, 1, 5]),
            strict=rng.random() < 0.5,
            protect_first_last=rng.random() < 0.5,
            include_zero_skip=rng.random() < 0.5,
            draft_len=rng.randint(1, 6),
            stop_below=rng.choice([0.0, 0.1, 0.7]),
            reuse_prefix=rng.random() < 0.5,
            **rng.choice(BEGINNINGS),
        )

    assert check_greedy(make, decoders) > 25


def test_nothing_drafts_before_the_first_event_with_ar(decoders: Load) -> None:
    """Steps 1 to m + 1 verify the root alone, so the first event sees m tokens; then a set drafts."""
    seen: list[int] = []
    method = KnapSpec(warmup="ar", capture_steps=3, min_similarity=-1.0)
    search_on = method.search
    method.search = lambda states, length, probe: (  # type: ignore[method-assign]
        seen.append(states.shape[1]) or search_on(states, length, probe)
    )
    steps = decode(decoders(), method, [3, 5, 8, 13], 20).steps
    assert [step.layer_set is None for step in steps[:4]] == [True] * 4 and seen == [3]
    assert all(step.layer_set is not None for step in steps[4:]) and steps[3].estimate is not None


@pytest.mark.parametrize("length", [3, 40])
def test_the_first_search_can_run_on_the_prompt(length: int, decoders: Load) -> None:
    """It sees the full model's states of the last tokens there, like a separate search on them."""
    prompt = [(7 * i) % VOCAB for i in range(length)]
    options = {"interval": 5, "min_similarity": -1.0, "include_zero_skip": False}
    method = KnapSpec(search_on="prefill", prefill_tokens=8, **options)  # type: ignore[arg-type]
    decoder = decoders("qwen3")
    engine = engine_for(decoder, length + 30, 30, frozenset())
    prepare(engine, method)
    steps = engine.generate(method, prompt).steps
    cache = decoder.new_cache(length + 1)
    _, states = decoder.prefill(torch.tensor(prompt), cache, range(2 * LAYERS + 1))
    assert states is not None
    probe = ModelProbe(decoder, cache, engine.probe.latency)
    layer_set, estimate = method.search(states[:, -8:], length, probe)
    assert layer_set != FULL and steps[0].layer_set == layer_set and steps[0].estimate == estimate
    assert [step.index for step in steps if step.estimate] == [1, *range(5, len(steps), 5)] and len(steps) > 5
