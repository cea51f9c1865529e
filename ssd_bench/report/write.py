"""Writing of the tables, figures and documents of a folder of runs, and of the page with all of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit
from ssd_bench.papers.claims.judge import judge
from ssd_bench.papers.ours.cells import Record, Replication
from ssd_bench.papers.ssd_bench.own import OWN
from ssd_bench.predict import predictions
from ssd_bench.records.files import write_atomic
from ssd_bench.report import exhibits, figures, layout, page, runs, verdicts

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
            written += write_texts(out, {f"{name}.md": text, f"{name}.csv": tables.csv(runs.unrounded_table(groups))})
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
        written += write_texts(
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
        written += write_texts(
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
            written += write_texts(out, {f"{name}.md": text, f"{name}.csv": tables.csv(shown.table(replication))})
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


def write_texts(out: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("out", str(out), f"a directory that can be written ({error})")


def readable_records(all_records: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Return the records that can be read; report the others on stderr."""
    for record in all_records:
        if record.error:
            print(f"a record is left out: {record.error}", file=sys.stderr)
    readable = [record for record in all_records if record.error is None]
    if not readable:
        hint = "no complete run there; make one with `python -m ssd_bench method=knapspec task=gsm8k`"
        raise ConfigError("runs_dir", str(runs_dir), reason=hint)
    return readable
