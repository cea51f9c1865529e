"""Unmeasured values are empty in every table, and a score states its number of answers."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench import load_runs
from ssd_bench.commands.report import main as report
from ssd_bench.data.local import LocalSource
from ssd_bench.errors import ConfigError
from ssd_bench.records.schema import PromptRecord
from ssd_bench.report import figures
from ssd_bench.report.closing import comparison_text, run_table
from ssd_bench.report.runs import document, group_by_task, readable_row
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.rows import TIMES
from ssd_bench.run.progress import Progress
from tasks.jsonl import Jsonl
from tasks.scoring.choice import MultipleChoice
from tasks.scoring.code import PassesAsserts, PassesTests
from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.numbers import FinalNumber
from tasks.scoring.rouge import Rouge
from tasks.scoring.sandbox import ProgramLimits
from tasks.scoring.scorer import Scorer
from tests.runs import executed, local_model
from tests.synthetic import unit, write_record, write_run

SPEEDS = ("tokens_per_s", "tokens_per_s_lo", "tokens_per_s_hi")
UNDEFINED = (
    *(f"{arm}_{name}" for arm in ("ar", "method") for name in SPEEDS),
    *("M", "alpha", "alpha_macro", "alpha_conditional", "mean_draft_len", "skip_ratio", "speedup", "speedup_mean"),
    *("speedup_rates", "speedup_matched", "expected_speedup", "tpt_predicted", "tpt_estimated", "break_even_tokens"),
    *("overhead", "draft_share", "verify_share", "policy_share", "other_share", "searched_share", "slow_share"),
)


def one_token(prompt_index: int) -> list[PromptRecord]:
    """Return both arms of a unit that ended with the prefill's token: the loop took a moment, but no step."""
    spent = {"decode_ms": 0.01, "draft_ms": 0.0, "verify_ms": 0.0, "policy_ms": 0.0}
    rows = (record.prompt for record in unit(prompt_index))
    return [PromptRecord(replace(row, new_tokens=1, output_ids=row.output_ids[:1], **spent), []) for row in rows]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    path = tmp_path / "runs" / "a"
    write_record(path, [one_token(i) for i in range(3)])
    return Record(path)


def test_without_a_decode_step_nothing_is_zero(record: Record) -> None:
    summary = record.summary.row
    assert {name: summary[name] for name in UNDEFINED} == dict.fromkeys(UNDEFINED)
    assert summary["speedup_e2e"] is not None and summary["method_tokens_per_s_e2e"] > 0
    assert all(summary[f"{name}_share"] is None for name in ("draft", "verify", "policy", "other"))


