"""The papers' acceptance and skipped sublayers for each reported speedup, as sources state them, and time of a step.

The number of accepted tokens of a draft has a geometric distribution, truncated at the longest draft; the number of
rejected tokens follows from the paper's α. Without an α, drafting is assumed to stop at the first wrong token, as with
a perfect confidence exit. The source of a skipped share is a paper, its authors' script, or their layer sets; none is
assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import pandas as pd

from ssd_bench.conf import choices, config_file, read_yaml
from ssd_bench.contract.window import Window
from ssd_bench.cost.reference import ReferenceMachine
from ssd_bench.cost.shapes import known_shape
from ssd_bench.cost.work import Machine, work_ms
from ssd_bench.papers.ours.values import BASELINES
from ssd_bench.papers.printed.catalogue import PaperFolder, paper_folders
from ssd_bench.papers.printed.reported import Number, numbers, released_set, share_skipped
from ssd_bench.records.schema import ROUNDED

CONTEXT = 1024
"""Default context of a step, as in `ssd-bench shapes`: the papers give none for each speedup."""
BISECTIONS = 60
AVERAGE = re.compile("overall|average", re.IGNORECASE)


@dataclass(frozen=True)
class Acceptance:
    """Distribution of the accepted and drafted tokens of a step.

    Attributes:
        probability: probability that a token is accepted if all earlier ones are.
        rejected: mean number of rejected tokens at the end of a draft, except of a fully accepted longest draft.
    """

    probability: float
    rejected: float
    draft_len: int

    @classmethod
    def of(cls, alpha: float | None, tokens: float | None, draft_len: int) -> Acceptance:
        """Build the distribution from a paper's α, its M (tokens per verification), or both."""
        probability = alpha
        if tokens is not None:
            probability = smallest_argument(lambda p: _expected_accepted(p, draft_len), tokens - 1)
        assert probability is not None, "one of both is reported"
        accepted = _expected_accepted(probability, draft_len)
        if alpha is None or tokens is None:
            return cls(probability, 1.0, draft_len)
        # α = accepted / drafted leaves accepted (1 - α) / α rejected tokens a step, all in the 1 - p^γ of the drafts
        # that are not accepted in full (p: probability, γ: draft_len)
        return cls(probability, accepted * (1 - alpha) / alpha / (1 - probability**draft_len), draft_len)

    @property
    def accepted(self) -> float:
        """Expected accepted tokens of a step."""
        return _expected_accepted(self.probability, self.draft_len)

    @property
    def drafted(self) -> float:
        """Expected drafted tokens of a step."""
        # P(n accepted) = p^n (1 - p) for n < γ, and p^γ for n = γ
        ends = [
            *(self.probability**n * (1 - self.probability) for n in range(self.draft_len)),
            self.probability**self.draft_len,
        ]
        fewer, part = int(self.rejected), self.rejected % 1
        return sum(
            share * ((1 - part) * self._length(n, fewer) + part * self._length(n, fewer + 1))
            for n, share in enumerate(ends)
        )

    def sample(self, u: float, v: float) -> tuple[int, int]:
        """Sample a step's accepted and drafted tokens from two independent uniform numbers in [0, 1)."""
        accepted = self.draft_len
        if self.probability < 1:
            accepted = int(math.log(1 - u) / math.log(self.probability)) if self.probability else 0
            accepted = min(accepted, self.draft_len)
        return accepted, self._length(accepted, int(self.rejected) + (v < self.rejected % 1))

    def _length(self, accepted: int, rejected: int) -> int:
        return min(accepted + rejected, self.draft_len)


def smallest_argument(function: Callable[[float], float], target: float) -> float:
    """Return the smallest number in [0, 1] at which a non-decreasing function reaches `target`, else 1."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return high


def _expected_accepted(probability: float, draft_len: int) -> float:
    return sum(probability**i for i in range(1, draft_len + 1))


@dataclass(frozen=True)
class Share:
    """Skipped share of all 2L sublayers, and its source."""

    value: float
    source: str


@dataclass(frozen=True)
class ReportedSpeedup:
    """Speedup of a paper, with the acceptance reported for the same result.

    Attributes:
        model: `plain_name` of the model.
        alpha, tokens: α and M, if reported.
        share: of skipped sublayers, if a source states it.
        missing: why the acceptance cannot be imposed, or "".
    """

    number: Number
    model: str
    alpha: float | None = None
    tokens: float | None = None
    share: Share | None = None
    draft_len: int = 0
    missing: str = ""


def reported_speedups() -> Iterator[ReportedSpeedup]:
    """Yield every speedup of the tables and figures under `imposed` in the papers' files, without averages."""
    for folder in paper_folders():
        if folder.imposed:
            yield from _folder_speedups(folder)


def _folder_speedups(folder: PaperFolder) -> Iterator[ReportedSpeedup]:
    imposed = folder.imposed
    reported = [number for number in numbers() if number.paper == folder.latest]
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for number in reported:
        if number.exhibit == imposed["drafts"]:
            cell = cells.setdefault(_cell_key(number, folder), {})
            cell[number.metric] = number.value
            if "skip_ratio" in number.settings:
                cell["skip_ratio"] = float(number.settings["skip_ratio"])
    for number in reported:
        matches = number.exhibit == imposed["exhibit"] and number.metric == imposed.get("metric", "speedup")
        if matches and number.method not in BASELINES and not AVERAGE.search(number.task + number.setting):
            yield _reported_speedup(number, folder, cells.get(_cell_key(number, folder), {}))


