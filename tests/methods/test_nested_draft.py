"""A nested draft has the tokens of its plain draft, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd
import pytest
import torch

from methods.int4_draft import Int4Draft
from methods.match_model import MatchModel
from methods.nested_draft import NestedDraft
from ssd_bench.contract.generation import Generation
from ssd_bench.contract.method import Context, LayerDraft
from ssd_bench.cost.machine import Calls
from ssd_bench.cost.reference import reference_machine
from ssd_bench.cost.work import work_ms
from ssd_bench.model.decoder import Decoder
from tests.lossless import engine_for, prepare

NEW = 40
PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6], [40, 41, 5, 6, 7, 40], [9]]


class Guessing(Int4Draft):
    """Int4Draft with given guesses."""

    def __init__(self, guess: Callable[[Sequence[int], int], Sequence[int]], **settings: object) -> None:
        super().__init__(**settings)
        self._guess = guess

    def propose(self, context: Context) -> LayerDraft:
        return replace(super().propose(context), guess=self._guess)


def decode(decoder: Decoder, method: Int4Draft | NestedDraft, **decoding: object) -> list[Generation]:
    decoder.quantise(4)
    engine = engine_for(decoder, 120, NEW, frozenset([3]), **decoding)
    prepare(engine, method)
    with torch.inference_mode():
        return [engine.generate(method, prompt, seed=i) for i, prompt in enumerate(PROMPTS)]


def trace(generations: Sequence[Generation]) -> list[object]:
    return [(g.output, [(s.draft_len, s.accepted_len, s.stop_reason) for s in g.steps]) for g in generations]


def draft_passes(generations: Sequence[Generation]) -> int:
    work = [work for g in generations for step in g.steps for work in step.work if work.part == "draft" and work.heads]
    return sum(one.calls for one in work)


@pytest.mark.parametrize("stop_below", [0.0, 0.05])
def test_a_nested_draft_is_the_plain_draft_in_fewer_passes(decoder: Decoder, stop_below: float) -> None:
    settings = {"draft_len": 8, "stop_below": stop_below}
    plain = decode(decoder, Int4Draft(**settings))
    nested = decode(decoder, NestedDraft(**settings))
    assert trace(nested) == trace(plain)
    assert draft_passes(nested) < draft_passes(plain)


def test_any_guesses_leave_greedy_and_sampled_drafts_as_they_are(decoder: Decoder) -> None:
    """Right guesses, wrong ones, too many and none."""
    outputs = [g.output for g in decode(decoder, Int4Draft(draft_len=6))]
    for mode in ({}, {"mode": "sample", "temperature": 0.8}):
        plain = decode(decoder, Int4Draft(draft_len=6), **mode)
        for guess in (
            lambda drafted, most: [*range(5, 30)],
            lambda drafted, most: outputs[0][: len(drafted) % 3],
            lambda drafted, most: [7] * (len(drafted) % 2 and most),
        ):
            assert trace(decode(decoder, Guessing(guess, draft_len=6), **mode)) == trace(plain)


def test_a_guess_continues_the_newest_earlier_occurrence() -> None:
    text, free = MatchModel(1000, 2.5, 256), [1.0] * 10
    text.start([1, 2, 3, 4, 5, 1, 2], forget=0.0)
    text.extend([3])
    assert text.guess([], 3, free) == [4, 5, 1]  # after 1 2 3
    assert text.guess([4], 2, free) == [5, 1]
    assert text.guess([9], 2, free) == []  # has not occurred
    assert text.guess([1, 2], 9, free) == [3]  # after the newest 1 2, which the output continues with 3
    text.start([4, 5], forget=0.0)
    text.extend([1])
    assert text.guess([], 9, free) == [2, 3]  # up to the end of the first prompt's output


def test_a_guess_is_as_long_as_its_nodes_pay() -> None:
    """A match of three is right with probability 3/5 before any hit: a node has to cost less than 3/5 of a pass."""
    text = MatchModel(1000, 2.5, 256)
    text.start([1, 2, 3, 4, 5, 1, 2], forget=0.0)
    text.extend([3])
    lengths = [len(text.guess([4], 4, [1 + node * k for k in range(5)])) for node in (0.0, 0.3, 0.5, 0.7)]
    assert lengths[0] == 4 and lengths == sorted(lengths, reverse=True) and lengths[2] > lengths[3] == 0


def test_a_pass_over_a_copy_costs_the_growth_of_a_verification() -> None:
    """Rounded weights save the bytes of one read, however many rows a pass has."""
    machine, columns = reference_machine("h200/llama3_1_8b"), list(Calls._fields)
    parts = [("draft", 0), ("draft", 0), ("draft", 4), ("draft", 4), ("verify", 0), ("verify", 0)]
    work = pd.DataFrame(0.0, index=range(6), columns=columns).assign(
        part=[part for part, _ in parts], calls=1, rows=[1, 8] * 3, context=100.0, attentions=32, mlps=32, heads=1.0
    )
    for name in ("attentions", "mlps", "heads"):
        work[f"int4_{name}"] = work[name] * [bits == 4 for _, bits in parts]
    one, eight, rounded_one, rounded_eight, verified_one, verified_eight = work_ms(work, machine)
    growth = verified_eight - verified_one
    assert growth > 0 and eight - one == pytest.approx(growth)
    assert rounded_eight - rounded_one == pytest.approx(growth) and rounded_one < one
