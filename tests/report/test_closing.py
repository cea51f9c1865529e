"""A run's measured and modelled times, in its final texts, the tables of runs, and the explanation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ssd_bench.commands import explain
from ssd_bench.records.reader import Run
from ssd_bench.report.closing import comparison_text, run_table
from ssd_bench.report.runs import document, group_by_task, overview, readable_row, unrounded_table
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from ssd_bench.results.modelled import REFERENCE, reference_run
from ssd_bench.results.text import FROZEN, MEASURED, MODELLED, costs_text, format_interval
from tests.synthetic import N_LAYERS, unit, with_work, write_run

COSTS = "H200 x Llama-3.1-8B costs"
OTHER = "h200/qwen3_32b"


def counted_run(path: Path, searches: int = 40, **changes: Any) -> Run:
    """Write and load a run that counts its work, with so many search calls per step."""
    return write_run(path, [with_work(unit(i), searches) for i in range(6)], **changes)


def costing(machine: str) -> dict[str, Any]:
    return {"config": {"hardware": {"costs": machine}}}


def row_text(text: str, label: str) -> str:
    return (
        next(line for line in text.splitlines() if line.startswith(f"  {label}  ")).removeprefix(f"  {label}").strip()
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (REFERENCE, COSTS),
        ("h200/llama2_13b", "H200 x Llama-2-13b costs"),
        ("amd_epyc/miniature", "AMD EPYC x miniature costs"),
        ("gone/no_such_model", "GONE x no_such_model costs"),
    ],
)
def test_a_reference_machine_has_one_readable_name(name: str, text: str) -> None:
    assert costs_text(name) == text


def test_the_table_of_a_run_shows_both_times(tmp_path: Path) -> None:
    summary = summarise(counted_run(tmp_path / "run")).row
    assert summary["speedup_frozen"] > summary["speedup_modelled"] != summary["speedup"]
    text = run_table(summary)
    assert row_text(text, MEASURED) == format_interval(summary, "speedup")
    assert row_text(text, MODELLED) == format_interval(summary, "speedup_modelled")
    assert row_text(text, FROZEN) == format_interval(summary, "speedup_frozen")
    assert row_text(text, "method overhead").endswith(f"{100 * summary['modelled_overhead']:.1f} % modelled")
    assert " ".join(text.split()).count(f"modelled: the same work at {COSTS}") == 1
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 100


def test_the_preparation_has_both_times(tmp_path: Path) -> None:
    work = {"part": "prepare", "calls": 400, "rows": 64, "attentions": N_LAYERS, "mlps": N_LAYERS, "heads": 1.0}
    prepare_work = [work | {"launches": 2, "context": 100.0, "ms": 2000.0}]
    text = run_table(summarise(counted_run(tmp_path / "run", prepare_work=prepare_work)).row)
    assert row_text(text, "offline preparation").startswith("5.0 s, ")
    assert " s, " in row_text(text, "offline preparation, modelled")
    text = run_table(summarise(counted_run(tmp_path / "none", prepare_work=[])).row)
    assert row_text(text, "offline preparation, modelled") == "0.0 s"


def test_a_sweep_has_a_modelled_column_and_names_the_costs_once(tmp_path: Path) -> None:
    methods = ("swift", "clasp", "conflayers")
    runs = [counted_run(tmp_path / name, searches=20 * i, method=name) for i, name in enumerate(methods)]
    text = comparison_text([Record(run.path) for run in runs])
    (head,) = (line for line in text.splitlines() if line.startswith("  method "))
    assert head.index(MEASURED) < head.index(MODELLED)
    assert text.count(f"modelled at {COSTS}") == 1
    for run in runs:
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {run.header.method} "))
        assert format_interval(summarise(run).row, "speedup_modelled") in line
    assert max(map(len, text.splitlines())) <= 110


def test_a_run_for_other_costs_is_told_from_the_same_method(tmp_path: Path) -> None:
    records = [
        Record(counted_run(tmp_path / "a", run_id="run-a", method="swift").path),
        Record(counted_run(tmp_path / "b", run_id="run-b", method="swift", **costing(OTHER)).path),
    ]
    text = " ".join(comparison_text(records).split())
    assert "swift, hardware.costs=None" in text and f"swift, hardware.costs={OTHER}" in text
    assert f"modelled at {COSTS} (run-a); at {costs_text(OTHER)} (run-b)" in text


def test_tables_of_runs_have_both_speedups(tmp_path: Path) -> None:
    new = counted_run(tmp_path / "new", run_id="run-new", method="swift")
    groups = group_by_task([Record(new.path)])["toy"]
    ar, *rows = map(readable_row, groups[0].rows)
    shown = {row["method"]: (row[MODELLED], row[FROZEN]) for row in rows}
    summary = summarise(new).row
    assert (ar[MODELLED], ar[FROZEN]) == ("1.00", "1.00")
    assert shown["swift"] == tuple(format_interval(summary, name) for name in ("speedup_modelled", "speedup_frozen"))
    assert document("toy", groups).count(f"{MODELLED}, and {FROZEN}: at {COSTS}.") == 1
    frame = unrounded_table(groups).set_index("method")
    assert frame.loc["swift", "speedup_modelled"] == summary["speedup_modelled"]


def test_the_overview_has_a_table_for_each_reference_machine(tmp_path: Path) -> None:
    runs = [
        counted_run(tmp_path / "a", run_id="run-a", method="swift"),
        counted_run(tmp_path / "b", run_id="run-b", method="clasp", **costing(OTHER)),
    ]
    text = overview(group_by_task([Record(run.path) for run in runs]))
    parts = {part.partition("\n")[0]: part for part in text.split("\n### ")[1:]}
    for costs, method, absent in ((COSTS, "swift", "clasp"), (costs_text(OTHER), "clasp", "swift")):
        lines = [line.split("|")[1:3] for line in parts[f"Speedup, modelled at {costs}"].splitlines() if "|" in line]
        cells = {name.strip(): value.strip() for name, value in lines}
        assert cells[method] != "–" and cells[absent] == "–"


def test_an_explanation_has_modelled_times_next_to_the_measured(tmp_path: Path) -> None:
    run = counted_run(tmp_path / "run")
    times, summary = explain.explain(reference_run(run)).ms, summarise(run).row
    assert times["ar"] / (sum(times.values()) - times["ar"]) == pytest.approx(summary["speedup_modelled"])
    assert times["policy"] / (sum(times.values()) - times["ar"]) == pytest.approx(summary["modelled_overhead"])
    sources = explain.draft_sources(run)
    emitted = sources["emitted"].sum()
    parts = times["draft"] + times["verify"] + times["policy"]
    assert sources["modelled_ms"].sum() / emitted == pytest.approx(parts)
    first, *rest = explain.render(run, explain.explain(run)).splitlines()
    assert first.endswith(f", modelled {summary['speedup_modelled']:.2f} at {COSTS}")
    assert sum(explain.MODELLED_MS in line for line in rest) == 2
