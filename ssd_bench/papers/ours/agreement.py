"""Two separate verdicts: whether algorithmic numbers agree with the paper's, and whether speed does.

*Algorithmic* numbers (M, α, skip ratio, expected speedup, ROUGE-2, pass@k, matchness) do not depend on the machine. On
the paper's model and prompts they agree if the paper's value, within half a unit of its last digit, lies in our 95 %
interval widened by a tolerance (`metrics.yaml`); without one, both ends are our value. A lower bound agrees if the
widened interval extends above it, an upper bound if below. On another model values get no verdict, but the methods'
order can be compared with the paper's (`rank_orders`).

*Speed* (speedup, tokens/s, TPT, times, memory) depends on the hardware: the same rule applies on the paper's model and
device; otherwise there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from ssd_bench.papers.ours.cells import OTHER_MODEL, OTHER_SCALE, PAPERS_OWN, SETUPS, Cell
from ssd_bench.papers.ours.select import AVERAGES
from ssd_bench.papers.ours.values import BASELINES, Value, is_by_definition
from ssd_bench.papers.printed.catalogue import folder_of
from ssd_bench.papers.printed.reported import METRICS, Number
from ssd_bench.results.models import ModelRan
from ssd_bench.results.quantity import Measured, ratio

NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED = "no run yet", "not run", "undefined", "not measurable"
EXCLUDED = "excluded"
"""Stored word for a number with an excluded cell, also printed."""
AGREES, DIFFERS, BY_DEFINITION = "agrees", "differs", "by definition"
OTHER_HARDWARE = "other hardware"
ABSENT = (EXCLUDED, NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED)
VERDICTS = (AGREES, DIFFERS, BY_DEFINITION, OTHER_MODEL, OTHER_SCALE, OTHER_HARDWARE, *ABSENT)

ALGORITHMIC, SPEED = "algorithmic", "speed"


@dataclass(frozen=True)
class Counterpart:
    """Our counterpart of a reported number.

    Attributes:
        value: None if missing.
        state: "" with a value, else `EXCLUDED` (a cell is excluded), `NO_RUN`, `NOT_RUN` (the experiment says why),
            `UNDEFINED` (runs do not define it) or `UNMEASURED`.
        reason: why the value is missing, or how it differs from the paper's statistic.
        cells: source of the value.
        decode: for a speedup (end to end in every paper), our speedup of decoding alone.
    """

    number: Number
    value: Value | None
    state: str
    reason: str = ""
    scale: str = ""
    cells: tuple[Cell, ...] = ()
    decode: Value | None = None

    @property
    def runs(self) -> list[str]:
        return list(dict.fromkeys(cell.header.run_id for cell in self.cells))

    @property
    def models(self) -> list[ModelRan]:
        return list(dict.fromkeys(cell.model_ran for cell in self.cells))

    @property
    def setup(self) -> str:
        """Setup of its runs furthest from the paper's (`cells.SETUPS`); "" without runs."""
        return max((cell.setup for cell in self.cells), key=SETUPS.index, default="")

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.value is None:
            return self.state
        if is_by_definition(self.number):
            return BY_DEFINITION
        if self.setup != PAPERS_OWN:
            return OTHER_SCALE if self.setup == OTHER_SCALE else OTHER_MODEL
        if not self.value.compared:
            return UNDEFINED
        gpus = folder_of(self.number.paper).hardware
        if METRICS[self.number.metric].kind == SPEED and not all(cell.ran_on(gpus) for cell in self.cells):
            return OTHER_HARDWARE
        return AGREES if agrees_with_paper(self.number, self.value) else DIFFERS


def agrees_with_paper(number: Number, value: Value) -> bool:
    """Return whether the paper's value lies in our interval, widened by rounding and tolerance."""
    absolute, relative = METRICS[number.metric].within or (0.0, 0.0)
    tolerance = number.half + absolute + relative * number.value + 1e-9
    low = value.value if value.low is None else value.low
    high = value.value if value.high is None else value.high
    above, below = number.value <= high + tolerance, number.value >= low - tolerance
    if number.bound == "low":
        return above
    return below if number.bound in ("high", "max") else above and below


