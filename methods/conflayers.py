"""ConfLayers: skip the blocks whose outputs are less confident than their neighbours' (Amer et al., arXiv 2604.14612).

Every so often the full model reads its last generated tokens again. A module's confidence is one minus the mean
normalised entropy of its output, a block's the sum of its attention's and its MLP's (Eqs. 1-4). A block is skipped
where it lies below the mean of its neighbours by more than λ of their standard deviations, in a window that the second
difference of the confidences widens (Eqs. 5-10). The set then drafts for some 30 rounds, and by the tokens accepted in
them it is frozen for the rest of the run, noted as the best so far, or given up for a new one. Search and set survive
from prompt to prompt.

Switches say what is followed where the paper and the released code (WA225/ConfLayers @ d9f157e) differ; presets are
`conflayers`, `conflayers_paper`, `conflayers_logs` and `conflayers_release`:

* the paper puts a module's output through the LM head and takes the entropy over the vocabulary, the code takes it over
  the channels of the output itself and never calls the head: `signal`;
* λ is fixed by hand (paper, logs) or moves with the size of the set (code): `lambda_mode`;
* the search ends at four accepted tokens (paper), or at more than that with an acceptance rate above 0.95 (code);
* the code reads the tokens right after the prompt, as if nothing stood between: `estimate_context`;
* the code's statistics are half precision, in which the gradients that widen the windows can be equal: `stats_dtype`;
* verification is SWIFT's, whose candidates paper and code count differently: `k_set`.

From the code alone, as far as is known, and each to be switched off: the map that gives the rescaled gradient the mean
0.5, without which the logged sets do not come out (`centred`); the largest window of Qwen models (`cap_window`); the
early end of a trial with less than one accepted token a round (`abort_below`); one round more than the interval
(`extra_round`); a trial ends with its prompt (`trial_by_prompt`).

Three things follow neither. The output of a module is the difference of the streams after and before it, so in half
precision it carries their rounding. Where all confidences are equal, nothing is skipped (the code divides by zero).
Where no λ of a model is published, the first estimate of a run sets it, so that this estimate's set skips half of the
inner blocks: the paper's sets skip 40 to 60 %.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.candidates import widths
from methods.confidence import Rule, confidence, entropies
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, Estimate, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims

SIGNALS = ("raw", "lm_head")
DTYPES: dict[str, type[np.floating[Any]]] = {"fp32": np.float32, "fp16_compat": np.float16}
LAMBDA_MODES = ("fixed", "adaptive")
STOP_RULES = ("acc_only", "acc_and_rate")
CONTEXTS = ("prompt_gap", "true_prefix")
LAMBDA_STEP, LAMBDA_BAND = 0.05, 0.25
LOGITS = 2**22  # logits held at a time


@dataclass
class Search:
    """What survives from prompt to prompt.

    Attributes:
        blocks: the set that drafts.
        lam: λ; None until the first estimate sets it.
        iteration: estimates made so far.
        best_acc: mean accepted tokens of the best set so far; it starts at 0, and only a better set is noted.
        best_blocks: that set, empty before there is one.
        rounds: (accepted, drafted) of the rounds that the set is tried on.
        active: the search goes on.
        prompts: begun while it goes on.
    """

    blocks: list[int]
    lam: float | None
    iteration: int = 0
    best_acc: float = 0.0
    best_blocks: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    active: bool = True
    prompts: int = 0


class ConfLayers:
    """ConfLayers with every switch on which paper, logs and released code differ.

    Args:
        name: name in tables.
        signal: `raw`, entropy over the channels of a module's output, or `lm_head`, over the vocabulary.
        head_norm: the final norm comes before the LM head (`lm_head` only).
        stats_dtype: of confidences, gradients and window statistics, `fp32` or `fp16_compat`.
        lambda_mode: `fixed`, or `adaptive`: after an estimate 0.05 up or down for a set too large or too small.
        lam: λ, at the start; None: that of `lam_by_model`, else the first estimate calibrates it.
        lam_by_model: λ by the model's name, for models that have a published one.
        skip_aim: share of the inner blocks that a calibrated λ skips at first.
        base_window, window_scale: w0, and V per leading equal gradient; a scale of 0 makes all windows w0 wide.
        cap_window: V is at most L/3; None: for models that are called Qwen.
        centred: the gradient that widens a window is moved so that its mean over blocks is 0.5.
        min_skip_ratio: ρ, sets with a smaller share of the L - 2 inner blocks are not tried.
        context_window: tokens that an estimate reads; a prompt has to produce more than one beyond them.
        interval: rounds for which a set is tried.
        extra_round: it is tried for one more.
        abort_below: accepted tokens a round below which a set is given up at half time; None: it never is.
        trial_by_prompt: a set on trial when a prompt begins is given up; False: its trial goes on.
        max_iterations: estimates after which the best set is taken, whatever it is.
        stop_rule: `acc_only`, or `acc_and_rate`, which asks for `stop_rate` as well.
        stop_accepted: a set that has more accepted tokens per round than this ends the search.
        stop_rate: smallest mean share of accepted tokens that `acc_and_rate` asks for, itself not enough.
        estimate_context: tokens read right after the prompt (`prompt_gap`) or where they are (`true_prefix`).
        k_set, mode: candidates verified at a position, as in `candidates.widths`.
        draft_len: cap of the drafting.
        stop_below: confidence exit of the drafting.
        reuse_prefix: verify from the first skipped sublayer on saved states (`chain` only).
        search_prompts: prompts to search on; then the best set is kept (Figure 4's frozen set); None: all.

    Raises:
        ConfigError: a value out of range.
    """

    taps = Taps()
    greedy_only = False

    def __init__(
        self, name: str = "conflayers", signal: str = "raw", head_norm: bool = True, stats_dtype: str = "fp16_compat",
        lambda_mode: str = "fixed", lam: float | None = None, lam_by_model: Mapping[str, float] | None = None,
        skip_aim: float = 0.5, base_window: int = 2, window_scale: int = 5, cap_window: bool | None = None,
        centred: bool = True, min_skip_ratio: float = 0.4, context_window: int = 100, interval: int = 30,
        extra_round: bool = True, abort_below: float | None = 1.0, trial_by_prompt: bool = True,
        max_iterations: int = 100, stop_rule: str = "acc_only", stop_accepted: float = 4.0, stop_rate: float = 0.95,
        estimate_context: str = "prompt_gap", k_set: str | Sequence[int] = "paper", mode: str = "greedy",
        draft_len: int = 25, stop_below: float = 0.8, reuse_prefix: bool = False, search_prompts: int | None = None,
    ):  # fmt: skip
        table = dict(lam_by_model or {})
        checks = (
            ("signal", signal in SIGNALS, signal, f"one of {', '.join(SIGNALS)}"),
            ("stats_dtype", stats_dtype in DTYPES, stats_dtype, f"one of {', '.join(DTYPES)}"),
            ("lambda_mode", lambda_mode in LAMBDA_MODES, lambda_mode, f"one of {', '.join(LAMBDA_MODES)}"),
            ("lam", lam is None or math.isfinite(lam), lam, "a number, or null for the model's own"),
            ("lam_by_model", all(map(math.isfinite, table.values())), table, "a number for each model"),
            ("skip_aim", 0 < skip_aim < 1, skip_aim, "a share of the inner blocks in (0, 1)"),
            ("base_window", base_window >= 2, base_window, "at least 2, one neighbour on either side"),
            ("window_scale", window_scale >= 0, window_scale, "at least 0"),
            ("min_skip_ratio", 0 <= min_skip_ratio < 1, min_skip_ratio, "a share of the inner blocks in [0, 1)"),
            ("context_window", context_window >= 1, context_window, "at least 1 token"),
            ("interval", interval >= 2 and interval % 2 == 0, interval, "an even number, 2 or more"),
            ("abort_below", abort_below is None or abort_below >= 0, abort_below, "a number of tokens, or null"),
            ("max_iterations", max_iterations >= 1, max_iterations, "at least 1"),
            ("stop_rule", stop_rule in STOP_RULES, stop_rule, f"one of {', '.join(STOP_RULES)}"),
            ("stop_accepted", stop_accepted >= 0, stop_accepted, "a number of tokens, 0 or more"),
            ("stop_rate", 0 <= stop_rate <= 1, stop_rate, "a rate in [0, 1]"),
            ("estimate_context", estimate_context in CONTEXTS, estimate_context, f"one of {', '.join(CONTEXTS)}"),
            ("draft_len", draft_len >= 1, draft_len, "at least 1 (method=ar drafts nothing)"),
            ("stop_below", 0 <= stop_below <= 1, stop_below, "a probability in [0, 1]"),
            ("search_prompts", search_prompts is None or search_prompts >= 1, search_prompts, "at least 1, or null"),
        )
        refuse("method", checks)
        self.name, self.reuse_prefix = name, reuse_prefix
        self._through_head, self._head_norm, self._dtype = signal == "lm_head", head_norm, DTYPES[stats_dtype]
        self._adaptive, self._lam, self._lam_by_model = lambda_mode == "adaptive", lam, table
        self._aim, self._ratio = skip_aim, min_skip_ratio
        self._windows, self._centred = (base_window, window_scale, cap_window), centred
        self._context, self._interval, self._most = context_window, interval, max_iterations
        self._rounds, self._abort, self._by_prompt = interval + extra_round, abort_below, trial_by_prompt
        self._stop_accepted, self._stop_rate = stop_accepted, stop_rate if stop_rule == "acc_and_rate" else None
        self._gap, self._widths = estimate_context == "prompt_gap", widths(k_set, mode)
        self._draft_len, self._stop_below, self._search_prompts = draft_len, stop_below, search_prompts

    def check(self, dims: ModelDims) -> None:
        """Fix what depends on the model, and begin the search with blocks 1, 3, 5, ...

        Raises:
            ConfigError: fewer than two blocks between the first and the last, which have no second difference.
        """
        n_layers, self._vocab_size = dims.n_layers, dims.vocab_size
        if n_layers < 4:
            raise ConfigError("model", dims.name, f"at least 4 blocks with method={self.name}; it has {n_layers}")
        base, scale, cap = self._windows
        capped = "qwen" in dims.name.lower() if cap is None else cap
        self._rule = Rule(n_layers, self._dtype, base, scale, n_layers // 3 if capped else None, self._centred)
        self._least = int((n_layers - 2) * self._ratio) + 1
        lam = self._lam if self._lam is not None else self._lam_by_model.get(dims.name)
        self._resume(Search(list(range(1, n_layers - 1, 2)), lam))
        self._seen: list[tuple[Tensor, float]] = []

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Nothing to prepare: the search takes place while the first prompts are decoded."""

    def start(self, prefill: Prefill) -> None:
        """The set stays; where the search goes on, a set that is still on trial will be given up (as in the code)."""
        self._prompt_len = len(prefill.prompt)
        self._written: list[int] = []  # tokens of the output that the cache holds
        search = self._search
        self._redo = self._by_prompt or not search.iteration
        if not search.active:
            return
        search.prompts += 1
        if self._search_prompts is not None and search.prompts > self._search_prompts:
            search.active = False
            self._install(search.best_blocks or search.blocks)

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the current set."""
        return self._draft

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Count the round; judge the set and look for another one when it is time.

        Returns:
            After the last round of a trial, for a set that is frozen or noted as the best: the acceptance rate of a
            token whose predecessors were accepted and the mean draft length of that trial, and the tokens per second
            that the latency profile makes of them.
        """
        search, tree = self._search, verification.tree
        if not search.active:
            return None
        self._written += [tree.tokens[node] for node in verification.path]
        if len(self._written) <= self._context + 1:
            return None
        if tree.draft_len:  # the last step of a prompt may have no room to draft
            search.rounds.append((len(verification.path) - 1, tree.draft_len))
        kept = self._judge()
        estimate = self._belief(kept, verification.length, probe) if kept else None
        if search.active and (self._redo or len(search.blocks) < self._least):
            self._renew(verification.length, probe)
        return estimate

    def state(self) -> bytes:
        """The search, as JSON."""
        return json.dumps(asdict(self._search)).encode()

    def restore(self, state: bytes) -> None:
        """Continue a search."""
        self._resume(Search(**json.loads(state)))

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Of every estimate (since a resumed run went on), [rounds, b] over blocks 1 .. L-2: Figure 8."""
        rounds = [self._rule.shown(confidences, lam) for confidences, lam in self._seen]
        if not rounds:
            return {}
        block = {"block": np.arange(1, self._rule.n_layers - 1)}
        return {"confidences": block | {name: np.stack([r[name] for r in rounds]) for name in rounds[0]}}

    def _resume(self, search: Search) -> None:
        self._search = search
        self._install(search.blocks)

    def _install(self, blocks: list[int]) -> None:
        self._search.blocks = blocks
        layer_set = LayerSet.skipping(self._rule.n_layers, attn=blocks, mlp=blocks)
        self._draft = LayerDraft(layer_set, self._draft_len, self._stop_below, self._widths)

    def _judge(self) -> list[tuple[int, int]]:
        """What the trial says of the set, once it is over; the rounds of a set that is to be kept, else nothing."""
        search = self._search
        rounds, enough = search.rounds, len(search.blocks) >= self._least
        if not search.iteration or not rounds:
            return []
        accepted = fmean(m for m, _ in rounds)
        if enough and self._abort is not None and len(rounds) == self._interval // 2 and accepted < self._abort:
            search.rounds, self._redo = [], True
        if len(rounds) < self._rounds:
            return []
        search.rounds, self._redo = [], True
        if not enough:
            return []
        rate = fmean(m / k for m, k in rounds)
        if accepted > self._stop_accepted and (self._stop_rate is None or rate > self._stop_rate):
            search.active = self._redo = False
        elif accepted > search.best_acc:
            search.best_acc, search.best_blocks = accepted, search.blocks
        else:
            return []
        return rounds

    def _belief(self, rounds: list[tuple[int, int]], length: int, probe: Probe) -> Estimate:
        accepted = sum(m for m, _ in rounds)  # of those tested, as Eq. 4 takes it: all up to the first that failed
        alpha, draft_len = accepted / sum(min(k, m + 1) for m, k in rounds), max(1, round(fmean(k for _, k in rounds)))
        draft_ms = probe.latency.draft_ms(self._draft.layer_set, length)
        target_ms = probe.latency.target_ms(self._rule.n_layers, length)
        return Estimate(alpha, draft_len, tpt(alpha, draft_len, draft_ms, target_ms))

    def _renew(self, length: int, probe: Probe) -> None:
        """Choose a set by the confidences of the last tokens; at the last iteration, take the best set instead."""
        search, inner = self._search, self._rule.n_layers - 2
        confidences = self._confidences(length, probe)
        if search.lam is None:
            search.lam = self._rule.calibrated(confidences, max(self._least, round(self._aim * inner)))
        lam = search.lam or 0.0  # confidences without a difference have no λ, and skip nothing at this one
        self._seen.append((confidences.cpu(), lam))
        blocks = self._rule.choose(confidences, lam)
        share = len(blocks) / inner
        if self._adaptive and search.lam is not None:
            search.lam += LAMBDA_STEP * ((share > self._ratio + LAMBDA_BAND) - (share < self._ratio))
        search.iteration += 1
        search.rounds, self._redo = [], False
        if search.iteration >= self._most:
            search.active, blocks = False, search.best_blocks
        self._install(blocks)

    def _confidences(self, length: int, probe: Probe) -> Tensor:
        """Confidences [2 (L - 2)] of the modules of blocks 1 .. L-2 over the last tokens that the cache holds."""
        tokens = self._written[-self._context :]
        prefix = self._prompt_len if self._gap else length - len(tokens)
        stream = probe.embed(tokens)[None]
        found = []
        for i in range(2 * (self._rule.n_layers - 1)):
            after = probe.apply_sublayer(i, stream, prefix)
            if i >= 2:
                found.append(self._confidence(after[0].float() - stream[0].float(), probe))
            stream = after
        return torch.stack(found)

    def _confidence(self, output: Tensor, probe: Probe) -> Tensor:
        """Confidence of a module by its output [n, d]."""
        if not self._through_head:
            return confidence(entropies(output), output.shape[-1])
        # a few positions at a time: the logits of all of them need not exist at once
        parts = output.split(max(1, LOGITS // self._vocab_size))
        found = torch.cat([entropies(probe.logits(part, self._head_norm)) for part in parts])
        return confidence(found, self._vocab_size)
