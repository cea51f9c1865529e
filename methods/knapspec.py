"""KnapSpec: choose the sublayers to skip with a knapsack over latency-weighted budgets (Cha et al., ICML 2026).

A search event reruns the last r committed tokens through subsets of the sublayers, by dynamic programming over
(sublayer, skipped weight). Each cell keeps the branch with hidden states closest (cosine) to the full model's
(`methods.knapsack`). Every surviving skipped weight is scored by its tokens per time (TPT, Eq. 4) at its best draft
length, with the acceptance rate (Eq. 9) on those r tokens. The best set then drafts.

`methods/fidelity.md` has the differences between the paper and the released code (kaist-flexml-lab/knapspec), the
switch of each, and what the presets `knapspec` (paper) and `knapspec_code` follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods.draft_stop import ModelDraft
from methods.knapsack import AcceptanceRates, Branch, Knapsack, integer_weights, mixed_weights
from methods.settings import DraftLen, DraftLenGrid, Name, ReusePrefix, StopBelow
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Cosine, Count, Share, settings

MixedWeights = Annotated[
    Literal["full", "int8", "int4", "mixed"],
    "Weights that drafts read: as they were loaded (full), all in 8 or 4 bits (int8, int4), or as the knapsack chooses "
    "for each sublayer (mixed).",
]


@settings("method")
class KnapSpec(ModelDraft):
    """KnapSpec, with a switch for every difference between paper and code."""

    name: Name = "knapspec"
    draft_weights: MixedWeights = "full"  # type: ignore[assignment]  # a choice more than other methods have
    interval: Count | None = None
    """T, steps between search events; null: the paper's rule (64 below 10B parameters, else 128)."""
    capture_steps: Count = 5
    """m, last steps whose accepted tokens a search uses."""
    min_similarity: Cosine = 0.5
    """τ, smallest mean cosine of a kept branch."""
    strict: bool = True
    """Also drop branches with a cosine equal to τ (paper)."""
    budget: Share = 0.5
    """Largest skipped weight, as a share of the total K."""
    weight_cap: Count | None = None
    """Largest integer weight of a sublayer; null: no cap."""
    protect_first_last: bool = False
    """Never skip a sublayer of the first and the last block."""
    include_zero_skip: bool = True
    """Keep the candidate of least skipped weight (normally the full model)."""
    draft_len_grid: DraftLenGrid = (1, 10)
    draft_len: DraftLen = 10
    stop_below: StopBelow = 0.7
    reuse_prefix: ReusePrefix = False
    warmup: Literal["ar", "full"] = "ar"
    """Drafting before the first event of search_on=steps: none (ar), or with the full model."""
    search_on: Literal["steps", "prefill"] = "steps"
    """Tokens of the first event: the first m steps', or the prompt's last ones (prefill)."""
    prefill_tokens: Count = 32
    """r, last prompt tokens used by an event on the prompt."""

    def __post_init__(self) -> None:
        if self.search_on == "prefill" and self.warmup != "ar":
            expected = "ar with method.search_on=prefill, which searches before it drafts"
            raise ConfigError("method.warmup", self.warmup, expected)
        self.taps = Taps()
        self._prompt_end = self.prefill_tokens if self.search_on == "prefill" else None

    @property
    def bits(self) -> Collection[int]:
        """Bits of the rounded weights that drafts may read."""
        return BITS if self.draft_weights == "mixed" else super().bits

    def check(self, dims: ModelDims) -> None:
        """Set the interval by the model's size, and the initial full set."""
        if self.protect_first_last and dims.n_layers < 3:
            raise ConfigError("method.protect_first_last", True, "false for a model of fewer than 3 blocks")
        self._steps = self.interval or (64 if dims.n_params < 10e9 else 128)
        self._full = LayerSet.full(dims.n_layers)
        # the first step is not captured, as in the released code; after an event on the prompt the next is T steps on
        self._first_event = self.capture_steps + 1 if self._prompt_end is None else self._steps
        boundaries = tuple(range(2 * dims.n_layers + 1))
        self._idle_taps = Taps() if self._prompt_end is None else Taps(prefill=boundaries, prompt_end=self._prompt_end)
        self._search_taps = replace(self._idle_taps, verify=boundaries)
        self.taps = self._idle_taps

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self._probe = probe

    def start(self, prefill: Prefill) -> None:
        """Start a prompt with the full model, or with a search on its end."""
        self._layer_set, self._searched = self._full, False
        self._new_estimate: Estimate | None = None
        self._captured: deque[Tensor] = deque(maxlen=self.capture_steps)
        if prefill.hidden is not None:
            self._choose(prefill.hidden, len(prefill.prompt), self._probe)

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Draft with the last set; ask for states when a search is near."""
        near = self._next_event(context.step) < context.step + self.capture_steps
        self.taps = self._search_taps if near else self._idle_taps
        if not (self._searched or self.warmup == "full"):
            return TokenTree((context.output[-1],), (-1,))
        layer_set = self._reading.set_of(self._layer_set)
        return LayerDraft(layer_set, self.draft_len, self.stop_below, searched=self._searched)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the accepted tokens' states; search when due, if the output goes on.

        Return the estimate of this step's search or, in the first step, of the search on the prompt.
        """
        if verification.hidden is not None and not verification.last:  # every prompt starts anew
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._captured.append(verification.hidden.index_select(1, rows))
            if self._next_event(verification.step) == verification.step:
                self._choose(torch.cat(list(self._captured), dim=1), verification.length, probe)
        estimate, self._new_estimate = self._new_estimate, None
        return estimate

    def _choose(self, states: Tensor, length: int, probe: Probe) -> None:
        self._layer_set, self._new_estimate = self.search(states, length, probe)
        self._searched = True

    def _next_event(self, step: int) -> int:
        soonest = max(step, self._first_event)
        return soonest + (self._first_event - soonest) % self._steps

    def search(self, states: Tensor, length: int, probe: Probe) -> tuple[LayerSet, Estimate | None]:
        """Return the layer set of highest TPT for the last r committed tokens, and its estimate; needs `check` before.

        Without a surviving branch it is the full set, without an estimate.

        Args:
            states: [2L+1, r, d], as for `Knapsack`, in the model's dtype.
            length: committed positions, including those tokens.
        """
        window = self._reading.window
        read = length if window is None else window.count_read(length)
        rounded_weights: dict[int, tuple[int, int]] = {}
        if self.draft_weights == "mixed":
            weights, rounded_weights = mixed_weights(probe.latency, read, self.weight_cap, self.bits)
        else:
            weights = integer_weights(probe.latency, read, self.weight_cap, self._reading.bits)
        knapsack = Knapsack(
            states.float(),
            length - states.shape[1],
            weights,
            self.budget,
            self.min_similarity,
            self.strict,
            self.protect_first_last,
            states.dtype,
            rounded_weights,
        )
        candidates = knapsack.run(probe)
        if not self.include_zero_skip:
            candidates = candidates[1:]
        return self._best(candidates, states, length, probe) if candidates else (self._full, None)

    def _best(self, candidates: list[Branch], states: Tensor, length: int, probe: Probe) -> tuple[LayerSet, Estimate]:
        """Return the candidate of highest TPT; ties go to the lowest skipped weight, then the lowest γ."""
        low, high = self.draft_len_grid
        lengths, target_ms = range(low, high + 1), probe.latency.target_ms(self._full.n_layers, length)
        sets = [self._reading.set_of(candidate.layer_set) for candidate in candidates]
        draft_ms = [probe.latency.draft_ms(layer_set, length) for layer_set in sets]

        def estimate(index: int, alpha: float) -> Estimate:
            """Return the highest TPT over γ at an acceptance rate; it must not fall as the rate rises."""
            values = {g: tpt(alpha, g, draft_ms[index], target_ms) for g in lengths}
            draft_len = max(values, key=values.__getitem__)
            return Estimate(alpha, draft_len, values[draft_len])

        rates = AcceptanceRates(probe, states[-1], torch.stack([candidate.hidden for candidate in candidates]))
        top = rates.leaders(lambda i, rate: estimate(i, rate).tokens_per_s, 1)[0]
        return candidates[top].layer_set, estimate(top, rates.bounds()[top])
