"""The register of replications: entries, refusals, and where they are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import register
from ssd_bench.report import page
from tests.runs import ROOT, program

ENTRY = {
    "paper": "swift",
    "exhibit": "Table 2",
    "method": "SWIFT",
    "model": "LLaMA-2-13B-Chat",
    "task": "CNN/DM",
    "metric": "speedup",
    "printed": 1.28,
    "came_back": 1.05,
    "who": "a user",
    "tier": "third party",
    "date": "2025-03-21",
    "source": "hemingkx/SWIFT issue 1",
}


def read(folder: Path, entry: dict[str, Any]) -> register.ReplicationReport:
    path = folder / "replications.yaml"
    path.write_text(yaml.safe_dump({"papers": {}, "reports": [entry]}), encoding="utf-8")
    (report,) = register.read_reports(path)
    return report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speedup": 1.05}, r"report 1\.speedup=1\.05 is invalid: .* has no such setting"),
        ({"came_back": ...}, r"report 1\.came_back is missing"),
        ({"came_back": None}, r"came_back=None is invalid: expected a number \(the value itself, no ratio\) > 0, or"),
        ({"came_back": "1.05/1.28"}, r"came_back='1\.05/1\.28' is invalid: expected a number \(the value itself, no"),
        ({"came_back": [1.07, 1.04]}, r"came_back=\[1\.07, 1\.04\] is invalid: .*\[lowest, highest\]"),
        ({"printed": 0}, r"printed=0 is invalid"),
        ({"printed": 1.82}, r"printed=1\.82 is invalid: expected the value in results\.csv: \[1\.28\]"),
        ({"exhibit": "Table 99"}, r"printed=1\.28 is invalid: .*none for this exhibit"),
        ({"paper": "swfit"}, r"paper='swfit' is invalid: expected one of .*swift"),
        ({"tier": "confirmed"}, r"tier='confirmed' is invalid: expected one of self-reported, third party"),
        ({"who": "authors"}, r"tier='third party' is invalid: expected self-reported, because who is 'authors'"),
        ({"date": "21 March 2025"}, r"date='21 March 2025' is invalid: expected a date such as"),
        ({"source": " "}, r"source=' ' is invalid: expected a text"),
    ],
)
def test_a_bad_entry_is_refused_by_its_key(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    entry = {key: value for key, value in (ENTRY | change).items() if value is not ...}
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, entry)


@pytest.mark.parametrize("text", ["reports: []", "papers: {}\nreports: [", "papers: {}\nreports:\n- date: 2025-02-30"])
def test_a_file_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "replications.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"replications\.yaml=.* is invalid: expected (valid YAML|the keys)"):
        register.read_reports(path)


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({}, 0.05 / 0.28),
        ({"came_back": [1.0, 1.1]}, 0.05 / 0.28),
        ({"printed": None}, None),
        ({"printed": 2.0, "printed_for": "another model"}, None),
        ({"metric": "ratio of two methods"}, None),
    ],
)
def test_a_share_needs_two_speedups_of_one_model(change: dict[str, Any], share: float | None, tmp_path: Path) -> None:
    assert read(tmp_path, ENTRY | change).share == (share if share is None else pytest.approx(share))


def test_a_new_entry_appears_in_the_table(tmp_path: Path) -> None:
    report = read(tmp_path, ENTRY | {"hardware": "A100", "date": 2025})
    (row,) = register.report_table([report]).to_dict("records")
    assert (row["paper"], row["share"], row["who"], row["date"]) == ("SWIFT", "18 %", "a user, A100", "2025")


def test_command_and_page_show_every_report() -> None:
    printed, sheet = program("audit", "replications").stdout, page._register_sheet()
    reports = register.read_reports()
    assert register.CAVEAT in printed and register.CAVEAT in sheet.lines[0]
    assert sheet.table.count("<tr>") == 1 + len(reports)
    for report in reports:
        assert report.source in sheet.table and report.date in printed


def test_the_notes_of_a_paper_have_its_reports() -> None:
    for report in register.read_reports():
        notes = ROOT / "ssd_bench" / "papers" / report.paper / "notes.md"
        row = register.report_table([report])[["model", "task", "printed", "came back", "source"]].iloc[0]
        if notes.is_file():
            assert f"\n| {' | '.join(row)} |\n" in notes.read_text(encoding="utf-8")