def test_without_a_decode_step_every_table_has_dashes(
    record: Record, no_page: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "save", lambda made, stem: made.draw_without_rendering() or [])
    table = run_table(record.summary.row)
    assert "tokens/s AR                       –\n" in table and "draft –, verify –, method overhead –, other –" in table
    assert "paid back –" in table and "never" not in table
    (group,) = group_by_task([record])["toy"]
    empty = ("M", "α", "tokens/s AR", "tokens/s method", "speedup, measured", "overhead", "searched", "TPT predicted")
    assert [row["method"] for row in group.rows] == ["ar", "knapspec"]
    for row in group.rows:
        assert {readable_row(row)[name] for name in empty} == {"–"}
    texts = table, document("toy", [group]), comparison_text([record])
    lines = [line for text in texts for line in text.splitlines() if "preparation, modelled" not in line]  # 0.0 s: none
    assert not [line for line in lines if any(word in line for word in ("nan", "None", " 0.0 "))]
    assert report([f"runs_dir={record.path.parent}", f"out={tmp_path / 'out'}"]) == 0
    with (tmp_path / "out" / "toy.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert {row[name] for name in UNDEFINED} == {""}
    assert "### Speedup, measured" not in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_without_a_decode_step_frames_have_no_number(record: Record, tmp_path: Path) -> None:
    frame = load_runs(record.path.parent)
    assert frame[list(UNDEFINED)].isna().all(axis=None)
    frame.drop(columns=["scores", "warnings", "first_divergence", "settings"]).to_parquet(tmp_path / "runs.parquet")
    assert pd.read_parquet(tmp_path / "runs.parquet")[list(UNDEFINED)].isna().all(axis=None)


def test_without_a_decode_step_progress_has_no_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ssd_bench.run.progress.LOG_SECONDS", 0.0)
    with Progress(2) as progress:
        progress.done("a", one_token(0))
        progress.done("b", unit(1))
    first, second = capsys.readouterr().err.splitlines()
    assert "no token decoded" in first and "tok/s" not in first and second.count("tok/s") == 2


def test_an_arm_without_a_decoded_token_has_no_speedup() -> None:
    pairs = [(unit(i)[0], one_token(i)[1]) for i in range(3)]
    prompts = pd.DataFrame([{name: getattr(r.prompt, name) for name in TIMES} for p in pairs for r in p])
    assert PromptTable(prompts).value("speedup") is None and PromptTable(prompts).value("speedup_mean") is None


# ---- over how many answers a score is


def some_scored(prompt_index: int) -> list[PromptRecord]:
    """Return a unit of two domains; two in five have a score."""
    score, domain = (1.0, "a") if prompt_index % 5 < 2 else (None, "b")
    return [PromptRecord(replace(r.prompt, score=score, domain=domain), r.steps) for r in unit(prompt_index)]


def test_a_score_says_over_how_many_answers_it_is(tmp_path: Path) -> None:
    record = Record(write_run(tmp_path / "runs" / "a", [some_scored(i) for i in range(10)]).path)
    assert [record.summary.row[name] for name in ("n_scored", "n_answers", "output_rouge2")] == [4, 10, 1.0]
    assert (record.summary.ar_score, record.summary.method_score, record.summary.output_exact) == (1.0, 1.0, 1.0)
    table = run_table(record.summary.row, [domain.row for domain in record.domains])
    assert "1.000 AR, 1.000 method (exact_match; 4 of 10 answers have a score)" in table
    (group,) = group_by_task([record])["toy"]
    ar, method = map(readable_row, group.rows)
    assert ar["score AR"] == method["score AR"] == method["score method"] == "1.000 (4 of 10)"
    assert [(d.domain, d.n_scored, d.n_answers) for d in record.domains] == [("a", 4, 4), ("b", 0, 6)]
    assert load_runs(tmp_path / "runs")["n_scored"].tolist() == [4]


def test_a_score_over_all_answers_says_no_more_than_before(tmp_path: Path) -> None:
    summary = summarise(write_run(tmp_path / "run", [unit(0), unit(1)])).row
    assert readable_row(summary)["score method"] == "0.500" and "method (exact_match)" in run_table(summary)


# ---- references that a scorer cannot read

LIMITS = ProgramLimits(5, 30, 1024)
PARTS = {"prompt": "def f():\n", "test": "def check(f):\n    pass\n", "entry_point": "f"}
WRONG_PARTS = ({"test": "def check("}, {"entry_point": "f()"}, {"prompt": None}, {"test": "assert f()"})
TESTS = {"imports": [], "tests": ["assert f()"]}
WRONG_TESTS = ({"tests": []}, {"tests": ["assert f("]}, {"imports": [1]})


@pytest.mark.parametrize(
    ("scorer", "readable_ones", "faulty"),
    [
        (FinalNumber(), ["12", "so 12", "#### 1,000", r"\boxed{7}"], ["twelve", "####", r"\boxed{x}", "…"]),
        (MultipleChoice(), ["A", " j "], ["K", "AB", "1", "(A)"]),
        (
            MathAnswer(),
            [r"\frac{1}{2}", r"\boxed{3}", "x", r"\text{(A)}"],
            [r"\frac{1}{2", "}{", "$$", r"\boxed{}", "?"],
        ),
        (Rouge(), ["a", "大"], []),
        (
            PassesTests(LIMITS),
            [json.dumps(PARTS)],
            ["f", "[]", "{}", *(json.dumps(PARTS | wrong) for wrong in WRONG_PARTS)],
        ),
        (PassesAsserts(LIMITS), [json.dumps(TESTS)], ["{", *(json.dumps(TESTS | wrong) for wrong in WRONG_TESTS)]),
    ],
)
def test_a_scorer_says_what_it_cannot_read(scorer: Scorer, readable_ones: list[str], faulty: list[str]) -> None:
    assert [scorer.reference_fault(reference) for reference in readable_ones] == [None] * len(readable_ones)
    assert all(scorer.reference_fault(reference) for reference in faulty)


def written(path: Path, *rows: dict[str, object]) -> Jsonl:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Jsonl(str(path), "number", 32, {})  # type: ignore[arg-type]


def test_a_reference_that_cannot_be_read_is_a_fault_of_the_file(tmp_path: Path) -> None:
    good: dict[str, object] = {"prompt": "a", "reference": "12"}
    path = tmp_path / "mine.jsonl"
    task = written(path, good, {"prompt": "b", "reference": "twelve", "id": "b"}, {"prompt": "c", "reference": "dozen"})
    assert task.source is not None
    with pytest.raises(ConfigError) as fault:
        task.prompts(task.source, "chat", None, 0)
    message = str(fault.value)
    assert message.startswith(f"{path}:2 (id b) reference='twelve' is invalid: expected a text that ends on a number")
    assert "task.score_by=none" in message and message.endswith("2 references are invalid")
    assert len(task.prompts(task.source, "chat", 1, 0)) == 1, "a row that the run does not use"
    empty = written(path, good, {"prompt": "b"}, {"prompt": "c", "reference": " "})
    assert [p.reference for p in empty.prompts(LocalSource(tmp_path), "chat", None, 0)] == ["12", "", " "]


def test_a_run_counts_the_answers_that_have_a_score(small_checkpoint: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "the ferry", "reference": "the ferry"}, {"prompt": "a", "reference": "🙂!"}, {"prompt": "b"}]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ("task=jsonl", f"task.path={path}", "task.score_by=rouge", "decode.max_new_tokens=1", "method=ar")
    run = executed(tmp_path / "runs", *local_model(small_checkpoint), *options)
    summary = summarise(run).row
    assert (summary["n_scored"], summary["n_answers"]) == (1, 3)
    assert summary["method_tokens_per_s"] is None and summary["overhead"] is None
    assert "1 of 3 answers have a score" in run_table(summary)