def _reported_speedup(number: Number, folder: PaperFolder, cell: Mapping[str, float]) -> ReportedSpeedup:
    """Return a speedup with its acceptance and share of sublayers, or with the reason why it lacks them.

    The cell has the numbers printed with its drafts, by metric.
    """
    model, draft_len = plain_name(number.model), folder.imposed["draft_len"]
    alpha, tokens = cell.get("alpha"), cell.get("M", cell.get("n_accepted"))
    shape = known_shape(model_choices().get(model, ""))
    if shape is None:
        return ReportedSpeedup(number, model, missing=f"the sizes of {number.model} are not known")
    share = stated_share(folder, number.model, number.method, shape.n_layers, cell.get("skip_ratio"))
    missing = ""
    if share is None:
        missing = f"no source states the share of sublayers that its runs of {number.method} skipped"
    elif not alpha and tokens is None:
        missing = "neither an α above 0 nor M is reported"
    return ReportedSpeedup(number, model, alpha, tokens, share, draft_len, missing)


def stated_share(
    folder: PaperFolder, model: str, method: str, n_layers: int, printed: float | None = None
) -> Share | None:
    """Return the share that a method's drafts skip in a paper's results; None if no source states it.

    Args:
        folder: `imposed` has the sources.
        model: in the paper's words.
        printed: skip ratio r printed with the drafts, over the sublayers in `folder.skip_ratio`.
    """
    if printed is not None:
        counted = 2 * (n_layers - 2 if folder.skip_ratio == "inner" else n_layers)
        return Share(round(printed * counted) / (2 * n_layers), folder.imposed["drafts"])
    entry = folder.imposed.get("skipped", {}).get(method)
    if entry is None or model not in entry.get("models", [model]):
        return None
    if "preset" in entry:
        value = _preset_share(entry["preset"], n_layers)
    else:
        names = entry["sets"]
        released = all(released_set(folder.name, model, name) for name in names)
        value = fmean(share_skipped(folder.name, model, name) for name in names) if released else None
    return None if value is None else Share(value, entry["source"])


def _preset_share(name: str, n_layers: int) -> float | None:
    path = config_file("method", name)
    assert path is not None, f"paper.yaml names {name}, which is no choice of conf/method"
    blocks = read_yaml(path)["skip_by_layers"].get(n_layers)
    return None if blocks is None else float(blocks / n_layers)


def _cell_key(number: Number, folder: PaperFolder) -> tuple[str, ...]:
    """Return the labels shared by all numbers of a result, in every table and figure; conditions are not labels."""
    telling = (f"{key}={value}" for key, value in sorted(number.settings.items()) if key in folder.telling)
    return number.model, number.method, number.task, *telling


def plain_name(name: str) -> str:
    """Return a model's name as lower-case letters and digits, common to papers and `conf/model`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def model_choices() -> Mapping[str, str]:
    """Return `plain_name` -> choice of `conf/model`."""
    return {plain_name(name): name for name in choices("model")}


@dataclass(frozen=True)
class Steps:
    """Times of a step's parts in milliseconds, for a model on a machine at one context.

    Every step, including AR's, contains the decode loop. A skipped share applies to attentions and to MLPs.
    """

    machine: Machine
    n_layers: int
    context: float = CONTEXT

    @property
    def machine_name(self) -> str:
        """Name of the machine, without the model of a reference machine."""
        return self.machine.gpu if isinstance(self.machine, ReferenceMachine) else self.machine.name

    @property
    def plain_ms(self) -> float:
        return self.verify_ms(0)

    def draft_ms(self, skipped: float, window: Window | None = None, bits: int = 0) -> float:
        """Return the time of a drafted token with this share of the sublayers skipped.

        Args:
            window: of its attentions; None: all positions.
            bits: of the remaining sublayers' and LM head's weights; 0: as loaded.
        """
        read = self.context if window is None else window.count_read(self.context)
        return _pass_ms(self.machine, "draft", 1.0, (1 - skipped) * self.n_layers, read, bits)

    def verify_ms(self, drafted: float, by_layers: bool = True) -> float:
        """Return the time of a step without drafting, after `drafted` tokens (a mean, possibly a fraction).

        Args:
            by_layers: the model drafted, which adds the start of a draft; false: the draft is earlier text.
        """
        start = self.machine.draft_start_ms if drafted and by_layers else 0.0
        passed = _pass_ms(self.machine, "verify", drafted + 1, self.n_layers, self.context)
        return passed + start + (self.machine.loop_ms or 0.0)

    def speedup(self, acceptance: Acceptance, skipped: float) -> float:
        """Return the speedup over AR, without method overhead."""
        drafted = acceptance.drafted
        step = drafted * self.draft_ms(skipped) + self.verify_ms(drafted)
        return (acceptance.accepted + 1) * self.plain_ms / step


@cache  # a report predicts hundreds of speedups from few passes
def _pass_ms(machine: Machine, part: str, rows: float, n_blocks: float, context: float, bits: int = 0) -> float:
    counts = {"attentions": n_blocks, "mlps": n_blocks, "heads": 1.0}
    rounded = dict.fromkeys(ROUNDED, 0.0)
    rounded |= {f"int{bits}_{name}": count for name, count in counts.items() if bits}
    work = pd.DataFrame(
        [{"part": part, "calls": 1, "rows": rows, "launches": 2, "context": context, **counts, **rounded}]
    )
    return float(work_ms(work, machine)[0])
