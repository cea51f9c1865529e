"""The glossary has every column of a record, in its own words, and of the report's tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ssd_bench.metrics import summarise
from ssd_bench.records.schema import SCHEMAS
from ssd_bench.report.runs import readable
from tests.synthetic import unit, write_run

GLOSSARY = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text(encoding="utf-8")


def rows(heading: str) -> dict[str, str]:
    part = GLOSSARY.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| (.+?) \| (.*) \|$", part, re.MULTILINE))


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_has_the_columns_of_a_record(name: str) -> None:
    told = {f"`{column.name}`": column.metadata[b"description"].decode() for column in SCHEMAS[name]}
    found = rows(f"Columns of `{name}.parquet`")
    assert {key: found[key] for key in told} == told and len(found) == len(told)


def test_it_has_the_columns_of_the_reports_tables(tmp_path: Path) -> None:
    shown = readable(summarise(write_run(tmp_path / "run", [unit(0), unit(1)])), with_hf=True)
    assert set(shown) <= set(rows("Columns of the report's tables"))
