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
* both find the best γ and then draft up to a fixed cap with a confidence exit instead;
* until the first event the code drafts with the full model; the paper does not say what does (`warmup`).

`search_on=prefill` is a variant of neither: the first event moves to the end of the prompt, so that the first step
drafts with a searched set. With `draft_window` drafts read a part of the cache: candidates are compared with all of it,
as in the paper, and their weights and times are those of what drafts read.

Two things follow neither: states are captured over the last m steps before every event, so that any interval works
(the code never searches for T <= 6), and "not marked skipped" is what executes (the paper's backtracking stops at
weight 0 and would lose sublayers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from methods.draft_stop import WindowedDraft
from methods.knapsack import Agreement, Candidate, Knapsack, weights
from methods.settings import DraftLen, DraftLenGrid, Name, ReusePrefix, StopBelow
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, Estimate, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Cosine, Count, Share, settings


@settings("method")
class KnapSpec(WindowedDraft):
    """KnapSpec with every switch on which paper and code differ."""

    greedy_only = False

    name: Name = "knapspec"
    interval: Count | None = None
    """T, steps between search events; null takes the paper's rule (64 below 10B parameters, else 128)."""
    capture_steps: Count = 5
    """m, steps whose accepted tokens the search runs on."""
    min_similarity: Cosine = 0.5
    """τ, branches with a smaller mean cosine are dropped."""
    strict: bool = True
    """Drop a cosine equal to τ as well (paper)."""
    budget: Share = 0.5
    """Skipped weight allowed, as a share of the weight K of all sublayers."""
    weight_cap: Count | None = None
    """Largest integer weight of a sublayer; null for no cap."""
    protect_first_last: bool = False
    """Never skip a sublayer of the first and the last block."""
    include_zero_skip: bool = True
    """Keep the candidate of least skipped weight (normally the full model)."""
    draft_len_grid: DraftLenGrid = (1, 10)
    draft_len: DraftLen = 10
    stop_below: StopBelow = 0.7
    reuse_prefix: ReusePrefix = False
    warmup: Literal["full", "ar"] = "full"
    """What drafts before the first event: the full model, or nothing."""
    search_on: Literal["steps", "prefill"] = "steps"
    """The first event runs on the tokens of the first m steps, or on the prompt's last ones."""
    prefill_tokens: Count = 32
    """r of an event on the prompt."""

    def __post_init__(self) -> None:
        if self.search_on == "prefill" and self.warmup != "full":
            allowed = "full with method.search_on=prefill, which searches before it drafts"
            raise ConfigError("method.warmup", self.warmup, allowed)
        self.taps = Taps()
        self._prompt_end = self.prefill_tokens if self.search_on == "prefill" else None

    def check(self, dims: ModelDims) -> None:
        """Fix what depends on the model: the interval by its size, the full set to start from."""
        if self.protect_first_last and dims.n_layers < 3:
            raise ConfigError("method.protect_first_last", True, "false for a model of fewer than 3 blocks")
        self._steps = self.interval or (64 if dims.n_params < 10e9 else 128)
        self._full = LayerSet.full(dims.n_layers)
        # the first step is not captured, as in the released code; after an event on the prompt the next is T steps on
        self._first_event = self.capture_steps + 1 if self._prompt_end is None else self._steps
        every = tuple(range(2 * dims.n_layers + 1))
        self._quiet = Taps() if self._prompt_end is None else Taps(prefill=every, prompt_end=self._prompt_end)
        self._listening = replace(self._quiet, verify=every)
        self.taps = self._quiet

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Nothing beyond the latency profile, which the runner provides."""
        self._probe = probe

    def start(self, prefill: Prefill) -> None:
        """Every prompt starts with the full model, or with a search on its end."""
        self._layer_set, self._searched = self._full, False
        self._found: Estimate | None = None
        self._captured: deque[Tensor] = deque(maxlen=self.capture_steps)
        if prefill.hidden is not None:
            self._choose(prefill.hidden, len(prefill.prompt), self._probe)

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Draft with the last chosen set; ask for states when a search event is near."""
        near = any(self._is_event(context.step + ahead) for ahead in range(self.capture_steps))
        self.taps = self._listening if near else self._quiet
        if not (self._searched or self.warmup == "full"):
            return TokenTree((context.output[-1],), (-1,))
        draft = self._layer_set, self.draft_len, self.stop_below
        return LayerDraft(*draft, searched=self._searched, window=self._window)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the states of the accepted tokens; search when it is time, if the output goes on.

        Returns:
            Of a search in this step; in the first, of one on the prompt.
        """
        found, self._found = self._found, None
        if verification.last:  # every prompt starts anew
            return found
        if verification.hidden is not None:
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._captured.append(verification.hidden.index_select(1, rows))
        if self._is_event(verification.step):
            self._choose(torch.cat(list(self._captured), dim=1), verification.length, probe)
            found, self._found = self._found, None
        return found

    def _choose(self, states: Tensor, length: int, probe: Probe) -> None:
        choice = self.search(states, length, probe)
        self._layer_set, self._found, self._searched = choice.layer_set, choice.estimate, True

    def _is_event(self, step: int) -> bool:
        return step >= self._first_event and (step - self._first_event) % self._steps == 0

    def search(self, states: Tensor, length: int, probe: Probe) -> Found:
        """The layer set of highest TPT for the last r committed tokens; needs `check`.

        Args:
            states: [2L+1, r, d], as `Knapsack` takes them, in the model's dtype.
            length: committed positions, those tokens included.
        """
        window = self._window
        read = length if window is None else window.positions(length)
        w_attn, w_mlp = weights(probe.latency, read, self.weight_cap)
        knapsack = Knapsack(
            states.float(), length - states.shape[1], (w_attn, w_mlp), self.budget, self.min_similarity, self.strict,
            self.protect_first_last, states.dtype,
        )  # fmt: skip
        candidates = knapsack.run(probe)
        if not self.include_zero_skip:
            candidates = candidates[1:]
        return self._best(candidates, states, length, probe) or Found(self._full, None)

    def _best(self, candidates: list[Candidate], states: Tensor, length: int, probe: Probe) -> Found | None:
        """The candidate of highest TPT; the first in order of skipped weight, then of γ, among equals."""
        if not candidates:
            return None
        low, high = self.draft_len_grid
        lengths, target_ms = range(low, high + 1), probe.latency.target_ms(self._full.n_layers, length)
        window = self._window
        draft_ms = [probe.latency.draft_ms(candidate.layer_set, length, window) for candidate in candidates]

        def estimate(index: int, alpha: float) -> Estimate:
            """The highest TPT at an acceptance rate, in which it never falls, and the γ that reaches it."""
            values = {g: tpt(alpha, g, draft_ms[index], target_ms) for g in lengths}
            draft_len = max(values, key=values.__getitem__)
            return Estimate(alpha, draft_len, values[draft_len])

        agreement = Agreement(probe, states[-1], torch.stack([candidate.hidden for candidate in candidates]))
        top = agreement.leaders(lambda i, rate: estimate(i, rate).tokens_per_s, 1)[0]
        return Found(candidates[top].layer_set, estimate(top, agreement.bounds()[top]))


@dataclass(frozen=True)
class Found:
    """A chosen set and what was believed of it (None: nothing survived, so nothing was estimated)."""

    layer_set: LayerSet
    estimate: Estimate | None
