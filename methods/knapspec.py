"""KnapSpec: choose the sublayers to skip with a knapsack over latency-weighted budgets (Cha et al., ICML 2026).

At a search event the last r committed tokens are run again through every reachable subset, by dynamic programming
over (sublayer, skipped weight), keeping for each cell the branch whose hidden states stay closest (cosine) to the full
model's. Every surviving budget is then scored by the tokens per time (TPT, Eq. 4) that it would reach at the draft
length that suits it best, with the acceptance rate (Eq. 9) measured on those r tokens; the best set drafts from then
on.

Where paper and released code (kaist-flexml-lab/knapspec) differ, a switch says which is followed; the presets are
`knapspec` (paper) and `knapspec_code`:

* the paper protects no block, caps no weight, takes γ from 1..10 and keeps the empty set as a candidate; the code
  protects first and last block, caps weights at 5, takes γ from 0..17 and drops the candidate of least weight;
* the paper prunes at cosine > τ, the code at >= τ;
* both find the best γ and then draft up to a fixed cap with a confidence exit instead.

Two things follow neither: states are captured over the last m steps before every event, so that any interval works
(the code never searches for T <= 6), and "not marked skipped" is what executes (the paper's backtracking stops at
weight 0 and would lose sublayers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.similarity import mean_cosine
from ssd_bench.errors import ConfigError
from ssd_bench.latency import Latency
from ssd_bench.layer_set import LayerSet
from ssd_bench.method import Context, Estimate, LayerDraft, ModelDims, Prefill, Sample, Taps, Verification
from ssd_bench.metrics import tpt
from ssd_bench.probe import Probe


class KnapSpec:
    """KnapSpec with every switch on which paper and code differ.

    Args:
        name: name in tables.
        interval: T, steps between search events; None takes the paper's rule (64 below 10B parameters, else 128).
        capture_steps: m, steps whose accepted tokens the search runs on.
        min_similarity: τ, branches with a smaller mean cosine are dropped.
        strict: drop a cosine equal to τ as well (paper).
        budget: skipped weight allowed, as a share of the weight K of all sublayers.
        weight_cap: largest integer weight of a sublayer; None for no cap.
        protect_first_last: never skip a sublayer of the first and the last block.
        include_zero_skip: keep the candidate of least skipped weight (normally the full model).
        draft_len_grid: smallest and largest γ of the TPT maximisation.
        draft_len: cap of the drafting itself.
        stop_below: confidence exit of the drafting.
        reuse_prefix: verify from the first skipped sublayer on saved states.
    """

    greedy_only = False

    def __init__(
        self,
        name: str = "knapspec",
        interval: int | None = None,
        capture_steps: int = 5,
        min_similarity: float = 0.5,
        strict: bool = True,
        budget: float = 0.5,
        weight_cap: int | None = None,
        protect_first_last: bool = False,
        include_zero_skip: bool = True,
        draft_len_grid: Sequence[int] = (1, 10),
        draft_len: int = 10,
        stop_below: float = 0.7,
        reuse_prefix: bool = False,
    ):
        low, high = draft_len_grid
        checks = (
            ("interval", interval is None or interval >= 1, interval, "at least 1, or null for the paper's rule"),
            ("capture_steps", capture_steps >= 1, capture_steps, "at least 1"),
            ("min_similarity", -1 <= min_similarity <= 1, min_similarity, "a cosine in [-1, 1]"),
            ("budget", 0 <= budget <= 1, budget, "a share in [0, 1]"),
            ("weight_cap", weight_cap is None or weight_cap >= 1, weight_cap, "at least 1, or null"),
            ("draft_len_grid", 0 <= low <= high, list(draft_len_grid), "two lengths, 0 <= first <= second"),
            ("draft_len", draft_len >= 1, draft_len, "at least 1 (method=ar drafts nothing)"),
            ("stop_below", 0 <= stop_below <= 1, stop_below, "a probability in [0, 1]"),
        )
        for field, fine, value, allowed in checks:
            if not fine:
                raise ConfigError(f"method.{field}", value, allowed)
        self.name, self.reuse_prefix = name, reuse_prefix
        self.taps = Taps()
        self._interval, self._capture = interval, capture_steps
        self._min_similarity, self._strict, self._budget = min_similarity, strict, budget
        self._weight_cap, self._protect, self._zero = weight_cap, protect_first_last, include_zero_skip
        self._grid, self._draft_len, self._stop_below = (low, high), draft_len, stop_below

    def check(self, dims: ModelDims) -> None:
        """Fix what depends on the model: the interval by its size, the full set to start from."""
        if self._protect and dims.n_layers < 3:
            raise ConfigError("method.protect_first_last", True, "false for a model of fewer than 3 blocks")
        self._steps = self._interval or (64 if dims.n_params < 10e9 else 128)
        self._full = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Nothing beyond the latency profile, which the runner provides."""

    def start(self, prefill: Prefill) -> None:
        """Every prompt starts with the full model as its own draft."""
        self._layer_set = self._full
        self._captured: deque[Tensor] = deque(maxlen=self._capture)

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the last chosen set; ask for states when a search event is near."""
        near = any(self._is_event(context.step + ahead) for ahead in range(self._capture))
        self.taps = Taps(verify=tuple(range(2 * self._full.n_layers + 1))) if near else Taps()
        return LayerDraft(self._layer_set, self._draft_len, self._stop_below)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the states of the accepted tokens; search when it is time."""
        if verification.hidden is not None:
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._captured.append(verification.hidden.index_select(1, rows))
        if not self._is_event(verification.step):
            return None
        choice = self._search(torch.cat(list(self._captured), dim=1), verification.length, probe)
        self._layer_set = choice.layer_set
        return choice.estimate

    def _is_event(self, step: int) -> bool:
        first = self._capture + 1  # the first step is not captured, as in the released code
        return step >= first and (step - first) % self._steps == 0

    def _search(self, states: Tensor, length: int, probe: Probe) -> Choice:
        """The layer set of highest TPT for the last r = states.shape[1] committed tokens."""
        w_attn, w_mlp = weights(probe.latency, length, self._weight_cap)
        knapsack = Knapsack(
            states.float(), length - states.shape[1], (w_attn, w_mlp), self._budget, self._min_similarity, self._strict,
            self._protect, states.dtype,
        )  # fmt: skip
        candidates = knapsack.run(probe)
        if not self._zero:
            candidates = candidates[1:]
        return self._best(candidates, states, length, probe) or Choice(self._full, None)

    def _best(self, candidates: list[Candidate], states: Tensor, length: int, probe: Probe) -> Choice | None:
        """The candidate of highest TPT; the first in order of skipped weight, then of γ, among equals."""
        if not candidates:
            return None
        target_ms = probe.latency.target_ms(self._full.n_layers, length)
        draft_ms = [probe.latency.draft_ms(candidate.layer_set, length) for candidate in candidates]

        def estimate(index: int, alpha: float) -> Estimate:
            """The highest TPT at an acceptance rate, in which it never falls, and the γ that reaches it."""
            values = {g: tpt(alpha, g, draft_ms[index], target_ms) for g in range(self._grid[0], self._grid[1] + 1)}
            draft_len = max(values, key=values.__getitem__)
            return Estimate(alpha, draft_len, values[draft_len])

        agreement = Agreement(probe, states[-1], torch.stack([candidate.hidden for candidate in candidates]))
        asked: set[int] = set()
        while True:  # until the highest upper bound belongs to a candidate whose rate is known
            estimates = [estimate(i, bound) for i, bound in enumerate(agreement.bounds())]
            top = max(range(len(candidates)), key=lambda i: estimates[i].tokens_per_s)
            if top in asked:
                return Choice(candidates[top].layer_set, estimates[top])
            agreement.settle(top)
            asked.add(top)


