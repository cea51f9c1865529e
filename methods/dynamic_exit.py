"""DEL: choose exit and draft length before every step, by tokens per loaded block (Entezari Zarch et al., COLM 2025).

A verification shows every exit's shadow tokens, which it would have drafted: the predictions of final norm and LM head
after its last block. Their share of matches with the target's predictions is the exit's acceptance rate; the mean
confidences of matches and of mismatches give its threshold for ending a draft. The next step drafts with the exit E and
length γ* of highest TPL (KnapSpec, Eq. 2), tokens per loaded block:

    TPL(l, γ) = (1 + a_l + ... + a_l^γ) / (L + γ l)

`methods/fidelity.md` has the presets `del` (DEL_fly_speculation_generator.py in a public fork of the authors'
hoenza/DEL) and `del_knapspec` (the port in kaist-flexml-lab/knapspec @ 8eef1a2), and where both depart from Eq. 2.
Unlike in both, the window of prompt positions ends with the prompt's last one. Positions after the first error of exit
E have no shadow tokens (the codes drop them); when sampling, the accepted path decides.
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from methods.draft_stop import ModelDraft
from methods.settings import DraftLen, DraftLenGrid, Name, ReusePrefix
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Range, Whole, settings

Array = NDArray[np.float64]


@settings("method")
class DEL(ModelDraft):
    """DEL, with a switch for every difference between its codes."""

    name: Name = "del"
    gamma_mode: Literal["dynamic", "tpl_star"] = "dynamic"
    """Draft up to `draft_cap` tokens and end by confidence (dynamic), or draft γ* tokens (tpl_star)."""
    draft_cap: DraftLen = 18
    """Most drafted tokens per step."""
    allow_zero_draft: bool = False
    """Draft nothing if γ* is 0."""
    decay: Annotated[float, Range(0, 1, what="a weight")] = 0.95
    """ω, weight that a step's counts keep in the next step."""
    window: Whole = 32
    """Last prompt positions whose shadow tokens count."""
    draft_len_grid: DraftLenGrid = (0, 17)
    reuse_prefix: ReusePrefix = True
    """Reuse draft states in the verification, including exits before E."""

    def __post_init__(self) -> None:
        self.taps = Taps()
        low, high = self.draft_len_grid
        self._grid = low, high

    def check(self, dims: ModelDims) -> None:
        """Set the exits 1..L-1 and the states after their blocks.

        Raises:
            ConfigError: a one-block model, which has no exit.
        """
        if dims.n_layers < 2:
            raise ConfigError("model.n_layers", dims.n_layers, "at least 2 blocks: an exit comes before the last one")
        self._n_layers = dims.n_layers
        self._sets = [LayerSet.exit(dims.n_layers, blocks) for blocks in range(1, dims.n_layers)]
        blocks = tuple(range(2, 2 * dims.n_layers, 2))
        shadowed = (*blocks, 2 * dims.n_layers) if self.window else ()
        self.taps = Taps(prefill=shadowed, verify=blocks, prompt_end=self.window)

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt at E = 1, γ* = 1, without counts; its last positions count with the first step."""
        self._exit, self._gamma = 1, 1
        self._statistics = ShadowStatistics(self._n_layers - 1, self.decay)
        kept = min(self.window, len(prefill.prompt) - 1)  # the code's window never has the prompt's first position
        self._prompt_states = None
        if prefill.hidden is not None and kept:
            self._prompt_states = prefill.hidden[:, -kept:]

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the blocks before the exit: one token at first, then up to the cap or γ*."""
        threshold = 0.0
        if self._gamma == 0 and self.allow_zero_draft:
            length = 0
        elif context.step == 1 or self.gamma_mode == "tpl_star":
            length = min(max(self._gamma, 1), self.draft_cap)
        else:
            length, threshold = self.draft_cap, self._statistics.threshold(self._exit)
        layer_set = self._reading.set_of(self._sets[self._exit - 1])
        return LayerDraft(layer_set, length, threshold, searched=context.step > 1)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Count this step's shadow tokens, then choose the next E and γ*."""
        if verification.last:  # counts end with their prompt
            return None
        assert verification.hidden is not None
        # positions after a rejected token do not count, since they depend on it; with γ* = 0 they do, as in the code
        counted = len(verification.path) if self._gamma else len(verification.tree)
        states, target = verification.hidden[:, :counted], verification.logits[:counted].argmax(-1)
        if self._prompt_states is not None:
            states = torch.cat([self._prompt_states[:-1], states], dim=1)
            target = torch.cat([probe.predict(self._prompt_states[-1]), target])
            self._prompt_states = None
        tokens, confidence = probe.predict_confident(states)
        # one transfer, so that the host waits for the device once
        match, confidences = torch.stack([tokens == target, confidence]).cpu().numpy()
        self._statistics.update(match.astype(bool), confidences)
        alphas = self._statistics.acceptance()
        self._exit, self._gamma = best_exit(alphas, self._n_layers, self._grid)
        alpha, layer_set = float(alphas[self._exit - 1]), self._reading.set_of(self._sets[self._exit - 1])
        return probe.latency.estimate(alpha, self._gamma, layer_set, verification.length)


