"""Two verdicts kept apart: whether what a method decides agrees with the paper, and whether its speed can be compared.

*Algorithmic* numbers (M, α, skip ratio, expected speedup, ROUGE-2, pass@k, matchness) do not depend on the machine. On
the paper's own model and prompts they agree where the paper's value, give or take half a unit of its last digit, lies
in our 95 % interval widened by a tolerance (`metrics.yaml`); without an interval our value stands for it. A lower
bound agrees where our interval, so widened, reaches above it, an upper bound where it reaches below. On another model
nothing is said of the value; what can be said is whether the methods come in the paper's order (`orders`).

*Speed* (speedup, tokens/s, TPT, times, memory) is bound to the hardware: the same rule on the paper's model and device,
and no verdict anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from ssd_bench.metrics import Measured
from ssd_bench.metrics.intervals import ratio
from ssd_bench.papers.cells import OTHER_MODEL, OTHER_SCALE, PAPERS_OWN, SETUPS, Cell
from ssd_bench.papers.ran import ModelRan
from ssd_bench.papers.reported import METRICS, Number
from ssd_bench.papers.rooms import room_of
from ssd_bench.papers.select import AVERAGES
from ssd_bench.papers.values import BASELINES, Value, by_definition

NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED = "no run yet", "not run", "undefined", "not measurable"
VOID = "void"
AGREES, DIFFERS, BY_DEFINITION = "agrees", "differs", "by definition"
OTHER_HARDWARE = "other hardware"
ABSENT = (VOID, NO_RUN, NOT_RUN, UNDEFINED, UNMEASURED)
VERDICTS = (AGREES, DIFFERS, BY_DEFINITION, OTHER_MODEL, OTHER_SCALE, OTHER_HARDWARE, *ABSENT)

ALGORITHMIC, SPEED = "algorithmic", "speed"


def kind(number: Number) -> str:
    """Algorithmic or speed; "" for what no run measures."""
    return METRICS[number.metric].kind


@dataclass(frozen=True)
class Ours:
    """What we have for a reported number, and what can be said of the two.

    Attributes:
        found: our value; None: there is none.
        state: "" with a value, else `VOID` (a cell behind it decides nothing), `NO_RUN`, `NOT_RUN` (the experiment says
            why), `UNDEFINED` (the runs are there but do not have it) or `UNMEASURED`.
        reason: why there is no value, or in what it is not the paper's statistic.
        scale: of the runs.
        cells: behind it.
        decode: of a speedup, which every paper counts end to end, ours of decoding alone.
    """

    number: Number
    found: Value | None
    state: str
    reason: str = ""
    scale: str = ""
    cells: tuple[Cell, ...] = ()
    decode: Value | None = None

    @property
    def runs(self) -> list[str]:
        """Ids of the runs behind it."""
        return list(dict.fromkeys(str(cell.header["run_id"]) for cell in self.cells))

    @property
    def models(self) -> list[ModelRan]:
        """The distinct models that ran."""
        return list(dict.fromkeys(cell.ran for cell in self.cells))

    @property
    def setup(self) -> str:
        """How near its runs are to the paper's: the furthest of `cells.SETUPS`; "" without any."""
        return max((cell.setup for cell in self.cells), key=SETUPS.index, default="")

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.found is None:
            return self.state
        if by_definition(self.number):
            return BY_DEFINITION
        if self.setup != PAPERS_OWN:
            return OTHER_SCALE if self.setup == OTHER_SCALE else OTHER_MODEL
        if not self.found.compared:
            return UNDEFINED
        gpus = room_of(self.number.paper).hardware
        if kind(self.number) == SPEED and not all(cell.ran_on(gpus) for cell in self.cells):
            return OTHER_HARDWARE
        return AGREES if agrees(self.number, self.found) else DIFFERS


def agrees(number: Number, ours: Value) -> bool:
    """Whether the paper's value lies in our interval, widened by its rounding and the tolerance."""
    absolute, relative = METRICS[number.metric].within or (0.0, 0.0)
    slack = number.half + absolute + relative * number.value + 1e-9
    low = ours.value if ours.low is None else ours.low
    high = ours.value if ours.high is None else ours.high
    above, below = number.value <= high + slack, number.value >= low - slack
    if number.bound == "low":
        return above
    return below if number.bound in ("high", "max") else above and below


@dataclass(frozen=True)
class Pair:
    """Two rows that the paper ranks, and whether ours come in the same order.

    Attributes:
        runs: ours behind the two; at a small scale one pair of runs stands for several pairs of the paper.
        task: of both.
        same: 1.0 in the paper's order, 0.0 in the opposite one, 0.5 where ours are equal.
    """

    runs: frozenset[str]
    task: str
    same: float


