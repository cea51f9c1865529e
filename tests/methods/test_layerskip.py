"""LayerSkip: fixed exit and length, verification on the drafts' states, ends of outputs, losslessness; and the sweep,
whose steps and scores equal decoding with every pair.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest
import torch

from methods.ar import AR
from methods.arms import Costs
from methods.layer_search import Objective, SearchSettings
from methods.layerskip import LayerSkip, SweptLayerSkip, exit_matches, simulated_steps
from ssd_bench.contract.generation import Estimate, Generation
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft, Probe, Sample, Verification
from ssd_bench.contract.optional import Calibrated
from ssd_bench.contract.shape import ModelDims
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.engine.engine import Engine
from ssd_bench.model.decoder import Decoder
from tests.conftest import LAYERS
from tests.lossless import DIMS, Load, check_greedy, decode, engine_for, loaded, method_of

PROMPT = [5, 6, 7]


class Watched(LayerSkip):
    """Keeps every step's verification."""

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        self.seen = [*getattr(self, "seen", []), verification]
        return super().observe(verification, probe)


def drafts(method: LayerSkip, n_layers: int) -> LayerDraft:
    method.check(ModelDims("some", n_layers, 7 * 10**9, 4096, 32000))
    return method.propose(None)  # type: ignore[arg-type]


def test_preset_is_the_readme_example() -> None:
    method = method_of("layerskip")
    draft = drafts(method, 32)
    assert (method.name, method.reuse_prefix) == ("layerskip", True)
    assert draft.layer_set.kept == tuple(range(16)) and (draft.max_len, draft.stop_below) == (6, 0.0)


@pytest.mark.parametrize(
    ("options", "exits"),
    [
        ({}, {1: 1, 2: 1, 4: 1, 16: 4, 30: 8, 32: 8, 40: 10, 80: 20}),
        ({"exit_ratio": 0.2}, {2: 1, 16: 3, 40: 8}),
        ({"exit_ratio": 1}, {1: 1, 16: 16}),
        ({"exit_ratio": 1e-9}, {1: 1, 80: 1}),
        ({"exit_layer": 8}, {8: 8, 16: 8, 40: 8}),
    ],
)
def test_the_exit_by_share_or_by_number(options: dict[str, float], exits: dict[int, int]) -> None:
    method = method_of("layerskip", **options)
    for n_layers, blocks in exits.items():
        assert drafts(method, n_layers).layer_set == LayerSet.exit(n_layers, blocks)


def test_greedy_equals_ar_with_any_settings(decoders: Load) -> None:
    def make(rng: random.Random) -> LayerSkip:
        exits = rng.choice([{"exit_layer": rng.randint(1, LAYERS)}, {"exit_ratio": rng.uniform(0.01, 1)}, {}])
        return LayerSkip(draft_len=rng.randint(1, 8), reuse_prefix=rng.random() < 0.7, **exits)  # type: ignore[arg-type]

    assert check_greedy(make, decoders) > 50


def test_the_last_exit_is_the_model_itself(decoder: Decoder, rests: list[int]) -> None:
    """E = L: every draft is accepted (α = 1); all blocks draft, so nothing is left to verify on saved states."""
    made = decode(decoder, LayerSkip(exit_layer=LAYERS, draft_len=3), PROMPT, 24)
    assert made.output == decode(decoder, AR(), PROMPT, 24).output
    assert all(step.accepted_len == step.draft_len for step in made.steps)
    assert [step.draft_len for step in made.steps[:-1]] == [3] * (len(made.steps) - 1) and not rests


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
def test_saved_states_verify_as_a_whole_pass_does(exit_layer: int, decoders: Load, rests: list[int]) -> None:
    """Tokens, and logits at every node, are the same with and without reuse."""
    decoder = loaded(decoders, "qwen3", compiled=True)
    outputs, logits = [], []
    for reuse in (True, False):
        method = Watched(exit_layer=exit_layer, draft_len=4, reuse_prefix=reuse)
        outputs.append(decode(decoder, method, PROMPT, 30).output)
        logits.append([seen.logits for seen in method.seen])
        steps = sum(len(seen.tree) > 1 for seen in method.seen)
        assert rests == [2 * exit_layer] * steps  # each step with a draft, and none of the run without reuse
    assert outputs[0] == outputs[1]
    for saved, whole in zip(*logits):
        torch.testing.assert_close(saved, whole, atol=1e-4, rtol=1e-4)


# ---- the sweep


EXITS, DRAFT_LENS = range(1, LAYERS), range(1, 7)
PROMPTS = ([5, 6, 7], [40, 41], [9])
NEW = 20
GIVEN = Latency(0.5, 0.01, 0.3)
MEASURED = Latency(
    0.5,
    0.01,
    0.3,
    "measured",
    draft_rest_ms=0.4,
    draft_start_ms=0.2,
    passes=(NodeTimes(1, 0.01, 0.3, 0.5, 0.6), NodeTimes(2, 0.012, 0.4, 0.8, 0.7), NodeTimes(8, 0.02, 1.0, 2.5, 1.9)),
)


