"""What the cost model predicts for the papers' models on the papers' hardware: never a measurement.

Acceptance is the paper's own (the M and α that it prints beside a speedup), or that of a run of ours of the paper's own
model. From any other model's runs nothing is predicted: `rehearsed` says how good that was.
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
from ssd_bench.papers import grid, select
from ssd_bench.papers.cells import OTHER_SCALE, PAPERS_OWN, Cell, Record, Replication
from ssd_bench.papers.ran import parameter_counts
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import folder_of, paper_versions, version_name
from ssd_bench.papers.traces import (
    CONTEXT,
    Acceptance,
    ReportedSpeedup,
    Steps,
    model_choices,
    needed_cost,
    reported_speedups,
)
from ssd_bench.papers.values import BASELINES
from ssd_bench.replay.predict import predict

MACHINES = {paper: f"sim_{gpus[0].lower()}" for paper in paper_versions() if (gpus := folder_of(paper).hardware)}
"""The first GPU that each paper names, where it names one."""
ASSUMED, UNSTATED = "sim_h100", "not stated by the paper"
"""Where a paper names none: a GPU of the class that its models need, and what is said of that."""
PAPER_ACCEPTANCE, RUN_ACCEPTANCE = "the paper's own", "the run's"
LABELS = ("paper", "exhibit", "model", "task", "method", "setting", "printed")  # of the reported number
COLUMNS = (
    *LABELS, "metric", "acceptance", "M", "alpha", "derived", "measured", "predicted", "machine", "scale", "run",
    "model_ran", "params",
    "share", "c", "needs", "reason",
)  # fmt: skip
NEEDS = {
    "any": "where a drafted token costs its share of the sublayers or more",
    "cheaper": "only where a drafted token costs less than its share of the sublayers",
    "impossible": "nowhere: above M",
}
"""Where a paper's M and α give its speedup, by a word of `need`."""
FEW = 5  # rows of which no skill is told
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
    """How near predicted speedups are to those that the papers measured.

    Attributes:
        n: how many.
        miss, signed: median of |predicted / printed - 1|, and without the bars.
        constant: the same of one constant, the median of what is printed.
        rank: Spearman's correlation of predicted and printed; None where one of them does not vary.
        models: whose runs the acceptance is of, where these are not the paper's.
    """

    n: int
    miss: float
    signed: float
    constant: float
    rank: float | None
    models: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As the end of a sentence."""
        rank = ABSENT if self.rank is None else f"{self.rank:.2f}"
        missed = f"miss by a median of {format_percent(self.miss)} (with its sign {100 * self.signed:+.1f} %)"
        return f"{missed}, one constant by {format_percent(self.constant)}; rank correlation {rank}"


def predictions(replications: Sequence[Replication]) -> pd.DataFrame:
    """Every speedup of the papers that their own acceptance, or a run of their own model, is at hand for.

    Returns:
        `COLUMNS`: `printed` of the paper, as text, and whether it is a measured `speedup` or an `expected_speedup`;
        `derived` as in `Row`; `measured` and `predicted` speedups over AR, decode only, NaN where there is none, and
        `reason` says why; `machine` as in `conf/hardware`; of the paper's own acceptance `share` of the sublayers that
        draft, `c` as modelled and as the paper's speedup `needs` it. `attrs["other_models"]`: as `rehearsed`.
    """
    found = [_theirs(row) for row in reported_speedups()]
    found += [_ours(number, cell) for number, cell in _about(replications) if cell.setup in (PAPERS_OWN, OTHER_SCALE)]
    frame = pd.DataFrame(found, columns=list(COLUMNS))
    frame = frame.astype(dict.fromkeys(("M", "alpha", "measured", "predicted", "share", "c", "needs"), "float64"))
    order = frame["paper"].map(paper_versions().index)
    frame = (
        frame.loc[order.sort_values(kind="stable").index]
        .reset_index(drop=True)
        .fillna(dict.fromkeys(("scale", "run", "model_ran", "params"), ""))
    )
    frame.attrs["other_models"] = other_model_skill(replications)
    return frame


def _theirs(row: ReportedSpeedup) -> dict[str, object]:
    number, name = row.number, model_choices().get(row.model, "")
    known = _labels(number) | {"acceptance": PAPER_ACCEPTANCE, "derived": ""}
    if row.missing or row.skipped is None or known_shape(name) is None:
        return known | {"reason": row.missing or f"the sizes of {number.model} are not known"}
    acceptance, steps = Acceptance.of(row.alpha, row.tokens, row.draft_len), _steps(_machine(number.paper), name)
    return known | {
        "M": acceptance.accepted + 1, "alpha": acceptance.accepted / acceptance.drafted, "derived": row.derived,
        "predicted": steps.speedup(acceptance, row.skipped), "share": 1 - row.skipped, "c": steps.cost(row.skipped),
        "needs": needed_cost(acceptance, number.value), "reason": "",
    }  # fmt: skip


def _labels(number: Number) -> dict[str, object]:
    stated = "" if number.paper in MACHINES else f", {UNSTATED}"
    found = {name: getattr(number, name) for name in (*LABELS, "metric")}
    return found | {"machine": _machine(number.paper) + stated}


def _machine(paper: str) -> str:
    return MACHINES.get(paper, ASSUMED)


@cache
def _steps(machine: str, model: str) -> Steps:
    shape = known_shape(model)
    assert shape is not None, "those of no known sizes are not asked for"
    return Steps(simulated_machine(machine, shape), shape.n_layers)


def _about(replications: Sequence[Replication]) -> Iterator[tuple[Number, Cell]]:
    """The measured speedups of the papers, but for plain decoding's, that one run of ours is about."""
    for number in numbers():
        if number.metric != "speedup" or number.bound or number.method in BASELINES:
            continue
        sources = {one.name for one in select.experiments().get((number.paper, number.exhibit), ())}
        for replication in (one for one in replications if one.experiment.name in sources):
            found = select.matching_items(number, replication.cells)
            made = {cell.path: cell for cell in found if cell.record is not None}
            cell = next(iter(made.values()), None)
            if cell is None or len(made) > 1 or select.domains(number, found[0]) != [None]:
                continue  # a mean over runs, or over a part of a stream
            if cell.record is not None and not cell.record.error:
                yield number, cell