class ShadowStatistics:
    """Decayed counts of every exit's shadow tokens: matches and mismatches with the target's predictions.

    Args:
        n_exits: L - 1; row E - 1 belongs to the exit after E blocks.
        decay: ω, applied once per update.

    Attributes:
        counts: [n_exits, 2] float64, matches and mismatches.
        sums: [n_exits, 2] float64, sums of their confidences.
    """

    def __init__(self, n_exits: int, decay: float):
        self._decay = decay
        self.counts, self.sums = np.zeros((2, n_exits, 2))

    def update(self, match: NDArray[np.bool_], confidence: NDArray[np.floating]) -> None:
        """Add T >= 1 positions: `match` and `confidence` [n_exits, T], the tokens' probabilities."""
        kinds = np.stack([match, ~match], axis=1).astype(float)
        self.counts = self._decay * self.counts + kinds.sum(2)
        self.sums = self._decay * self.sums + (kinds * confidence[:, None]).sum(2)

    def acceptance(self) -> Array:
        """Return the exits' acceptance rates a_l, [n_exits] float64 in [0, 1]; needs an update before."""
        total = self.counts.sum(1)
        assert (total > 0).all(), "no shadow token was counted"
        return self.counts[:, 0] / total

    def threshold(self, exit_layer: int) -> float:
        """Return τ_E in [0, 1], midway between the mean confidences of matches and of mismatches.

        If a kind is empty, the other's mean; if both are, 0.5.
        """
        counts, sums = self.counts[exit_layer - 1].tolist(), self.sums[exit_layer - 1].tolist()
        # below the smallest normal number a decayed count has lost its digits, and with them the mean
        means = [s / c for s, c in zip(sums, counts) if c >= sys.float_info.min]
        return sum(means) / len(means) if means else 0.5


def tpl_table(alphas: Array, n_layers: int, grid: tuple[int, int]) -> Array:
    """Return TPL(l, γ) in tokens per block (KnapSpec, Eq. 2): [exits l = 1.., lengths γ of the grid], float64."""
    lengths = np.arange(grid[1] + 1)
    exits = np.arange(1, len(alphas) + 1)
    tokens = (alphas[:, None] ** lengths).cumsum(1)  # 1 + a_l + ... + a_l^γ; 0^0 = 1: the target's own token
    return (tokens / (n_layers + exits[:, None] * lengths))[:, grid[0] :]


def best_exit(alphas: Array, n_layers: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Return (E, γ*) of highest TPL; ties go to the first exit, then the first length."""
    table = tpl_table(alphas, n_layers, grid)
    row, column = divmod(int(table.argmax()), table.shape[1])
    return row + 1, grid[0] + column
