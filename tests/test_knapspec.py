"""KnapSpec: the knapsack against brute force and its own recurrences, its schedule, presets and losslessness."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from methods.ar import AR
from methods.knapsack import Agreement, Candidate, Knapsack, weights
from methods.knapspec import KnapSpec
from methods.similarity import directions, mean_cosine
from ssd_bench.core.engine import SCRATCH, Engine, Generation
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import LayerDraft, Probe
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.shape import ModelDims
from tests.conftest import CONTEXT, LAYERS, VOCAB

Load = Callable[..., Decoder]
DIMS = ModelDims("tiny", LAYERS, 10_000, CONTEXT, VOCAB)
EQUAL = Latency(1.0, 0.0, 1.0)


def history(decoder: Decoder, r: int = 4, before: int = 11, seed: int = 0) -> tuple[Tensor, Probe]:
    """States [2L+1, r, d] of the last r of before + r committed tokens, and a probe on that cache."""
    ids = torch.randint(VOCAB, (before + r,), generator=torch.Generator().manual_seed(seed))
    cache = decoder.new_cache(64)
    decoder.prefill(ids[:before], cache)
    taps = tuple(range(2 * LAYERS + 1))
    _, states = decoder.run(Pass(decoder.all_sublayers, ids[before:], before, taps=taps), cache)
    cache.commit(range(r))
    probe = ModelProbe(decoder, cache)
    probe.latency = EQUAL
    assert states is not None
    return states, probe


def solve(states: Tensor, probe: Probe, pair: tuple[int, int] = (1, 1), **options: object) -> list[Candidate]:
    settings = {
        "budget": 0.5,
        "min_similarity": -1.0,
        "strict": False,
        "protect": False,
        "dtype": states.dtype,
    } | options
    return Knapsack(states.float(), 11, pair, **settings).run(probe)  # type: ignore[arg-type]


def rerun(states: Tensor, probe: Probe, layer_set: LayerSet) -> Tensor:
    """Final stream [r, d] of one subset, run alone."""
    hidden = states[:1]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, 11)
    return hidden[0]


def weight(layer_set: LayerSet, pair: tuple[int, int]) -> int:
    return pair[0] * len(layer_set.skip_attn) + pair[1] * len(layer_set.skip_mlp)


@pytest.mark.parametrize("pair", [(1, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
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
    """The j = 0 path reproduces every X^(i), and predicts what the model predicts (α̂ = 1)."""
    states, probe = history(decoders())
    first = solve(states, probe)[0]
    assert first.weight == 0 and first.layer_set == LayerSet.full(LAYERS)
    assert torch.allclose(first.hidden, states[-1]) and torch.allclose(
        rerun(states, probe, first.layer_set), states[-1]
    )
    assert torch.equal(probe.predict(first.hidden), probe.predict(states[-1]))


@pytest.mark.parametrize("seed", range(3))
def test_dp_is_at_most_brute_force(seed: int, decoders: Load) -> None:
    """For each exact weight the DP's cosine is at most the best over all subsets, and mostly equal to it."""
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


def test_dp_beats_greedy_removal_mostly(decoders: Load) -> None:
    """Not an invariant of one cell (the DP keeps one branch a weight), so only in the aggregate."""
    wins = total = 0
    for seed in range(4):
        states, probe = history(decoders("qwen3"), r=3, seed=seed)
        found = {c.weight: c.similarity for c in solve(states, probe)}
        skipped: frozenset[int] = frozenset()
        for j in range(1, LAYERS + 1):
            options = [skipped | {i} for i in range(2 * LAYERS) if i not in skipped]
            scored = [
                (mean_cosine(rerun(states, probe, LayerSet(LAYERS, s))[None], directions(states[-1])).item(), s)
                for s in options
            ]
            value, skipped = max(scored, key=lambda pair: pair[0])
            wins, total = wins + (found[j] >= value - 1e-6), total + 1
    assert wins >= 0.75 * total


