"""Predictions of the cost model for the papers' models on the papers' hardware. They are not measurements.

The acceptance is the paper's (M and α, printed with a speedup), or comes from one of our runs of the paper's model.
Runs of other models are not used: acceptance does not carry over from one model to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench import tables
from ssd_bench.cost.roofline import simulated_machine
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.record import Record
from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END, format_percent
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.cells import OTHER_SCALE, PAPERS_OWN, Cell, Replication
from ssd_bench.papers.ours.ran import parameter_counts
from ssd_bench.papers.ours.values import BASELINES
from ssd_bench.papers.printed.catalogue import folder_of, paper_versions, version_name
from ssd_bench.papers.printed.reported import Number, numbers
from ssd_bench.papers.runs import grid
from ssd_bench.predict.acceptance import (
    CONTEXT,
    Acceptance,
    ReportedSpeedup,
    Steps,
    model_choices,
    needed_cost,
    reported_speedups,
)
from ssd_bench.predict.replay import predict

MACHINES = {paper: f"sim_{gpus[0].lower()}" for paper in paper_versions() if (gpus := folder_of(paper).hardware)}
"""First GPU that each paper names; papers that name no GPU are missing."""
ASSUMED, UNSTATED = "sim_h100", "not stated by the paper"
"""Machine for a paper that names no GPU (its models fit on it), and the remark on this choice."""
PAPER_ACCEPTANCE, RUN_ACCEPTANCE = "the paper's own", "the run's"  # stored in predictions.csv
ACCEPTANCE_LABELS = {PAPER_ACCEPTANCE: "from the paper", RUN_ACCEPTANCE: "from our run"}
LABELS = ("paper", "exhibit", "model", "task", "method", "setting", "printed")  # of the reported number
COLUMNS = (
    *LABELS,
    *("metric", "acceptance", "M", "alpha", "derived", "measured", "predicted", "machine", "scale", "run"),
    *("model_ran", "params", "share", "share_source", "c", "needs", "reason"),
)
NEEDS = {
    "any": "possible even if a drafted token costs its share of the sublayers or more",
    "cheaper": "possible only if a drafted token costs less than its share of the sublayers",
    "impossible": "impossible, because above M",
}
"""Conditions under which a paper's M and α give its speedup, by the result of `machine_need`."""
FEW = 5  # with fewer rows, no skill is computed
INTRO = (
    "These are predictions, not measurements. A cost model gives the times of drafting and verification on the paper's "
    f"GPU from its data sheet, at {CONTEXT:,} tokens of context, without the method's search. The acceptance is either "
    "the paper's M and α, which tests the paper's speedup given its acceptance (≈: derived from the other of the two, "
    "if drafting stops at the first wrong token), or the acceptance of our run of the paper's model, whose steps are "
    "replayed. c: time of a drafted token over the time of an AR step; modelled, and as needed for the paper's speedup "
    "if a verification takes as long as an AR step. Share of sublayers: the share that runs while drafting, as the "
    "paper, its released script or its released layer sets state it; without such a source there is no prediction."
)


@dataclass(frozen=True)
class Skill:
    """Accuracy of predicted speedups, compared with those that the papers measured.

    Attributes:
        n: number of predictions.
        miss: median of |predicted / printed - 1|.
        signed: median of predicted / printed - 1.
        constant: `miss` of a constant prediction, the median of the printed speedups.
        rank: Spearman's rank correlation of predicted and printed; None if one of them is constant.
    """

    n: int
    miss: float
    signed: float
    constant: float
    rank: float | None

    @property
    def text(self) -> str:
        """Phrase with these numbers."""
        rank = ABSENT if self.rank is None else f"{self.rank:.2f}"
        return (
            f"median error {format_percent(self.miss)} (signed: {100 * self.signed:+.1f} %; of a constant prediction: "
            f"{format_percent(self.constant)}), rank correlation {rank}"
        )


def predictions(replications: Sequence[Replication]) -> pd.DataFrame:
    """Predict every speedup of the papers whose acceptance is known, from the paper or from a run of its model.

    Returns:
        Columns `COLUMNS`. `printed`: the paper's number as text; `metric`: `speedup` if it was measured, else
        `expected_speedup`. `derived` as in `ReportedSpeedup`. `measured`, `predicted`: speedups over AR, decode only;
        NaN if missing, with the reason in `reason`. `machine` as in `conf/hardware`. Only for the paper's acceptance:
        `share` of the sublayers that draft, its source, `c` as modelled, and `needs`, the c that gives the paper's
        speedup.
    """
    predicted = [_paper_prediction(row) for row in reported_speedups()]
    predicted += [
        _run_prediction(number, cell)
        for number, cell in _runs_by_number(replications)
        if cell.setup in (PAPERS_OWN, OTHER_SCALE)
    ]
    frame = pd.DataFrame(predicted, columns=list(COLUMNS))
    frame = frame.astype(dict.fromkeys(("M", "alpha", "measured", "predicted", "share", "c", "needs"), "float64"))
    order = frame["paper"].map(paper_versions().index)
    return (
        frame.loc[order.sort_values(kind="stable").index]
        .reset_index(drop=True)
        .fillna(dict.fromkeys(("scale", "run", "model_ran", "params", "share_source"), ""))
    )


