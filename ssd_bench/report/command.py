"""`python -m ssd_bench report [runs_dir=runs] [out=RUNS_DIR/report]`: tables and figures of every complete run.

Writes one Markdown file, one CSV file and one figure (PNG and PDF) per task, prints the tables and the paths, and
writes an index with an overview of all speedups (`README.md`). From runs of the papers' experiments
(`-m experiment=...`) it also writes the verdicts on the papers' claims (`verdicts.md`), every table and figure of the
papers with our results (`tables/`, `figures/`), predictions of a cost model for the papers' hardware
(`predictions.md`), a check of the papers' numbers against each other (`audit.md`), and a page with all of these
(`index.html`).
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
    PAGE: "page: which claims hold, which method to use, all tables and figures",
    "verdicts.md": "verdicts on the papers' claims",
    "tables": "tables of the papers, with our results",
    "figures": "figures of the papers, drawn from our runs",
    "predictions.md": "predictions of a cost model for the papers' hardware",
    "audit.md": "consistency of the papers' numbers",
    "notebooks": "notebooks, executed on these runs",
}


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, or 2 if there is nothing to report or an option is invalid."""
    return run_tool(_report, __doc__, arguments)


def _report(arguments: Sequence[str]) -> None:
    values = options(arguments, OPTIONS)
    runs_dir = local_path("runs_dir", values.get("runs_dir", "runs"))
    all_records = records(runs_dir)
    prepare_records(all_records)
    readable = _readable_records(all_records, runs_dir)
    out = local_path("out", values.get("out", runs_dir / "report"))
    experiments = replications(runs_dir, all_records)
    shown = {cell.path for replication in experiments for cell in replication.recorded_cells()}
    tasks = runs.group_by_task([record for record in readable if record.path not in shown])
    written = write(tasks, out)
    for path in written:
        print(path)
    if experiments:
        written += write_replication(experiments, out, verdicts.read_verdicts(runs_dir), readable)
        for folder, count in Counter(path.parent for path in written if path.parent != out).items():
            print(f"{folder}: {count} files")
        print(*(path for path in written if path.parent == out), sep="\n")
    print(text := index(out, tasks))
    print(*_write(out, {"README.md": text}))


def write(tasks: Mapping[str, Sequence[runs.RunGroup]], out: Path) -> list[Path]:
    """Write the tables and figures of runs under `out` and print the tables; return the paths.

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
        raise _unwritable(out, error) from error
    return written


def _stem(task: str) -> str:
    return re.sub(r"[^\w.-]+", "_", task)


def index(out: Path, tasks: Mapping[str, Sequence[runs.RunGroup]]) -> str:
    """Return a table of contents of the report's folder, and the speedups of runs outside the papers' experiments."""
    parts = ["# Report"]
    listed = [f"- [{meaning}]({name})" for name, meaning in CONTENTS.items() if (out / name).exists()]
    parts += ["\n".join(listed)] if listed else []
    if tasks:
        parts.append("\n".join(f"- [{task}: all runs]({_stem(task)}.md)" for task in tasks))
        parts.append(runs.overview(tasks).rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def write_replication(
    replications: Sequence[Replication],
    out: Path,
    recorded: pd.DataFrame | None = None,
    folder_records: Sequence[Record] = (),
) -> list[Path]:
    """Write `out/tables`, `out/figures`, verdicts, predictions, audit and `out/index.html`; return the paths.

    Args:
        recorded: further verdicts, from records in other folders.
        folder_records: all records of the folder, including those outside the experiments.

    Raises:
        ConfigError: `out` cannot be written.
    """
    frames = exhibits.long_tables(replications)
    try:
        written = write_tables(replications, out / "tables", frames)
        written += write_own_tables(replications, out / "tables")
        drawn = figures.draw_figures(replications, out / "figures")
        written += [path for scales in drawn.values() for figure in scales for path in figure.paths]
        print(page.completeness(replications, frames, drawn))
        checks, predicted = audit.audit(), predictions.predictions(replications)
        judged = verdicts.merge_verdicts(verdicts.table(judge(replications)), recorded)
        written += _write(
            out,
            {
                "verdicts.md": verdicts.document(judged),
                "verdicts.csv": tables.csv(judged),
                "predictions.md": predictions.document(predicted),
                "predictions.csv": tables.csv(predicted),
                "audit.md": audit.markdown_text(checks),
                PAGE: page.render(replications, frames, drawn, predicted, checks, judged, folder_records),
            },
        )
    except OSError as error:
        raise _unwritable(out, error) from error
    return written


def write_tables(
    replications: Sequence[Replication], out: Path, frames: Mapping[tuple[str, str], pd.DataFrame]
) -> list[Path]:
    """Write every table, figure and passage with numbers as `out/PAPER_EXHIBIT.{md,tex,csv}`; return the paths.

    Args:
        frames: result of `exhibits.long_tables`.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for key, frame in frames.items():
        name = exhibits.file_stem(*key)
        written += _write(
            out,
            {
                f"{name}.md": document(*key, frame, exhibits.scale_notes(*key, replications)),
                f"{name}.tex": latex(*key, frame),
                f"{name}.csv": tables.csv(frame),
            },
        )
    return written


