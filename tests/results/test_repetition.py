"""Repeated 8-grams of outputs, and the speedup over prompts without loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_bench.results.digest import summarise
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.repetition import LOOP_SHARE, NGRAM, repeated_ngram_share, repetition
from ssd_bench.results.rows import arm_rows
from tests.synthetic import unit, with_hf, write_run

LOOP = [1, 2, 3, 4] * 20
PLAIN = list(range(80))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60))
def test_the_share_is_that_of_a_brute_force_count(ids: list[int]) -> None:
    ngrams = [tuple(ids[i : i + NGRAM]) for i in range(len(ids) - NGRAM + 1)]
    counted = 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
    assert repeated_ngram_share(ids) == pytest.approx(counted)


def test_a_loop_is_told_from_a_copied_phrase() -> None:
    assert repeated_ngram_share(LOOP) == pytest.approx(1 - 4 / 73)
    assert repeated_ngram_share([7] * (NGRAM - 1)) == 0.0
    quoted = list(range(256))
    quoted[200:216] = quoted[:16]
    assert repeated_ngram_share(quoted) == pytest.approx(9 / 249) and LOOP_SHARE > 9 / 249
    assert repeated_ngram_share([*PLAIN, *PLAIN]) > LOOP_SHARE


def rows(outputs: Sequence[tuple[Sequence[int], Sequence[int], float]]) -> pd.DataFrame:
    """One pair of answers a prompt: AR's output, the method's, and the method's speedup."""
    arms = []
    for i, (ar, method, speed) in enumerate(outputs):
        shared = {"prompt_index": i, "repeat": 0, "turn": 0, "new_tokens": 81, "prefill_ms": 10.0}
        arms.append(shared | {"arm": "ar", "output_ids": ar, "decode_ms": 800.0})
        arms.append(shared | {"arm": "method", "output_ids": method, "decode_ms": 800.0 / speed})
    return pd.DataFrame(arms)


def test_a_prompt_with_a_loop_in_either_arm_is_left_out() -> None:
    plain = [(PLAIN, PLAIN, 1.2), (PLAIN, PLAIN, 1.3), (PLAIN, PLAIN, 1.1)]
    loops = [(LOOP, LOOP, 5.0), (PLAIN, LOOP, 4.0), (LOOP, PLAIN, 3.0)]
    both = PromptTable(rows([*plain, *loops])).number("speedup_without_loops")
    assert both == PromptTable(rows(plain)).number("speedup") and both.n == 3 and both.low is not None
    nothing = PromptTable(rows(loops)).number("speedup_without_loops")
    assert nothing.value is None and nothing.n == 0


def test_one_answer_that_loops_leaves_the_whole_prompt_out() -> None:
    first = rows([(PLAIN, PLAIN, 1.2), (PLAIN, PLAIN, 1.4)])
    second = rows([(LOOP, LOOP, 5.0), (PLAIN, PLAIN, 1.5)]).assign(turn=1)
    kept = PromptTable(pd.concat([first, second], ignore_index=True)).number("speedup_without_loops")
    assert kept.n == 1 and kept.value == pytest.approx(2 / (1 / 1.4 + 1 / 1.5))


def test_answers_of_a_prompt_count_once() -> None:
    both = pd.concat([rows([(LOOP, LOOP, 1.0)]).assign(turn=1), rows([(PLAIN, PLAIN, 1.0), (PLAIN, PLAIN, 1.0)])])
    share = repetition(arm_rows(both, "ar"))
    assert share.value == pytest.approx((1 - 4 / 73) / 2 / 2) and share.n == 2


def test_a_summary_has_them_of_every_arm(tmp_path: Path) -> None:
    units = [with_hf(unit(i)) for i in range(4)]
    for record in units[0]:
        record.prompt.output_ids = (LOOP * 2)[: record.prompt.new_tokens]
    run = write_run(tmp_path / "run", units)
    summary = summarise(run).row
    share = repetition(arm_rows(run.prompts, "ar")).value
    assert share and summary["ar_repetition"] == summary["method_repetition"] == summary["hf_repetition"] == share
    assert summary["speedup_without_loops_n"] == 3 and summary["speedup_without_loops"] != summary["speedup"]
