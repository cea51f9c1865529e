"""Writing of the tables, figures and documents of a folder of runs, and of the page with all of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
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
from ssd_bench.report import figures, layout, numbers, page, runs, verdicts
from ssd_bench.report.exhibit import LEGEND, Exhibit, build_exhibits, completeness

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
    frames = numbers.long_tables(replications)  # first: the processes that draw share the records that it reads
    try:
        drawn = figures.draw_figures(replications, out / "figures")
        exhibits = build_exhibits(frames, replications, drawn)
        written = write_tables(exhibits, out / "tables")
        written += write_own_tables(replications, out / "tables")
        written += [path for scales in drawn.values() for figure in scales for path in figure.paths]
        print(completeness(exhibits, replications))
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
                PAGE: page.render(exhibits, replications, drawn, predicted, checks, judged, folder_records),
            },
        )
    except OSError as error:
        raise _unwritable(out, error) from error
    return written


def write_tables(exhibits: Iterable[Exhibit], out: Path) -> list[Path]:
    """Write every table, figure and passage with numbers as `out/PAPER_EXHIBIT.{md,tex,csv}`; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for exhibit in exhibits:
        if exhibit.has_numbers:
            texts = {"md": document(exhibit), "tex": latex(exhibit), "csv": tables.csv(exhibit.frame)}
            written += write_texts(out, {f"{exhibit.stem}.{kind}": text for kind, text in texts.items()})
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


def document(exhibit: Exhibit) -> str:
    """Return a table or figure as Markdown: scale, verdicts, commands, numbers, remarks, missing numbers, and runs."""
    parts = [f"# {exhibit.title}", f"**{exhibit.results}**", *exhibit.verdicts, *exhibit.baselines]
    parts += ["\n".join(f"    {command}" for command in exhibit.commands(exhibit.number_scales))]
    parts += [tables.markdown(layout.wide_table(exhibit.frame)), LEGEND]
    parts += ["\n".join(f"- {line}" for line in exhibit.remarks)]
    run_ids = numbers.run_ids(exhibit.frame)
    parts += [f"Runs: {', '.join(run_ids)}"] if run_ids else []
    return "\n\n".join(filter(None, parts)) + "\n"


def latex(exhibit: Exhibit) -> str:
    """Return the numbers of a table or figure as a LaTeX table."""
    caption = " ".join([f"{exhibit.title}.", exhibit.results, *exhibit.baselines, LEGEND])
    return tables.latex(layout.wide_table(exhibit.frame), caption, f"tab:{exhibit.stem.replace('_', '-')}")


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
