"""Texts of numbers, the same in every table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from ssd_bench.conf import CONF, read_yaml
from ssd_bench.results.quantity import Measured

ABSENT = "–"
DECODE, END_TO_END = "speedup, decode", "speedup, end to end"
"""Heads of the two speedups over AR: decoding alone, and with the prefill's time and token."""
MEASURED, MEASURED_END_TO_END = "speedup, measured", "measured, end to end"
"""Heads of the same two next to modelled ones: measured on the run's machine."""
MODELLED, FROZEN = "speedup, modelled", "search frozen"
"""Heads of decoding speedups at a reference machine's costs: with and without method overhead."""
TOY = "toy-model run"
TOY_RUN = f"{TOY} on a model that this project trained: not a replication of any paper"


def format_number(value: float | None, digits: int = 2) -> str:
    """Return `value` with `digits` decimals; a dash if undefined: None, or NaN in a frame."""
    return ABSENT if value is None or math.isnan(value) else f"{value:.{digits}f}"


def format_percent(value: float | None, digits: int = 1) -> str:
    return ABSENT if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def format_measured(number: Measured, digits: int = 2) -> str:
    """Return a number with its interval: `1.34 [1.29, 1.40]`."""
    text, low, high = (format_number(value, digits) for value in (number.value, number.low, number.high))
    return text if ABSENT in (low, high) else f"{text} [{low}, {high}]"


def format_interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    return format_measured(Measured(row[name], row.get(f"{name}_lo"), row.get(f"{name}_hi")), digits)


@cache
def costs_text(name: str) -> str:
    """Return the costs of a reference machine as text: `H200 x Llama-3.1-8B costs`."""
    gpu, _, model = name.rpartition("/")
    file = CONF / "model" / f"{model}.yaml"
    hub = read_yaml(file).get("hub") if file.is_file() else None
    return f"{gpu.replace('_', ' ').upper()} x {hub.rpartition('/')[2].removesuffix('-hf') if hub else model} costs"


def format_score(row: Mapping[str, Any], name: str) -> str:
    """Return a row's score with three decimals, and the number of scored answers unless all are."""
    text, answered = format_number(row[name], 3), row.get("n_scored")
    if row[name] is None or answered is None or answered == row["n_answers"]:
        return text
    return f"{text} ({answered} of {row['n_answers']})"


def format_lossless(row: Mapping[str, Any]) -> str:
    """Return the outputs equal to AR's over those checked, and the numbers of near-ties and mismatches."""
    identical, tie, bug = (row[f"lossless_{verdict}"] for verdict in ("identical", "tie", "bug"))
    checked = identical + tie + bug
    if not checked:
        return "not checked"
    notes = [f"{tie} near-tie{'s' if tie > 1 else ''}"] if tie else []
    notes += [f"{bug} MISMATCH{'ES' if bug > 1 else ''}"] if bug else []
    return f"{identical}/{checked}" + (f" ({', '.join(notes)})" if notes else "")
