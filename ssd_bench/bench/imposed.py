"""Drafts of random values, accepted as often as a paper says: what its acceptance is worth on a machine.

A draft's accepted tokens are geometric with an end at its longest length, its rejected ones as many as the paper's α
leaves; where it gives no α, drafting stops at the first wrong token, as a confidence exit that is always right would.
Nothing is searched. What is decoded means nothing: such a run is void for losslessness and has no score.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_bench.core.engine import Engine
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.model.shape import ModelDims
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import Room, rooms
from ssd_bench.papers.values import BASELINES

WATCHED = 1e-30  # a confidence exit that never stops: its probability is computed, as in the papers' methods
STEPS = 60  # of a bisection
STRIDES = (0.7548776662466927, 0.5698402909980532)  # of the plane's most even recurrence (Roberts 2018)
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
        right = alpha if tokens is None else _right(tokens - 1, draft_len)
        assert right is not None
        accepted = _accepted(right, draft_len)
        if alpha is None or tokens is None:
            return cls(right, 1.0, draft_len)
        return cls(right, accepted * (1 - alpha) / alpha / (1 - right**draft_len), draft_len)

    def drawn(self, u: float, v: float) -> tuple[int, int]:
        """Accepted and drafted tokens of a step, of two numbers in [0, 1) that are uniform and independent."""
        accepted = self.draft_len
        if self.right < 1:
            accepted = min(int(math.log(1 - u) / math.log(self.right)) if self.right else 0, self.draft_len)
        rejected = int(self.rejected) + (v < self.rejected % 1)
        return accepted, min(accepted + rejected, self.draft_len)


def _accepted(right: float, draft_len: int) -> float:
    return sum(right**i for i in range(1, draft_len + 1))


def _right(accepted: float, draft_len: int) -> float:
    """The probability at which so many tokens are accepted on average."""
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _accepted(middle, draft_len) < accepted else (low, middle)
    return high


class Imposed:
    """Drafts with one layer set whose lengths, and what of them is accepted, are drawn.

    The numbers that they are drawn of are spread evenly (an additive recurrence), so that some dozens of steps have
    the α and M that were asked for; independent ones came out 10 % off.
    """

    name, taps, reuse_prefix, greedy_only = "imposed", Taps(), False, True

    def __init__(self, layer_set: LayerSet, acceptance: Acceptance, seed: int = 0):
        rng = random.Random(seed)
        self._layer_set, self._acceptance, self._point = layer_set, acceptance, (rng.random(), rng.random())
        self.accepted = 0

    def check(self, dims: ModelDims) -> None: ...

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None: ...

    def start(self, prefill: Prefill) -> None: ...

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """A draft of a drawn length; of none, the root alone."""
        u, v = self._point
        self._point = (u + STRIDES[0]) % 1, (v + STRIDES[1]) % 1
        self.accepted, drafted = self._acceptance.drawn(u, v)
        if not drafted:
            return TokenTree((context.output[-1],), (-1,))
        return LayerDraft(self._layer_set, drafted, WATCHED)

    def observe(self, verification: Verification, probe: Probe) -> None: ...


class ImposedEngine(Engine):
    """An engine that accepts what `method` drew, whatever the model says; it asks the model as any other does."""

    method: Imposed | None = None

    def accept(self, tree: TokenTree, logits: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
        predicted = logits.argmax(-1).tolist()
        accepted = 0 if self.method is None else min(self.method.accepted, tree.draft_len)
        return list(range(accepted + 1)), int(predicted[accepted])


@dataclass(frozen=True)
class Row:
    """A speedup of a paper and what else it says of that cell; `missing`: why that is not enough to impose it."""

    number: Number
    model: str
    alpha: float | None = None
    tokens: float | None = None
    skipped: float | None = None
    draft_len: int = 0
    missing: str = ""


def rows() -> Iterator[Row]:
    """Every speedup of the exhibits that papers name under `imposed`, averages left out."""
    for room in rooms():
        if room.imposed:
            yield from _of(room)


def _of(room: Room) -> Iterator[Row]:
    said = room.imposed
    known = [number for number in numbers() if number.paper == room.latest]
    cells: dict[tuple[str, ...], dict[str, float]] = {}
    for number in known:
        if number.exhibit == said["drafts"]:
            cells.setdefault(_cell(number), {})[number.metric] = number.value
    for number in known:
        asked = number.exhibit == said["exhibit"] and number.metric == said.get("metric", "speedup")
        if not asked or number.method in BASELINES or AVERAGE.search(number.task + number.setting):
            continue
        cell = cells.get(_cell(number), {})
        model = re.sub(r"[^a-z0-9]", "", number.model.lower())
        alpha, tokens = cell.get("alpha"), cell.get("M", cell.get("n_accepted"))
        skipped = cell.get("skip_ratio", said["skipped"].get(number.method))
        missing = ""
        if skipped is None:
            missing = f"what {number.method} skips is not reported"
        elif not alpha and tokens is None:
            missing = "no α above 0, and no M"
        yield Row(number, model, alpha, tokens, skipped, said["draft_len"], missing)


def _cell(number: Number) -> tuple[str, ...]:
    return number.model, number.method, number.task, number.setting
