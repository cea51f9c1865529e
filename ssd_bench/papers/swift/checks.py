"""SWIFT (ICLR 2025) and its first version: E(speedup), averages, rows printed twice, the two versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ssd_bench.papers.arithmetic import (
    CONTRADICTION,
    Check,
    average,
    check,
    expectation,
    one,
    pick,
    recompute,
    same,
    setting_of,
    within_expected,
)
from ssd_bench.papers.reported import Number, settings

VERSIONS = ("swift", "swift-v1")
# the tables of the ICLR version by content, and those of the first version
TABLES = {
    "swift": {
        "main": "Table 2",
        "code": "Table 3",
        "expected": "Table 4",
        "70b": "Table 5",
        "yi": "Table 6",
        "deepseek": "Table 7",
        "ablation": "Table 8",
        "window": "Table 9",
        "layers": "Table 10",
        "search": "Table 12",
    },
    "swift-v1": {
        "main": "Table 2",
        "code": "Table 3",
        "expected": "Table 4",
        "yi": "Table 5",
        "deepseek": "Table 6",
        "ablation": "Table 7",
        "window": "Table 8",
    },
}
FORMULA = "E = M alpha / ((M - 1) c + alpha), c = 1 - r (§B.3 Eq. 6)"
WITHOUT_LAYERS = ("Vanilla", "Parallel", "Lookahead")  # methods that skip no layers: E(speedup) says nothing of them


def checks() -> Iterator[Check]:
    """All checks of both versions that need no prose."""
    for paper in VERSIONS:
        yield from expected(paper)
        yield from overall(paper)
        yield from measured(paper)
        yield skip_ratio_34b(paper)
    yield from printed_twice()
    yield from versions()


def expected(paper: str) -> Iterator[Check]:
    """Table 4: each E(speedup) from its M, alpha and r, and the overall column."""
    cells = pick(paper, "Table 4", metric="expected_speedup", method="SWIFT")
    for cell in cells:
        tasks = [n for n in cells if n.model == cell.model and n.task != "Overall"]
        if cell.task == "Overall":
            yield average(cell, tasks, "tasks")
            continue
        where = {"model": cell.model, "method": "SWIFT", "task": cell.task}
        parts = [one(paper, "Table 4", metric=metric, **where) for metric in ("M", "alpha")]
        skip = float(cell.settings["skip_ratio"])
        yield recompute(cell, "E(speedup)", f"E(speedup) at r {skip:g}", FORMULA, expectation(skip), *parts)


def overall(paper: str) -> Iterator[Check]:
    """Overall speedups against the mean of the tasks, and of Table 2 against the ratio of its tokens/s."""
    for content in ("main", "70b", "yi"):
        table = TABLES[paper].get(content)
        for cell in pick(paper, table, task="Overall", metric="speedup") if table else []:
            rows = pick(paper, table, model=cell.model, method=cell.method, metric="speedup")
            yield average(cell, [n for n in rows if n.task != "Overall"], "tasks")
            if content == "main":
                yield tokens_ratio(cell, "Overall", "Vanilla")


def tokens_ratio(cell: Number, task: str, baseline: str) -> Check:
    """A speedup against the ratio of the two methods' tokens/s in the same table; `task` names their rows."""
    where = {"model": cell.model, "task": task, "metric": "tokens_per_s"}
    rates = [one(cell.paper, cell.exhibit, method=method, **where) for method in (cell.method, baseline)]
    how = f"{rates[0].printed} / {rates[1].printed} tokens/s"
    return recompute(cell, "tokens/s", how, "ratio of tokens/s", lambda method, plain: method / plain, *rates)


def measured(paper: str) -> Iterator[Check]:
    """Measured speedups of methods that skip layers against E(speedup) of their M, alpha and r."""
    for content, table in TABLES[paper].items():
        if content == "expected":
            continue
        for cell in pick(paper, table, metric="speedup"):
            if cell.method in WITHOUT_LAYERS or cell.task == "Overall":
                continue
            m = _beside(cell, table, "M")
            acceptance = _beside(cell, TABLES[paper]["expected"] if content == "main" else table, "alpha")
            if m and acceptance:
                yield within_expected(cell, m, acceptance, _skip_ratio(cell), FORMULA)