@pytest.fixture
def engine(decoders: Load) -> Engine:
    return engine_for(loaded(decoders, "qwen2", compiled=True), 40, 30, frozenset(range(20)))


def decoded(engine: Engine, blocks: int, draft_len: int, prompt: Sequence[int], reuse: bool = True) -> Generation:
    method = LayerSkip(exit_layer=blocks, draft_len=draft_len, reuse_prefix=reuse)
    method.check(DIMS)
    return engine.probe.trial(method, prompt, NEW)


def swept(engine: Engine, **options: object) -> SweptLayerSkip:
    method = SweptLayerSkip(calibration=len(PROMPTS), new_tokens=NEW, **options)  # type: ignore[arg-type]
    method.check(DIMS)
    with torch.inference_mode():
        method.prepare(engine.probe, [Sample(prompt, "a") for prompt in PROMPTS])
    return method


def chosen(method: SweptLayerSkip) -> tuple[int, int]:
    draft = method.propose(None)  # type: ignore[arg-type]
    assert draft.stop_below == 0 and draft.layer_set == LayerSet.exit(LAYERS, len(draft.layer_set.kept) // 2)
    return len(draft.layer_set.kept) // 2, draft.max_len


def test_steps_of_all_pairs_follow_from_one_decoding(engine: Engine) -> None:
    """Context, length and tokens of every step, as in decoding with the pair, accepted or not."""
    seen = set()
    for prompt in PROMPTS:
        with torch.inference_mode():
            length, right = exit_matches(engine.probe, prompt, EXITS, NEW)
        assert length == len(prompt) and {len(row) for row in right} == {NEW - 1}
        for (row, blocks), d in product(enumerate(EXITS), DRAFT_LENS):
            made = [(s.context_len, s.draft_len, s.emitted) for s in decoded(engine, blocks, d, prompt).steps]
            assert list(simulated_steps(length, right[row], d)) == made
            seen |= {emitted == drafts + 1 for _, drafts, emitted in made if drafts}
    assert seen == {True, False}


def test_scores_are_those_of_the_offline_searches(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """The first best pair by `Objective` and its score, with a given profile."""
    engine.probe.latency = GIVEN
    scores = {}
    for blocks, d in product(EXITS, DRAFT_LENS):
        settings = SearchSettings(new_tokens=NEW, draft_len=d, stop_below=0.0, target_rate=None)
        scores[blocks, d] = Objective(settings, engine.probe, PROMPTS)(LayerSet.exit(LAYERS, blocks))
    best = max(scores, key=lambda pair: scores[pair])
    assert chosen(swept(engine)) == best
    said = f"exit after {best[0]} of {LAYERS} blocks, {best[1]} tokens a draft: score {scores[best]:.4f} (expected), "
    assert f"{said}the best of 18 pairs" in capsys.readouterr().err
    some = swept(engine, exits=[3, 2, 2], draft_lens=[4, 2])
    assert chosen(some) == max(product([2, 3], [4, 2]), key=lambda pair: (scores[pair], -pair[0], -pair[1]))


@pytest.mark.parametrize("reuse", [False, True])
def test_measured_costs_of_all_parts_count(engine: Engine, reuse: bool) -> None:
    """Head and verification's growth change the best pair, by hand over real decodings."""
    scores = {}
    for blocks, d in product(EXITS, DRAFT_LENS):
        plain = spent = 0.0
        for step in (step for prompt in PROMPTS for step in decoded(engine, blocks, d, prompt, reuse).steps):
            costs = Costs(MEASURED, LAYERS, step.context_len, step.draft_len, reuse)
            layer_set = LayerSet.exit(LAYERS, blocks)
            plain += step.emitted * costs.ar_ms
            spent += step.draft_len * costs.draft_ms(layer_set) + costs.verify_ms(layer_set)[-1]
        scores[blocks, d] = plain / spent
    engine.probe.latency = MEASURED
    found = chosen(swept(engine, reuse_prefix=reuse))
    assert scores[found] == pytest.approx(max(scores.values()), rel=1e-12)
    engine.probe.latency = GIVEN
    assert chosen(swept(engine, reuse_prefix=reuse)) != found


def test_preset_is_the_authors_sweep() -> None:
    method = method_of("layerskip_swept")
    assert isinstance(method, Calibrated) and (method.name, method.calibration) == ("layerskip_swept", 8)
    method.check(ModelDims("miniature", 16, 1, 64, 64))
    assert (method._exits, list(method.draft_lens), method.new_tokens) == ([*range(1, 16)], [1, 2, 3, 4, 5, 6], 32)
    assert method.reuse_prefix


def test_a_sweep_with_any_settings_equals_ar(decoders: Load) -> None:
    def make(rng: random.Random) -> SweptLayerSkip:
        exits = rng.choice([None, rng.sample(EXITS, 2)])
        draft_lens = rng.sample(range(1, 9), rng.randint(1, 4))
        return SweptLayerSkip("s", rng.choice([1, 2]), exits, draft_lens, rng.choice([2, 5, 9]), rng.random() < 0.7)

    assert check_greedy(make, decoders) > 12
