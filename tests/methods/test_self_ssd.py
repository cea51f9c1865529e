"""Self-SD: losslessness of every preset, the trajectory of γ, drafts, and the prompts searched on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from methods import fixed_layers, self_ssd
from methods.ar import AR
from methods.draft_stop import DraftStop
from methods.layer_search import SearchSettings
from methods.self_ssd import SelfSSD
from ssd_bench.contract.generation import Generation
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Sample, Verification
from ssd_bench.contract.optional import Calibrated, Stateful
from ssd_bench.contract.tree import TokenTree, comb
from ssd_bench.model.decoder import Decoder
from tests.conftest import LAYERS
from tests.lossless import DIMS, Load, check_greedy, check_sampled, decode, engine_for, method_of
from tests.runs import config

PRESETS = ("self_ssd", "self_ssd_fix", "self_ssd_mix", "self_ssd_dynamic_ver", "self_ssd_wallclock")
PROMPT = [5, 6, 7, 8]
FULL = LayerSet.full(LAYERS)
SEARCH = SearchSettings(iterations=0, new_tokens=4)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Published sets that skip at most one attention and one MLP."""
    pairs = [([i] * (i >= 0), [j] * (j >= 0)) for i in range(-1, LAYERS) for j in range(-1, LAYERS)]
    sets = {f"x/tiny/{n}": {"n_layers": LAYERS, "skip_attn": a, "skip_mlp": m} for n, (a, m) in enumerate(pairs)}
    monkeypatch.setattr(fixed_layers, "published_sets", lambda: sets)
    return list(sets)


def searching(rng: random.Random, light: list[str]) -> dict[str, Any]:
    """A search of one set, from all or from those that random models mostly accept."""
    first = rng.choice([[], [rng.choice(light)]])
    return {"iterations": 0, "new_tokens": 2, "random_state": rng.randrange(1000), "init_sets": first}


class Given(SelfSSD):
    """Drafts with a given set."""

    def __init__(self, skipped: Sequence[int] = (), **options: Any):
        super().__init__(SEARCH, **options)
        self._given = LayerSet(LAYERS, frozenset(skipped))

    def prepare(self, probe: object, samples: Sequence[Sample]) -> None:
        self._layer_set = self._given


def generated(decoder: Decoder, method: SelfSSD, new: int) -> Generation:
    engine = engine_for(decoder, len(PROMPT) + new, new, frozenset())
    method.check(DIMS)
    method.prepare(engine.probe, [])
    return engine.generate(method, PROMPT)


def test_presets_are_lossless(decoders: Load, light: list[str]) -> None:
    """50 random cases, each with its own set and a threshold that these models reach."""

    def make(rng: random.Random) -> SelfSSD:
        search, stop = searching(rng, light), rng.choice([0.0, 0.2, 0.6])
        return method_of(rng.choice(PRESETS), calibration=1, stop_below=stop, search=search)

    assert check_greedy(make, decoders) > 3


def test_any_set_and_settings_are_lossless(decoders: Load) -> None:
    """Sets from empty to all sublayers, with any γ, K, siblings and reuse."""

    def make(rng: random.Random) -> Given:
        skipped = rng.sample(range(2 * LAYERS), rng.choice([0, 1, 2, LAYERS, 2 * LAYERS]))
        return Given(
            skipped,
            draft_len=rng.randint(1, 9),
            stop_below=rng.choice([0.0, 0.1, 0.5, 1.0]),
            target_rate=rng.choice([None, 0.5]),
            stop_step=rng.choice([0.01, 0.9]),
            carry_stop=rng.random() < 0.5,
            widths=rng.choice([[], [[0.3, 1], [0.0, 3]]]),
            reuse_prefix=rng.random() < 0.5,
        )

    assert check_greedy(make, decoders) > 12


def test_sampled_distribution_is_ars(decoders: Load) -> None:
    check_sampled(lambda: Given([2, 5], draft_len=2, stop_below=0.1, widths=[[0.5, 1], [0.0, 3]]), decoders)


def test_presets_hold_the_published_settings() -> None:
    made = {preset: config(preset) for preset in PRESETS}
    base, fix, mix, tree, timed = (made[preset] for preset in PRESETS)
    assert (base.draft_len, base.stop_below, base.target_rate, base.calibration) == (12, 0.6, 0.9, 8)
    assert (base.search.draft_len, base.search.stop_below, base.search.target_rate) == (8, 0.8, 0.9)
    assert (base.search.iterations, base.search.new_tokens, base.search.random_state) == (1000, 32, 1)
    for baseline in (fix, mix):
        assert (baseline.draft_len, baseline.stop_below, baseline.target_rate) == (12, 0.8, None)
        assert (baseline.search.draft_len, baseline.search.stop_below, baseline.search.target_rate) == (12, 0.8, None)
    assert (fix.search_on, fix.calibration, mix.search_on, mix.calibration) == ("first", 8, "all", 2)
    assert (tree.draft_len, tree.stop_below, tree.target_rate, tree.search) == (25, 0.8, None, base.search)
    assert base.search.objective == "expected"
    assert timed == OmegaConf.merge(base, {"name": timed.name, "search": {"objective": "wallclock"}})


