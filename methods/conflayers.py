"""ConfLayers: skip the blocks whose outputs are less confident than their neighbours' (Amer et al., arXiv 2604.14612).

At times the full model rereads its last tokens. A module's confidence is one minus the mean normalised entropy of its
output; a block's is the sum over its attention and MLP (Eqs. 1-4). A block is skipped if its confidence is more than λ
standard deviations below the mean of its neighbours, in a window that the second difference of the confidences widens
(Eqs. 5-10). The set drafts for some 30 rounds; by its accepted tokens it is then frozen for the run, noted as the best
so far, or given up. Search and set persist across prompts.

`methods/fidelity.md` has the differences between the paper and the released code (WA225/ConfLayers @ d9f157e), the
switch of each, and what the presets follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.candidates import KSet, Mode, widths
from methods.confidence import Rule, confidence, entropies
from methods.draft_stop import ModelDraft
from methods.settings import DraftLen, Name, ReusePrefix, StopBelow
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Fits, Range, Rate, Whole, settings

DTYPES: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp16_compat": np.float16}
LAMBDA_STEP, LAMBDA_BAND = 0.05, 0.25
LOGITS = 2**22  # most logits in memory at a time


@dataclass
class ConfidenceSearch:
    """State of a search, kept across prompts.

    Attributes:
        blocks: skipped blocks of the set that drafts.
        lam: λ; None before the first estimate.
        iteration: number of estimates.
        best_acc: mean accepted tokens per round of the best set; 0 at first.
        best_blocks: its skipped blocks.
        rounds: (accepted, drafted) of the trial's rounds.
        prompts: prompts begun during the search.
    """

    blocks: list[int]
    lam: float | None
    iteration: int = 0
    best_acc: float = 0.0
    best_blocks: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    active: bool = True
    prompts: int = 0


@settings("method")
class ConfLayers(ModelDraft):
    """ConfLayers, with a switch for every difference between paper, logs and released code."""

    name: Name = "conflayers"
    signal: Literal["raw", "lm_head"] = "raw"
    """Entropy over the channels of a module's output, or over the vocabulary."""
    head_norm: bool = True
    """Apply the final norm before the LM head (`lm_head` only)."""
    stats_dtype: Literal["fp32", "fp16_compat"] = "fp16_compat"
    """Format of confidences, gradients and window statistics."""
    lambda_mode: Literal["fixed", "adaptive"] = "fixed"
    """Fix λ, or move it by 0.05 after an estimate: up if the set is too large, down if too small."""
    lam: float | None = None
    """Initial λ; null: from `lam_by_model`, else calibrated by the first estimate."""
    lam_by_model: Mapping[str, float] | None = None
    """Published λ by the model's name."""
    skip_aim: Annotated[float, Range(above=0, below=1, what="a share of the inner blocks")] = 0.5
    """Share of the inner blocks that a calibrated λ skips at first."""
    base_window: Annotated[int, Range(2, note=", one neighbour on either side")] = 2
    """w0, smallest window of a block."""
    window_scale: Whole = 5
    """V per leading equal gradient; 0: all windows are w0."""
    cap_window: bool | None = None
    """Limit V to L/3; null: only for models with "qwen" in their name."""
    centred: bool = True
    """Map the gradient that widens windows to mean 0.5 over blocks."""
    min_skip_ratio: Annotated[float, Range(0, below=1, what="a share of the inner blocks")] = 0.4
    """ρ, share of skipped inner blocks that a set must exceed to be tried."""
    context_window: Count = 100
    """Tokens that an estimate reads; the output must be at least two tokens longer."""
    interval: Annotated[int, Fits("an even number >= 2", lambda rounds: rounds >= 2 and rounds % 2 == 0)] = 30
    """Rounds of a set's trial."""
    extra_round: bool = True
    """Add one round to a trial."""
    abort_below: Annotated[float, Range(0, what="a number of tokens")] | None = 1.0
    """Accepted tokens per round below which a set is given up mid-trial; null: never."""
    trial_by_prompt: bool = True
    """Give up a set on trial when a prompt begins; false: its trial goes on."""
    max_iterations: Count = 100
    """Estimates after which the search ends with its best set."""
    stop_rule: Literal["acc_only", "acc_and_rate"] = "acc_only"
    """Rule that ends the search: `stop_accepted` alone, or also `stop_rate`."""
    stop_accepted: Annotated[float, Range(0, what="a number of tokens")] = 4.0
    """Accepted tokens per round that a set must exceed to end the search."""
    stop_rate: Rate = 0.95
    """Mean share of accepted tokens that a set must also exceed with `acc_and_rate`."""
    estimate_context: Literal["prompt_gap", "true_prefix"] = "prompt_gap"
    """Positions of an estimate's tokens: right after the prompt, or their true ones."""
    k_set: KSet = "paper"
    mode: Mode = "greedy"
    draft_len: DraftLen = 25
    stop_below: StopBelow = 0.8
    reuse_prefix: ReusePrefix = False
    """Verify from the first skipped sublayer on saved states (`chain` only)."""
    search_prompts: Count | None = None
    """Prompts to search on before keeping the best set (Figure 4's frozen set); null: all."""

    def __post_init__(self) -> None:
        self._widths = widths(self.k_set, self.mode)

    def check(self, dims: ModelDims) -> None:
        """Prepare for this model, and begin the search with blocks 1, 3, 5, ...

        Raises:
            ConfigError: fewer than two inner blocks, which have no second difference.
        """
        n_layers, self._vocab_size = dims.n_layers, dims.vocab_size
        if n_layers < 4:
            raise ConfigError("model", dims.name, f"at least 4 blocks with method={self.name}; it has {n_layers}")
        capped = "qwen" in dims.name.lower() if self.cap_window is None else self.cap_window
        windows = self.base_window, self.window_scale, n_layers // 3 if capped else None
        self._rule = Rule(n_layers, DTYPES[self.stats_dtype], *windows, self.centred)
        self._least = int((n_layers - 2) * self.min_skip_ratio) + 1
        lam = (self.lam_by_model or {}).get(dims.name) if self.lam is None else self.lam
        self._resume(ConfidenceSearch(list(range(1, n_layers - 1, 2)), lam))
        self._seen: list[tuple[Tensor, float]] = []

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt with the current set; during the search, give up a set on trial (as in the code)."""
        self._prompt_len = len(prefill.prompt)
        self._written: list[int] = []  # tokens of the output that the cache holds
        search = self._search
        self._redo = self.trial_by_prompt or not search.iteration
        if not search.active:
            return
        search.prompts += 1
        if self.search_prompts is not None and search.prompts > self.search_prompts:
            search.active = False
            self._install(search.best_blocks or search.blocks)

    def propose(self, context: Context) -> LayerDraft:
        return self._draft

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Count the round; judge the set and choose a new one when due.

        Returns:
            If a set is frozen or noted after its trial: its conditional acceptance rate, mean draft length, and the
            tokens per second that follow by the latency profile.
        """
        search, tree = self._search, verification.tree
        if not search.active:
            return None
        self._written += [tree.tokens[node] for node in verification.path]
        if len(self._written) <= self.context_window + 1:
            return None
        if tree.draft_len:  # the last step of a prompt may have no room to draft
            search.rounds.append((len(verification.path) - 1, tree.draft_len))
        rounds = self._judge()
        estimate = self._estimate(rounds, verification.length, probe) if rounds else None
        if search.active and (self._redo or len(search.blocks) < self._least):
            self._renew(verification.length, probe)
        return estimate

    def state(self) -> bytes:
        return json.dumps(asdict(self._search)).encode()

    def restore(self, state: bytes) -> None:
        self._resume(ConfidenceSearch(**json.loads(state)))

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the arrays of every estimate since the run's start or resume, [estimates, L - 2] (Figure 8)."""
        decisions = [self._rule.decision(confidences, lam) for confidences, lam in self._seen]
        if not decisions:
            return {}
        block = {"block": np.arange(1, self._rule.n_layers - 1)}
        return {"confidences": block | {name: np.stack([d[name] for d in decisions]) for name in decisions[0]}}

    def _resume(self, search: ConfidenceSearch) -> None:
        self._search = search
        self._install(search.blocks)

    def _install(self, blocks: list[int]) -> None:
        self._search.blocks = blocks
        layer_set = self._reading.set_of(LayerSet.skipping(self._rule.n_layers, attn=blocks, mlp=blocks))
        searched = self._search.iteration > 0
        self._draft = LayerDraft(layer_set, self.draft_len, self.stop_below, self._widths, searched)

    def _judge(self) -> list[tuple[int, int]]:
        """Judge the set at the middle and end of its trial; return the rounds if it is kept, else nothing."""
        search = self._search
        rounds, enough = search.rounds, len(search.blocks) >= self._least
        if not search.iteration or not rounds:
            return []
        accepted = fmean(m for m, _ in rounds)
        half = len(rounds) == self.interval // 2
        if enough and half and self.abort_below is not None and accepted < self.abort_below:
            search.rounds, self._redo = [], True
        if len(rounds) < self.interval + self.extra_round:
            return []
        search.rounds, self._redo = [], True
        if not enough:
            return []
        rate = fmean(m / k for m, k in rounds)
        if accepted > self.stop_accepted and (self.stop_rule == "acc_only" or rate > self.stop_rate):
            search.active = self._redo = False
        elif accepted > search.best_acc:
            search.best_acc, search.best_blocks = accepted, search.blocks
        else:
            return []
        return rounds

    def _estimate(self, rounds: list[tuple[int, int]], length: int, probe: Probe) -> Estimate:
        accepted = sum(m for m, _ in rounds)
        # α as in Eq. 4: accepted over tested tokens; min(k, m + 1) are tested, all up to the first rejected one
        alpha, draft_len = accepted / sum(min(k, m + 1) for m, k in rounds), max(1, round(fmean(k for _, k in rounds)))
        return probe.latency.estimate(alpha, draft_len, self._draft.layer_set, length)

    def _renew(self, length: int, probe: Probe) -> None:
        """Choose a set by the last tokens' confidences; at the last iteration, take the best set."""
        search, inner = self._search, self._rule.n_layers - 2
        confidences = self._confidences(length, probe)
        if search.lam is None:
            search.lam = self._rule.calibrated_lambda(confidences, max(self._least, round(self.skip_aim * inner)))
        lam = search.lam or 0.0  # equal confidences give no λ; with any λ they skip nothing
        self._seen.append((confidences.cpu(), lam))
        blocks = self._rule.choose(confidences, lam)
        share = len(blocks) / inner
        if self.lambda_mode == "adaptive" and search.lam is not None:
            search.lam += LAMBDA_STEP * ((share > self.min_skip_ratio + LAMBDA_BAND) - (share < self.min_skip_ratio))
        search.iteration += 1
        search.rounds, self._redo = [], False
        if search.iteration >= self.max_iterations:
            search.active, blocks = False, search.best_blocks
        self._install(blocks)

    def _confidences(self, length: int, probe: Probe) -> Tensor:
        """Return confidences [2 (L - 2)] of the modules of blocks 1 .. L-2, over the last cached tokens."""
        tokens = self._written[-self.context_window :]
        prefix = self._prompt_len if self.estimate_context == "prompt_gap" else length - len(tokens)
        stream = probe.embed(tokens)[None]
        confidences = []
        for i in range(2 * (self._rule.n_layers - 1)):
            after = probe.apply_sublayer(i, stream, prefix)
            if i >= 2:  # a module's output is what it adds to the residual stream
                confidences.append(self._confidence(after[0].float() - stream[0].float(), probe))
            stream = after
        return torch.stack(confidences)

    def _confidence(self, output: Tensor, probe: Probe) -> Tensor:
        if self.signal == "raw":
            return confidence(entropies(output), output.shape[-1])
        # a few positions at a time, to bound the memory of the logits
        parts = output.split(max(1, LOGITS // self._vocab_size))
        entropy = torch.cat([entropies(probe.logits(part, self.head_norm)) for part in parts])
        return confidence(entropy, self._vocab_size)
