"""The glossary has every column of the report's tables and of frames; `options` prints every option."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ssd_bench.cli import dispatch
from ssd_bench.model.checkpoint import ModelSource
from ssd_bench.model.template import Template
from ssd_bench.report import numbers, results, verdicts
from ssd_bench.report.runs import readable_row
from ssd_bench.results.digest import summarise
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.run.options import KNOWN
from tests.synthetic import unit, with_hf, write_run

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    part = GLOSSARY.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.*) \|$", part, re.MULTILINE))


def test_it_has_the_columns_of_the_reports_tables(tmp_path: Path) -> None:
    shown = readable_row(summarise(write_run(tmp_path / "run", [unit(0), unit(1)])).row, with_hf=True)
    assert set(shown) <= set(rows("Columns of the report's tables"))


def test_it_has_the_columns_of_the_papers_tables() -> None:
    assert [f"`{name}`" for name in numbers.COLUMNS] == [*rows("Columns of the papers' tables as CSV")]
    assert {f"`{name}`" for name in verdicts.COLUMNS} <= set(rows("Columns of `verdicts.csv`"))
    listed = ", ".join(name for name in rows("Columns of `results.csv`") if name != "column").split(", ")
    assert listed == [f"`{name}`" for name in results.COLUMNS]


def test_it_has_the_columns_of_frames(tmp_path: Path) -> None:
    """A run with all arms, and modelled; ends of intervals and numbers of prompts belong to their quantity."""
    units = [with_hf(unit(i), slower=3.0) for i in range(2)]
    summary = summarise(write_run(tmp_path / "run", units, hf={"weight_bytes": 5})).row
    columns = {name for name in summary if not re.search(r"_(lo|hi)$|(?<!^)_n$", name)} - {*QUANTITIES}
    told = re.findall(r"`(\w+)`", " ".join(rows("Columns of `load_runs` and of the report's CSV")))
    assert {*told} == columns | {"group", "settings", "params"} and len(told) == len({*told})


def test_the_command_prints_all_options_or_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`python -m ssd_bench options`" in GLOSSARY
    assert dispatch(["options"]) == 0
    printed = capsys.readouterr().out
    named = re.findall(r"^\| `(.+?)` \|", printed, re.MULTILINE)
    assert {name.split(".")[0] for name in named} >= {*KNOWN} - {"model", "data", "calibrate"}
    assert dispatch(["options", "about=nothing that there is"]) == 0
    assert capsys.readouterr().out.count("\n") == 2  # its head
    assert dispatch(["options", "of=x"]) == 2


def test_it_has_the_options_of_models() -> None:
    told = " ".join(rows("Options of models and data"))
    asked = [f"`model.{one.name}`" for one in fields(ModelSource)]
    asked += [f"`model.template.{one.name}`" for one in fields(Template)]
    assert all(option in told for option in [*asked, "`data.root`"])
