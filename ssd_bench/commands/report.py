"""Write tables and figures of the recorded runs, next to those of the papers, and one page with all.

`python -m ssd_bench report [runs_dir=runs] [out=RUNS_DIR/report]`

Writes the tables as Markdown, CSV and LaTeX and one figure (PNG, SVG and PDF) per task, prints the tables and the
paths, and writes an index with an overview of all speedups (`README.md`). From runs of the papers' experiments
(`-m experiment=...`) it also writes the verdicts on the papers' claims (`verdicts.md`, `verdicts.tex`), every table and
figure of the papers with our results (`tables/`, `figures/`), all results in one table (`results.csv`; files of that
form in a folder `results` under runs_dir are shown, too), a check of the papers' numbers against each other
(`audit.md`), and a page with all of these (`index.html`). While `runs` has no complete run, it makes the report of the
committed records, and says so first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ssd_bench.console import options, tool
from ssd_bench.papers.ours.cells import replications
from ssd_bench.paths import REFERENCE_FOLDER, display_path, local_path
from ssd_bench.records.pack import records_folder
from ssd_bench.report import runs
from ssd_bench.report.write import index, readable_records, write, write_replication, write_texts
from ssd_bench.results.folder import prepare_records, records


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Write the report."""
    values = options(arguments, ("runs_dir", "out"))
    runs_dir = records_folder("runs_dir", values.get("runs_dir", "runs"))
    out = local_path("out", values.get("out", runs_dir / "report"))
    all_records = records(runs_dir)
    default = records_folder("runs_dir", "runs", missing_ok=True)
    if not all_records and runs_dir == default and (runs_dir / REFERENCE_FOLDER).is_dir():
        runs_dir = records_folder("runs_dir", runs_dir / REFERENCE_FOLDER)
        print(f"no runs of yours yet: this is the report of the committed records in {display_path(runs_dir)}")
        all_records = records(runs_dir)
    prepare_records(all_records)
    readable = readable_records(all_records, runs_dir)
    experiments = replications(runs_dir, all_records)
    shown = {cell.path for replication in experiments for cell in replication.recorded_cells()}
    tasks = runs.group_by_task([record for record in readable if record.path not in shown])
    written = write(tasks, out)
    for path in written:
        print(path)
    written += write_replication(experiments, out, runs_dir, readable)
    for folder, count in Counter(path.parent for path in written if path.parent != out).items():
        print(f"{folder}: {count} files")
    print(*(path for path in written if path.parent == out), sep="\n")
    print(text := index(out, tasks))
    print(*write_texts(out, {"README.md": text}))
