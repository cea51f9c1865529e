"""Numbers of the prose that repeat a cell of a table, in all papers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ssd_bench.papers.arithmetic import UNCLEAR, Check, one, pick, same
from ssd_bench.papers.reported import PAPERS, Number, numbers, settings

CARD_GB = 48  # NVIDIA RTX A6000 data sheet


def checks() -> Iterator[Check]:
    """Every repeated number against its table, and the hardware that two papers print."""
    for number in numbers():
        table = re.match(r"repeats (Table \d+)|likely typo in the paper: (Table \d+) prints", number.note)
        if table:
            yield same(number, _cell(number, table[1] or table[2]), "repeats")
    for number in pick("conflayers", "Figure 4"):
        if number.settings.get("skip_set") == number.task:  # the set of the task itself: Table 3's configuration
            yield same(number, _cell(number, "Table 3"), "repeats")
    for number in pick("swift", "Figure 11", method="SWIFT"):
        yield same(number, _cell(number, "Table 12"), "repeats")
    for paper in PAPERS:
        yield from _memory(paper)


def _cell(number: Number, table: str) -> Number:
    where = {"model": number.model, "method": number.method, "task": number.task, "metric": number.metric}
    return one(number.paper, table, **where, optimizer=number.settings.get("optimizer"))


def _memory(paper: str) -> Iterator[Check]:
    """The memory of the RTX A6000 as its hardware row prints it."""
    for row in settings(paper).itertuples():
        printed = re.search(r"RTX A6000 \((\d+)GB", str(row.value))
        if row.key == "hardware" and printed:
            stated = float(printed[1])
            text = f"{row.source_section}, {row.exhibit}: RTX A6000 with {printed[1]}GB; the card has {CARD_GB}GB"
            where = (f"{paper}/{row.source_section}#hardware", paper, str(row.exhibit), "hardware")
            yield Check(*where, text, stated, float(CARD_GB), "data sheet of the card", UNCLEAR)
