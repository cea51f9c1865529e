"""The top of the page: facts, all results in one table, and what to use, on planted results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench import tables
from ssd_bench.conf import REFERENCE
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.predict.gpu_results import read_gpu_results, sheet_of
from ssd_bench.report import choice, facts, results
from ssd_bench.results.folder import records
from tests.exhibit_runs import make

REAL = {"model": "real", "params": 8e9, "toy": False, "machine": "A GPU, bfloat16", "times": results.MEASURED}


def row(method: str, task: str, speedup: float, **changes: Any) -> dict[str, Any]:
    """A row of results with an interval of ± 0.05."""
    columns = (
        dict.fromkeys(results.COLUMNS, math.nan) | REAL | {"method": method, "task": task, "n": 20, "without_loops": 8}
    )
    columns |= {"tokens": 300.0, "speedup": speedup, "speedup_lo": speedup - 0.05, "speedup_hi": speedup + 0.05}
    return columns | changes


def planted(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


THREE = ("GSM8K", "CNN/DM", "GovReport")


def test_a_method_is_recommended_if_it_is_faster_on_every_task() -> None:
    rows = [row("good", task, 1.3) for task in THREE] + [row("uneven", task, 2.0) for task in THREE[:2]]
    rows += [row("uneven", THREE[2], 1.03)]
    (sentence,) = choice.recommendations(planted(*rows))
    assert "faster than plain decoding on every task: good (1.30 to 1.30×)" in sentence and "uneven" not in sentence


@pytest.mark.parametrize(
    ("tasks", "changes", "told"),
    [
        (THREE[:2], {}, "tokens per answer now: GSM8K (8, 300), CNN/DM (8, 300)."),
        (THREE, {"tokens": 46.0}, "GovReport (8, 46)"),
        (THREE, {"without_loops": 7}, "3 tasks with 8 prompts or more on which no answer loops"),
        (THREE, {"toy": True}, "no recommendation, because a toy model shows how methods behave"),
        (THREE, {"speedup_lo": 0.99}, "no method is faster than plain decoding on every task"),
    ],
)
def test_without_enough_evidence_nothing_is_recommended(
    tasks: tuple[str, ...], changes: dict[str, Any], told: str
) -> None:
    (sentence,) = choice.recommendations(planted(*(row("good", task, 1.3, **changes) for task in tasks)))
    assert told in sentence


def test_a_method_whose_answers_loop_is_not_recommended() -> None:
    rows = [row("good", task, 1.3) for task in THREE] + [row("looping", task, 2.0) for task in THREE[:2]]
    rows += [row("looping", THREE[2], 2.0, without_loops=1)]
    (sentence,) = choice.recommendations(planted(*rows))
    assert "good (1.30 to 1.30×)" in sentence and "looping" not in sentence
    fastest = choice.choice_table(planted(*rows[-3:]))["fastest method"]
    assert list(fastest) == ["looping", "looping"]
    assert choice.note(planted(*rows[-3:])).startswith(
        "Left out: 1 of 3 tasks with fewer than 8 prompts without loops."
    )
    assert list(choice.choice_table(planted(*rows))["fastest method"]) == ["looping", "looping", "good"]


def test_the_fastest_method_is_shown_with_its_search_and_its_equals() -> None:
    rows = [row("searched", "GSM8K", 1.3, search_s=12.0, break_even=210_000.0), row("near", "GSM8K", 1.27)]
    rows += [row("far", "GSM8K", 1.1), row("slow", "CNN/DM", 0.98), row("slower", "CNN/DM", 0.5)]
    table = choice.choice_table(planted(*rows)).set_index("task")
    assert table.loc["GSM8K", "fastest method"] == "searched" and table.loc["GSM8K", "indistinguishable"] == "near"
    assert table.loc["GSM8K", "its search before the run"] == "12 s, paid back after 210,000 tokens"
    assert table.loc["CNN/DM", "fastest method"] == "plain decoding (AR)" and "(slow)" in table.loc["CNN/DM", "speedup"]


def test_results_at_different_costs_are_not_mixed() -> None:
    modelled = {"times": results.MODELLED, "machine": "h200/llama3_1_8b"}
    rows = [row("a", task, 1.3) for task in THREE] + [row("b", task, 2.0, **modelled) for task in THREE]
    table = choice.choice_table(planted(*rows))
    assert list(table["fastest method"]) == ["a"] * 3 + ["b"] * 3
    assert len(list(choice.recommendations(planted(*rows)))) == 2


def test_results_of_the_records_have_both_times_and_no_excluded_run(reference: list[Replication]) -> None:
    every = results.result_table(reference)
    for _, frame in every.groupby("toy"):
        assert set(frame["times"]) == {results.MEASURED, results.MODELLED}
    frame = every[every["toy"]]
    compared = results.comparison(reference)
    assert compared is not None and results.comparison([]) is None
    for cell in compared.shown_cells():
        of_cell = frame[(frame["method"] == cell["method"]) & (frame["task"] == cell["task"])]
        values = set(of_cell.loc[of_cell["times"] == results.MEASURED, "speedup"])
        assert (cell.summary.speedup.value in values) != bool(cell.exclusion), cell.labels
        if not cell.exclusion:
            answers = cell.run.prompts[cell.run.prompts["arm"] == "ar"]["new_tokens"].mean()
            assert answers in of_cell["tokens"].to_numpy().round(9).tolist() or answers == pytest.approx(
                of_cell["tokens"].iloc[0]
            )
    readable = results.readable_results(frame)
    assert len(readable) == len(frame) and not readable.isin(["nan", ""]).any().any()


def test_a_record_outside_every_experiment_is_a_row(tmp_path: Path) -> None:
    make(tmp_path, "own")
    rows = results.result_table([], records(tmp_path)).to_dict("records")
    assert [row["times"] for row in rows] == [results.MEASURED, results.MODELLED]
    assert {row["task"] for row in rows} == {"toy"}


def test_results_are_read_from_files_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    frame = planted(row("good", "GSM8K", 1.3), row("bad", "GSM8K", 0.5))
    file = tmp_path / results.FOLDER / "real.csv"
    file.parent.mkdir()
    file.write_text(tables.csv(frame), encoding="utf-8")
    read = results.read_results(tmp_path)
    pd.testing.assert_frame_equal(read, frame.astype(read.dtypes.to_dict()))
    file.write_text("method,task\na,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"real\.csv"):
        results.read_results(tmp_path)
    assert results.read_results(tmp_path / "nothing").empty


def test_damaged_results_of_a_gpu_are_refused(tmp_path: Path) -> None:
    assert read_gpu_results(tmp_path) == {}
    with pytest.raises(ConfigError, match="data sheet"):
        sheet_of("Imaginary 9000")
    for text in ("{", "[]", "{}"):
        (tmp_path / "bad.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"bad\.json"):
            read_gpu_results(tmp_path)


def test_facts_follow_from_the_audit_and_from_the_gpu() -> None:
    checks, measured = audit.audit(), [*read_gpu_results(REFERENCE / "shapes").values()]
    found = facts.facts(checks, measured)
    assert len(found) == 3 and [fact.command.split()[3] for fact in found] == ["audit", "shapes", "shapes"]
    kinds, covered, impossible = audit.totals(checks)
    assert found[0].number == f"{kinds} kinds of contradiction, {impossible} impossible numbers"
    assert f"cover {covered} printed numbers, out of {sum(checks['paper'] != 'swift-v1')} comparisons" in found[0].says
    # tests/papers/test_stated_shares.py computes these numbers again
    assert found[1].number == "22 of 24 CLaSp speedups" and "22 to 31 % (median error +0.6 %" in found[1].says
    assert "half of the blocks skipped, none would" in found[1].says and "4 of 8 models" in found[1].basis
    ratios = [result["hf"]["ms"] / result["ar"]["ms"] for result in measured]
    assert found[2].number == f"{min(ratios):.1f} to {max(ratios):.1f} times as fast"
    assert len(facts.facts(checks, [])) == 1