def _paper_prediction(row: ReportedSpeedup) -> dict[str, object]:
    number, name = row.number, model_choices().get(row.model, "")
    columns = _labels(number) | {"acceptance": PAPER_ACCEPTANCE, "derived": ""}
    if row.missing or row.skipped is None:
        return columns | {"reason": row.missing}
    acceptance, steps = Acceptance.of(row.alpha, row.tokens, row.draft_len), _steps(_machine(number.paper), name)
    return columns | {
        "M": acceptance.accepted + 1,
        "alpha": acceptance.accepted / acceptance.drafted,
        "derived": row.derived,
        "predicted": steps.speedup(acceptance, row.skipped),
        "share": 1 - row.skipped,
        "share_source": row.share_source,
        "c": steps.cost(row.skipped),
        "needs": needed_cost(acceptance, number.value),
        "reason": "",
    }


def _labels(number: Number) -> dict[str, object]:
    stated = "" if number.paper in MACHINES else f", {UNSTATED}"
    labels = {name: getattr(number, name) for name in (*LABELS, "metric")}
    return labels | {"machine": _machine(number.paper) + stated}


def _machine(paper: str) -> str:
    return MACHINES.get(paper, ASSUMED)


@cache
def _steps(machine: str, model: str) -> Steps:
    shape = known_shape(model)
    assert shape is not None, "models of unknown size were left out"
    return Steps(simulated_machine(machine, shape), shape.n_layers)


def _runs_by_number(replications: Sequence[Replication]) -> Iterator[tuple[Number, Cell]]:
    """Yield the papers' measured speedups (without plain decoding) to which one run of ours corresponds."""
    for number in numbers():
        if number.metric != "speedup" or number.bound or number.method in BASELINES:
            continue
        sources = {experiment.name for experiment in select.experiments().get((number.paper, number.exhibit), ())}
        for replication in replications:
            if replication.experiment.name not in sources:
                continue
            cells = select.matching_items(number, replication.cells)
            records = {cell.path: cell for cell in cells if cell.record is not None}
            cell = next(iter(records.values()), None)
            if cell is None or len(records) > 1 or select.domains(number, cells[0]) != [None]:
                continue  # the number is a mean over several runs, or over a part of a stream
            if cell.record is not None and not cell.record.error:
                yield number, cell


def _run_prediction(number: Number, cell: Cell) -> dict[str, object]:
    predicted, reason = _replay(number, cell)
    return _labels(number) | {
        "acceptance": RUN_ACCEPTANCE,
        "M": cell.summary.M.value,
        "alpha": cell.summary.alpha.value,
        "derived": "",
        "measured": cell.summary.speedup.value,
        "predicted": predicted,
        "scale": cell.scale,
        "run": cell.path.name,
        "reason": reason,
        "model_ran": cell.model_ran.text,
        "params": parameter_counts([cell.model_ran]),
    }


def _replay(number: Number, cell: Cell) -> tuple[float, str]:
    """Replay a run's steps on the paper's model and GPU; return the speedup, or NaN and the reason."""
    assert cell.record is not None, "cells without a record were left out"
    return _predicted_speedup(cell.record, _machine(number.paper), grid.choice(cell.paper_overrides, "model"))


@cache
def _predicted_speedup(record: Record, machine: str, model: str) -> tuple[float, str]:
    try:
        return predict(record.run, machine, model or None).speedup, ""
    except ConfigError as error:
        return float("nan"), str(error)


def skill(frame: pd.DataFrame) -> Skill | None:
    """Measure the accuracy of predictions; None with fewer than `FEW`.

    Expected speedups do not count, because they follow from M and α by a formula.

    Args:
        frame: columns metric, printed and predicted.
    """
    counted = frame[(frame["metric"] == "speedup") & frame["predicted"].notna()]
    printed, predicted = (counted[name].to_numpy(dtype=float) for name in ("printed", "predicted"))
    if len(counted) < FEW:
        return None
    varied = np.ptp(printed) > 0 and np.ptp(predicted) > 0
    # Spearman's rank correlation
    rank = float(stats.spearmanr(printed, predicted).statistic) if varied else None
    errors, constant = predicted / printed - 1, np.median(printed) / printed - 1
    miss, constant_miss = (float(np.median(np.abs(deviations))) for deviations in (errors, constant))
    return Skill(len(counted), miss, float(np.median(errors)), constant_miss, rank)