def write_own_tables(replications: Sequence[Replication], out: Path) -> list[Path]:
    """Write and print the tables of our experiments, `out/EXPERIMENT_SCALE.{md,csv}`; return the paths."""
    by_name, written = {own_table.experiment: own_table for own_table in OWN}, []
    for replication in replications:
        if replication.experiment.name in by_name and any(replication.recorded_cells()):
            shown = by_name[replication.experiment.name]
            print(text := shown.document(replication))
            name = f"{replication.experiment.name}_{replication.scale}"
            written += _write(out, {f"{name}.md": text, f"{name}.csv": tables.csv(shown.table(replication))})
    return written


def document(paper: str, exhibit: str, frame: pd.DataFrame, remarks: Sequence[str] = ()) -> str:
    """Return a table or figure as Markdown: scale, verdicts, commands, numbers, remarks, missing numbers, and runs."""
    parts = [f"# {exhibits.title(paper, exhibit)}", f"**{exhibits.describe_results(frame)}**"]
    parts += [*exhibits.verdict_sentences(frame), *exhibits.speedup_sentences(frame)]
    parts += ["\n".join(f"    {command}" for command in exhibits.commands(paper, exhibit, frame))]
    parts += [tables.markdown(layout.wide_table(frame)), exhibits.LEGEND]
    parts += ["\n".join(f"- {line}" for line in [*remarks, *exhibits.missing_reasons(frame)])]
    run_ids = exhibits.run_ids(frame)
    parts += [f"Runs: {', '.join(run_ids)}"] if run_ids else []
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(paper: str, exhibit: str, frame: pd.DataFrame) -> str:
    """Return the numbers of a table or figure as a LaTeX table."""
    title = f"{exhibits.title(paper, exhibit)}."
    caption = " ".join([title, exhibits.describe_results(frame), *exhibits.speedup_sentences(frame), exhibits.LEGEND])
    return tables.latex(
        layout.wide_table(frame), caption, f"tab:{exhibits.file_stem(paper, exhibit).replace('_', '-')}"
    )


def _write(out: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("out", str(out), f"a directory that can be written ({error})")


def _readable_records(all_records: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Return the records that can be read; report the others on stderr."""
    for record in all_records:
        if record.error:
            print(f"a record is left out: {record.error}", file=sys.stderr)
    readable = [record for record in all_records if record.error is None]
    if not readable:
        hint = "no complete run there; make one with `python -m ssd_bench method=knapspec task=gsm8k`"
        raise ConfigError("runs_dir", str(runs_dir), reason=hint)
    return readable
