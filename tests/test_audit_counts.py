"""The audit's counts, from the papers' files and the program's output alone: nothing of the package is imported."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAPERS = ROOT / "ssd_bench" / "papers"
Row = dict[str, str]


def rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def table_2() -> dict[tuple[str, str, str], dict[str, float]]:
    """Return KnapSpec's Table 2: metrics by model, task and method."""
    cells = defaultdict[tuple[str, str, str], dict[str, float]](dict)
    for row in rows(PAPERS / "knapspec" / "results.csv"):
        if (row["paper"], row["exhibit"]) == ("knapspec", "Table 2"):
            cells[row["model"], row["task"], row["method"]][row["metric"]] = float(row["value"])
    return dict(cells)


class Cell(NamedTuple):
    """Cell of Table 2: TPT over AR's, measured speedup, acceptance rate."""

    method: str
    ratio: float
    speedup: float
    alpha: float


def opposite_cells() -> tuple[list[Cell], list[Cell]]:
    """Return the cells with TPT above AR's of a slower method, and those with TPT below AR's of a faster one."""
    table = table_2()
    cells = [
        Cell(method, metrics["tpt"] / table[model, task, "AR"]["tpt"], metrics["speedup"], metrics["alpha"])
        for (model, task, method), metrics in table.items()
        if method != "AR"
    ]
    above = [cell for cell in cells if cell.ratio > 1 > cell.speedup]
    return above, [cell for cell in cells if cell.ratio < 1 < cell.speedup]


def possible(cell: Cell, length: int) -> bool:
    """Whether Eq. 4 gives the cell's ratio at this draft length, and a run whose drafts stop earlier its speedup.

    Eq. 4 gives the cost of a drafted token, in full passes. A run that drafts k tokens a step, of which the share alpha
    is accepted, is (1 + alpha k) / (1 + cost k) times as fast as AR.
    """
    cost = ((1 - cell.alpha ** (length + 1)) / (1 - cell.alpha) / cell.ratio - 1) / length
    reached = max((1 + cell.alpha * k) / (1 + cost * k) for k in range(1, length + 1)) if cost > 0 else 0
    return cost <= 1 and reached >= cell.speedup - 0.005


def test_tpt_above_ar_of_a_slower_method_is_always_dels() -> None:
    above, below = opposite_cells()
    assert Counter(cell.method for cell in above) == {"DEL": 22}
    assert Counter(cell.method for cell in below) == {"CLaSp": 20, "SWIFT": 8}


@pytest.mark.parametrize(("longest", "number"), [(1, 0), (10, 26), (25, 28)])
def test_tpt_below_ar_of_a_faster_method_is_possible_at_a_longer_draft(longest: int, number: int) -> None:
    """The paper prints no draft length of TPT; 10 is the longest of §3.5, 25 of SWIFT's own §B.2."""
    _, below = opposite_cells()
    assert sum(any(possible(cell, length) for length in range(1, longest + 1)) for cell in below) == number


def test_five_released_sets_have_the_share_nearest_to_r_by_another_definition() -> None:
    (printed,) = (
        row["value"]
        for row in rows(PAPERS / "swift" / "settings.csv")
        if "swift" in row["paper"].split() and (row["exhibit"], row["key"]) == ("Table 2", "skip_ratio")
    )
    assert printed == "0.45 for 13B; 0.5 for 34B and 70B"
    sets = json.loads((ROOT / "methods" / "published_layer_sets.json").read_text(encoding="utf-8"))
    found = []
    for name, entry in sets.items():
        if name.startswith("swift/"):
            ratio = 0.45 if "13b" in name else 0.5
            skipped, blocks = len(entry["skip_attn"]) + len(entry["skip_mlp"]), entry["n_layers"]
            assert abs(skipped / (2 * blocks) - ratio) > 0.005  # of all sublayers, as Eq. 6 counts
            assert skipped == round(ratio * 2 * (blocks - 2))  # of those that may be skipped
            found.append(name)
    assert len(found) == 5


def test_the_headline_counts_kinds_once_and_no_preprint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ssd_bench", "audit", f"out={tmp_path}"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout
    said = re.search(
        r"(\d+) kinds of contradiction covering (\d+) printed numbers, and (\d+) impossible numbers, in (\d+) papers "
        r"\((\d+) comparisons: ",
        text,
    )
    assert said is not None
    versions = [yaml.safe_load(path.read_text(encoding="utf-8"))["versions"] for path in PAPERS.glob("*/paper.yaml")]
    earlier = {version for names in versions for version in [*names][1:]}
    assert earlier == {"swift-v1"}
    checks = rows(tmp_path / "audit.csv")
    counted = [row for row in checks if row["paper"] not in earlier]
    wrong = [row for row in counted if row["verdict"] == "contradiction"]
    kinds = {(row["paper"], row["check"], row["source"]) for row in wrong}
    numbers = {row["id"].partition("#")[0] for row in wrong}
    impossible = [row for row in counted if row["verdict"] == "impossible"]
    papers = {row["paper"] for row in counted}
    assert tuple(map(int, said.groups())) == (len(kinds), len(numbers), len(impossible), len(papers), len(counted))
    assert sum(row["verdict"] in ("contradiction", "impossible") for row in checks) > len(wrong) + len(impossible)
    assert sum(row["verdict"] == "definitional" and row["check"] == "released set" for row in counted) == 5
    assert all(row["what"].split(";")[0].split(" is printed")[0] in " ".join(text.split()) for row in wrong)
    stated = (
        f"{len(kinds)} kinds of contradiction covering {len(numbers)} printed numbers, and {len(impossible)} impossible"
    )
    for page in ("docs/artifact.md", "ssd_bench/papers/README.md"):
        assert stated in " ".join((ROOT / page).read_text(encoding="utf-8").split())