def moved(stop: DraftStop, drafted: int, accepted: int) -> float:
    tree = TokenTree.chain(range(drafted + 1))
    stop.observe(Verification(1, tree, range(accepted + 1), [], 0, torch.empty(0), None))
    return stop.value


def test_threshold_follows_the_published_rule() -> None:
    """γ at the default values, by hand: ρ first, then γ' and its average with γ."""
    stop = DraftStop(12, 0.6, 0.9, 0.5, 0.01, 0.9)
    stop.start()
    gamma, rho = 0.6, 0.0
    for drafted, accepted in ((4, 4), (5, 5), (3, 3), (12, 12), (6, 6), (2, 0), (7, 7), (0, 0), (12, 3)):
        if drafted:
            rho = 0.5 * rho + 0.5 * accepted / drafted
            target = gamma + 0.01 if rho < 0.9 else gamma if drafted == 12 else gamma - 0.01
            gamma = 0.9 * gamma + 0.1 * target
        assert moved(stop, drafted, accepted) == pytest.approx(gamma, abs=1e-15)
    assert gamma == pytest.approx(0.6 + 0.001 * (3 + 0 - 1 + 1 + 1 + 1))
    stop.start(carry=True)
    assert stop.value == pytest.approx(gamma)  # ρ is 0 again, γ is not
    assert moved(stop, 4, 4) == pytest.approx(gamma + 0.001)
    stop.start()
    assert stop.value == 0.6


def test_threshold_counts_steps_of_a_tree_not_its_nodes() -> None:
    """The draft's depth is d with siblings."""
    stop = DraftStop(2, 0.5, 0.4, 0.0, 0.1, 0.0)
    tree = comb([[1], [2, 3, 4], [5, 6]])
    stop.observe(Verification(1, tree, [0, 1, 4], [], 0, torch.empty(0), None))
    assert stop.value == 0.5  # d = K, all accepted


def test_fixed_threshold_stays() -> None:
    stop = DraftStop(4, 0.8)
    assert [moved(stop, 3, 0), moved(stop, 3, 3)] == [0.8, 0.8]


def test_threshold_is_carried_and_restored(decoder: Decoder) -> None:
    """γ goes from prompt to prompt, even in a resumed run; without carrying every prompt starts anew."""
    options: dict[str, Any] = {"skipped": [2, 5], "stop_below": 0.2, "stop_step": 0.3}
    whole, first, second = (Given(**options) for _ in range(3))
    assert isinstance(whole, Stateful) and isinstance(whole, Calibrated)
    runs = [generated(decoder, whole, 20).steps for _ in range(2)]
    generated(decoder, first, 20)
    second.check(DIMS)
    second.restore(first.state())
    resumed = generated(decoder, second, 20).steps
    assert [s.draft_len for s in resumed] == [s.draft_len for s in runs[1]]
    assert second.state() == whole.state() != Given(**options).state()
    anew = Given(**options, carry_stop=False)
    again = [[s.draft_len for s in generated(decoder, anew, 20).steps] for _ in range(2)]
    assert again[0] == again[1] == [s.draft_len for s in runs[0]]


@pytest.mark.parametrize(("search_on", "expected", "label"), [("first", [1, 2], "b"), ("all", [3, 4, 1, 2], "mixed")])
def test_search_is_on_the_first_domain_or_all(
    search_on: str, expected: list[int], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fix: the stream's first; Mix: prompts of every one, the same search in any order."""
    seen: list[tuple[list[int], str]] = []

    def search(settings: SearchSettings, probe: object, samples: Sequence[Sample], domain: str, window: None) -> Any:
        seen.append(([sample.prompt[0] for sample in samples], domain))
        return type("Found", (), {"best": type("Best", (), {"layer_set": FULL})})

    monkeypatch.setattr(self_ssd, "search", search)
    method = SelfSSD(SEARCH, search_on=search_on)
    samples = [Sample([1], "b"), Sample([2], "b"), Sample([3], "a"), Sample([4], "a")]
    method.prepare(None, samples)  # type: ignore[arg-type]
    assert seen == [(expected, label)]
    method.prepare(None, samples[:2])  # type: ignore[arg-type]
    assert seen[1] == ([1, 2], "b")
    if search_on == "all":
        method.prepare(None, samples[2:] + samples[:2])  # type: ignore[arg-type]
        assert seen[2] == seen[0]


def test_reused_set_needs_no_prompts(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    found = LayerSet.skipping(LAYERS, [1])
    monkeypatch.setattr(self_ssd, "named_set", lambda name, probe: {"known": found}[name])
    method = SelfSSD(SearchSettings(reuse="known"))
    assert method.calibration == 0
    assert all(step.layer_set == found for step in generated(decoder, method, 6).steps)


def test_first_token_eos_drafts_nothing(decoder: Decoder) -> None:
    first = decode(decoder, AR(), PROMPT, 1).output
    assert decode(decoder, Given([2]), PROMPT, 9, frozenset(first)).steps == []