@dataclass(frozen=True)
class Order:
    """How the methods of a row group rank here and in the paper.

    Attributes:
        rows: index values of the group in the long table.
        model, task, metric, scale: of the group.
        within: the setting whose methods are ranked, or the method whose settings are.
        methods: whether methods are ranked, within one setting; else settings of one method.
        pairs: of rows that differ in the paper and are of different runs here.
        same_best: whether the best of ours is the paper's, or one of its best.
    """

    rows: tuple[int, ...]
    model: str
    task: str
    metric: str
    within: str
    scale: str
    methods: bool
    pairs: tuple[Pair, ...]
    same_best: bool

    @property
    def concordant(self) -> int:
        """Pairs in the paper's order."""
        return sum(pair.same == 1 for pair in self.pairs)

    @property
    def discordant(self) -> int:
        """Pairs in the opposite one."""
        return sum(pair.same == 0 for pair in self.pairs)

    @property
    def tau(self) -> float | None:
        """Kendall's τ, pairs that the paper ties left out."""
        return (self.concordant - self.discordant) / len(self.pairs) if self.pairs else None

    @property
    def text(self) -> str:
        """A few words for a table."""
        best = "same" if self.same_best else "another"
        return f"{self.concordant} of {len(self.pairs)} pairs in the paper's order, {best} best"


def orders(frame: pd.DataFrame) -> list[Order]:
    """The order of each row group, which says something on any model.

    A group is what a table compares: the methods on one model, task and setting by one metric, or, where there is one
    method, its settings. All its values are of one scale and over one baseline; plain decoding, bounds and void cells
    are left out, and so are pairs of one run.

    Args:
        frame: as `tables.table` makes it.
    """
    ranked = [name for name, metric in METRICS.items() if metric.ranked]
    fit = frame[frame["metric"].isin(ranked) & frame["ours"].notna() & (frame["bound"] == "")]
    fit = fit[~fit["method"].isin(BASELINES)]
    found: list[Order] = []
    if fit.empty:
        return found
    for axis in ("setting", "method"):
        for key, group in fit.groupby(["model", "task", "metric", axis, "scale", "reason"], sort=False):
            if len(group) > 1 and not _known(found, group):
                model, task, metric, within, scale, _ = map(str, key)
                rows, pairs = tuple(int(i) for i in group.index), tuple(_pairs(group, task))
                found.append(
                    Order(rows, model, task, metric, within, scale, axis == "setting", pairs, _same_best(group))
                )
    return found


def _known(found: Sequence[Order], group: pd.DataFrame) -> bool:
    return any(set(order.rows) & set(group.index) for order in found)


def _pairs(group: pd.DataFrame, task: str) -> Iterator[Pair]:
    rows = zip(group["value"].tolist(), group["ours"].tolist(), group["runs"].tolist())
    for (theirs, ours, runs), (their_other, our_other, other_runs) in combinations(rows, 2):
        if theirs != their_other and runs != other_runs:
            product = (theirs - their_other) * (ours - our_other)
            yield Pair(frozenset((runs, other_runs)), task, 1.0 if product > 0 else 0.0 if product < 0 else 0.5)


def _same_best(group: pd.DataFrame) -> bool:
    return bool((group["ours"] == group["ours"].max())[group["value"] == group["value"].max()].any())


@dataclass(frozen=True)
class Agreement:
    """How far our runs come in the papers' order by one metric.

    Attributes:
        methods: whether methods are ranked, within one setting; else settings of one method.
        pairs: distinct ones of our runs.
        share: of them in the paper's order, with its 95 % interval over tasks; a pair that stands for several of the
            paper's counts by the share of these.
    """

    metric: str
    methods: bool
    pairs: int
    share: Measured

    @property
    def text(self) -> str:
        """`M 84 % [78, 90] of 120 pairs`."""
        low, high = self.share.low, self.share.high
        spread = "" if low is None or high is None else f" [{100 * low:.0f}, {100 * high:.0f}]"
        return f"{self.metric} {100 * (self.share.value or 0):.0f} %{spread} of {self.pairs} pairs"


def agreement(groups: Sequence[Order]) -> list[Agreement]:
    """By metric, over distinct pairs of runs, averages left out: methods within a setting, then settings of one."""
    found = []
    for methods in (True, False):
        own = [order for order in groups if order.methods == methods]
        for metric in dict.fromkeys(order.metric for order in own):
            said: dict[tuple[str, frozenset[str]], list[float]] = {}
            single = [order for order in own if order.metric == metric and order.task not in AVERAGES]
            for pair in (pair for order in single for pair in order.pairs):
                said.setdefault((pair.task, pair.runs), []).append(pair.same)
            if said:
                tasks: dict[str, list[float]] = {}
                for (task, _), same in said.items():
                    tasks.setdefault(task, []).append(sum(same) / len(same))
                sums = np.array([[sum(shares), len(shares)] for shares in tasks.values()], dtype=float)
                found.append(Agreement(metric, methods, len(said), ratio(sums[:, 0], sums[:, 1])))
    return found
