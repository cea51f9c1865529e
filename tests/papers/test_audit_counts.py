"""The audit's findings and counts, from the papers' files and the program's output, without the package's functions."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import pytest
import yaml

from tests.runs import ROOT, program

PAPERS = ROOT / "ssd_bench" / "papers"
Row = dict[str, str]


def rows(path: Path) -> list[Row]:
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

    ratio: float
    speedup: float
    alpha: float


def possible(cell: Cell, length: int) -> bool:
    """Return whether Eq. 4 allows the cell's ratio at this draft length, and its speedup if drafts stop earlier.

    Eq. 4 gives the cost of a drafted token, in full passes. A run that drafts k tokens a step, with the share alpha
    accepted, is (1 + alpha k) / (1 + cost k) times as fast as AR.
    """
    cost = ((1 - cell.alpha ** (length + 1)) / (1 - cell.alpha) / cell.ratio - 1) / length
    reached = max((1 + cell.alpha * k) / (1 + cost * k) for k in range(1, length + 1)) if cost > 0 else 0
    return cost <= 1 and reached >= cell.speedup - 0.005


@pytest.mark.parametrize(("longest", "number"), [(1, 0), (10, 26), (25, 28)])
def test_tpt_below_ar_of_a_faster_method_is_possible_at_a_longer_draft(longest: int, number: int) -> None:
    """The paper prints no draft length of TPT; 10 is the longest of §3.5, 25 of SWIFT's §B.2."""
    table = table_2()
    cells = [
        Cell(metrics["tpt"] / table[model, task, "AR"]["tpt"], metrics["speedup"], metrics["alpha"])
        for (model, task, method), metrics in table.items()
        if method != "AR"
    ]
    below = [cell for cell in cells if cell.ratio < 1 < cell.speedup]
    assert sum(any(possible(cell, length) for length in range(1, longest + 1)) for cell in below) == number


def printed(paper: str, exhibit: str, metric: str, setting: str = "", **labels: str) -> list[float]:
    """Return a table's numbers with these labels, and `setting` among their settings."""
    return [
        float(row["value"])
        for row in rows(PAPERS / paper / "results.csv")
        if (row["exhibit"], row["metric"]) == (exhibit, metric)
        and paper.replace("_", "-") in row["paper"].split()
        and setting in row["setting"]
        and all(row[name] == label for name, label in labels.items())
    ]


def one(paper: str, exhibit: str, metric: str, setting: str = "", **labels: str) -> float:
    (value,) = printed(paper, exhibit, metric, setting, **labels)
    return value


def wrong_means() -> dict[str, bool]:
    """Return printed means -> whether the numbers under them have another mean, beyond rounding."""

    def is_wrong(stated: float, digit: float, values: list[float]) -> bool:
        return abs(sum(values) / len(values) - stated) > digit

    stream = {"model": "Qwen-2.5-14B", "method": "KNN-SSD"}
    ratios = [one("knn_ssd", "Table 6", "M", f"mix_ratio={ratio}", **stream) for ratio in ("0.0", "0.3", "0.7", "1.0")]
    chat = {"model": "LLaMA-2-70B-Chat", "method": "SWIFT"}
    base = {"model": "LLaMA-2-70B", "method": "SWIFT"}
    swift_tasks, tasks = ("CNN/DM", "GSM8K", "TinyStories"), ("CNN/DM", "GSM8K", "WMT14 DE-EN", "Alpaca")
    speedups = [one("swift", "Table 5", "speedup", task=task, **chat) for task in swift_tasks]
    all_m = [m for task in swift_tasks for m in printed("swift", "Table 2", "M", method="SWIFT", task=task)]
    baseline = [one("conflayers", "Table 3", "speedup", task=task, **base) for task in tasks]
    overall_m = one("knn_ssd", "Table 6", "M", "mix_ratio=overall", **stream)
    overall = one("swift", "Table 5", "speedup", task="Overall", **chat)
    average = one("conflayers", "Table 3", "speedup", task="Average", **base)
    assert len(all_m) == 9
    return {
        "knn-ssd/table6/qwen-2.5-14b/knn-ssd/5-task-stream/mix_ratio=overall/M": is_wrong(overall_m, 0.01, ratios),
        "swift/table5/llama-2-70b-chat/swift/overall/speedup": is_wrong(overall, 0.01, speedups),
        "swift/text-5.2/swift/aggregate=mean-over-table-2/M": is_wrong(
            one("swift", "text §5.2", "M", "mean over Table 2"), 0.01, all_m
        ),
        "conflayers/table3/llama-2-70b/swift/average/speedup": is_wrong(average, 0.001, baseline),
    }