def _ours(number: Number, cell: Cell) -> dict[str, object]:
    predicted, reason = _replayed(number, cell)
    summary = cell.summary
    return _labels(number) | {
        "acceptance": RUN_ACCEPTANCE, "M": summary["M"], "alpha": summary["alpha"], "derived": "", "measured": summary["speedup"],
        "predicted": predicted, "scale": cell.scale, "run": cell.path.name, "reason": reason,
        "model_ran": cell.model_ran.text, "params": parameter_counts([cell.model_ran]),
    }  # fmt: skip


def _replayed(number: Number, cell: Cell) -> tuple[float, str]:
    """The speedup that a run's steps would give the paper's model on its GPU; NaN, and why there is none."""
    assert cell.record is not None, "the others were left out"
    return _predicted(cell.record, _machine(number.paper), grid.choice(cell.paper_overrides, "model"))


@cache
def _predicted(made: Record, machine: str, model: str) -> tuple[float, str]:
    try:
        return predict(made.run, machine, model or None)["speedup"], ""
    except ConfigError as error:
        return float("nan"), str(error)


def skill(frame: pd.DataFrame) -> Skill | None:
    """How good a frame's predictions are; None with fewer than `FEW`.

    Of columns metric, printed and predicted; expected speedups follow from M and α by a formula and do not count.
    """
    counted = frame[(frame["metric"] == "speedup") & frame["predicted"].notna()]
    printed, predicted = (counted[name].to_numpy(dtype=float) for name in ("printed", "predicted"))
    if len(counted) < FEW:
        return None
    varied = np.ptp(printed) > 0 and np.ptp(predicted) > 0
    rank = float(stats.spearmanr(printed, predicted).statistic) if varied else None
    errors, constant = predicted / printed - 1, np.median(printed) / printed - 1
    miss, base = (float(np.median(np.abs(some))) for some in (errors, constant))
    return Skill(len(counted), miss, float(np.median(errors)), base, rank)


def other_model_skill(replications: Sequence[Replication]) -> Skill | None:
    """The skill of what is not predicted any more: with the acceptance of other models' runs, on the GPUs of papers."""
    own = [
        (number, cell)
        for number, cell in _about(replications)
        if number.paper in MACHINES and cell.setup not in (PAPERS_OWN, OTHER_SCALE)
    ]
    found = [_labels(number) | {"predicted": _replayed(number, cell)[0]} for number, cell in own]
    made = skill(pd.DataFrame(found, columns=[*LABELS, "metric", "predicted"]))
    return made and replace(made, models=tuple(sorted({cell.model_ran.text for _, cell in own})))


