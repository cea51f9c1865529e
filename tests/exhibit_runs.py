"""Made-up records and indices behind the papers' exhibits, for tests of tables, verdicts and the page."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from ssd_bench.papers.figures import style
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours import select
from ssd_bench.papers.printed import reported
from ssd_bench.papers.runs import grid, index
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import DIGESTS
from ssd_bench.results import store
from ssd_bench.results.digest import Digest
from ssd_bench.results.folder import Record, prepare_records, records
from tests import synthetic

STREAMS = ("stream", "stream_swift", "stream_shift")
MINIATURE = {"name": "miniature", "toy": True}


def make(folder: Path, name: str, accept: float = 0.7, prompts: int = 6, hf: bool = False, **changes: Any) -> str:
    """A record, with Hugging Face's arm if `hf`; returns its folder's name."""
    units = [synthetic.unit(i, accept=accept) for i in range(prompts)]
    units = [synthetic.with_hf(one, slower=3 + i) for i, one in enumerate(units)] if hf else units
    synthetic.write_record(folder / name, units, **{"run_id": name, "model": MINIATURE} | changes)
    return name


def make_stream(folder: Path, name: str) -> str:
    parts, units = select.stream_parts(name), []
    for i in range(2 * len(parts)):
        units.append(synthetic.unit(i, accept=0.3 + 0.1 * (i // 2)))
        for record in units[-1]:
            record.prompt.domain = parts[i // 2]
    synthetic.write_record(folder / name, units, run_id=name, model=MINIATURE)
    return name


def make_code(folder: Path, repeats: int = 10) -> str:
    units = [synthetic.unit(i, repeat) for i in range(4) for repeat in range(repeats)]
    synthetic.write_record(folder / "code", units, run_id="code", model=MINIATURE, task={"metric": "pass@1"})
    path = folder / "code" / "run.json"
    header = json.loads(path.read_text(encoding="utf-8")) | {"scores": {"ar": {}, "method": {}}}
    path.write_text(json.dumps(header), encoding="utf-8")
    return "code"


def indexed(
    folder: Path,
    experiment: str,
    scale: str,
    run: Callable[[grid.Job], str | None],
    own_traces: bool = True,
    options: Sequence[str] = (),
) -> None:
    """An index in which each job has the run named by `run`, or an error where that begins with a bang.

    Args:
        options: further options of every run.
        own_traces: where methods or settings have one run, all but the first get a copy with another trace and the same
            numbers, so that none is excluded.
    """
    cells, users = [], dict[tuple[str, str], tuple[str, str]]()
    for job in grid.load(experiment).jobs:
        made = run(job) or ""
        error = made[1:] if made.startswith("!") else None
        user = (job.labels["method"], job.labels["setting"])
        if made and not error and own_traces and users.setdefault((job.labels["task"], made), user) != user:
            made = _with_another_trace(folder, made, zlib.crc32(repr(user).encode()))
        overrides = [*grid.merge_overrides([*job.overrides, *options])]
        cells.append(index.IndexEntry(dict(job.labels), overrides, None if error else made or None, error))
    index.write(folder, experiment, scale, cells)


def _with_another_trace(folder: Path, name: str, which: int) -> str:
    """A copy of a record whose last step verified more nodes, which changes none of the papers' numbers."""
    copy = folder / f"{name}~{which:08x}"
    if (folder / name).is_dir() and not copy.exists():
        shutil.copytree(folder / name, copy)
        steps = pq.read_table(copy / "steps.parquet")
        nodes = steps["tree_nodes"].to_pylist()
        nodes[-1] += 1 + which % 2**30
        at = steps.column_names.index("tree_nodes")
        pq.write_table(
            steps.set_column(at, steps.schema.field(at), pa.array(nodes, pa.int32())), copy / "steps.parquet"
        )
        header = json.loads((copy / "run.json").read_bytes())
        header[DIGESTS]["steps"] = hashlib.sha256((copy / "steps.parquet").read_bytes()).hexdigest()
        (copy / "run.json").write_text(json.dumps(header), encoding="utf-8")
    return copy.name


def renamed(original: Record, path: Path, own_trace: bool = False, **changes: Any) -> Record:
    """A record's copy with other values in its header, but its digest, which takes longest."""
    if not path.exists():
        shutil.copytree(original.path, path)
        header = json.loads((path / "run.json").read_bytes())
        for key, value in changes.items():
            header[key] = {**header.get(key, {}), **value} if isinstance(value, dict) else value
        (path / "run.json").write_text(json.dumps(header), encoding="utf-8")
    record, digest = Record(path), original.digest
    trace = path.name if own_trace else digest.timing.trace
    vars(record)["digest"] = replace(digest, timing=replace(digest.timing, trace=trace))
    return record


def number(name: str) -> reported.Number:
    return next(one for one in reported.numbers() if one.id == name)


def make_all(folder: Path) -> None:
    """Every experiment at scale mini, with all cells from a few records."""
    make(folder, "plain")
    make_code(folder)
    for stream in STREAMS:
        make_stream(folder, stream)
    for name in grid.names():
        indexed(folder, name, "mini", lambda job: record_of(grid.choice(job.overrides, "task")))


def prepare_all(folder: Path) -> None:
    """Store the digests of `make_all`'s records: a copy has the numbers of its original."""
    with patch.object(store, "_digest_of", _digest_of):
        prepare_records(records(folder))


def _digest_of(run_dir: Path) -> tuple[str, str]:
    name, is_copy, _ = run_dir.name.partition("~")
    digest = _digest_of_original(run_dir.with_name(name))
    timing = replace(digest.timing, trace=run_dir.name) if is_copy else digest.timing
    return store._stamp(run_dir), replace(digest, timing=timing).text


@cache
def _digest_of_original(run_dir: Path) -> Digest:
    return Digest.of(load_run(run_dir))


def record_of(task: str) -> str:
    return {"humaneval": "code"}.get(task, task if task in STREAMS else "plain")


def laid_out(figure: Figure | NotDrawable | None) -> Figure:
    """Return a figure that is laid out, without a warning."""
    assert isinstance(figure, Figure), figure
    with matplotlib.rc_context(style.STYLE), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.draw_without_rendering()
    return figure


def caption(figure: object) -> str:
    assert isinstance(figure, Figure), figure
    return figure.get_supxlabel().replace("\n", " ")


def legend_labels(figure: object) -> list[str]:
    assert isinstance(figure, Figure), figure
    return [text.get_text() for part in figure.subfigs for legend in part.legends for text in legend.get_texts()]


def ticks(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    shown = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for tick in shown for label in (tick.label1, tick.label2) if label.get_visible()]


def texts(figure: Figure) -> list[Text]:
    """All text in a figure, as shown: title first, then caption."""
    texts = [text for text in (figure._suptitle, figure._supxlabel) if text is not None]  # type: ignore[attr-defined]
    for part in figure.subfigs:
        texts += [text for legend in part.legends for text in legend.get_texts()]
    for axes in figure.axes:
        texts += axes.texts
        if axes.axison:
            texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]  # type: ignore[attr-defined]
            texts += [*ticks(axes.xaxis), *ticks(axes.yaxis)]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]
