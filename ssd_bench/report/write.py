"""Writing of a folder's tables, figures and documents, and of the page with all of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.conf import REFERENCE
from ssd_bench.errors import ConfigError
from ssd_bench.papers.audit import audit
from ssd_bench.papers.claims.judge import NOT_RUN, judge
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.ssd_bench.own import OWN
from ssd_bench.paths import reference_hint, write_atomic
from ssd_bench.predict.gpu_results import read_gpu_results
from ssd_bench.report import figures, layout, numbers, page, results, runs, verdict_texts, verdicts
from ssd_bench.report.exhibit import LEGEND, Exhibit, build_exhibits, completeness
from ssd_bench.results.folder import Record

_to_judge: list[Replication] = []  # of the forked process
PAGE = "index.html"
GPU_RESULTS = REFERENCE / "shapes"
VERDICT_COLUMNS = ("claim", "model", "verdict", "effect", "times", "threshold")
VERDICTS_CAPTION = (
    "Brackets: 95 % intervals over prompts. Threshold: the effect that the claim needs. "
    "Times: whether the effect is modelled from the recorded work or measured. A toy-model run says nothing of a "
    "paper's model."
)
CONTENTS = {
    PAGE: "page: which claims hold, which method to use, all tables and figures",
    "verdicts.md": "verdicts on the papers' claims",
    "results.csv": "results of all methods: method, task, model, machine",
    "tables": "tables of the papers, with our results",
    "figures": "figures of the papers, drawn from our runs",
    "audit.md": "consistency of the papers' numbers",
    "notebooks": "notebooks, executed on these runs",
}


def write(tasks: Mapping[str, Sequence[runs.RunGroup]], out: Path) -> list[Path]:
    """Write tables and figures under `out` and print the tables; return the paths.

    Raises:
        ConfigError: `out` cannot be written.
    """
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for task, groups in tasks.items():
            name = _stem(task)
            print(text := runs.document(task, groups))
            csv = tables.csv(runs.unrounded_table(groups))
            written += write_texts(
                out, {f"{name}.md": text, f"{name}.csv": csv, f"{name}.tex": runs.latex(task, groups)}
            )
            written += figures.save(figures.task_figure(task, groups), out / name)
    except OSError as error:
        raise _unwritable(out, error) from error
    return written


def _stem(task: str) -> str:
    return re.sub(r"[^\w.-]+", "_", task)


def index(out: Path, tasks: Mapping[str, Sequence[runs.RunGroup]]) -> str:
    """Return a table of contents, and the speedups of runs outside the papers' experiments."""
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
    runs_dir: Path,
    folder_records: Sequence[Record] = (),
) -> list[Path]:
    """Write `out/tables`, `out/figures`, verdicts, audit and `out/index.html`; return the paths.

    Args:
        runs_dir: folder with files of others' verdicts and results.

    Raises:
        ConfigError: `out` cannot be written, or a file of others does not fit.
    """
    others_verdicts, others_results = verdicts.read_verdicts(runs_dir), results.read_results(runs_dir)
    try:
        with _judging(replications) as judged_table:
            frames = numbers.long_tables(replications)  # before figures: drawing processes share the records it reads
            drawn = figures.draw_figures(replications, out / "figures")
            exhibits = build_exhibits(frames, replications, drawn)
            written = write_tables(exhibits, out / "tables") if replications else []
            written += write_own_tables(replications, out / "tables")
            written += [path for scales in drawn.values() for figure in scales for path in figure.paths]
            print(completeness(exhibits, replications))
            checks = audit.audit()
            own_results = results.result_table(replications, folder_records)
            all_results = pd.concat([own_results, others_results], ignore_index=True)
            judged = verdicts.merge_verdicts(judged_table(), others_verdicts)
            gpu_results = [*read_gpu_results(GPU_RESULTS).values()]
        written += write_texts(
            out,
            {
                "verdicts.md": verdict_texts.document(judged),
                "verdicts.csv": tables.csv(judged),
                "verdicts.tex": latex_verdicts(judged),
                "audit.md": audit.markdown_text(checks),
                "results.csv": tables.csv(own_results),
                PAGE: page.render(exhibits, replications, drawn, checks, judged, all_results, gpu_results),
            },
        )
    except OSError as error:
        raise _unwritable(out, error) from error
    return written


