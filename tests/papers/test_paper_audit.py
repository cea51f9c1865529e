"""The audit of the papers: arithmetic of printed numbers, and findings on their data."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ssd_bench.commands.audit import main
from ssd_bench.papers.audit import arithmetic
from ssd_bench.papers.audit import audit as module
from ssd_bench.papers.audit.relations import relations
from ssd_bench.papers.knn_ssd import checks as knn_ssd
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import folder_of
from ssd_bench.papers.printed.reported import Number, find_numbers, numbers
from ssd_bench.papers.swift import checks as swift


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return module.audit()


def rows(frame: pd.DataFrame, paper: str, check: str, exhibit: str | None = None) -> pd.DataFrame:
    found = frame[(frame["paper"] == paper) & (frame["check"] == check)]
    return found if exhibit is None else found[found["exhibit"] == exhibit]


def number(value: str, metric: str = "speedup", bound: str = "") -> Number:
    half = 0.5 * 10.0 ** -len(value.partition(".")[2])
    return dataclasses.replace(
        numbers()[0], value=float(value), printed=value, half=half, metric=metric, bound=bound, id=f"x/{value}"
    )


@pytest.mark.parametrize(
    ("stated", "implied", "low", "high", "verdict"),
    [
        ("1.37", 1.374, None, None, "consistent"),
        ("1.37", 1.375, None, None, "consistent"),
        ("1.37", 1.376, None, None, "contradiction"),
        ("1.37", 1.38, 1.374, 1.386, "rounding"),
        ("1.37", 1.38, 1.3751, 1.386, "contradiction"),
    ],
)
def test_verdict_counts_rounding_of_both_sides(
    stated: str, implied: float, low: float | None, high: float | None, verdict: str
) -> None:
    assert arithmetic.rounding_verdict(number(stated), implied, low, high) == verdict


def test_average_allows_for_the_rounding_of_its_parts() -> None:
    found = arithmetic.check_average(number("1.41"), [number("1.37"), number("1.31"), number("1.53")], "tasks")
    assert found.verdict == "rounding"
    found = arithmetic.check_average(number("1.37"), [number("1.31"), number("1.32"), number("1.53")], "tasks")
    assert found.verdict == "contradiction"
    assert found.implied == pytest.approx(1.38667, abs=1e-5)


def test_same_needs_equal_digits_only_at_equal_precision() -> None:
    cases = (("1.30", "1.303", "consistent"), ("1.31", "1.303", "contradiction"), ("1.31", "1.30", "contradiction"))
    for stated, repeat, verdict in cases:
        assert arithmetic.check_repeat(number(stated), number(repeat), "x").verdict == verdict


def test_measured_speedups_cannot_exceed_the_expectation() -> None:
    m, acceptance = number("5.82", "M"), number("0.98", "alpha")
    expected = 5.82 * 0.98 / (4.82 * 0.55 + 0.98)
    for value, verdict in (("1.57", "consistent"), ("1.30", "consistent"), ("1.60", "impossible")):
        found = arithmetic.check_expected_speedup(number(value), m, acceptance, 0.45, "Eq. 6")
        assert (found.verdict, found.implied) == (verdict, pytest.approx(expected))


def test_an_end_of_a_range_is_its_least_or_largest_cell() -> None:
    cells = [number("2.95", "M"), number("8.21", "M")]
    assert arithmetic.check_range_end(number("2.99", "M", "low"), cells, "x").verdict == "contradiction"
    assert arithmetic.check_range_end(number("8.2", "M", "high"), cells, "x").verdict == "consistent"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("each: {paper: swift, exhibit: Table 99}\n  range: {of: []}", "no number has"),
        (
            "each: {paper: swift, exhibit: abstract, metric: speedup, bound: low}\n"
            "  repeat: {of: {exhibit: Table 2, metric: M}, check: repeats}",
            "numbers have",
        ),
    ],
)
def test_a_relation_without_its_numbers_is_an_error(entry: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "checks.yaml").write_text(f"- {entry}\n", encoding="utf-8")
    with pytest.raises(LookupError, match=message):
        list(relations(dataclasses.replace(folder_of("swift"), path=tmp_path)))


def test_columns_ids_and_verdicts(frame: pd.DataFrame) -> None:
    assert tuple(frame.columns) == module.COLUMNS
    assert frame["id"].is_unique
    assert set(frame["verdict"]) == set(module.VERDICTS)
    assert (frame["what"].str.len() > 10).all()
    assert (frame["source"] != "").all()
    both = frame.dropna(subset=["stated", "implied"])
    assert both["difference"].to_numpy() == pytest.approx((both["implied"] - both["stated"]).to_numpy())


VERDICTS = {
    ("swift", "E(speedup)", "Table 4"): {"consistent": 9},  # each follows from the table's own columns
    ("swift-v1", "E(speedup)", "Table 4"): {"consistent": 9},
    ("swift", "mean", "Table 4"): {"consistent": 3},
    ("swift-v1", "mean", "Table 4"): {"consistent": 3},
    ("swift", "measured against E", None): {"consistent": 51, "impossible": 1},
    ("swift", "reduction", None): {"contradiction": 1, "rounding": 2},
    ("swift", "improvement", "text §D.1"): {"definitional": 2},  # percentages that are points
    ("swift-v1", "version", None): {"consistent": 262, "contradiction": 3},
    ("knn-ssd", "published sets", None): {"unclear": 4},
    ("knn-ssd", "tokens/s", None): {"consistent": 16},  # expected, not measured
    ("knn-ssd", "measured speed", None): {"definitional": 6},
    ("knapspec", "TPT below AR", None): {"consistent": 15, "unclear": 28},  # with those above, of 96 cells 50
    ("knapspec", "TPT above AR", None): {"consistent": 31, "unclear": 22},
    ("knapspec", "limit", None): {"consistent": 185, "rounding": 5, "impossible": 2},
    ("knapspec", "highest", None): {"consistent": 48},
    ("knapspec", "baseline", None): {"consistent": 24},
    ("conflayers", "Table 3", None): {"consistent": 39, "rounding": 1},  # its 1.31 is the mean of rounded tasks
    ("conflayers", "released set", None): {"consistent": 16},
}
FINDINGS = {
    ("swift", "mean"): [(1.37, 1.386667), (5.01, 4.733333)],
    ("swift", "measured against E"): [(0.896, 0.797408)],
    ("swift", "range"): [(2.99, 2.95), (3.43, 2.99), (4.17, 4.97)],
    ("swift", "reduction"): [(180, 232.7586)],
    ("swift", "unit"): [(0.244, 201.7391)],
    ("swift", "improvement"): [(30, 33.33333), (34, 27.45098), (55, 127.9070)],
    ("swift-v1", "version"): [(0.98, 0.90), (1.541, 1.342), (5.72, 4.39)],
    ("knn-ssd", "published sets"): [(1.35, 1.325023), (1.44, 1.311363), (1.51, 1.375400), (1.62, 1.578045)],
    ("knn-ssd", "mean"): [(4.37, 4.3875)],
    ("knapspec", "factor ten"): [(0.075, 0.75)],
    ("conflayers", "mean"): [(1.261, 1.23575)],
    ("conflayers", "repeats"): [(0.0938, 0.938)],
    ("conflayers", "window"): [(1.5, 1.342)],
}
"""A paper's check: printed numbers and what others imply, where they disagree."""


