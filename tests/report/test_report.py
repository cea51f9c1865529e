"""The report: its content by runs, on the terminal and on disk."""

from __future__ import annotations

import contextlib
import csv
import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ssd_bench.commands.report import main
from ssd_bench.errors import LosslessError
from ssd_bench.report import figures
from ssd_bench.report.closing import comparison_text, print_record, run_table
from ssd_bench.report.runs import document, group_by_task, unrounded_table
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from ssd_bench.results.text import format_interval, format_measured
from tests.conftest import leave_out_page
from tests.synthetic import unit, with_hf, write_record, write_run

COLUMNS = """model; method; n; M; α; tokens/s AR; tokens/s method; speedup, measured; measured, end to end
speedup, modelled; search frozen; TPT predicted; TPT estimated; overhead; searched; skipped attn + MLP; score AR
score method; ROUGE-2 to AR; lossless; truncated; dtype; device; run""".replace("\n", "; ").split("; ")


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparable runs, one on other prompts, one of another task, one without a baseline, one unfinished."""
    root = tmp_path_factory.mktemp("report") / "runs"
    units = [unit(i) for i in range(6)]
    write_record(root / "a", units, run_id="run-a")
    tie: dict[str, Any] = {"lossless": "tie", "divergence_index": 4, "divergence_gap": 0.1}
    write_record(root / "deep" / "b", [*units[:5], unit(5, accept=0.9, **tie)], run_id="run-b", method="swift")
    write_record(root / "c", units[:3], run_id="run-c", method="clasp")
    write_record(root / "d", units, run_id="run-d", task={"name": "other/task", "metric": None})
    write_record(root / "e", [records[1:] for records in units], run_id="run-e", method="del")
    (root / "f").mkdir()
    (root / "f" / "run.json").write_text('{"status": "running", "schema_version": 1}', encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def printed(runs_dir: Path) -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        leave_out_page(patch)
        assert main([f"runs_dir={runs_dir}"]) == 0
    return out.getvalue()


def markdown_rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|:")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_report_writes_and_prints_every_task(runs_dir: Path, printed: str) -> None:
    suffixes = (".md", ".csv", ".tex", ".png", ".svg", ".pdf")
    names = {f"{task}{suffix}" for task in ("toy", "other_task") for suffix in suffixes}
    names |= {"README.md", "index.html", "verdicts.tex"}
    assert {path.name for path in (runs_dir / "report").iterdir()} >= names
    for name in names:
        assert str(runs_dir / "report" / name) in printed
    assert (runs_dir / "report" / "toy.md").read_text(encoding="utf-8") in printed
    assert (runs_dir / "report" / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert (runs_dir / "report" / "toy.pdf").read_bytes().startswith(b"%PDF")


def test_comparable_runs_share_a_table_under_one_ar_row(runs_dir: Path, printed: str) -> None:
    text = (runs_dir / "report" / "toy.md").read_text(encoding="utf-8")
    assert text.count("\n## ") == 2
    first, second = text.split("\n## ")[1:]
    head, *rows = markdown_rows(first)
    assert head == COLUMNS
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    assert [row["method"] for row in table] == ["ar", "knapspec", "swift", "del"]
    ar, knapspec, swift, alone = table
    shown = tuple(ar[name] for name in ("M", "speedup, measured", "α", "lossless", "run"))
    assert shown == ("1.00", "1.00", "–", "by definition", "3 runs")
    measured, end_to_end = (knapspec[name] for name in ("speedup, measured", "measured, end to end"))
    assert measured.count(",") == end_to_end.count(",") == 1 and measured.endswith("]") and measured != end_to_end
    assert (knapspec["lossless"], swift["lossless"]) == ("6/6", "5/6 (1 near-tie)")
    assert (alone["speedup, measured"], alone["tokens/s AR"]) == ("–", "–")
    assert [row["n"] for row in table] == ["6"] * 4
    assert "- run-a: few prompts: n = 6, fewer than 20" in first
    assert [row[1] for row in markdown_rows(second)[1:]] == ["ar", "clasp"]
    assert "n = 3 prompts" in second


def test_the_csv_holds_the_same_rows_unrounded(runs_dir: Path, printed: str) -> None:
    with open(runs_dir / "report" / "toy.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["ar", "knapspec", "swift", "del", "ar", "clasp"]
    assert len({row["group"] for row in rows}) == 2
    knapspec = rows[1]
    rates = [float(knapspec[f"{arm}_tokens_per_s"]) for arm in ("method", "ar")]
    assert float(knapspec["speedup"]) == pytest.approx(rates[0] / rates[1])
    assert float(knapspec["speedup_lo"]) < float(knapspec["speedup"]) < float(knapspec["speedup_hi"])


def test_the_overview_has_every_method_and_task(runs_dir: Path, printed: str) -> None:
    """The speedups of the tasks' own tables; runs without AR, and methods that did not run, have a dash."""
    text = (runs_dir / "report" / "README.md").read_text(encoding="utf-8")
    assert text in printed
    toy = markdown_rows((runs_dir / "report" / "toy.md").read_text(encoding="utf-8"))
    for part, name in zip(text.split("\n### ")[1:3], ("speedup, measured", "measured, end to end"), strict=True):
        head, *rows = markdown_rows(part)
        assert part.lower().startswith(name) and head == ["method", "other/task", "toy"]
        cells = {row[0]: row[1:] for row in rows}
        assert set(cells) == {"knapspec", "swift", "clasp", "del"} and cells["del"] == ["–", "–"]
        for _, *row in toy:
            if row[0] in cells and row[0] != "del":
                assert cells[row[0]][1] == row[COLUMNS.index(name) - 1]