def _beside(cell: Number, table: str, metric: str) -> Number | None:
    """Another metric of the same row; r may stand in only one of two tables."""
    rows = pick(cell.paper, table, model=cell.model, method=cell.method, task=cell.task, metric=metric)
    wanted = setting_of(cell, "skip_ratio")
    return next((n for n in rows if setting_of(n, "skip_ratio") == wanted), None)


def _skip_ratio(cell: Number) -> float:
    """r as the row, its caption or §B.2 gives it."""
    beside = _beside(cell, cell.exhibit, "skip_ratio")
    if beside:
        return beside.value
    return float(cell.settings["skip_ratio"]) if "skip_ratio" in cell.settings else stated_skip_ratio(cell.model)


def stated_skip_ratio(model: str) -> float:
    """r of §B.2 by the size of the model: 0.45 for 13B, 0.5 for 34B and 70B."""
    rows = settings("swift", "Table 2").set_index("key")["value"]
    size = re.search(r"(\d+B)", model)
    assert size is not None
    # a part is "0.5 for 34B and 70B"; 33B models count as 34B
    wanted = {"33B": "34B"}.get(size[1], size[1])
    return next(float(part.split(" for ")[0]) for part in rows["skip_ratio"].split(";") if wanted in part)


def skip_ratio_34b(paper: str) -> Check:
    """r in the caption of the Yi-34B table against §B.2."""
    cell = one(paper, TABLES[paper]["yi"], model="Yi-34B", method="SWIFT", task="Overall", metric="speedup")
    stated, implied = float(cell.settings["skip_ratio"]), stated_skip_ratio("34B")
    text = f"{cell.exhibit}, caption: r = {stated:g} for Yi-34B; §B.2 fixes r = {implied:g} for 34B models"
    where = (f"{paper}/{cell.exhibit.lower().replace(' ', '')}#skip ratio", paper, cell.exhibit, "skip ratio")
    return Check(*where, text, stated, implied, "§B.2", CONTRADICTION)


def printed_twice() -> Iterator[Check]:
    """Numbers that two tables of the ICLR version print."""
    for cell in pick("swift", "Table 4", method="SWIFT", metric="M"):
        where = {"model": cell.model, "method": "SWIFT", "task": cell.task}
        yield same(cell, one("swift", "Table 2", metric="M", **where), "printed twice")
        if cell.model == "LLaMA-2-70B":
            for table, metric in (("Table 4", "M"), ("Table 4", "alpha"), ("Table 2", "speedup")):
                first = one("swift", table, metric=metric, **where)
                yield same(one("swift", "Table 5", metric=metric, **where), first, "printed twice")
    where = {"model": "LLaMA-2-13B", "method": "SWIFT", "task": "CNN/DM"}
    for metric in ("M", "alpha", "speedup"):
        first = one("swift", "Table 8", metric=metric, ablation="none", **where)
        for table, apart in (("Table 9", {"gamma": "32"}), ("Table 10", {}), ("Table 12", {})):
            yield same(one("swift", table, metric=metric, **where, **apart), first, "printed twice")


def versions() -> Iterator[Check]:
    """Every table number of the first version against the same cell of the ICLR version."""
    renamed = {first: TABLES["swift"][content] for content, first in TABLES["swift-v1"].items()}
    for number in pick("swift-v1"):
        table = {**renamed, "Table 1": "Table 1"}.get(number.exhibit)
        if table is None:
            continue
        where = {"model": number.model, "method": number.method, "task": number.task}
        later = one("swift", table, setting=number.setting, metric=number.metric, **where)
        text = f"the ICLR version prints {later.printed} ({table})"
        result = "consistent" if later.printed == number.printed else CONTRADICTION
        yield check(number, "version", text, later.value, f"ICLR version, {table}", result)
