"""`python -m ssd_bench report [runs_dir=runs] [out=RUNS_DIR/report]`: tables and figures of every complete run.

Writes one Markdown, one CSV and one figure (PNG and PDF) per task, prints the tables and where they are, and an index
of everything with an overview of all speedups (`README.md`). Of runs that were made for the papers' exhibits
(`-m experiment=...`) it writes which of the papers' claims hold (`verdicts.md`), every table and figure of the papers
with ours beside (`tables/`, `figures/`), what a cost model predicts for the papers' hardware (`predictions.md`), what
the papers' own numbers imply (`audit.md`), and all of that as a page (`index.html`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.command import options, run_tool
from ssd_bench.errors import ConfigError
from ssd_bench.papers import audit
from ssd_bench.papers.cells import Record, Replication, prepare_records, records, replications
from ssd_bench.papers.judge import judge
from ssd_bench.papers.ssd_bench.own import OWN
from ssd_bench.paths import local_path
from ssd_bench.records.files import write_atomic
from ssd_bench.report import exhibits, figures, layout, page, predictions, runs, verdicts

OPTIONS = ("runs_dir", "out")
PAGE = "index.html"
CONTENTS = {
    PAGE: "the page: which claims hold, which method to use, every exhibit",
    "verdicts.md": "which of the papers' claims hold",
    "tables": "the papers' tables, with ours",
    "figures": "the papers' figures, of our runs",
    "predictions.md": "what a cost model predicts for the papers' hardware",
    "audit.md": "what the papers' own numbers imply",
    "notebooks": "the notebooks, executed on these runs",
}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if there is nothing to report or an option cannot work."""
    return run_tool(_report, __doc__, arguments)


def _report(arguments: Sequence[str]) -> None:
    given = options(arguments, OPTIONS)
    runs_dir = local_path("runs_dir", given.get("runs_dir", "runs"))
    found = records(runs_dir)
    prepare_records(found)
    made = _readable(found, runs_dir)
    out = local_path("out", given.get("out", runs_dir / "report"))
    ours = replications(runs_dir, found)
    shown = {cell.path for one in ours for cell in one.recorded_cells()}
    tasks = runs.group_by_task([one for one in made if one.path not in shown])
    written = write(tasks, out)
    for path in written:
        print(path)
    if ours:
        written += write_replication(ours, out, verdicts.read_verdicts(runs_dir), made)
        for folder, count in Counter(path.parent for path in written if path.parent != out).items():
            print(f"{folder}: {count} files")
        print(*(path for path in written if path.parent == out), sep="\n")
    print(text := index(out, tasks))
    print(*_write(out, {"README.md": text}))


def write(tasks: Mapping[str, Sequence[runs.RunGroup]], out: Path) -> list[Path]:
    """Write the tables and figures of runs under `out`, print the tables, return the paths.

    Raises:
        ConfigError: `out` cannot be written.
    """
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for task, groups in tasks.items():
            name = _stem(task)
            print(text := runs.document(task, groups))
            written += _write(out, {f"{name}.md": text, f"{name}.csv": tables.csv(runs.unrounded_table(groups))})
            written += figures.save(figures.task_figure(task, groups), out / name)
    except OSError as error:
        raise _cannot(out, error) from error
    return written


def _stem(task: str) -> str:
    return re.sub(r"[^\w.-]+", "_", task)


