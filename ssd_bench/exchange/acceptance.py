"""`python -m ssd_bench acceptance file=FILE.jsonl [run=DIR]`: acceptance of a vLLM server, beside a run of ours.

  file=FILE   one JSON object a line: responses of a server with --per-request-spec-decode-metrics, or what
              `export form=vllm` wrote
  run=DIR     the folder of a record, counted the same way

A step is a verification of drafted tokens. M, drafting steps: 1 + accepted per step (vLLM's mean acceptance length).
M, all steps: emitted per verification, also where nothing was drafted, and cut where an answer ends; – where a file
does not say. α at i: accepted of the i-th drafted tokens that were tested, their predecessors accepted; ≥ where the
file has neither arrays per step nor a histogram by drafted length, so that how many were tested is not known. To i:
share of the steps that accepted i tokens or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ssd_bench import tables
from ssd_bench.command import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.exchange.answers import Acceptance, read, recorded
from ssd_bench.metrics.intervals import divide
from ssd_bench.metrics.text import ABSENT, format_number
from ssd_bench.paths import local_path
from ssd_bench.records.reader import load_run


def table(sides: dict[str, Acceptance]) -> str:
    """One column each."""
    columns = {name: _column(one) for name, one in sides.items()}
    heads = list(dict.fromkeys(head for column in columns.values() for head in column))
    heads.sort(key=lambda head: (head[:2] in ("α ", "to") and head != "α, accepted per drafted", head[:2] == "to"))
    rows = [[head, *(column.get(head, ABSENT) for column in columns.values())] for head in heads]
    return tables.terminal(pd.DataFrame(rows, columns=["", *columns]), list(columns))


def _column(one: Acceptance) -> dict[str, str]:
    least = "" if one.exact else "≥ "
    positions = one.by_position.to_dict("records")
    return {
        "answers": f"{one.answers}",
        "drafting steps": f"{len(one.steps)}",
        "M, drafting steps": format_number(one.per_step, 3),
        "M, all steps": format_number(one.m, 3),
        "drafted per step": format_number(divide(one.drafted, len(one.steps)), 3),
        "α, accepted per drafted": format_number(one.alpha, 3),
        **{f"α at {row['position']}": least + format_number(row["alpha"], 3) for row in positions},
        **{f"to {row['position']}": format_number(row["reached"], 3) for row in positions},
    }


def _work(arguments: Sequence[str]) -> None:
    given = options(arguments, ("file", "run"))
    if "file" not in given:
        raise ConfigError("file", "", "a file of answers, one JSON object a line")
    sides = {given["file"]: read(local_path("file", given["file"]))}
    if "run" in given:
        run = load_run(local_path("run", given["run"]))
        sides[str(run.header.get("run_id"))] = recorded(run)
    print(table(sides))


def main(arguments: Sequence[str]) -> int:
    """The command `acceptance`; returns the exit code."""
    return tool(_work, __doc__, arguments)
