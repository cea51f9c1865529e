"""The replication part of the report, on disk: tables, figures, the audit, and the page of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.papers import audit
from ssd_bench.papers.cells import Replication
from ssd_bench.records.files import write_atomic
from ssd_bench.report.exhibits.predictions import markdown, predictions
from ssd_bench.report.exhibits.tables import everything
from ssd_bench.report.exhibits.write import write_tables
from ssd_bench.report.page import ours
from ssd_bench.report.page.drawn import draw
from ssd_bench.report.page.page import exhibits, render

PAGE = "index.html"


def write_replication(replications: Sequence[Replication], out: Path) -> list[Path]:
    """Write `out/tables`, `out/figures`, predictions, audit and `out/index.html`; returns the paths, the page last.

    Raises:
        ConfigError: `out` cannot be written.
    """
    frames = everything(replications)
    try:
        written = write_tables(replications, out / "tables", frames)
        drawn = draw(replications, out / "figures")
        written += [path for found in drawn.values() for one in found for path in one.paths]
        checks = audit.audit()
        predicted = predictions(replications)
        shown = exhibits(replications, frames, drawn)
        page = render(shown, frames, ours.comparison(replications, drawn), ours.predicted(predicted), checks)
        texts = {
            "predictions.md": markdown(predicted),
            "predictions.csv": predicted.to_csv(index=False, lineterminator="\n"),
            "audit.md": audit.markdown(checks),
            PAGE: page,
        }
        for name, text in texts.items():
            written.append(out / name)
            write_atomic(written[-1], text.encode())
    except OSError as error:
        raise ConfigError("out", str(out), f"a directory that can be written ({error})") from error
    return written
