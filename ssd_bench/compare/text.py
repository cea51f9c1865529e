"""Text and files of a comparison, and the verdicts that decide the exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.compare.comparison import COMPARED, NOT_COMPARED, ComparedRow, RecordComparison
from ssd_bench.errors import ConfigError
from ssd_bench.records.files import write_output
from ssd_bench.results.effect import EQUIVALENT, INCONCLUSIVE
from ssd_bench.results.quantity import LEVEL
from ssd_bench.results.text import ABSENT

DIFFERENT = "different"
"""Word of `fail_if` for both verdicts of a difference."""
SUFFIXES = (".json", ".csv")
ALL_ROWS = "out=FILE has those of every quantity. One in twenty of them differs by chance."
RIGHT = ("a", "b", "b over a", "n")


def fail_words(option: str | None, quantity: str) -> list[str]:
    """Return the verdicts on a quantity, from a comma-separated option, at which the command fails.

    Raises:
        ConfigError: a verdict that the quantity cannot have.
    """
    words = option.split(",") if option else []
    possible = (*COMPARED[quantity].words, EQUIVALENT, INCONCLUSIVE, DIFFERENT)
    for word in words:
        if word not in possible:
            raise ConfigError("fail_if", word, f"one or more of {', '.join(possible)}, for on={quantity}")
    return [*words, *(COMPARED[quantity].words if DIFFERENT in words else ())]


def fails(row: ComparedRow, words: Sequence[str]) -> bool:
    """Return whether the decisive row has one of these verdicts.

    Raises:
        ConfigError: it has no verdict.
    """
    if words and row.verdict == NOT_COMPARED:
        raise ConfigError("on", row.quantity, "a quantity that both sides have (on=NAME)", row.note)
    return row.verdict in words


def terminal_text(comparison: RecordComparison, margin: float, on: str) -> str:
    """Return the table of a comparison for a terminal, with its restrictions.

    The quantity `on` is shown pair by pair, others only in the row of all pairs.
    """
    rows = [row for row in comparison.rows if row.quantity == on or row is comparison.headline(row.quantity)]
    cells = pd.DataFrame(
        {
            "quantity": [f"{row.quantity}{' (A/A)' if row.kind == 'A/A' else ''}" for row in rows],
            "pair": [row.pair for row in rows],
            "a": [_number(row.a) for row in rows],
            "b": [_number(row.b) for row in rows],
            "b over a": [_effect(row, row.effect) for row in rows],
            f"{100 * LEVEL:.0f} % interval": [_interval(row) for row in rows],
            "n": [str(row.n) for row in rows],
            "verdict on b": [row.verdict for row in rows],
        }
    )
    pairs = list(dict.fromkeys(row.pair for row in comparison.rows))
    heading = f"{pairs[0]}\n\n" if len(pairs) == 1 else ""
    table = tables.terminal(cells.drop(columns="pair") if len(pairs) == 1 else cells, RIGHT)
    noted: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.note:
            noted.setdefault(row.note, {})[row.quantity] = None
    notes = [f"{', '.join(quantities)}: {note}" for note, quantities in noted.items()]
    shown = {row.quantity for row in rows}
    meanings = [f"{name}: {quantity.note}" for name, quantity in COMPARED.items() if name in shown]
    lines = [
        f"Margin of equivalence: {100 * margin:g} %. Run-to-run variation: {comparison.variation}.",
        *([] if len(pairs) == 1 else [f"The row of all pairs decides. Single pairs are shown for {on}; {ALL_ROWS}"]),
        *notes,
        *comparison.warnings,
        *comparison.unpaired,
        "",
        *meanings,
    ]
    return f"{heading}{table}\n\n" + "\n".join(lines)


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _effect(row: ComparedRow, value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:+.3f}" if COMPARED[row.quantity].difference else f"{value:.3f}"


def _interval(row: ComparedRow) -> str:
    if row.low is None or row.high is None:
        return ABSENT
    return f"[{_effect(row, row.low)}, {_effect(row, row.high)}]"


def check_out(path: Path) -> None:
    """Refuse a file name without a suffix of `SUFFIXES` (raises `ConfigError`)."""
    if path.suffix not in SUFFIXES:
        raise ConfigError("out", str(path), f"a file whose name ends with {' or '.join(SUFFIXES)}")


def write(comparison: RecordComparison, path: Path, facts: dict[str, object]) -> None:
    """Write a comparison as CSV, or as JSON with the comparison's options (`facts`).

    Raises:
        ConfigError: the file cannot be written.
    """
    if path.suffix == ".csv":
        content = tables.csv(pd.DataFrame([asdict(row) for row in comparison.rows]))
    else:
        content = json.dumps({**facts, "level": LEVEL, **asdict(comparison)}, indent=1, ensure_ascii=False) + "\n"
    write_output("out", path, content)