@contextmanager
def _judging(replications: Sequence[Replication]) -> Iterator[Callable[[], pd.DataFrame]]:
    """Judge the claims while the block runs, if there is a second core; yield a function that returns the verdicts."""
    if len(os.sched_getaffinity(0)) < 2:
        yield lambda: verdicts.table(judge(replications))
        return
    # a forked process gets them without a copy
    with get_context("fork").Pool(1, _to_judge.extend, (replications,)) as pool:
        yield pool.apply_async(_judged_table).get


def _judged_table() -> pd.DataFrame:
    return verdicts.table(judge(_to_judge))


def write_tables(exhibits: Iterable[Exhibit], out: Path) -> list[Path]:
    """Write every exhibit with numbers as `out/PAPER_EXHIBIT.{md,tex,csv}`; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for exhibit in exhibits:
        if exhibit.has_numbers:
            texts = {"md": document(exhibit), "tex": latex(exhibit), "csv": tables.csv(exhibit.frame)}
            written += write_texts(out, {f"{exhibit.stem}.{kind}": text for kind, text in texts.items()})
    return written


def write_own_tables(replications: Sequence[Replication], out: Path) -> list[Path]:
    """Write and print our experiments' tables, `out/EXPERIMENT_SCALE.{md,csv,tex}`; return the paths."""
    by_name, written = {own_table.experiment: own_table for own_table in OWN}, []
    for replication in replications:
        if replication.experiment.name in by_name and any(replication.recorded_cells()):
            shown = by_name[replication.experiment.name]
            print(text := shown.document(replication))
            name = f"{replication.experiment.name}_{replication.scale}"
            frame = shown.table(replication)
            kinds = {"md": text, "csv": tables.csv(frame), "tex": shown.latex(replication)}
            written += write_texts(out, {f"{name}.{kind}": content for kind, content in kinds.items()})
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
    caption = " ".join([f"{exhibit.title}.", exhibit.results, *exhibit.baselines, LEGEND])
    return tables.latex(layout.wide_table(exhibit.frame), caption, f"tab:{exhibit.stem.replace('_', '-')}")


def latex_verdicts(judged: pd.DataFrame) -> str:
    """Return the verdicts as LaTeX tables, one per paper, without claims not run."""
    shown = verdict_texts.readable_table(judged[judged["verdict"] != NOT_RUN])
    texts = []
    for paper, rows in shown.groupby("paper", sort=False):
        caption = f"Verdicts on claims of {paper}, by runs of ssd-bench. {VERDICTS_CAPTION}"
        label = re.sub(r"[^a-z0-9]+", "-", str(paper).lower())
        frame = rows[list(VERDICT_COLUMNS)]
        texts.append(tables.latex(frame, caption, f"tab:verdicts-{label}", {"claim": "6cm", "verdict": "3cm"}))
    return "\n".join(texts)


def write_texts(out: Path, texts: Mapping[str, str]) -> list[Path]:
    for name, text in texts.items():
        write_atomic(out / name, text.encode())
    return [out / name for name in texts]


def _unwritable(out: Path, error: OSError) -> ConfigError:
    return ConfigError("out", str(out), f"a directory that can be written ({error})")


def readable_records(all_records: Sequence[Record], runs_dir: Path) -> list[Record]:
    """Return the readable records; report the others on stderr."""
    for record in all_records:
        if record.error:
            print(f"a record is left out: {record.error}", file=sys.stderr)
    readable = [record for record in all_records if record.error is None]
    if not readable:
        hint = "no complete run there; make one with `python -m ssd_bench method=knapspec task=gsm8k`"
        raise ConfigError("runs_dir", str(runs_dir), reason=hint + reference_hint(runs_dir))
    return readable