def test_verdicts_of_a_papers_checks(frame: pd.DataFrame) -> None:
    found = {key: rows(frame, *key)["verdict"].value_counts().to_dict() for key in VERDICTS}
    assert found == VERDICTS
    repeats = frame.loc[frame["check"] == "repeats", "verdict"].value_counts()
    assert repeats.to_dict() == {"consistent": 36, "contradiction": 1}
    assert rows(frame, "swift", "E(speedup)")["difference"].abs().max() <= 0.005


@pytest.mark.parametrize(("paper", "check"), FINDINGS)
def test_disagreements_of_a_papers_check(paper: str, check: str, frame: pd.DataFrame) -> None:
    found = module.findings(rows(frame, paper, check)).sort_values("stated")[["stated", "implied"]]
    assert found.to_numpy() == pytest.approx(np.array(FINDINGS[paper, check]), rel=1e-6)


def test_lower_bounds_of_the_prose(frame: pd.DataFrame) -> None:
    found = frame.set_index("id")
    alpha = found.loc["swift/text-1/llama-2-series/swift/alpha/low#lower bound"]
    # "unclear", because the base models of the series have what it says, and its lower values are all of chat models
    assert (alpha["stated"], alpha["implied"], alpha["verdict"]) == (0.98, 0.85, "unclear")
    base = [n.value for n in find_numbers("swift", "Table 4", metric="alpha") if not n.model.endswith("Chat")]
    assert (min(base), max(base)) == (0.98, 1.00) and "LLaMA-2-13B " not in alpha["what"]
    assert found.loc["swift/abstract/swift/speedup/low#lower bound", "implied"] == 1.21


def test_swift_skip_ratio_counts_only_the_sublayers_that_may_be_skipped(frame: pd.DataFrame) -> None:
    found = module.findings(rows(frame, "swift", "released set"))
    assert set(found["verdict"]) == {"definitional"}
    shares = dict(zip(found["id"].str.split("/").str[1], found["implied"].round(3)))
    assert shares == dict.fromkeys(("codellama-13b", "llama-2-13b", "llama-2-13b-chat"), 0.425) | {
        "codellama-34b": 0.479,
        "llama-2-70b": 0.488,
    }


