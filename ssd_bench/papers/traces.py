"""The papers' own acceptance, speedup by speedup: what its α and M say of a step, and what steps take on a machine.

A draft's accepted tokens are geometric with an end at its longest length, its rejected ones as many as the paper's α
leaves; where it gives no α, drafting stops at the first wrong token, as a confidence exit that is always right would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from ssd_bench.command import choices
from ssd_bench.core.window import Window
from ssd_bench.cost.machine import Machine
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import Room, rooms
from ssd_bench.papers.values import BASELINES

CONTEXT = 1024
"""Tokens before a step where nothing else is said, as in `ssd-bench shapes`: papers give none for each speedup."""
BISECTIONS = 60
AVERAGE = re.compile("overall|average", re.IGNORECASE)


@dataclass(frozen=True)
class Acceptance:
    """What becomes of drafts.

    Attributes:
        right: probability that a token is accepted if those before it are.
        rejected: mean number of rejected tokens that a draft ends with, unless all of its longest length is accepted.
        draft_len: longest draft.
    """

    right: float
    rejected: float
    draft_len: int

    @classmethod
    def of(cls, alpha: float | None, tokens: float | None, draft_len: int) -> Acceptance:
        """Of a paper's α, its M (tokens a verification), or both."""
        assert alpha is not None or tokens is not None
        right = alpha if tokens is None else _probability_of(tokens - 1, draft_len)
        assert right is not None
        accepted = _expected_accepted(right, draft_len)
        if alpha is None or tokens is None:
            return cls(right, 1.0, draft_len)
        return cls(right, accepted * (1 - alpha) / alpha / (1 - right**draft_len), draft_len)

    @property
    def accepted(self) -> float:
        """Expected accepted tokens of a step."""
        return _expected_accepted(self.right, self.draft_len)

    @property
    def drafted(self) -> float:
        """Expected drafted tokens of a step."""
        ends = [*(self.right**n * (1 - self.right) for n in range(self.draft_len)), self.right**self.draft_len]
        fewer, part = int(self.rejected), self.rejected % 1
        return sum(
            share * ((1 - part) * self._length(n, fewer) + part * self._length(n, fewer + 1))
            for n, share in enumerate(ends)
        )

    def drawn(self, u: float, v: float) -> tuple[int, int]:
        """Accepted and drafted tokens of a step, of two numbers in [0, 1) that are uniform and independent."""
        accepted = self.draft_len
        if self.right < 1:
            accepted = min(int(math.log(1 - u) / math.log(self.right)) if self.right else 0, self.draft_len)
        return accepted, self._length(accepted, int(self.rejected) + (v < self.rejected % 1))

    def _length(self, accepted: int, rejected: int) -> int:
        return min(accepted + rejected, self.draft_len)


