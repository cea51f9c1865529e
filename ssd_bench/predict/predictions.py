"""Predictions of the cost model for the papers' models on the papers' hardware: never a measurement.

Acceptance is the paper's own (M and α, printed with a speedup), or that of one of our runs of the paper's own model.
Runs of other models are not used: `other_model_skill` measures how well they would predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench import tables
from ssd_bench.cost.roofline import simulated_machine
from ssd_bench.cost.shapes import known_shape
from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import ABSENT, DECODE, END_TO_END, format_percent
from ssd_bench.papers.ours import select
from ssd_bench.papers.ours.cells import OTHER_SCALE, PAPERS_OWN, Cell, Record, Replication
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
"""The first GPU that each paper names, where it names one."""
ASSUMED, UNSTATED = "sim_h100", "not stated by the paper"
"""Machine for a paper that names no GPU: one that its models fit on; and the remark on it."""
PAPER_ACCEPTANCE, RUN_ACCEPTANCE = "the paper's own", "the run's"
LABELS = ("paper", "exhibit", "model", "task", "method", "setting", "printed")  # of the reported number
COLUMNS = (
    *LABELS,
    "metric",
    "acceptance",
    "M",
    "alpha",
    "derived",
    "measured",
    "predicted",
    "machine",
    "scale",
    "run",
    "model_ran",
    "params",
    "share",
    "c",
    "needs",
    "reason",
)
NEEDS = {
    "any": "where a drafted token costs its share of the sublayers or more",
    "cheaper": "only where a drafted token costs less than its share of the sublayers",
    "impossible": "nowhere: above M",
}
"""Machines on which a paper's M and α give its speedup, by the result of `machine_need`."""
FEW = 5  # fewer rows have no skill
INTRO = (
    "Predictions, never measurements: a step's drafting and verification on the paper's GPU by its data sheet, at "
    f"{CONTEXT:,} tokens of context, without any search of the method's own. Acceptance is the paper's own M and α (≈: "
    "follows from the other one, where drafting stops at the first wrong token), which tests its speed given its "
    "acceptance; or that of a run of ours of the paper's own model, whose steps are replayed. c: a drafted token's "
    "time over a plain step's, as modelled, and as the paper's speedup needs it if a verification takes a plain step. "
    "Share: of the sublayers, that draft."
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
        models: models whose runs gave the acceptance, if these are not the paper's.
    """

    n: int
    miss: float
    signed: float
    constant: float
    rank: float | None
    models: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """End of a sentence with these numbers."""
        rank = ABSENT if self.rank is None else f"{self.rank:.2f}"
        missed = f"miss by a median of {format_percent(self.miss)} (with its sign {100 * self.signed:+.1f} %)"
        return f"{missed}, one constant by {format_percent(self.constant)}; rank correlation {rank}"


def predictions(replications: Sequence[Replication]) -> pd.DataFrame:
    """Predict every speedup of the papers with a known acceptance: the paper's, or of a run of the paper's model.

    Returns:
        Columns `COLUMNS`. `printed`: the paper's number as text; `metric`: `speedup` if it was measured, else
        `expected_speedup`. `derived` as in `Row`. `measured`, `predicted`: speedups over AR, decode only; NaN if
        missing, then `reason` says why. `machine` as in `conf/hardware`. For the paper's own acceptance also `share`
        of the sublayers that draft, `c` as modelled, and `needs`, the c that gives the paper's speedup.
        `attrs["other_models"]`: result of `other_model_skill`.
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
    frame = (
        frame.loc[order.sort_values(kind="stable").index]
        .reset_index(drop=True)
        .fillna(dict.fromkeys(("scale", "run", "model_ran", "params"), ""))
    )
    frame.attrs["other_models"] = other_model_skill(replications)
    return frame


def _paper_prediction(row: ReportedSpeedup) -> dict[str, object]:
    number, name = row.number, model_choices().get(row.model, "")
    columns = _labels(number) | {"acceptance": PAPER_ACCEPTANCE, "derived": ""}
    if row.missing or row.skipped is None or known_shape(name) is None:
        return columns | {"reason": row.missing or f"the sizes of {number.model} are not known"}
    acceptance, steps = Acceptance.of(row.alpha, row.tokens, row.draft_len), _steps(_machine(number.paper), name)
    return columns | {
        "M": acceptance.accepted + 1,
        "alpha": acceptance.accepted / acceptance.drafted,
        "derived": row.derived,
        "predicted": steps.speedup(acceptance, row.skipped),
        "share": 1 - row.skipped,
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
    """Yield the papers' measured speedups (without plain decoding) that one run of ours corresponds to."""
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
                continue  # a mean over several runs, or of a part of a stream
            if cell.record is not None and not cell.record.error:
                yield number, cell


def _run_prediction(number: Number, cell: Cell) -> dict[str, object]:
    predicted, reason = _replay(number, cell)
    summary = cell.summary
    return _labels(number) | {
        "acceptance": RUN_ACCEPTANCE,
        "M": summary["M"],
        "alpha": summary["alpha"],
        "derived": "",
        "measured": summary["speedup"],
        "predicted": predicted,
        "scale": cell.scale,
        "run": cell.path.name,
        "reason": reason,
        "model_ran": cell.model_ran.text,
        "params": parameter_counts([cell.model_ran]),
    }


def _replay(number: Number, cell: Cell) -> tuple[float, str]:
    """Replay a run's steps on the paper's model and GPU; return the speedup (or NaN) and the reason of NaN."""
    assert cell.record is not None, "cells without a record were left out"
    return _predicted_speedup(cell.record, _machine(number.paper), grid.choice(cell.paper_overrides, "model"))


@cache
def _predicted_speedup(record: Record, machine: str, model: str) -> tuple[float, str]:
    try:
        return predict(record.run, machine, model or None)["speedup"], ""
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


def other_model_skill(replications: Sequence[Replication]) -> Skill | None:
    """Return the skill of predictions that are not shown: with the acceptance of runs of other models."""
    pairs = [
        (number, cell)
        for number, cell in _runs_by_number(replications)
        if number.paper in MACHINES and cell.setup not in (PAPERS_OWN, OTHER_SCALE)
    ]
    predicted = [_labels(number) | {"predicted": _replay(number, cell)[0]} for number, cell in pairs]
    result = skill(pd.DataFrame(predicted, columns=[*LABELS, "metric", "predicted"]))
    return result and replace(result, models=tuple(sorted({cell.model_ran.text for _, cell in pairs})))


def skill_text(frame: pd.DataFrame) -> str:
    """Return sentences on the skill of the predictions, in total and within each paper."""
    overall = skill(frame)
    if overall is None:
        return "Too few of the papers' speedups are predicted to say how well."
    within = {version_name(str(paper)): skill(rows) for paper, rows in frame.groupby("paper", sort=False)}
    ranks = [
        f"{name} {paper_skill.rank:.2f}"
        for name, paper_skill in within.items()
        if paper_skill is not None and paper_skill.rank is not None
    ]
    parts = [f"Of the speedups that the papers measured, {overall.n} are predicted; these {overall.text}."]
    parts += [f"Rank correlation within a paper: {', '.join(ranks)}."] if ranks else []
    return " ".join(parts)


def introduction(frame: pd.DataFrame) -> str:
    """Return an introduction: skill of the predictions and of those that are not shown, and their meaning."""
    parts, unshown = [skill_text(frame)], frame.attrs.get("other_models")
    if expected := int((frame["metric"] != "speedup").sum()):
        parts += [f"{expected} expected speedups, which papers have from a formula of M and α, do not count there."]
    if isinstance(unshown, Skill):
        parts += [
            f"With the acceptance of runs of other models than the paper's ({'; '.join(unshown.models)}), {unshown.n} "
            f"predictions {unshown.text}: they are not shown."
        ]
    return " ".join([*parts, INTRO])


def machine_need(cost: float, share: float) -> str:
    """Return which machines can give a speedup, a key of `NEEDS`.

    Args:
        cost: c that the speedup needs.
        share: share of the sublayers that draft; equals c if sublayers alone take time.
    """
    return "impossible" if cost < 0 else "cheaper" if cost < share else "any"


def machine_needs(frame: pd.DataFrame) -> dict[str, str]:
    """Return by paper a sentence on the machine that its measured speedups need, given its M and α.

    Expected speedups are left out: they come from a formula that sets the cost of a drafted token, not from a machine.
    """
    sentences = {}
    measured = frame[frame["needs"].notna() & (frame["metric"] == "speedup")]
    for paper, group in measured.groupby("paper", sort=False):
        kinds = [machine_need(cost, share) for cost, share in zip(group["needs"], group["share"])]
        parts = [f"{kinds.count(word)} {meaning}" for word, meaning in NEEDS.items() if word in kinds]
        lines = [
            f"{version_name(str(paper))}: its M and α give, of {len(group)} speedups that it measured, "
            f"{'; '.join(parts)}."
        ]
        n_met = int((group["c"] <= group["needs"]).sum())
        lines += [f"{group['machine'].iloc[0]}, as modelled, drafts cheaply enough for {n_met}."]
        lines += _derived_sentences(group)
        sentences[str(paper)] = " ".join(lines)
    return sentences


def _derived_sentences(rows: pd.DataFrame) -> list[str]:
    """Return sentences on rows whose M or α is derived from the other."""
    from_alpha, alpha_derived = int((rows["derived"] == "M").sum()), rows[rows["derived"] == "alpha"]
    sentences = [f"M follows from α in {from_alpha}."] if from_alpha else []
    if len(alpha_derived):
        # c is largest with the fewest drafted tokens, M - 1, all accepted: (M - 1) c + 1 = M / speedup
        kindest = (alpha_derived["M"] / alpha_derived["printed"].astype(float) - 1) / (alpha_derived["M"] - 1)
        n_harder = sum(machine_need(cost, share) != "any" for cost, share in zip(kindest, alpha_derived["share"]))
        sentences += [
            f"α follows from M in {len(alpha_derived)}: were all that it drafts accepted, "
            f"{n_harder} would still need less."
        ]
    return sentences


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions for a reader: few decimals, clear column heads, no column without a number."""
    shown = frame.drop(columns=["reason", "paper", "metric", "derived", "params"])
    for name, digits in {"M": 2, "alpha": 2, "measured": 2, "predicted": 2, "share": 3, "c": 3, "needs": 3}.items():
        shown[name] = [ABSENT if pd.isna(value) else f"{value:.{digits}f}" for value in frame[name]]
    for name in ("M", "alpha"):
        shown[name] = np.where(frame["derived"] == name, "≈" + shown[name], shown[name])
    expected = frame["metric"] == "expected_speedup"
    shown["printed"] = np.where(expected, shown["printed"] + " (expected)", shown["printed"])
    if not frame["run"].any():
        shown = shown.drop(columns=["measured", "scale", "run", "model_ran"])
    renamed = {
        "model": "paper's model",
        "model_ran": "ours: model that ran",
        "printed": f"paper's {END_TO_END}",
        "measured": f"measured, ours: {DECODE}",
        "predicted": f"PREDICTED {DECODE}",
        "alpha": "α",
    }
    return shown.rename(columns=renamed | {"c": "c modelled", "needs": "c needed"})


def document(frame: pd.DataFrame) -> str:
    """Return predictions and needs as Markdown."""
    machines = "\n".join(f"- {sentence}" for sentence in machine_needs(frame).values())
    parts = ["# Predictions for the papers' hardware", introduction(frame), tables.markdown(readable_table(frame))]
    return "\n\n".join([*parts, "## What machine the papers' numbers need", machines]) + "\n"
