"""A run's summary: typed numbers, a column each, the same after JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ssd_bench.results.digest import summarise
from ssd_bench.results.numbers import domain_numbers
from ssd_bench.results.quantity import QUANTITIES, Measured
from ssd_bench.results.row import read_json
from ssd_bench.results.summary import DomainSummary, Summary
from tests.synthetic import unit, with_hf, write_run


@pytest.fixture
def summaries(tmp_path: Path) -> list[Summary | DomainSummary]:
    """Return the summaries of a run with and without a third arm, and of a run's domains."""
    units = [with_hf(unit(i)) for i in range(4)]
    for records in units:
        for record in records:
            record.prompt.domain = "ab"[record.prompt.prompt_index % 2]
    three = write_run(tmp_path / "three", units, hf={"weight_bytes": 5}, scores={"ar": {"rouge1": 0.5}})
    two = write_run(tmp_path / "two", [unit(i) for i in range(4)])
    return [summarise(three), summarise(two), *domain_numbers(three)]


def test_a_summary_is_the_same_after_json(summaries: list[Summary | DomainSummary]) -> None:
    for summary in summaries:
        stored = json.loads(json.dumps(asdict(summary), default=lambda value: value.item()))
        assert read_json(type(summary), stored) == summary
        assert read_json(type(summary), stored).row == summary.row
        with pytest.raises(TypeError, match="colour"):
            read_json(type(summary), {**stored, "colour": 1})


def test_the_numbers_are_the_catalogues_and_attributes(summaries: list[Summary | DomainSummary]) -> None:
    for summary in summaries:
        assert [*summary.numbers] == [key for key in QUANTITIES if key in summary.numbers]
        for key, number in summary.numbers.items():
            assert getattr(summary, key) == (number if QUANTITIES[key].interval else number.value)
            assert (f"{key}_lo" in summary.row) == QUANTITIES[key].interval
    three, two = summaries[:2]
    assert {*three.numbers} == {*QUANTITIES}
    assert {*three.numbers} - {*two.numbers} == {key for key in three.numbers if "hf" in key}
    with pytest.raises(AttributeError, match="colour"):
        _ = three.colour


def test_a_row_has_columns_for_the_interval_and_the_prompts(summaries: list[Summary | DomainSummary]) -> None:
    three, two, *domains = summaries
    assert isinstance(three, Summary) and [domain.row["domain"] for domain in domains] == ["a", "b"]
    matched = three.speedup_matched
    names = ("speedup_matched", "speedup_matched_lo", "speedup_matched_hi", "speedup_matched_n")
    assert [three.row[name] for name in names] == [matched.value, matched.low, matched.high, matched.n]
    assert three.number("speedup") == Measured(three.speedup.value, three.speedup.low, three.speedup.high)
    assert (three.row["ar_rouge1"], three.row["scores"], three.row["concurrent_runs"]) == (0.5, ["rouge1"], 0)
    assert {"hf_repetition", "speedup_hf", "hf_weight_bytes"} <= set(three.row)
    assert not [name for name in two.row if "hf" in name]
    assert list(three.row)[:2] == ["run_id", "run_dir"] and list(three.row)[-2:] == ["noise", "warnings"]