def wrong_bounds() -> dict[str, bool]:
    """Return printed ends of ranges -> whether a number of the tables lies beyond."""
    swift = {"method": "SWIFT"}
    speedups = [x for table in ("Table 2", "Table 6") for x in printed("swift", table, "speedup", **swift)]
    gains = [
        one("swift", "Table 2", "speedup", model=model, method="SWIFT", task="Overall")
        / one("swift", "Table 2", "speedup", model=model, method="Lookahead", task="Overall")
        for model in ("LLaMA-2-13B", "LLaMA-2-13B-Chat", "LLaMA-2-70B")
    ]
    least_gain = one("swift", "text §D.5", "speedup_improvement_pct", "bound=low")
    adaptive = one("conflayers", "Table 3", "speedup", model="LLaMA-2-70B", method="ConfLayers", task="GSM8K")
    best = max(printed("conflayers", "Figure 7", "skip_ratio", "bound=high"))
    wide = one("conflayers", "Figure 6", "speedup", "window=20", model="LLaMA-2-70B")
    return {
        "swift/abstract/swift/speedup/low": min(speedups) < one("swift", "abstract", "speedup", "bound=low") - 0.05,
        "swift/text-c1/swift/M/low": min(printed("swift", "Table 4", "M", **swift))
        < one("swift", "text §C.1", "M", "bound=low"),
        "swift/text-c2/llama-70b-series/swift/M/low": min(printed("swift", "Table 5", "M", **swift))
        < one("swift", "text §C.2", "M", "bound=low"),
        "swift/text-c3/deepseek-coder-33b-series/swift/humaneval/M/high": max(printed("swift", "Table 7", "M", **swift))
        > one("swift", "text §C.3", "M", "bound=high"),
        "swift/text-d5/swift/vs=lookahead/speedup_improvement_pct/low": 100 * (min(gains) - 1) < least_gain - 0.5,
        "conflayers/figure6/llama-2-70b/conflayers/gsm8k/window=20/speedup": adaptive < wide - 0.05,
        "conflayers/text-3.2/conflayers/skip_ratio/high": best
        < one("conflayers", "text §3.2", "skip_ratio", "bound=high"),
    }


def impossible_numbers() -> dict[str, bool]:
    """Return numbers -> whether they exceed the paper's own formula at any cost of a draft."""
    table = table_2()
    limits = {}
    for model in ("Llama3.1-70B", "Llama3.1-8B"):
        drafts, plain = (table[model, "BookSum", method] for method in ("DEL", "AR"))
        # Eq. 4 with drafts that cost nothing and never end; both numbers at the end of their rounding
        ratio, highest = (drafts["tpt"] - 0.005) / (plain["tpt"] + 0.005), 1 / (1 - drafts["alpha"] - 0.0005)
        limits[f"knapspec/table2/{model.lower()}/del/booksum/tpt"] = ratio > highest
    m, alpha, speedup = (one("swift", "Table 8", name, "w/o early-stopping") for name in ("M", "alpha", "speedup"))
    expected = m * alpha / ((m - 1) * (1 - 0.45) + alpha)  # Eq. 6 at r = 0.45 (§B.2)
    return limits | {"swift/table8/llama-2-13b/swift/cnn-dm/ablation=w-o-early-stopping/speedup": speedup > expected}


def wrong_repeats() -> dict[str, bool]:
    """Return numbers -> whether another number of the paper contradicts them."""
    alpaca = {"model": "LLaMA-3-8B", "method": "ConfLayers", "task": "Alpaca"}
    seconds = one("swift", "Table 12", "optimization_latency_s", method="SWIFT")
    steps = sum(printed("swift", "Table 12", "iterations", method="SWIFT"))
    reduction = one("swift", "text §5.3", "optimization_latency_s", method="Self-SD") / seconds
    step_ms = one("swift", "Table 9", "step_latency_ms", "gamma=32")
    alphas = [one("conflayers", exhibit, "alpha", **alpaca) for exhibit in ("text App. C", "Table 3")]
    return {
        "swift/text-5.3/llama-2-13b/swift/cnn-dm/vs=self-sd/optimization_time_reduction": reduction
        > 1.1 * one("swift", "text §5.3", "optimization_time_reduction"),
        "swift/table9/llama-2-13b/swift/cnn-dm/gamma=32/step_latency_ms": 1000 * seconds / steps > 100 * step_ms,
        "conflayers/text-app-c/llama-3-8b/conflayers/alpaca/alpha": alphas[0] != alphas[1],
    }


