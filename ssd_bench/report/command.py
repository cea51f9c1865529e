"""`python -m ssd_bench report [runs_dir=runs] [out=RUNS_DIR/report]`: tables and figures of every complete run.

Writes one Markdown, one CSV and one figure (PNG and PDF) per task, and an overview of all speedups (`README.md`), and
prints the tables and where they are. Runs that were made for the papers' exhibits (`-m experiment=...`) stand there
instead: every table and figure of the papers with ours beside (`tables/`, `figures/`), what replay predicts for the
papers' hardware (`predictions.md`), what the papers' own numbers imply (`audit.md`), and all of that as one page
(`index.html`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.command import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.papers.cells import Record, records, replications
from ssd_bench.records.files import write_atomic
from ssd_bench.report import figures, tables
from ssd_bench.report.page.write import write_replication

OPTIONS = ("runs_dir", "out")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if there is nothing to report or an option cannot work."""
    return tool(_report, __doc__, arguments)


def _report(arguments: Sequence[str]) -> None:
    given = options(arguments, OPTIONS)
    runs_dir = Path(given.get("runs_dir", "runs"))
    found = records(runs_dir)
    runs = _readable(found, runs_dir)
    out = Path(given.get("out", runs_dir / "report"))
    made = replications(runs_dir, found)
    shown = {result.path for one in made for result in one.cells if result.record is not None}
    for path in write([run for run in runs if run.path not in shown], out):
        print(path)
    if made:
        written = write_replication(made, out)
        for folder, count in Counter(path.parent for path in written[:-4]).items():
            print(f"{folder}: {count} files")
        print(*written[-4:], sep="\n")


def write(runs: Sequence[Record], out: Path) -> list[Path]:
    """Write the tables and figures of runs under `out`, print the tables, return the paths.

    Raises:
        ConfigError: `out` cannot be written.
    """
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        tasks = tables.by_task(runs)
        for task, groups in tasks.items():
            stem = out / re.sub(r"[^\w.-]+", "_", task)
            text = tables.markdown(task, groups)
            print(text)
            for suffix, content in ((".md", text), (".csv", tables.frame(groups).to_csv(index=False))):
                path = stem.with_name(stem.name + suffix)
                write_atomic(path, content.encode())
                written.append(path)
            written += figures.save(figures.task_figure(task, groups), stem)
        if tasks:
            written.append(out / "README.md")
            print(text := tables.overview(tasks))
            write_atomic(written[-1], text.encode())
    except OSError as error:
        raise ConfigError("out", str(out), f"a directory that can be written ({error})") from error
    return written


def _readable(found: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Those that can be read; the others are named on stderr."""
    for made in found:
        if made.error:
            print(f"left out: {made.error}", file=sys.stderr)
    runs = [made for made in found if made.error is None]
    if not runs:
        hint = "no complete run there; make one with `python -m ssd_bench method=knapspec task=gsm8k`"
        raise ConfigError("runs_dir", str(runs_dir), hint)
    return runs