def skill_text(frame: pd.DataFrame) -> str:
    """The skill of a frame's predictions, in all and within each paper, in sentences."""
    own = skill(frame)
    if own is None:
        return "Too few of the papers' speedups are predicted to say how well."
    within = {version_name(str(paper)): skill(rows) for paper, rows in frame.groupby("paper", sort=False)}
    ranks = [f"{name} {one.rank:.2f}" for name, one in within.items() if one is not None and one.rank is not None]
    parts = [f"Of the speedups that the papers measured, {own.n} are predicted; these {own.text}."]
    parts += [f"Rank correlation within a paper: {', '.join(ranks)}."] if ranks else []
    return " ".join(parts)


def introduction(frame: pd.DataFrame) -> str:
    """How good the predictions are, how good those were that are not shown, and what they are."""
    parts, other = [skill_text(frame)], frame.attrs.get("other_models")
    if expected := int((frame["metric"] != "speedup").sum()):
        parts += [f"{expected} expected speedups, which papers have from a formula of M and α, do not count there."]
    if isinstance(other, Skill):
        parts += [
            f"With the acceptance of runs of other models than the paper's ({'; '.join(other.models)}), {other.n} "
            f"predictions {other.text}: they are not shown."
        ]
    return " ".join([*parts, INTRO])


def machine_need(cost: float, share: float) -> str:
    """What a speedup needs of a machine, a key of `NEEDS`.

    Args:
        cost: c that it needs.
        share: of the sublayers, that draft: what a drafted token costs where sublayers are all that takes time.
    """
    return "impossible" if cost < 0 else "cheaper" if cost < share else "any"


def machine_needs(frame: pd.DataFrame) -> dict[str, str]:
    """What machine the papers' measured speedups need, given their own M and α: sentences by paper.

    Expected speedups are left out: their formula says what a drafted token costs, and no machine gave them.
    """
    found = {}
    asked = frame[frame["needs"].notna() & (frame["metric"] == "speedup")]
    for paper, own in asked.groupby("paper", sort=False):
        kinds = [machine_need(cost, share) for cost, share in zip(own["needs"], own["share"])]
        parts = [f"{kinds.count(word)} {what}" for word, what in NEEDS.items() if word in kinds]
        said = [
            f"{version_name(str(paper))}: its M and α give, of {len(own)} speedups that it measured, "
            f"{'; '.join(parts)}."
        ]
        here = int((own["c"] <= own["needs"]).sum())
        said += [f"{own['machine'].iloc[0]}, as modelled, drafts cheaply enough for {here}."]
        said += _derived(own)
        found[str(paper)] = " ".join(said)
    return found


def _derived(own: pd.DataFrame) -> list[str]:
    """What is to be known of rows whose M or α follows from the other."""
    from_alpha, guessed = int((own["derived"] == "M").sum()), own[own["derived"] == "alpha"]
    said = [f"M follows from α in {from_alpha}."] if from_alpha else []
    if len(guessed):
        # the fewest drafted tokens that M allows, all accepted, leave most for each of them
        kindest = (guessed["M"] / guessed["printed"].astype(float) - 1) / (guessed["M"] - 1)
        left = sum(machine_need(cost, share) != "any" for cost, share in zip(kindest, guessed["share"]))
        said += [f"α follows from M in {len(guessed)}: were all that it drafts accepted, {left} would still need less."]
    return said


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """The same for a reader: few decimals, and the word that says what a number is; no column without a number."""
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
        "model": "paper's model", "model_ran": "ours: model that ran",
        "printed": f"paper's {END_TO_END}", "measured": f"measured, ours: {DECODE}", "predicted": f"PREDICTED {DECODE}",
        "alpha": "α",
    }  # fmt: skip
    return shown.rename(columns=renamed | {"c": "c modelled", "needs": "c needed"})


def document(frame: pd.DataFrame) -> str:
    """The whole, as Markdown."""
    machines = "\n".join(f"- {sentence}" for sentence in machine_needs(frame).values())
    parts = ["# Predictions for the papers' hardware", introduction(frame), tables.markdown(readable_table(frame))]
    return "\n\n".join([*parts, "## What machine the papers' numbers need", machines]) + "\n"
