"""What replay predicts for the papers' models on the papers' hardware from our runs' steps: never a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import pandas as pd

from ssd_bench import tables
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT
from ssd_bench.papers import grid, select
from ssd_bench.papers.cells import Record, Replication
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import papers, room_of
from ssd_bench.replay.predict import predict

MACHINES = {paper: f"sim_{gpus[0].lower()}" for paper in papers() if (gpus := room_of(paper).hardware)}
"""The first GPU that each paper names, where it names one."""
LABELS = ("paper", "exhibit", "model", "task", "method", "setting", "printed")  # of the reported number
COLUMNS = (*LABELS, "measured", "predicted", "machine", "scale", "run", "reason")
INTRO = (
    "Predictions, never measurements. Of each run only the steps are taken (drafted, accepted, layer set, context) and "
    "timed for the paper's model on the paper's GPU, from its data sheet; the acceptance stays that of the model that "
    "ran. Measured: ours, on our machine. The paper's speedup stands beside for orientation: on another model than the "
    "paper's the three are not comparable."
)


def predictions(replications: Sequence[Replication]) -> pd.DataFrame:
    """Every speedup of the papers that one run of ours is about, with what that run's steps would give there.

    Returns:
        `COLUMNS`: `printed` of the paper, as text; `measured` and `predicted` speedups over AR, decode only, NaN where
        there is none and `reason` says why; `machine` as in `conf/hardware`. a paper that names no device has no rows.
    """
    rows: list[dict[str, object]] = []
    for number in numbers():
        if number.metric == "speedup" and not number.bound and number.paper in MACHINES:
            sources = {one.name for one in select.experiments().get((number.paper, number.exhibit), ())}
            for replication in (one for one in replications if one.experiment.name in sources):
                rows += _rows(number, replication)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(number: Number, replication: Replication) -> Iterable[dict[str, object]]:
    found = select.about(number, replication.cells)
    made = {cell.path: cell for cell in found if cell.record is not None}
    if len(made) != 1 or select.domains(number, found[0]) != [None]:
        return  # a mean over runs, or over a part of a stream
    cell = next(iter(made.values()))
    assert cell.record is not None, "the others were left out"
    predicted, reason = _predicted(cell.record, MACHINES[number.paper], grid.choice(cell.asked, "model"))
    yield {name: getattr(number, name) for name in LABELS} | {
        "measured": cell.summary["speedup"], "predicted": predicted, "machine": MACHINES[number.paper],
        "scale": replication.scale, "run": cell.path.name, "reason": reason,
    }  # fmt: skip


@cache
def _predicted(made: Record, machine: str, model: str) -> tuple[float, str]:
    try:
        return predict(made.run, machine, model or None)["speedup"], ""
    except ConfigError as error:
        return float("nan"), str(error)


def readable(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for a reader: two decimals, and the word that says what a number is."""
    shown = frame.drop(columns=["reason", "paper"])
    for name in ("measured", "predicted"):
        shown[name] = [ABSENT if pd.isna(value) else f"{value:.2f}" for value in frame[name]]
    renamed = {"printed": "paper's speedup", "measured": "measured, ours", "predicted": "PREDICTED"}
    return shown.rename(columns=renamed)


def document(frame: pd.DataFrame) -> str:
    """The whole, as Markdown."""
    return f"# Predictions for the papers' hardware\n\n{INTRO}\n\n{tables.markdown(readable(frame))}\n"