def test_a_method_that_ran_twice_names_its_runs(no_page: None, tmp_path: Path) -> None:
    for name in "ab":
        write_record(tmp_path / name, [unit(i) for i in range(3)], run_id=f"run-{name}")
    assert main([f"runs_dir={tmp_path}"]) == 0
    cell = markdown_rows((tmp_path / "report" / "README.md").read_text(encoding="utf-8"))[1][1]
    assert "(run-a); " in cell and cell.endswith("(run-b)")


def test_the_figure_stacks_to_the_time_per_token(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, [unit(i) for i in range(3)], method=name) for name in ("swift", "clasp")]
    groups = group_by_task([Record(run.path) for run in runs])["toy"]
    speed, time = figures.task_figure("toy", groups).axes
    assert [label.get_text() for label in speed.get_yticklabels()] == ["ar", "swift", "clasp"]
    rates = [bar.get_width() for bar in speed.patches]  # type: ignore[attr-defined]
    assert rates == [pytest.approx(row["method_tokens_per_s"]) for row in groups[0].rows]
    stacks = [bar.get_width() for bar in time.patches]  # type: ignore[attr-defined]
    for i, rate in enumerate(rates):
        assert sum(stacks[4 * i : 4 * i + 4]) == pytest.approx(1000 / rate)


def test_the_four_accounts_differ_in_grey() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    shades = sorted(grey(colour) for colour, _ in figures.ACCOUNTS.values())
    assert min(b - a for a, b in pairwise(shades)) > 35
    assert len({hatch for _, hatch in figures.ACCOUNTS.values()}) == 4


def test_nothing_to_report_and_bad_options_exit_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "expected an existing folder of runs" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert main([]) == 2
    assert "no complete run there" in capsys.readouterr().err
    assert main(["run_dir=x"]) == 2
    assert "runs_dir=, out=" in capsys.readouterr().err
    assert main(["--help"]) == 0
    write_record(tmp_path / "runs" / "a", [unit(0)])
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["out=file/report"]) == 2
    assert "out=" in capsys.readouterr().err


def test_a_damaged_run_is_named_and_left_out(
    no_page: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "save", lambda figure, stem: [])
    write_record(tmp_path / "good", [unit(0), unit(1)])
    bad = write_run(tmp_path / "bad", [unit(0)])
    (bad.path / "prompts.parquet").write_bytes(b"")
    assert main([f"runs_dir={tmp_path}", f"out={tmp_path / 'out'}"]) == 0
    error = capsys.readouterr().err
    assert "left out" in error and str(bad.path / "prompts.parquet") in error
    assert (tmp_path / "out" / "toy.md").exists()


def test_the_terminal_table_shows_the_numbers_the_record_and_every_warning(tmp_path: Path) -> None:
    bug: dict[str, Any] = {"lossless": "bug", "divergence_index": 2, "divergence_gap": 1.0}
    summary = summarise(write_run(tmp_path / "run", [unit(0), unit(1, **bug)])).row
    text = run_table(summary)
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 100
    assert f"{summary['speedup']:.2f} [{summary['speedup_lo']:.2f}, {summary['speedup_hi']:.2f}]" in text
    assert "1/2 (1 MISMATCH)" in text and str(tmp_path / "run") in text and "n = 2 prompts" in text
    assert text.count("warning:") == len(summary["warnings"]) >= 2 and "offline preparation" in text
    alone = run_table(summarise(write_run(tmp_path / "alone", [unit(0)[1:]])).row)
    assert "no pairs" in alone and "nan" not in alone.lower() and "None" not in alone