def smallest_argument(of: Callable[[float], float], wanted: float) -> float:
    """The smallest number in [0, 1] at which a function that does not fall reaches a value; 1 where none does."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle) < wanted else (low, middle)
    return high


def _expected_accepted(right: float, draft_len: int) -> float:
    return sum(right**i for i in range(1, draft_len + 1))


def _probability_of(accepted: float, draft_len: int) -> float:
    """The probability at which so many tokens are accepted on average."""
    return smallest_argument(lambda right: _expected_accepted(right, draft_len), accepted)


@dataclass(frozen=True)
class ReportedSpeedup:
    """A speedup of a paper and what else it says of that cell; `missing`: why that is not enough to impose it.

    Attributes:
        model: its `plain_name`.
        tokens: M.
        skipped: share of all sublayers.
    """

    number: Number
    model: str
    alpha: float | None = None
    tokens: float | None = None
    skipped: float | None = None
    draft_len: int = 0
    missing: str = ""

    @property
    def derived(self) -> str:
        """Which of M and α the paper does not give, so that it follows from the other: `M`, `alpha` or neither."""
        return "M" if self.tokens is None else "" if self.alpha is not None else "alpha"


def reported_speedups() -> Iterator[ReportedSpeedup]:
    """Every speedup of the exhibits that papers name under `imposed`, averages left out."""
    for room in rooms():
        if room.imposed:
            yield from _room_speedups(room)


def _room_speedups(room: Room) -> Iterator[ReportedSpeedup]:
    said = room.imposed
    known = [number for number in numbers() if number.paper == room.latest]
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for number in known:
        if number.exhibit == said["drafts"]:
            cells.setdefault(_cell_key(number, room), {})[number.metric] = number.value
    for number in known:
        asked = number.exhibit == said["exhibit"] and number.metric == said.get("metric", "speedup")
        if not asked or number.method in BASELINES or AVERAGE.search(number.task + number.setting):
            continue
        cell = cells.get(_cell_key(number, room), {})
        alpha, tokens = cell.get("alpha"), cell.get("M", cell.get("n_accepted"))
        skipped = cell.get("skip_ratio", said["skipped"].get(number.method))
        missing = ""
        if skipped is None:
            missing = f"what {number.method} skips is not reported"
        elif not alpha and tokens is None:
            missing = "no α above 0, and no M"
        yield ReportedSpeedup(number, plain_name(number.model), alpha, tokens, skipped, said["draft_len"], missing)


def _cell_key(number: Number, room: Room) -> tuple[str, ...]:
    """What the numbers of a cell have in common, in whatever exhibit: not the conditions that they name."""
    telling = (f"{key}={value}" for key, value in sorted(number.settings.items()) if key in room.telling)
    return number.model, number.method, number.task, *telling


def plain_name(name: str) -> str:
    """The name of a model as papers and `conf/model` have it in common: small letters and digits."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def model_choices() -> Mapping[str, str]:
    """`plain_name` -> choice of `conf/model`."""
    return {plain_name(name): name for name in choices("model")}


@dataclass(frozen=True)
class Steps:
    """Times of the parts of a step of a model on a machine, in milliseconds, at one context.

    The loop's own work is a part of every step, of AR's too. A share of skipped sublayers is that of attentions and of
    MLPs.
    """

    machine: Machine
    n_layers: int
    context: float = CONTEXT

    @property
    def plain_ms(self) -> float:
        """Of AR."""
        return self.verify_ms(0)

    def draft_ms(self, skipped: float, window: Window | None = None) -> float:
        """Return the time of a drafted token with this share of the sublayers skipped.

        Args:
            window: the positions that its attentions read; None: all.
        """
        attn, mlp, _ = self._parts(1, window)
        return (1 - skipped) * self.n_layers * (attn + mlp) + self.machine.draft_rest_ms

    def verify_ms(self, drafted: float, by_layers: bool = True) -> float:
        """Return the time of all that is not drafting, after so many drafted tokens (a mean need not be whole).

        Args:
            by_layers: whether the model drafted, which takes a start; else earlier text did.
        """
        attn, mlp, rest = self._parts(drafted + 1)
        start = self.machine.draft_start_ms if drafted and by_layers else 0.0
        return self.n_layers * (attn + mlp) + rest + start + (self.machine.loop_ms or 0.0)

    def cost(self, skipped: float) -> float:
        """c: a drafted token's time over a plain step's."""
        return self.draft_ms(skipped) / self.plain_ms

    def speedup(self, acceptance: Acceptance, skipped: float) -> float:
        """Over AR, without any work of the method's own."""
        drafted = acceptance.drafted
        step = drafted * self.draft_ms(skipped) + self.verify_ms(drafted)
        return (acceptance.accepted + 1) * self.plain_ms / step

    def _parts(self, nodes: float, window: Window | None = None) -> tuple[float, float, float]:
        read = self.context if window is None else window.positions(self.context)
        attn, mlp, rest = self.machine.pass_ms(np.array([float(nodes)]), np.array([float(read)]))
        return float(attn[0]), float(mlp[0]), float(rest[0])


def needed_cost(acceptance: Acceptance, speedup: float) -> float:
    """The c that a speedup needs where a verification takes a plain step: (M / S - 1) / drafted; below 0: M < S."""
    return ((acceptance.accepted + 1) / speedup - 1) / acceptance.drafted
