"""The model of a table or figure: all of them, their content without numbers or runs, and our coverage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.papers.ours import select
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import paper_versions
from ssd_bench.report.exhibit import COMPLETE, MISSING, NO_RESULTS, PARTIAL, Exhibit, all_numbers, build_exhibits
from ssd_bench.report.figures import DrawnFigure
from ssd_bench.report.numbers import NO_NUMBERS, file_stem, long_table


@pytest.fixture(scope="module")
def table2() -> pd.DataFrame:
    return long_table([], "swift", "Table 2")


def test_every_table_figure_and_passage_is_built_once(table2: pd.DataFrame) -> None:
    exhibits = build_exhibits({("swift", "Table 2"): table2})
    keys = [(exhibit.paper, exhibit.label) for exhibit in exhibits]
    listed = set(reported.exhibits()[["paper", "exhibit"]].itertuples(index=False, name=None))
    assert set(keys) == listed | {key for key in select.experiments() if key[0] in paper_versions()}
    assert len(set(keys)) == len(keys) == len({exhibit.stem for exhibit in exhibits})
    assert keys[0] == ("swift", "Table 2") and all_numbers(exhibits)["id"].tolist() == table2["id"].tolist()


def test_names_of_files_are_those_of_the_experiments() -> None:
    exhibits = {(number.paper, number.exhibit) for number in reported.numbers()}
    stems = {file_stem(*exhibit) for exhibit in exhibits}
    assert len(stems) == len(exhibits)
    assert {"knapspec_table2", "swift_v1_table8", "swift_text_5_2", "swift_abstract", "conflayers_text_app_c"} <= stems


def test_without_numbers_it_has_empty_tables() -> None:
    diagram = Exhibit("knapspec", "Figure 1", NO_NUMBERS)
    assert (diagram.has_numbers, diagram.kind, diagram.state) == (False, "diagram", NO_RESULTS)
    assert diagram.compared.empty and diagram.uncompared.empty and diagram.features.empty
    assert diagram.remarks == diagram.missing == diagram.runs == diagram.commands(diagram.scales) == []
    assert list(diagram.summary)[-1] == "It contains no results, only a diagram."
    marks = Exhibit("knapspec", "Table 1", NO_NUMBERS)
    assert marks.kind == "features" and not marks.features.empty


def test_models_with_a_result_of_ours_are_compared(table2: pd.DataFrame) -> None:
    models = table2["model"].unique()
    exhibit = Exhibit("swift", "Table 2", table2.copy())
    assert exhibit.state == MISSING and exhibit.compared.empty and len(exhibit.uncompared) == len(table2)
    exhibit.frame.loc[exhibit.frame["model"].eq(models[0]).idxmax(), "ours"] = 1.0
    exhibit = replace(exhibit)  # what it keeps of its frame is that of the frame as it was
    assert exhibit.state == PARTIAL
    assert set(exhibit.compared["model"]) == {models[0]} and set(exhibit.uncompared["model"]) == {*models[1:]}
    exhibit.frame["ours"] = 1.0
    exhibit = replace(exhibit)
    assert exhibit.state == COMPLETE and exhibit.uncompared.empty


def test_a_figure_that_was_not_drawn_is_missing_with_its_reason() -> None:
    name = "swift_figure12"
    drawn = DrawnFigure(name, "mini", "a model", Path("a.svg"), "")
    failed = replace(drawn, image=None, reason="Not now.")
    exhibit = Exhibit("swift", "Figure 12", NO_NUMBERS, all_drawn={name: [failed]})
    assert exhibit.state == MISSING and "No figure at scale mini: Not now." in exhibit.missing
    exhibit = replace(exhibit, all_drawn={name: [drawn]})
    assert exhibit.state == COMPLETE and exhibit.figures == [drawn]
    assert not [line for line in exhibit.missing if "No figure" in line]
    # another version of the paper has the same runs, but the figure is shown once
    assert Exhibit("swift-v1", "Figure 11", NO_NUMBERS, all_drawn={name: [drawn]}).figures == []
