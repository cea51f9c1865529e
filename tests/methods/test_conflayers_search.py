"""The search of ConfLayers, on scripted rounds and confidences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from methods.confidence import Rule
from methods.conflayers import ConfLayers
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.tpt import tpt

BLOCKS = 8
DIMS = ModelDims("eight", BLOCKS, 100_000, 256, 61)
A, B, C = [1, 3, 5], [2, 4, 6], [1, 4, 6]


class Scripted(ConfLayers):
    """Takes its confidences from a list of sets: a block in the set is less sure than all others."""

    def __init__(self, sets: Sequence[Sequence[int]], **options: Any):
        super().__init__(**{"context_window": 1, "interval": 4, "lam": 0.4} | options)
        self.sets = list(sets)

    def _confidences(self, length: int, probe: Probe) -> Tensor:
        chosen = self.sets.pop(0) if self.sets else []
        scores = torch.tensor([0.1 if block in chosen else 0.5 for block in range(1, self._rule.n_layers - 1)])
        return scores.repeat_interleave(2)

    def skipped(self) -> list[int]:
        layer_set = self._draft.layer_set
        assert layer_set.skip_attn == layer_set.skip_mlp
        return list(layer_set.skip_attn)


def scripted(sets: Sequence[Sequence[int]], **options: Any) -> Scripted:
    method = Scripted(sets, **options)
    method.check(DIMS)
    return method


class Timed:
    """A probe that only knows times."""

    latency = Latency(0.5, 1e-3, 0.5)


def rounds(method: ConfLayers, *accepted: int, drafted: int = 5) -> list[Estimate | None]:
    """Verifications that accept so many of `drafted` tokens."""
    tree = TokenTree.chain(range(drafted + 1))
    return [
        method.observe(Verification(1, tree, range(m + 1), [], 9, torch.empty(0), None), Timed())  # type: ignore[arg-type]
        for m in accepted
    ]


def begin(method: ConfLayers) -> None:
    """A new prompt, up to the round before the first that counts."""
    method.start(Prefill([1], None))
    rounds(method, 1)


def begun(sets: Sequence[Sequence[int]], **options: Any) -> Scripted:
    method = scripted(sets, **options)
    begin(method)
    return method


def after(method: Scripted, *accepted: int) -> list[int]:
    """The skipped blocks after verifications that accept so many tokens."""
    rounds(method, *accepted)
    return method.skipped()


def test_the_search_waits_for_enough_tokens() -> None:
    """The initial set, blocks 1, 3, 5, .., drafts until the prompt has more than context_window + 1 tokens."""
    method = scripted([B], context_window=7)
    assert method.skipped() == A and method._least == 3
    method.start(Prefill([1], None))
    rounds(method, 3, 3)  # eight tokens
    assert method.skipped() == A and not method._search.iteration and not method._search.rounds
    assert after(method, 0) == B and method._search.iteration == 1


def test_a_set_is_tried_for_one_round_more_than_the_interval() -> None:
    method = begun([A, B, C])
    assert after(method, 2) == A
    assert after(method, 2, 2, 2, 2) == A
    assert not method._search.best_acc
    assert after(method, 3) == B
    assert (method._search.best_acc, method._search.best_blocks) == (pytest.approx(2.2), A)
    assert method._search.rounds == []


def test_without_the_codes_extra_round_the_interval_is_the_trial() -> None:
    method = begun([A, B], extra_round=False)
    rounds(method, 2, 2, 2, 2)  # the first of them chooses
    assert method.skipped() == A
    assert after(method, 3) == B and method._search.best_acc == pytest.approx(2.25)


def test_without_the_codes_abort_a_set_is_tried_to_its_end() -> None:
    method = begun([A, B], abort_below=None)
    assert after(method, 0, 0, 0, 0, 1) == A and len(method._search.rounds) == 4
    assert after(method, 0) == B and method._search.best_acc == pytest.approx(0.2)


def test_a_trial_may_go_on_in_the_next_prompt() -> None:
    """The code's new estimate at a prompt's beginning is off; the first estimate is made all the same."""
    method = begun([A, B], trial_by_prompt=False)
    rounds(method, 2, 2)
    begin(method)
    assert after(method, 2, 2) == A and len(method._search.rounds) == 3
    restored = scripted([B], trial_by_prompt=False)
    restored.restore(method.state())
    for each in (method, restored):
        begin(each)
        assert after(each, 2, 3) == B and each._search.best_acc == pytest.approx(2.2)


def test_a_set_that_accepts_little_is_given_up_at_half_time() -> None:
    method = begun([A, B])
    rounds(method, 0, 1, 0)  # the first round chooses, two are half an interval
    assert method.skipped() == B and method._search.iteration == 2 and not method._search.best_acc
    assert method._search.rounds == []
    rounds(method, 1, 1)
    assert method._search.iteration == 2 and len(method._search.rounds) == 2  # one a round is enough


def test_sets_that_skip_too_little_are_not_tried() -> None:
    """Every round looks for another one."""
    method = begun([[1, 3], [], B])
    assert after(method, 5) == [1, 3]
    assert after(method, 5) == []
    assert after(method, 5) == B and method._search.iteration == 3 and not method._search.best_acc


@pytest.mark.parametrize(
    ("rule", "accepted", "stops"),
    [("acc_only", 4, False), ("acc_only", 5, True), ("acc_and_rate", 5, False), ("acc_and_rate", 6, True)],
)
def test_the_search_ends_with_the_score(rule: str, accepted: int, stops: bool) -> None:
    """More than four accepted tokens; with `acc_and_rate` also more than 95 % of the drafted ones."""
    method = begun([A, B], stop_rule=rule)
    seen = rounds(method, *[accepted] * 6, drafted=6)
    assert method.skipped() == (A if stops else B) and method._search.active != stops
    alpha = accepted / min(6, accepted + 1)  # a token after the first that failed was not tested
    draft_ms = Timed.latency.draft_ms(LayerSet.skipping(BLOCKS, A, A), 9)
    speed = tpt(alpha, 6, draft_ms, Timed.latency.target_ms(BLOCKS, 9))
    assert seen == [None] * 5 + [Estimate(pytest.approx(alpha), 6, pytest.approx(speed))]


def test_the_set_is_frozen_after_the_search() -> None:
    method = begun([A, B, C])
    rounds(method, *[5] * 6)
    state = method.state()
    for _ in range(2):
        begin(method)
        assert rounds(method, *[0] * 20) == [None] * 20
        assert method.skipped() == A and method.state() == state


def test_the_best_score_never_falls() -> None:
    rng, method, best = random.Random(0), scripted([A, B, C] * 40, stop_accepted=9.0), [0.0]
    for _ in range(8):
        begin(method)
        for _ in range(25):
            estimate = rounds(method, rng.choice([0, 1, 2, 4]))[0]
            best.append(method._search.best_acc)
            assert (best[-1] > best[-2]) == (estimate is not None)
            assert best[-1] >= best[-2]
    assert len(set(best)) > 2


def test_the_last_iteration_takes_the_best_set() -> None:
    """An empty one if none was tried to its end."""
    method = begun([A, B, C], max_iterations=3)
    assert after(method, *[3] * 6, *[2] * 4) == B
    assert after(method, 2) == A and not method._search.active and method._search.iteration == 3
    method = begun([A], max_iterations=1)
    assert after(method, 3) == [] and not method._search.active


def test_a_new_prompt_looks_for_a_new_set() -> None:
    """The set drafts on until then; the last prompt's trial is lost."""
    method = begun([A, B])
    rounds(method, 2, 2)
    method.start(Prefill([1], None))
    assert after(method, 1) == A and len(method._search.rounds) == 1
    assert after(method, 2) == B and method._search.rounds == []