class Agreement:
    """Acceptance rates (Eq. 9) of branches, with as few passes of the LM head as their comparison needs.

    A token of a branch that some other token's logit beats is refuted for good, so the logits of the few tokens
    predicted so far bound every rate from above; only a branch whose bound is still the best pays for the whole
    vocabulary, and only at its tokens that are not refuted.

    Args:
        full: [r, d] the full model's last states.
        branches: [B, r, d].
    """

    def __init__(self, probe: Probe, full: Tensor, branches: Tensor):
        self._probe, self._branches = probe, branches
        self._target = probe.predict(full)
        logits = probe.token_logits(branches, self._target)
        own = logits.diagonal(dim1=1, dim2=2)
        # products of other shapes round differently: what is within it of the best is left to the whole vocabulary
        self._limit = own + 8 * torch.finfo(branches.dtype).eps * own.abs()
        self._alive = torch.ones_like(own, dtype=torch.bool)
        self._refute(logits)

    def _refute(self, logits: Tensor) -> None:
        """Rule out the tokens [B, r] that one of these logits [B, r, k] beats."""
        self._alive &= logits.amax(-1) <= self._limit

    def bounds(self) -> list[float]:
        """An upper bound of every branch's rate; of a settled one, the rate."""
        return self._alive.float().mean(-1).tolist()

    def settle(self, index: int) -> None:
        """Make a branch's bound its rate: the share of its tokens that the full model predicts too."""
        rows = torch.nonzero(self._alive[index]).flatten()
        if len(rows):
            predicted = self._probe.predict(self._branches[index, rows.to(self._branches.device)])
            self._alive[index, rows] = predicted == self._target[rows]
            self._refute(self._probe.token_logits(self._branches, predicted.unique()))


@dataclass(frozen=True)
class Choice:
    """A chosen set and what was believed of it (None: nothing survived, so nothing was estimated)."""

    layer_set: LayerSet
    estimate: Estimate | None