def index(out: Path, tasks: Mapping[str, Sequence[runs.RunGroup]]) -> str:
    """What there is in a report's folder, as Markdown, and the speedups of runs that no exhibit shows."""
    parts = ["# Report"]
    listed = [f"- [{what}]({name})" for name, what in CONTENTS.items() if (out / name).exists()]
    parts += ["\n".join(listed)] if listed else []
    if tasks:
        parts.append("\n".join(f"- [{task}, run by run]({_stem(task)}.md)" for task in tasks))
        parts.append(runs.overview(tasks).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def write_replication(
    replications: Sequence[Replication],
    out: Path,
    recorded: pd.DataFrame | None = None,
    found: Sequence[Record] = (),
) -> list[Path]:
    """Write `out/tables`, `out/figures`, verdicts, predictions, audit and `out/index.html`; returns the paths.

    Args:
        recorded: verdicts of records that are elsewhere, shown beside these.
        found: records of the folder, also those of no experiment.

    Raises:
        ConfigError: `out` cannot be written.
    """
    frames = exhibits.long_tables(replications)
    try:
        written = write_tables(replications, out / "tables", frames)
        written += write_own_tables(replications, out / "tables")
        drawn = figures.draw_figures(replications, out / "figures")
        written += [path for found in drawn.values() for one in found for path in one.paths]
        print(page.completeness(replications, frames, drawn))
        checks, predicted = audit.audit(), predictions.predictions(replications)
        judged = verdicts.merge_verdicts(verdicts.table(judge(replications)), recorded)
        written += _write(out, {
            "verdicts.md": verdicts.document(judged),
            "verdicts.csv": tables.csv(judged),
            "predictions.md": predictions.document(predicted),
            "predictions.csv": tables.csv(predicted),
            "audit.md": audit.markdown_text(checks),
            PAGE: page.render(replications, frames, drawn, predicted, checks, judged, found),
        })  # fmt: skip
    except OSError as error:
        raise _cannot(out, error) from error
    return written


def write_tables(
    replications: Sequence[Replication], out: Path, frames: Mapping[tuple[str, str], pd.DataFrame]
) -> list[Path]:
    """Write the table of every exhibit and passage with numbers, `out/PAPER_EXHIBIT.{md,tex,csv}`; returns the paths.

    Args:
        frames: as `exhibits.everything` makes them.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for key, frame in frames.items():
        name = exhibits.file_stem(*key)
        written += _write(out, {
            f"{name}.md": document(*key, frame, exhibits.scale_notes(*key, replications)),
            f"{name}.tex": latex(*key, frame),
            f"{name}.csv": tables.csv(frame),
        })  # fmt: skip
    return written


def write_own_tables(replications: Sequence[Replication], out: Path) -> list[Path]:
    """Write and print the tables of our own exhibits that have runs, `out/EXPERIMENT_SCALE.{md,csv}`."""
    own, written = {table.experiment: table for table in OWN}, []
    for one in replications:
        if one.experiment.name in own and any(one.recorded_cells()):
            shown = own[one.experiment.name]
            print(text := shown.document(one))
            name = f"{one.experiment.name}_{one.scale}"
            written += _write(out, {f"{name}.md": text, f"{name}.csv": tables.csv(shown.table(one))})
    return written


def document(paper: str, exhibit: str, frame: pd.DataFrame, remarks: Sequence[str] = ()) -> str:
    """An exhibit as Markdown: commands, scale, verdicts, the table, remarks, why numbers are missing, and the runs."""
    parts = [f"# {exhibits.title(paper, exhibit)}", f"**{exhibits.describe_results(frame)}**"]
    parts += [*exhibits.verdict_sentences(frame), *exhibits.speedup_sentences(frame)]
    parts += ["\n".join(f"    {command}" for command in exhibits.commands(paper, exhibit, frame))]
    parts += [tables.markdown(layout.wide_table(frame)), exhibits.LEGEND]
    parts += ["\n".join(f"- {line}" for line in [*remarks, *exhibits.missing_reasons(frame)])]
    made = exhibits.run_ids(frame)
    parts += [f"Runs: {', '.join(made)}"] if made else []
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(paper: str, exhibit: str, frame: pd.DataFrame) -> str:
    """An exhibit as a table for LaTeX."""
    title = f"{exhibits.title(paper, exhibit)}."
    caption = " ".join([title, exhibits.describe_results(frame), *exhibits.speedup_sentences(frame), exhibits.LEGEND])
    return tables.latex(
        layout.wide_table(frame), caption, f"tab:{exhibits.file_stem(paper, exhibit).replace('_', '-')}"
    )


def _write(out: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def _cannot(out: Path, error: OSError) -> ConfigError:
    return ConfigError("out", str(out), f"a directory that can be written ({error})")


def _readable(found: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Those that can be read; the others are named on stderr."""
    for made in found:
        if made.error:
            print(f"left out: {made.error}", file=sys.stderr)
    readable = [made for made in found if made.error is None]
    if not readable:
        hint = "no complete run there; make one with `python -m ssd_bench method=knapspec task=gsm8k`"
        raise ConfigError("runs_dir", str(runs_dir), hint)
    return readable
