"""KnapSpec's switches: each preset holds its source's values, each switch has its effect, and all are lossless."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from methods.knapsack import Candidate, Knapsack
from methods.knapspec import Found, KnapSpec
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Probe
from ssd_bench.core.probe import ModelProbe
from ssd_bench.cost.latency import Latency
from ssd_bench.model.decoder import Decoder
from tests.conftest import LAYERS, VOCAB
from tests.lossless import DIMS, check_greedy, check_sampled, decode, engine_for, prepare
from tests.runs import config
from tests.test_knapspec import history

Load = Callable[..., Decoder]
LENGTH = 15  # committed tokens of `history`
FULL = LayerSet.full(LAYERS)
BEGINNINGS = [{"warmup": "full"}, {"warmup": "ar"}, {"search_on": "prefill", "prefill_tokens": 4}]
PAPER = {
    "interval": None, "capture_steps": 5, "min_similarity": 0.5, "strict": True, "budget": 0.5, "weight_cap": None,
    "protect_first_last": False, "include_zero_skip": True, "draft_len_grid": [1, 10], "draft_len": 10,
    "stop_below": 0.7, "reuse_prefix": False, "warmup": "full", "search_on": "steps", "prefill_tokens": 32,
}  # fmt: skip
CODE = PAPER | {
    "interval": 64, "strict": False, "weight_cap": 5, "protect_first_last": True, "include_zero_skip": False,
    "draft_len_grid": [0, 17],
}  # fmt: skip


def search(probe: Probe, states: torch.Tensor, **options: Any) -> Found:
    """One search event with these settings; without pruning unless they say so."""
    method = KnapSpec(**{"min_similarity": -1.0} | options)
    method.check(DIMS)
    return method.search(states, LENGTH, probe)


def test_presets_hold_the_published_settings() -> None:
    """Every switch is in the presets, with the paper's and the released code's value."""
    named = set(inspect.signature(KnapSpec).parameters) - {"name"}
    for preset, values in (("knapspec", PAPER), ("knapspec_code", CODE)):
        settings = OmegaConf.to_container(config(preset))
        assert isinstance(settings, dict)
        assert (settings.pop("name"), settings.pop("_target_")) == (preset, "methods.knapspec.KnapSpec")
        assert settings == values and set(settings) == named


@pytest.mark.parametrize(
    ("preset", "weights", "protect"), [("knapspec", (12, 1), False), ("knapspec_code", (5, 1), True)]
)
def test_presets_reach_the_knapsack(
    preset: str, weights: tuple, protect: bool, decoders: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attention twelve times as dear as an MLP weighs 12, capped 5; protection and budget go along."""
    states, probe = history(decoders())
    probe.latency = Latency(1.0, 0.0, 12.0)
    method = instantiate(config(preset))
    method.check(DIMS)
    seen: list[Knapsack] = []
    monkeypatch.setattr(Knapsack, "run", lambda self, probe: seen.append(self) or [])
    assert method.search(states, LENGTH, probe) == Found(FULL, None)  # no survivor: the full set
    assert (seen[0].weights, seen[0].protect, seen[0].strict) == (weights, protect, preset == "knapspec")
    assert (seen[0].budget, seen[0].min_similarity, seen[0].prefix_len) == (0.5, 0.5, LENGTH - 4)


@pytest.mark.parametrize("budget", [0.0, 0.25, 0.5, 1.0])
def test_the_budget_bounds_the_skipped_weight(budget: float, decoders: Load) -> None:
    """Up to ⌊budget K⌋, K = 4 (2 + 1): reached, and not exceeded."""
    states, probe = history(decoders())
    found = knapsack(states, budget=budget).run(probe)
    assert [c.weight for c in found][-1] == int(budget * 12)


def knapsack(states: torch.Tensor, **options: Any) -> Knapsack:
    settings = {"budget": 0.5, "min_similarity": -1.0, "strict": False, "protect": False} | options
    return Knapsack(states.float(), LENGTH - 4, (2, 1), dtype=states.dtype, **settings)