def skill_text(frame: pd.DataFrame) -> str:
    """Return sentences on the skill of the predictions, in total and within each paper."""
    overall = skill(frame)
    if overall is None:
        return "Too few of the papers' speedups are predicted to measure the accuracy."
    within = {version_name(str(paper)): skill(rows) for paper, rows in frame.groupby("paper", sort=False)}
    ranks = [
        f"{name} {paper_skill.rank:.2f}"
        for name, paper_skill in within.items()
        if paper_skill is not None and paper_skill.rank is not None
    ]
    parts = [f"{overall.n} speedups that the papers measured are predicted: {overall.text}."]
    parts += [f"Rank correlation within a paper: {', '.join(ranks)}."] if ranks else []
    return " ".join(parts)


def introduction(frame: pd.DataFrame) -> str:
    """Return an introduction: the skill of the predictions, and their meaning."""
    parts = [skill_text(frame)]
    if expected := int(((frame["metric"] != "speedup") & frame["predicted"].notna()).sum()):
        parts += [
            f"This does not count {expected} expected speedups, which the papers computed from M and α with a formula."
        ]
    return " ".join([*parts, INTRO])


def machine_need(cost: float, share: float) -> str:
    """Return the condition for a speedup, a key of `NEEDS`.

    Args:
        cost: c that the speedup needs.
        share: share of the sublayers that draft; equals c if only sublayers take time.
    """
    return "impossible" if cost < 0 else "cheaper" if cost < share else "any"


def machine_needs(frame: pd.DataFrame) -> dict[str, str]:
    """Return, for each paper, sentences on the drafting cost that its measured speedups need, given its M and α.

    Expected speedups are left out: they come from a formula that sets the cost of a drafted token, not from a machine.
    """
    sentences = {}
    measured = frame[frame["needs"].notna() & (frame["metric"] == "speedup")]
    for paper, group in measured.groupby("paper", sort=False):
        kinds = [machine_need(cost, share) for cost, share in zip(group["needs"], group["share"])]
        parts = [f"{kinds.count(word)} {meaning}" for word, meaning in NEEDS.items() if word in kinds]
        lines = [
            f"{version_name(str(paper))}, {len(group)} measured speedups, given their M and α: {'; '.join(parts)}."
        ]
        n_met = int((group["c"] <= group["needs"]).sum())
        lines += [f"On {group['machine'].iloc[0]}, the cost model makes drafting cheap enough for {n_met}."]
        lines += _derived_sentences(group)
        sentences[str(paper)] = " ".join(lines)
    return sentences


def _derived_sentences(rows: pd.DataFrame) -> list[str]:
    """Return sentences on rows whose M or α is derived from the other."""
    from_alpha, alpha_derived = int((rows["derived"] == "M").sum()), rows[rows["derived"] == "alpha"]
    sentences = [f"For {from_alpha}, M is derived from α."] if from_alpha else []
    if len(alpha_derived):
        # c is largest with the fewest drafted tokens, M - 1, all accepted: (M - 1) c + 1 = M / speedup
        kindest = (alpha_derived["M"] / alpha_derived["printed"].astype(float) - 1) / (alpha_derived["M"] - 1)
        n_harder = sum(machine_need(cost, share) != "any" for cost, share in zip(kindest, alpha_derived["share"]))
        sentences += [
            f"For {len(alpha_derived)}, α is derived from M; even if every drafted token were accepted, {n_harder} "
            "would need a cost below the share of the sublayers."
        ]
    return sentences


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions for a reader: few decimals, full column heads, no empty column."""
    shown = frame.drop(columns=["reason", "paper", "metric", "derived", "params"])
    for name, digits in {"M": 2, "alpha": 2, "measured": 2, "predicted": 2, "share": 3, "c": 3, "needs": 3}.items():
        shown[name] = [ABSENT if pd.isna(value) else f"{value:.{digits}f}" for value in frame[name]]
    for name in ("M", "alpha"):
        shown[name] = np.where(frame["derived"] == name, "≈" + shown[name], shown[name])
    shown["acceptance"] = frame["acceptance"].map(ACCEPTANCE_LABELS)
    shown["share_source"] = frame["share_source"].replace("", ABSENT)
    expected = frame["metric"] == "expected_speedup"
    shown["printed"] = np.where(expected, shown["printed"] + " (expected)", shown["printed"])
    if not frame["run"].any():
        shown = shown.drop(columns=["measured", "scale", "run", "model_ran"])
    renamed = {
        "exhibit": "table or figure",
        "model": "paper's model",
        "model_ran": "ours: model that ran",
        "printed": f"paper's {END_TO_END}",
        "measured": f"measured, ours: {DECODE}",
        "predicted": f"PREDICTED {DECODE}",
        "alpha": "α",
    }
    renamed |= {"share": "share of sublayers", "share_source": "source of the share"}
    return shown.rename(columns=renamed | {"c": "c modelled", "needs": "c needed"})


def document(frame: pd.DataFrame) -> str:
    """Return the predictions and the needed drafting costs as Markdown."""
    machines = "\n".join(f"- {sentence}" for sentence in machine_needs(frame).values())
    parts = ["# Predictions for the papers' hardware", introduction(frame), tables.markdown(readable_table(frame))]
    return "\n\n".join([*parts, "## Drafting cost that the papers' speedups need", machines]) + "\n"