def test_branches_below_the_threshold_are_dropped(decoders: Load) -> None:
    states, probe = history(decoders())
    everything = solve(states, probe)
    floor = sorted(c.similarity for c in everything)[len(everything) // 2]
    kept = solve(states, probe, min_similarity=floor)
    assert 0 < len(kept) < len(everything) and all(c.similarity >= floor for c in kept)
    assert solve(states, probe, min_similarity=1.0, strict=True) == []


def test_protected_blocks_are_never_skipped(decoders: Load) -> None:
    states, probe = history(decoders())
    for candidate in solve(states, probe, protect=True):
        assert not candidate.layer_set.skipped & {0, 1, 2 * LAYERS - 2, 2 * LAYERS - 1}


def test_search_takes_the_highest_tpt(decoders: Load) -> None:
    """The maximum over all candidates and γ of the TPT that each one's own α̂ gives, the first in order among equals."""
    states, probe = history(decoders("qwen3"))
    probe.latency = Latency(0.7, 1e-3, 0.3)
    method = KnapSpec(strict=False, min_similarity=-1.0)
    method.check(DIMS)
    candidates = solve(states, probe)
    choice = method._best(candidates, states, 15, probe)
    target, table = probe.predict(states[-1]), []
    for candidate in candidates:
        alpha = float((probe.predict(candidate.hidden) == target).float().mean())
        draft, full = probe.latency.draft_ms(candidate.layer_set, 15), probe.latency.target_ms(LAYERS, 15)
        table += [(tpt(alpha, g, draft, full), candidate.layer_set, g, alpha) for g in range(1, 11)]
    best = max(table, key=lambda row: row[0])
    assert choice is not None and choice.estimate is not None
    assert (choice.estimate.tokens_per_s, choice.layer_set, choice.estimate.draft_len, choice.estimate.alpha) == best


@pytest.mark.parametrize("seed", range(4))
def test_agreement_is_that_of_the_whole_vocabulary(seed: int, decoders: Load) -> None:
    """Bounds never fall below the rate from full predictions, and settling a branch gives that rate."""
    states, probe = history(decoders("llama"), seed=seed)
    branches = torch.stack([candidate.hidden for candidate in solve(states, probe)])
    rates = (probe.predict(branches) == probe.predict(states[-1])).float().mean(-1).tolist()
    agreement = Agreement(probe, states[-1], branches)
    assert len(set(rates)) > 1
    for index in reversed(range(len(branches))):
        assert all(bound >= rate for bound, rate in zip(agreement.bounds(), rates))
        agreement.settle(index)
        assert agreement.bounds()[index] == rates[index]


def test_tpt_properties() -> None:
    """TPT(S, 0) = 1 / t_target for every S; TPT grows with α; α = 1 gives γ + 1 tokens."""
    assert tpt(0.3, 0, 5.0, 20.0) == pytest.approx(50) and tpt(0.9, 0, 7.0, 20.0) == pytest.approx(50)
    values = [tpt(a / 10, 4, 5.0, 20.0) for a in range(11)]
    assert values == sorted(values) and values[10] == pytest.approx(1000 * 5 / 40)


def test_integer_weights() -> None:
    assert weights(Latency(1.0, 0.01, 1.0), 100, None) == (2, 1)
    assert weights(Latency(3.4, 0.0, 1.0), 100, None) == (1, 3)
    assert weights(Latency(1.0, 0.0, 9.0), 100, 5) == (5, 1)
    assert weights(Latency(1.2, 0.0, 1.0), 100, None) == (1, 1)


def generate(decoder: Decoder, method: KnapSpec | AR, new: int = 40, eos: frozenset[int] = frozenset()) -> Generation:
    cache = decoder.new_cache(3 + new + SCRATCH)
    engine = Engine(decoder, cache, Decoding(max_new_tokens=new), eos, ModelProbe(decoder, cache))
    engine.probe.latency = Latency(0.5, 1e-3, 0.5)
    method.check(DIMS)
    return engine.generate(method, [5, 6, 7])


@pytest.mark.parametrize("interval", [1, 4, 6, 64])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_any_interval_searches_and_is_lossless(family: str, interval: int, decoders: Load) -> None:
    decoder = decoders(family)
    method = KnapSpec(interval=interval, draft_len=2, min_similarity=-1.0)
    made = generate(decoder, method)
    assert made.output == generate(decoder, AR()).output
    events = [step.index for step in made.steps if step.estimate is not None]
    assert events == list(range(6, len(made.steps), interval)) and events  # none after the last
    assert all(step.layer_set == LayerSet.full(LAYERS) for step in made.steps[:6])


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_random_settings_are_lossless(preset: str, decoders: Load) -> None:
    code = {
        "strict": False,
        "weight_cap": 5,
        "protect_first_last": True,
        "include_zero_skip": False,
        "draft_len_grid": (0, 17),
    }
    for seed in range(15):
        rng = random.Random(seed)
        method = KnapSpec(
            interval=rng.randint(1, 9), capture_steps=rng.randint(1, 6),
            min_similarity=rng.choice([-1.0, 0.0, 0.5, 0.99]), budget=rng.random(),
            draft_len=rng.randint(1, 6), stop_below=rng.choice([0.0, 0.3, 1.0]),
            reuse_prefix=rng.random() < 0.5, **(code if preset == "code" else {}),
        )  # fmt: skip
        decoder = decoders(rng.choice(["llama", "qwen2", "qwen3"]))
        eos = frozenset([rng.randrange(VOCAB)])
        assert generate(decoder, method, eos=eos).output == generate(decoder, AR(), eos=eos).output


def test_eos_before_the_first_search_leaves_the_full_set(decoders: Load) -> None:
    first = generate(decoders(), AR(), new=4).output[-1]
    made = generate(decoders(), KnapSpec(draft_len=1), eos=frozenset([first]))
    assert all(step.layer_set == LayerSet.full(LAYERS) and step.estimate is None for step in made.steps)


def test_search_on_steps_that_accepted_nothing(decoders: Load) -> None:
    """r = m: five captured steps of the root alone (room for no draft) still make a search."""
    states, probe = history(decoders(), r=5, before=11)
    method = KnapSpec(min_similarity=-1.0)
    method.check(DIMS)
    assert method.search(states, 16, probe).estimate is not None


def test_prompts_do_not_share_state(decoders: Load) -> None:
    method = KnapSpec(interval=4, draft_len=2, min_similarity=-1.0)
    first, second = generate(decoders(), method), generate(decoders(), method)
    assert [s.layer_set for s in first.steps] == [s.layer_set for s in second.steps]


def test_interval_follows_model_size() -> None:
    small, large = KnapSpec(), KnapSpec()
    small.check(DIMS)
    large.check(ModelDims("large", LAYERS, 14 * 10**9, CONTEXT, VOCAB))
    assert (small._steps, large._steps) == (64, 128)


def test_states_are_tapped_only_before_a_search() -> None:
    method = KnapSpec(interval=64)
    method.check(DIMS)
    tapped = []
    from ssd_bench.core.method import Context, Prefill

    method.start(Prefill([1], None))
    for step in range(1, 80):
        assert isinstance(method.propose(Context(step, step, [1], 9)), LayerDraft)
        tapped += [step] * bool(method.taps.verify)
    assert tapped == [2, 3, 4, 5, 6, 66, 67, 68, 69, 70]


@pytest.mark.parametrize("bad", [{"draft_len_grid": [5, 1]}, {"warmup": "ar", "search_on": "prefill"}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=f"method.{next(iter(bad))}"):
        KnapSpec(**bad)
