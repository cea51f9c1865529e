"""Compare the acceptance that a vLLM server reports with a run's.

`python -m ssd_bench acceptance file=FILE.jsonl [run=DIR]`

  file=FILE   one JSON object per line: responses of a server with --per-request-spec-decode-metrics, or the
              output of `export form=vllm`
  run=DIR     the folder of a record, counted in the same way

A step is a verification of drafted tokens. M, drafting steps: 1 + accepted tokens per step (vLLM's mean acceptance
length). M, all steps: emitted tokens per verification, steps without a draft included, truncated at the end of an
answer; – if the file does not contain it. α at i: accepted share of the i-th drafted tokens whose predecessors were
accepted; ≥ if the file has neither arrays per step nor a histogram by drafted length, so that the number of tested
tokens is unknown. To i: share of the steps that accepted i tokens or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ssd_bench import tables
from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.exchange.answers import AcceptanceCounts, read_answers, record_acceptance
from ssd_bench.paths import local_path
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import load_run
from ssd_bench.results.quantity import divide
from ssd_bench.results.text import ABSENT, format_number


def acceptance_table(sides: dict[str, AcceptanceCounts]) -> str:
    """Return the counts as text for a terminal, one column per side."""
    columns = {name: _column(counts) for name, counts in sides.items()}
    heads = list(dict.fromkeys(head for column in columns.values() for head in column))
    heads.sort(key=lambda head: (head[:2] in ("α ", "to") and head != "α, accepted per drafted", head[:2] == "to"))
    rows = [[head, *(column.get(head, ABSENT) for column in columns.values())] for head in heads]
    return tables.terminal(pd.DataFrame(rows, columns=["", *columns]), list(columns))


def _column(counts: AcceptanceCounts) -> dict[str, str]:
    prefix = "" if counts.exact else "≥ "
    positions = counts.by_position.to_dict("records")
    return {
        "answers": f"{counts.answers}",
        "drafting steps": f"{len(counts.steps)}",
        "M, drafting steps": format_number(counts.per_step, 3),
        "M, all steps": format_number(counts.m, 3),
        "drafted per step": format_number(divide(counts.drafted, len(counts.steps)), 3),
        "α, accepted per drafted": format_number(counts.alpha, 3),
        **{f"α at {row['position']}": prefix + format_number(row["alpha"], 3) for row in positions},
        **{f"to {row['position']}": format_number(row["reached"], 3) for row in positions},
    }


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the acceptance of a file, and of a run next to it."""
    values = options(arguments, ("file", "run"))
    if "file" not in values:
        raise ConfigError("file", "", "a file of answers, one JSON object a line")
    sides = {values["file"]: read_answers(local_path("file", values["file"]))}
    if "run" in values:
        run = load_run(records_folder("run", values["run"]))
        sides[run.header.run_id] = record_acceptance(run)
    print(acceptance_table(sides))