def test_strict_drops_a_cosine_equal_to_the_threshold(decoders: Load) -> None:
    states, probe = history(decoders())
    everything = knapsack(states).run(probe)

    def at(candidate: Candidate, strict: bool) -> list[LayerSet]:
        floor = torch.tensor(candidate.similarity).item()
        return [c.layer_set for c in knapsack(states, min_similarity=floor, strict=strict).run(probe)]

    kept = [c for c in everything if c.layer_set in at(c, strict=False)]
    assert kept and all(c.layer_set not in at(c, strict=True) for c in kept)


def test_the_candidate_of_least_weight_can_be_left_out(decoders: Load) -> None:
    """With nothing else to choose the full set drafts either way, but only the paper has an estimate for it."""
    states, probe = history(decoders())
    with_it, without = (search(probe, states, budget=0.0, include_zero_skip=keep) for keep in (True, False))
    assert without == Found(FULL, None)
    assert with_it.layer_set == FULL and with_it.estimate is not None and with_it.estimate.alpha == 1
    probe.latency = Latency(1.0, 0.0, 1.0)
    assert search(probe, states, include_zero_skip=False).layer_set != FULL


@pytest.mark.parametrize("grid", [(0, 0), (3, 3), (1, 10), (0, 17)])
def test_the_estimate_stays_within_the_grid(grid: tuple[int, int], decoders: Load) -> None:
    """γ = 0 everywhere is AR's own speed; a wider grid never estimates less."""
    states, probe = history(decoders("qwen3"))
    estimate = search(probe, states, draft_len_grid=grid).estimate
    widest = search(probe, states, draft_len_grid=(0, 17)).estimate
    assert estimate is not None and widest is not None and grid[0] <= estimate.draft_len <= grid[1]
    assert estimate.tokens_per_s <= widest.tokens_per_s
    if grid == (0, 0):
        assert estimate.tokens_per_s == pytest.approx(1000 / probe.latency.target_ms(LAYERS, LENGTH))


def test_presets_with_random_settings_are_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> KnapSpec:
        return instantiate(
            config(rng.choice(["knapspec", "knapspec_code"])), interval=rng.randint(1, 9),
            capture_steps=rng.randint(1, 6), min_similarity=rng.choice([-1.0, 0.0, 0.5]), budget=rng.random(),
            weight_cap=rng.choice([None, 1, 5]), strict=rng.random() < 0.5, protect_first_last=rng.random() < 0.5,
            include_zero_skip=rng.random() < 0.5, draft_len=rng.randint(1, 6), stop_below=rng.choice([0.0, 0.1, 0.7]),
            reuse_prefix=rng.random() < 0.5, **rng.choice(BEGINNINGS),
        )  # fmt: skip

    assert check_greedy(make, decoders) > 100


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_every_beginning_is_lossless(beginning: dict[str, Any], decoders: Load) -> None:
    """200 cases each, with searches as early as there can be."""

    def make(rng: random.Random) -> KnapSpec:
        draft_len, interval = rng.randint(1, 6), rng.choice([2, 64])
        return KnapSpec(
            interval=interval, capture_steps=1, min_similarity=-1.0, draft_len=draft_len, stop_below=0.0, **beginning
        )

    assert check_greedy(make, decoders) > 100


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_the_sampled_distribution_is_kept(beginning: dict[str, Any], decoders: Load) -> None:
    """One search, after step 2 or on the prompt; before the first the full set drafts, or none."""
    options = {"capture_steps": 1, "protect_first_last": True, "include_zero_skip": False, "draft_len": 1}
    make = lambda: KnapSpec(min_similarity=-1.0, **options, **beginning)  # type: ignore[arg-type]  # noqa: E731
    check_sampled(make, decoders, draws=300, position=5)


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
    """It sees what the full model made of the last tokens there, as a search of its own on these states does."""
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
    probe = ModelProbe(decoder, cache)
    probe.latency = engine.probe.latency
    expected = method.search(states[:, -8:], length, probe)
    assert expected.layer_set != FULL and steps[0].layer_set == expected.layer_set
    assert steps[0].estimate == expected.estimate
    assert [step.index for step in steps if step.estimate] == [1, *range(5, len(steps), 5)] and len(steps) > 5