@dataclass(frozen=True)
class Candidate:
    """A survivor of the knapsack: its set, skipped weight, mean cosine and final states [r, d]."""

    layer_set: LayerSet
    weight: int
    similarity: float
    hidden: Tensor


def weights(latency: Latency, context: float, cap: int | None) -> tuple[int, int]:
    """Integer weights (w_attn, w_mlp) of a sublayer: the cheaper kind weighs 1, the other its rounded ratio (§3.4)."""
    attn, mlp = latency.attn_ms(context), latency.t_mlp_ms
    ratio = max(1, round(max(attn, mlp) / min(attn, mlp)))
    heavy = ratio if cap is None else min(ratio, cap)
    return (heavy, 1) if attn > mlp else (1, heavy)


@dataclass
class Knapsack:
    """The dynamic programme over (sublayer, skipped weight), all weights of a row at once.

    Row b holds, for every skipped weight j with a surviving branch, the stream of r tokens after sublayers 0..b-1;
    column 0 is the full model, so its stream is taken from the captured states. A branch attends to the committed
    prefix and to its own r tokens. Cosines are taken in float32.

    Args:
        states: [2L+1, r, d] float32, the full model's stream entering each sublayer, and the last one leaving.
        prefix_len: committed rows before the r tokens.
        weights: (w_attn, w_mlp).
        budget: skipped weight allowed, as a share of the total.
        min_similarity, strict, protect: as in `KnapSpec`.
        dtype: of the streams that the model runs on.
    """

    states: Tensor
    prefix_len: int
    weights: tuple[int, int]
    budget: float
    min_similarity: float
    strict: bool
    protect: bool
    dtype: torch.dtype

    def run(self, probe: Probe) -> list[Candidate]:
        """Survivors of the last row, by ascending skipped weight."""
        n_sub = self.states.shape[0] - 1
        width = int(self.budget * sum(self.weights) * n_sub / 2) + 1
        protected = 2 if self.protect else 0
        columns = [0]
        hidden = self.states[protected].to(self.dtype)[None]
        skips: list[list[bool]] = [[False] * width for _ in range(protected)]
        scores = torch.ones(1)
        for b in range(protected, n_sub):
            target = self.states[b + 1]
            executed = self._execute(probe, b, hidden, columns)
            skipping = b < n_sub - protected
            columns, hidden, skip, scores = self._row(
                columns, hidden, executed, target, self.weights[b % 2], width, skipping
            )
            skips.append(skip)
            if not columns:
                return []
        return [
            Candidate(self._backtrack(skips, j), j, float(score), stream)
            for j, score, stream in zip(columns, scores.tolist(), hidden)
        ]

    def _execute(self, probe: Probe, b: int, hidden: Tensor, columns: list[int]) -> Tensor:
        """Sublayer b over every branch; column 0 is the full model, whose stream is known (paper, App. C)."""
        known = self.states[b + 1].to(self.dtype)[None]
        if columns == [0]:
            return known
        if columns[0] != 0:
            return probe.apply_sublayer(b, hidden, self.prefix_len)
        executed = probe.apply_sublayer(b, hidden, self.prefix_len)
        executed[0] = known[0]
        return executed

    def _row(
        self,
        columns: list[int],
        hidden: Tensor,
        executed: Tensor,
        target: Tensor,
        weight: int,
        width: int,
        skipping: bool,
    ) -> tuple[list[int], Tensor, list[bool], Tensor]:
        """The next row from the executed and the skipped branches: per weight, the one of higher cosine."""
        gone = float("-inf")
        cells = torch.full((2, width), gone)  # mean cosine of executing into / skipping into each weight
        cells[0, columns] = mean_cosine(executed, target).cpu()
        if skipping:
            reached = [j for j in columns if j + weight < width]
            if reached:
                cells[1, [j + weight for j in reached]] = mean_cosine(hidden[: len(reached)], target).cpu()
        kept = cells > self.min_similarity if self.strict else cells >= self.min_similarity
        cells = cells.masked_fill(~kept, gone)
        skip = (cells[1] > cells[0]).tolist()  # ties execute
        best = cells.amax(0)
        survivors = torch.nonzero(best > gone).flatten().tolist()
        at = {j: k for k, j in enumerate(columns)}
        streams = executed.index_select(0, self._at([at.get(j, 0) for j in survivors]))
        moved = [k for k, j in enumerate(survivors) if skip[j]]
        streams[self._at(moved)] = hidden.index_select(0, self._at([at[survivors[k] - weight] for k in moved]))
        return survivors, streams, skip, best[survivors]

    def _at(self, indices: list[int]) -> Tensor:
        return torch.tensor(indices, dtype=torch.long, device=self.states.device)

    def _backtrack(self, skips: list[list[bool]], j: int) -> LayerSet:
        skipped = []
        for b in range(len(skips) - 1, -1, -1):
            if skips[b][j]:
                skipped.append(b)
                j -= self.weights[b % 2]
        return LayerSet(len(skips) // 2, frozenset(skipped))
