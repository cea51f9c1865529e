"""ASD-style drafting: the rule against states by hand, its limits, refresh, exit, losslessness."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from methods.asd import ASD, similarities
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Prefill, Taps, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.model.decoder import Decoder
from ssd_bench.report.closing import run_table
from ssd_bench.report.runs import document, group_by_task
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from tests.conftest import LAYERS
from tests.lossless import DIMS, Load, check_greedy, decode, loaded, method_of
from tests.runs import executed, local_model

PROMPT = [5, 6, 7, 8, 9, 10]


def states_of(decoder: Decoder, tokens: list[int]) -> Tensor:
    """[2L+1, n, d] streams at every boundary of a full pass."""
    with torch.inference_mode():
        _, states = decoder.prefill(torch.tensor(tokens), decoder.new_cache(256), tuple(range(2 * LAYERS + 1)))
    assert states is not None
    return states


def by_hand(states: Tensor) -> dict[int, float]:
    """Mean cosine of every attention that may go, by block."""
    cosines = F.cosine_similarity(states[:-1], states[1:], dim=-1).mean(-1)
    return {b: float(cosines[2 * b]) for b in range(1, LAYERS - 1)}


def test_any_settings_are_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> ASD:
        return method_of(
            "asd",
            min_similarity=rng.choice([-1.0, 0.5, 0.8, 0.9, 2.0]),
            positions=rng.choice([None, 1, 4]),
            refresh=rng.choice([None, 1, 3]),
            draft_len=rng.randint(1, 8),
            stop_below=rng.choice([0.0, 0.3, 1.0]),
            target_rate=rng.choice([None, 0.5, 0.9]),
            stop_step=rng.choice([0.01, 0.5]),
            reuse_prefix=rng.random() < 0.5,
        )

    assert check_greedy(make, decoders) > 12


def test_skips_fall_with_the_threshold(decoder: Decoder) -> None:
    """|S(τ)| never rises with τ; MLPs and the first and last block's attentions are never skipped."""
    sizes = []
    for tenth in range(-10, 12):
        made = decode(decoder, ASD(min_similarity=tenth / 10, draft_len=1), PROMPT, 2)
        layer_set = made.steps[0].layer_set
        assert layer_set is not None and not layer_set.skip_mlp and not {0, LAYERS - 1} & set(layer_set.skip_attn)
        sizes.append(len(layer_set.skipped))
    assert sizes == sorted(sizes, reverse=True) and (sizes[0], sizes[-1]) == (LAYERS - 2, 0)


@pytest.mark.parametrize(("family", "positions"), [("llama", None), ("qwen3", 1), ("llama", 3)])
def test_set_is_the_cosines_by_hand(family: str, positions: int | None, decoders: Load) -> None:
    """Input and output of each attention, including the residual, over the last q prompt positions."""
    last = PROMPT if positions is None else PROMPT[-positions:]
    scores = by_hand(states_of(decoders(family), PROMPT)[:, -len(last) :])
    threshold = sum(scores.values()) / len(scores)  # which splits them
    expected = [b for b, score in scores.items() if score >= threshold]
    assert 0 < len(expected) < LAYERS - 2
    made = decode(decoders(family), ASD(min_similarity=threshold, positions=positions), PROMPT, 2)
    assert made.steps[0].layer_set == LayerSet.skipping(LAYERS, attn=expected)


def test_threshold_itself_is_skipped() -> None:
    method = ASD(min_similarity=0.5)
    method.check(DIMS)
    assert method._choose(torch.tensor([[0.5, 0.5], [0.25, 0.5]])) == LayerSet.skipping(LAYERS, attn=[1])
    same = torch.ones(2, 3, 4)
    assert torch.allclose(similarities(same), torch.ones(1, 3))


@pytest.mark.parametrize("positions", [None, 2])
def test_refresh_uses_the_tokens_accepted_since(positions: int | None, decoders: Load) -> None:
    """Every T steps the cosines of their committed positions, or of the last q, decide."""
    decoder, every = loaded(decoders, "qwen2", compiled=True), 3
    for threshold in (0.6, 0.7, 0.8, 0.9):
        method = ASD(min_similarity=threshold, positions=positions, refresh=every, draft_len=3, stop_below=0.0)
        made = decode(decoder, method, PROMPT, 40)
        states = states_of(decoder, PROMPT + made.output)
        begin = len(PROMPT)
        for first in range(0, len(made.steps) - every, every):
            end = begin + sum(step.emitted for step in made.steps[first : first + every])
            start = begin if positions is None else max(begin, end - positions)
            scores = by_hand(states[:, start:end])
            if min(abs(score - threshold) for score in scores.values()) > 1e-5:
                expected = LayerSet.skipping(LAYERS, attn=[b for b, score in scores.items() if score >= threshold])
                assert {step.layer_set for step in made.steps[first + every : first + 2 * every]} == {expected}
            begin = end


def test_states_are_tapped_only_where_needed() -> None:
    """Around the attentions that may go, at verification only for a refresh."""
    around = tuple(range(2, 2 * LAYERS - 2))
    for refresh, verify in ((None, ()), (4, around)):
        method = ASD(refresh=refresh)
        method.check(DIMS)
        assert method.taps == Taps(around, verify)


def test_exit_threshold_follows_the_rule() -> None:
    """ρ ← β1ρ + (1-β1) m/k; γ' = γ + ε below α*, γ at k = K, else γ - ε; γ ← β2γ + (1-β2)γ'."""
    method = ASD(draft_len=4, stop_below=0.6, target_rate=0.7, rate_decay=0.5, stop_step=0.1, stop_decay=0.9)
    method.check(DIMS)
    method.start(Prefill([1], torch.ones(2 * LAYERS - 4, 1, 8)))
    # ρ = 0.5, 0.75, 0.875 with k = K, the same as nothing is drafted, 0.4375
    for drafted, accepted, threshold in ((3, 3, 0.61), (3, 3, 0.6), (4, 4, 0.6), (0, 0, 0.6), (4, 0, 0.61)):
        tree, path = TokenTree.chain(range(drafted + 1)), range(accepted + 1)
        method.observe(Verification(1, tree, path, [], 0, torch.empty(0), None), None)  # type: ignore[arg-type]
        assert method._stop.value == pytest.approx(threshold)


def test_the_record_says_what_is_not_known(small_checkpoint: Path, tmp_path: Path) -> None:
    """The two rules and τ, wherever a run's numbers are: its table, the report's, figures and exhibits."""
    options = ("method=asd", "method.min_similarity=0.5", "task=gsm8k", "limit=1", "decode.max_new_tokens=4")
    run = executed(tmp_path, *options, *local_model(small_checkpoint))
    caveat = run.header.caveat
    assert "two further rules" in caveat and "τ = 0.5, by our choice" in caveat
    summary = summarise(run).row
    assert summary["warnings"][0] == caveat
    assert "τ = 0.5" in run_table(summary) and caveat in document("gsm8k", group_by_task([Record(run.path)])["gsm8k"])