@dataclass(frozen=True)
class RankOrder:
    """Ranks of the methods of a row group, here and in the paper.

    Attributes:
        rows: the group's index values in the long table.
        methods: whether methods within a setting are ranked, not a method's settings.
        pairs: runs of two rows with different values in the paper and different runs here, and 1.0 if our values are in
            the paper's order, 0.0 in the opposite, 0.5 if equal.
        same_best: whether one of our best rows is one of the paper's best.
    """

    rows: tuple[int, ...]
    task: str
    metric: str
    methods: bool
    pairs: Sequence[tuple[frozenset[str], float]]
    same_best: bool

    @property
    def concordant(self) -> int:
        return sum(concordance == 1 for _, concordance in self.pairs)

    @property
    def text(self) -> str:
        """Summary for a table: `5 of 6 pairs in the paper's order, same best`."""
        best = "same" if self.same_best else "different"
        return f"{self.concordant} of {len(self.pairs)} pairs in the paper's order, {best} best"


def rank_orders(frame: pd.DataFrame) -> list[RankOrder]:
    """Return the order of each row group, comparable on any model.

    A group has the rows of a table compared in `report.numbers`: methods on one model, task and setting by one metric,
    or a method's settings, at one scale and over one baseline. Plain decoding, bounds, excluded cells, and pairs with
    the same run are left out.
    """
    ranked_metrics = [name for name, metric in METRICS.items() if metric.ranked]
    ranked = frame[frame["metric"].isin(ranked_metrics) & frame["ours"].notna() & (frame["bound"] == "")]
    ranked = ranked[~ranked["method"].isin(BASELINES)]
    orders, ordered = list[RankOrder](), set[int]()
    for axis in ("setting", "method"):
        for key, group in ranked.groupby(["model", "task", "metric", axis, "scale", "reason"], sort=False):
            rows = tuple(int(i) for i in group.index)
            if len(rows) > 1 and ordered.isdisjoint(rows):
                ordered.update(rows)
                is_best = group[["ours", "value"]] == group[["ours", "value"]].max()
                same_best = bool(is_best.all(axis=1).any())
                labels = (str(key[1]), str(key[2]), axis == "setting")
                orders.append(RankOrder(rows, *labels, tuple(_pairs(group)), same_best))
    return orders


def _pairs(group: pd.DataFrame) -> Iterator[tuple[frozenset[str], float]]:
    rows = zip(group["value"].tolist(), group["ours"].tolist(), group["runs"].tolist())
    for (paper_1, our_1, runs_1), (paper_2, our_2, runs_2) in combinations(rows, 2):
        if paper_1 != paper_2 and runs_1 != runs_2:
            product = (paper_1 - paper_2) * (our_1 - our_2)  # > 0: same order
            yield frozenset((runs_1, runs_2)), 1.0 if product > 0 else 0.0 if product < 0 else 0.5


@dataclass(frozen=True)
class OrderAgreement:
    """Agreement of our runs with the papers' order by one metric.

    Attributes:
        pairs: distinct pairs of our runs.
        share: of these in the paper's order, with its 95 % interval over tasks; a pair that represents several of the
            paper's counts with their mean concordance.
    """

    metric: str
    pairs: int
    share: Measured

    @property
    def text(self) -> str:
        """`M 84 % [78, 90] of 120 pairs`."""
        low, high = self.share.low, self.share.high
        spread = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
        return f"{self.metric} {100 * (self.share.value or 0):.0f} %{spread} of {self.pairs} pairs"


def order_agreements(orders: Sequence[RankOrder]) -> list[OrderAgreement]:
    """Return the agreement by metric; each distinct pair of runs counts once.

    Rows that average over tasks are left out.
    """
    pairs = [(o.metric, o.task, *pair) for o in orders if o.task not in AVERAGES for pair in o.pairs]
    frame = pd.DataFrame(pairs, columns=["metric", "task", "runs", "concordance"])
    agreements = []
    for metric in dict.fromkeys(order.metric for order in orders):
        shares = frame[frame["metric"] == metric].groupby(["task", "runs"], sort=False)["concordance"].mean()
        # Σ shares / Σ pairs, with the jackknife of `results.quantity` over tasks
        sums = shares.groupby("task", sort=False).agg(["sum", "size"]).to_numpy(dtype=float)
        agreements.append(OrderAgreement(metric, len(shares), ratio(sums[:, 0], sums[:, 1], at_most=1.0)))
    return [agreement for agreement in agreements if agreement.pairs]