def test_runs_of_a_sweep_stand_side_by_side_where_they_can(tmp_path: Path) -> None:
    """One table per set of comparable runs, the fastest first, AR last; nothing if nothing ran."""
    units = [unit(i) for i in range(6)]
    fast = [unit(i, accept=0.9) for i in range(6)]
    folders = [
        write_run(tmp_path / "a", units, run_id="run-a", method="swift").path,
        write_run(tmp_path / "b", fast, run_id="run-b", method="knapspec").path,
        write_run(tmp_path / "c", units, run_id="run-c", method="clasp", seed=1).path,
    ]
    made = [Record(path) for path in folders]
    text = comparison_text(made)
    speedups = [made[i].summary.speedup.value for i in (0, 1)]
    order = ["knapspec", "swift"] if speedups[1] > speedups[0] else ["swift", "knapspec"]
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()]
    named = [name for name in lines if name in ("ar", "swift", "knapspec", "clasp")]
    assert [name for name in named if name != "clasp"][:2] == order and named.count("ar") == text.count("(conditions ")
    assert format_measured(made[1].summary.speedup) in text and max(map(len, text.splitlines())) <= 110
    assert comparison_text([]) == ""


def test_runs_of_one_method_are_told_apart_by_what_they_differ_in(tmp_path: Path) -> None:
    units = [unit(i) for i in range(4)]
    given = [("swift", 4), ("swift", 8), ("clasp", 4)]
    made = []
    for i, (method, length) in enumerate(given):
        config = {"method": {"name": method, "draft_len": length, "stop_below": 0.5}}
        made.append(Record(write_run(tmp_path / f"{i}", units, run_id=f"run-{i}", method=method, config=config).path))
    lines = comparison_text(made).splitlines()
    names = [line.split("  ")[1] for line in lines if line.startswith("  ") and line.split()[0] != "method"]
    assert sorted(names) == ["ar", "clasp", "swift, draft_len=4", "swift, draft_len=8"]


def test_the_terminal_table_shows_a_third_arm_only_where_there_is_one(tmp_path: Path) -> None:
    units = [with_hf(unit(i), slower=5.0) for i in range(3)]
    summary = summarise(write_run(tmp_path / "three", units, hf={"weight_bytes": 5 * 10**6})).row
    text = run_table(summary)
    for name in ("speedup_hf", "speedup_hf_e2e", "speedup_hf_rates_e2e", "speedup_hf_wall", "ar_over_hf_e2e"):
        assert f"  {format_interval(summary, name)}" in text
    assert "same tokens 100.0 %" in text and "5 MB, in a separate process" in text
    two = run_table(summarise(write_run(tmp_path / "two", [unit(i) for i in range(3)])).row)
    assert "HF" not in two
    kept = [line for line in text.splitlines() if "HF" not in line and "ratio of" not in line and "record" not in line]
    assert kept == [line for line in two.splitlines() if "record" not in line]


def test_a_table_has_columns_of_a_third_arm_where_a_run_has_one(tmp_path: Path) -> None:
    """AR's row covers all runs that have it; tables of other runs are unchanged."""
    pairs = [unit(i) for i in range(4)]
    write_record(tmp_path / "a", [with_hf(one, slower=3.0) for one in pairs], run_id="run-a", method="swift")
    write_record(tmp_path / "b", [with_hf(one, slower=6.0) for one in pairs], run_id="run-b", method="clasp")
    write_record(tmp_path / "c", pairs, run_id="run-c", method="del")
    write_record(tmp_path / "d", pairs[:3], run_id="run-d", method="del")
    runs = [Record(tmp_path / name) for name in "abcd"]
    text = document("toy", (groups := group_by_task(runs)["toy"]))
    with_third, without = text.split("\n## ")[1:]
    head, ar, *rows = markdown_rows(with_third)
    assert head == [*COLUMNS[:11], "tokens/s HF", "speedup over HF, decode", *COLUMNS[11:]]
    over = {row[1]: row[12] for row in (ar, *rows)}
    assert over["ar"] == "4.50" and over["del"] == "–" and "HF: Hugging Face generate" in text
    assert over["swift"] == format_interval(runs[0].summary.row, "speedup_hf") != over["clasp"]
    assert markdown_rows(without)[0] == COLUMNS
    alone = document("toy", groups[1:])
    assert "HF" not in alone and alone.endswith(without)
    frame = unrounded_table(groups)
    assert frame.loc[frame["method"] == "swift", "speedup_hf_wall"].item() == runs[0].summary.row["speedup_hf_wall"]


def test_a_run_that_is_not_lossless_ends_with_its_table_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = {"lossless": "bug", "divergence_index": 7, "divergence_gap": 2.5}
    write_record(tmp_path / "run", [unit(0), unit(1, **bug)])
    with pytest.raises(LosslessError, match="not lossless on toy-1"):
        print_record(tmp_path / "run")
    assert "lossless (outputs equal to AR's)" in capsys.readouterr().out