def test_the_headline_counts_kinds_once_and_no_preprint(tmp_path: Path) -> None:
    text = program("audit", f"out={tmp_path}").stdout
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
    stated = said[0].partition(" numbers, in ")[0]
    recomputed = wrong_means() | wrong_bounds() | impossible_numbers() | wrong_repeats()
    findings = {row["id"].partition("#")[0] for row in wrong + impossible}
    assert {name for name, is_wrong in recomputed.items() if is_wrong} == findings
    for page in ("README.md", "docs/artifact.md", "ssd_bench/papers/README.md"):
        assert stated in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def middle(value: float | list[float]) -> float:
    return mean(value) if isinstance(value, list) else value


def comes_back(report: dict[str, Any]) -> float | None:
    """Return the percentage of a printed speedup that came back; None without a printed one for the model."""
    if "printed" not in report or "printed_for" in report or report["metric"] == "ratio of two methods":
        return None
    return 100 * (middle(report["came_back"]) - 1) / (middle(report["printed"]) - 1)


def test_the_shares_of_printed_speedups_that_came_back() -> None:
    content = yaml.safe_load((PAPERS / "replications.yaml").read_text(encoding="utf-8"))
    text = program("audit", "replications").stdout
    printed: dict[str, list[float]] = {}
    for report in content["reports"]:
        share = comes_back(report)
        if share is not None:
            values = r"\s+".join(
                re.escape(str(report[key]).strip("[]").replace(", ", " to ")) for key in ("printed", "came_back")
            )
            assert re.search(rf"{values}\s+{share:.0f} %", text)
            if report["tier"] == "third party":
                printed.setdefault(report["paper"], []).append(share)
    shares = [share for of_paper in printed.values() for share in of_paper]
    speedups = [r for r in content["reports"] if r["tier"] == "third party" and not r["metric"].startswith("ratio")]
    slower = sum(middle(report["came_back"]) < 1 for report in speedups)
    assert f"a median of {median(shares):.0f} % of" in text and f"({min(shares):.0f} to {max(shares):.0f} %)" in text
    assert f"n = {len(shares)} reports" in text and f"{slower} of all {len(speedups)} speedups are below 1" in text
    assert all(f" {median(part):.0f} %, n = {len(part)}" in text for part in printed.values())


def test_ranges_of_the_register_that_the_papers_tables_give() -> None:
    """DEL and KnapSpec in KnapSpec's Table 2; SWIFT over ConfLayers in ConfLayers' Table 1."""
    content = yaml.safe_load((PAPERS / "replications.yaml").read_text(encoding="utf-8"))
    by_paper = {report["paper"]: report for report in content["reports"]}
    speedups = {key: metrics["speedup"] for key, metrics in table_2().items()}
    of_del = [speedup for (_, _, method), speedup in speedups.items() if method == "DEL"]
    assert [min(of_del), max(of_del)] == by_paper["del"]["came_back"]
    of_knapspec = [
        speedup for (_, task, method), speedup in speedups.items() if (task, method) == ("AIME24", "KnapSpec")
    ]
    assert [min(of_knapspec), max(of_knapspec)] == by_paper["knapspec"]["printed"]
    cells = {
        (row["model"], row["task"], row["method"]): float(row["value"])
        for row in rows(PAPERS / "conflayers" / "results.csv")
        if row["exhibit"] == "Table 1" and row["task"] in ("GSM8K", "CNN/DM")
    }
    ratios = [cells[model, task, "SWIFT"] / cells[model, task, "ConfLayers"] for model, task, _ in cells]
    assert [round(min(ratios), 2), round(max(ratios), 2)] == by_paper["conflayers"]["printed"]
    baselines = [report for report in content["reports"] if report["source"] == "ConfLayers Table 1"]
    assert [cells[r["model"], r["task"], "SWIFT"] for r in baselines] == [r["came_back"] for r in baselines]
    assert len(baselines) == 4