def test_adaptive_lambda_follows_the_size_of_the_set() -> None:
    """+0.05 above ρ + 0.25, -0.05 below ρ, else unchanged; a fixed one never moves."""
    scripts = [[1, 2, 3, 5, 6], A, [1, 4], []]
    for mode, moved in (("adaptive", [0.05, 0.05, 0.0, -0.05]), ("fixed", [0.0] * 4)):
        method = scripted([], lambda_mode=mode, lam=0.0, min_skip_ratio=0.5)
        for blocks, expected in zip(scripts, moved):
            method._rule = Fixed(blocks)  # type: ignore[assignment]
            method.start(Prefill([1], None))
            rounds(method, 2)
            assert method._search.lam == pytest.approx(expected)


def test_a_model_without_a_published_lambda_is_calibrated_once() -> None:
    """The first estimate aims at half the inner blocks, or the least that is tried; then λ lasts."""
    method = scripted([], lam=None)
    assert method._search.lam is None and b'"lam": null' in method.state()
    noise = np.random.default_rng(0).random((3, 2 * (BLOCKS - 2)))
    method._confidences = lambda length, probe: torch.from_numpy(noise[method._search.iteration % 3])  # type: ignore[method-assign]
    begin(method)
    assert len(after(method, 2)) == 3
    lam = method._search.lam
    assert lam is not None
    begin(method)
    rounds(method, 2, 2)
    assert method._search.iteration >= 2 and method._search.lam == lam
    known = scripted([], lam=None, lam_by_model={"eight": 0.3})
    assert known._search.lam == 0.3
    many = scripted([], lam=None, skip_aim=0.7)
    many._confidences = method._confidences  # type: ignore[method-assign]
    begin(many)
    assert len(after(many, 2)) == 4


def test_equal_confidences_calibrate_nothing() -> None:
    method = begun([[]], lam=None)
    rounds(method, 2)
    assert method._search.lam is None and method.skipped() == []


class Fixed(Rule):
    """Always chooses the same blocks of eight."""

    def __init__(self, blocks: list[int]):
        super().__init__(BLOCKS, np.float32, 2, 5, None)
        object.__setattr__(self, "blocks", blocks)

    def choose(self, confidences: Tensor, lam: float) -> list[int]:
        return self.blocks  # type: ignore[attr-defined,no-any-return]


def test_the_search_ends_after_its_prompts_with_the_best_set() -> None:
    """Figure 4: the search task's set is kept; a method restored in between goes on the same way."""
    method = begun([A, B, C], search_prompts=2)
    rounds(method, *[3] * 5)  # A is noted as the best
    begin(method)
    rounds(method, 0)
    assert method._search.active and method.skipped() != A
    restored = scripted([C], search_prompts=2)
    restored.restore(method.state())
    for each in (method, restored):
        begin(each)
        assert not each._search.active and each.skipped() == A
        assert after(each, *[0] * 9) == A


def test_the_blocks_that_conflayers_skips_are_those_below_their_threshold() -> None:
    method = scripted([A, B])
    assert method.arrays() == {}
    begin(method)
    rounds(method, *[0] * 6)
    shown = method.arrays()["confidences"]
    assert shown["block"].tolist() == [1, 2, 3, 4, 5, 6]
    assert {values.shape for name, values in shown.items() if name != "block"} == {(method._search.iteration, 6)}
    for row, blocks in zip(range(2), (A, B), strict=True):
        below = shown["confidence"][row].astype(np.float64) < shown["threshold"][row]
        assert shown["block"][below].tolist() == blocks
