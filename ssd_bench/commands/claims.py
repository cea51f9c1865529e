"""Check the papers' claims against the records.

`python -m ssd_bench claims [runs_dir=runs] [scale=small] [out=FILE.csv]`
    prints every claim with its verdict by class of evidence (the paper's model, another real model, a toy model),
    effect, 95 % interval, prompts and run-to-run variation, whether the times behind it are modelled or measured, and
    what would decide a claim that is undecided; papers/claims/claims.py has the rule
    scale: scale of the runs; default: all scales
    out: file for the verdicts as CSV. The report also shows the verdicts in CSV files of a folder `verdicts` under
    runs_dir; the records of these verdicts need not be there
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench import tables
from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims.judge import NOT_RUN, judge
from ssd_bench.papers.ours.cells import replications
from ssd_bench.paths import display_path, local_path, reference_hint
from ssd_bench.records.files import write_output
from ssd_bench.records.pack import records_folder
from ssd_bench.report.verdict_texts import terminal_text
from ssd_bench.report.verdicts import merge_verdicts, read_verdicts, table
from ssd_bench.results.folder import prepare_records


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the verdicts, and write them."""
    values = options(arguments, ("runs_dir", "scale", "out"))
    runs_dir = records_folder("runs_dir", values.get("runs_dir", "runs"))
    experiments = replications(runs_dir)
    scales = {replication.scale for replication in experiments}
    if (scale := values.get("scale")) is not None:
        if scale not in scales:
            present = ", ".join(sorted(scales)) or "there are no runs"
            raise ConfigError("scale", scale, f"one of the scales with runs: {present}")
        experiments = [replication for replication in experiments if replication.scale == scale]
    if not experiments:
        print(f"no run of an experiment in {display_path(runs_dir)}{reference_hint(runs_dir)}")
        if "out" not in values:
            return
    prepare_records(
        cell.record for replication in experiments for cell in replication.recorded_cells() if cell.record is not None
    )
    external = read_verdicts(runs_dir)
    frame = merge_verdicts(
        table(judge(experiments)), external if scale is None else external[external["scale"] == scale]
    )
    if experiments:
        print(terminal_text(frame))
    if "out" in values:
        path = local_path("out", values["out"])
        write_output("out", path, tables.csv(frame[frame["verdict"] != NOT_RUN]))
        print(path)