def test_knn_ssd_no_single_skip_ratio_explains_table_1(frame: pd.DataFrame) -> None:
    found = rows(frame, "knn-ssd", "one r")
    assert found["difference"].round(3).tolist() == [0.068, 0.081, 0.051, 0.025]
    fix = [knn_ssd.stream_numbers("LLaMA-2-13B", "Self-SD(Fix)", ratio) for ratio in (*knn_ssd.RATIOS, "overall")]
    ratios = [round(knn_ssd.implied_skip_ratio(*(number.value for number in printed)), 3) for printed in fix]
    assert ratios == [0.579, 0.571, 0.587, 0.558, 0.572]
    ranges = {key: knn_ssd.common_skip_ratio(*key) for key in product(knn_ssd.MODELS, knn_ssd.METHODS)}
    fits = [key for key, (low, high) in ranges.items() if low <= high]
    assert fits == [("LLaMA-2-13B-Chat", "Self-SD(Mix)"), ("LLaMA-2-13B-Chat", "KNN-SSD")]


def test_knapspec_cells_that_disagree(frame: pd.DataFrame) -> None:
    for name, methods, largest in (
        ("TPT below AR", {"swift": 8, "clasp": 20}, 0.42),
        ("TPT above AR", {"del": 22}, 0.41),
    ):
        wrong = module.findings(rows(frame, "knapspec", name))
        assert wrong["id"].str.split("/").str[3].value_counts().to_dict() == methods
        assert wrong["difference"].abs().max() == pytest.approx(largest, abs=0.005)


def test_a_set_that_is_not_the_nearest_to_r_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = dict(reported.layer_sets())
    entry = sets["swift/llama-2-13b/cnndm"]
    sets["swift/llama-2-13b/cnndm"] = {**entry, "skip_attn": entry["skip_attn"][1:]}
    for place in (reported, swift):
        monkeypatch.setattr(place, "layer_sets", lambda: sets)
    found = {check.id.split("/")[1]: check.verdict for check in swift.check_released_sets()}
    assert (found["llama-2-13b"], found["llama-2-13b-chat"]) == ("contradiction", "definitional")


def planted(*findings: tuple[str, str, str, float]) -> pd.DataFrame:
    """Comparisons from (paper, check, verdict, implied) of numbers printed as 1, each in its own table."""
    checks = [
        arithmetic.Check(f"{paper}/{i}#{name}", paper, f"Table {i}", name, f"number {i}", 1.0, implied, "§9", verdict)
        for i, (paper, name, verdict, implied) in enumerate(findings)
    ]
    frame = pd.DataFrame(map(dataclasses.asdict, checks))
    return frame.assign(difference=frame["implied"] - frame["stated"])


def test_three_numbers_of_one_kind_count_once() -> None:
    frame = planted(*(("swift", "sums", "contradiction", implied) for implied in (2.0, 4.0, 3.0)))
    assert module.totals(frame) == (1, 3, 0)
    (kind,) = module.group_findings(frame).to_dict("records")
    assert kind["count"] == 3 and kind["others"] == ["number 2", "number 0"]
    assert kind["what"] == '3 of 3 numbers of the check "sums"; largest disagreement: number 1'
    assert all(f"number {i}" in module.terminal_text(frame) for i in range(3))
    other = planted(("swift", "sums", "contradiction", 2.0), ("swift", "order", "contradiction", 2.0))
    assert module.totals(other) == (2, 2, 0)
    other["id"] = ["swift/0#sums", "swift/0#order"]  # one number, two checks
    assert module.totals(other) == (2, 1, 0)


def test_a_finding_of_a_preprint_is_listed_but_does_not_count() -> None:
    frame = planted(("swift-v1", "sums", "contradiction", 2.0), ("swift-v1", "limit", "impossible", 2.0))
    assert module.totals(frame) == (0, 0, 0)
    assert "not counted: swift-v1, 2 comparisons: 1 contradiction, 1 impossible" in module.summary(frame)
    for text in (module.terminal_text(frame), module.markdown_text(frame)):
        assert "number 0" in text and "number 1" in text


def test_command_prints_and_writes_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "b"
    assert main([f"out={out}"]) == 0
    printed = capsys.readouterr().out
    for counts in (
        "(818 comparisons: 701 consistent, 13 rounding, 14 contradiction, 3 impossible, 13 definitional, 74 unclear)",
        "342 consistent, 4 rounding, 7 contradiction, 1 impossible, 2 definitional, 6 unclear",  # swift-v1
    ):
        assert counts in printed
    assert max(map(len, printed.split("\n\n14 kinds")[0].splitlines())) <= module.WIDTH
    page = (out / "audit.md").read_text(encoding="utf-8")
    for paper in ("knapspec", "knn-ssd", "swift", "swift-v1", "conflayers"):
        assert f"\n## {paper}\n" in page
    assert len(pd.read_csv(out / "audit.csv")) == 1180


def test_command_refuses_what_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table=2"]) == 2
    assert "each of out=" in capsys.readouterr().err
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main([f"out={tmp_path / 'file'}"]) == 2
    assert main(["--help"]) == 0
