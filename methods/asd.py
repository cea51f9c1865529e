"""ASD-style drafting: skip the attentions that change the prompt's states least (after Metel et al., EMNLP 2024).

"Draft on the Fly" (in the Findings; elsewhere ADMG or ASD) is known here only from its abstract and other papers: only
attentions are skipped, if the cosine of input and output in the prompt exceeds a threshold; drafting ends by Draft &
Verify's adaptive exit. Its threshold and two removal rules are unknown, hence the name. Decided here:

* the output includes the residual; s_l, the similarity of attention l, is the mean over the last q prompt positions;
* attention l is skipped if s_l >= τ, never in the first or last block;
* with `refresh`, the set is chosen anew every T steps from the tokens accepted since;
* the exit's threshold starts anew with every prompt.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.draft_stop import MovedDraft
from methods.settings import Name, ReusePrefix
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Prefill, Probe, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Fits, settings


@settings("method")
class ASD(MovedDraft):
    """Drafting without the attentions whose input and output are most similar on the prompt."""

    searched = True

    name: Name = "asd_style"
    min_similarity: float = 0.95
    """τ, smallest similarity for skipping an attention; above 1: never; -1: all inner attentions."""
    positions: Count | None = None
    """q, last positions of the prompt (with `refresh`: of the accepted tokens) that count; null: all."""
    refresh: Count | None = None
    """T, steps between choices of the set; null: one choice per prompt."""
    rules_extra: Annotated[bool, Fits("false: the paper's two further rules are not known", lambda on: not on)] = False
    """The paper's two further rules."""
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taps = Taps()
        self.caveat = (
            f"{self.name} implements part of ASD: the paper's two further rules of removal and its threshold τ are "
            f"unknown to us; here τ = {self.min_similarity:g}, by our choice"
        )

    def check(self, dims: ModelDims) -> None:
        """Ask for the states around every attention that may be skipped.

        Raises:
            ConfigError: no block between the first and the last.
        """
        if dims.n_layers < 3:
            raise ConfigError("model", dims.name, f"a model of at least 3 blocks; it has {dims.n_layers}")
        self._n_layers = dims.n_layers
        around = tuple(range(2, 2 * dims.n_layers - 2))
        self.taps = Taps(prefill=around, verify=around if self.refresh else (), prompt_end=self.positions)

    def start(self, prefill: Prefill) -> None:
        assert prefill.hidden is not None, "the taps ask for it"
        self._layer_set = self._choose(similarities(prefill.hidden))
        self._recent: list[Tensor] = []
        self._stop.start()

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Move γ; with `refresh`, collect similarities and choose a set when due."""
        self._stop.observe(verification)
        if self.refresh:
            assert verification.hidden is not None, "the taps ask for it"
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._recent.append(similarities(verification.hidden.index_select(1, rows)))
            if verification.step % self.refresh == 0:
                recent = torch.cat(self._recent, dim=1)
                last = self.positions or recent.shape[1]
                self._layer_set = self._choose(recent[:, -last:])
                self._recent = []
        return None

    def _choose(self, cosines: Tensor) -> LayerSet:
        """Return the set without attentions of high mean similarity; cosines are [L - 2, n], of blocks 1 .. L - 2."""
        means = cosines.mean(-1).tolist()
        attn = [block for block, mean in enumerate(means, start=1) if mean >= self.min_similarity]
        return LayerSet.skipping(self._n_layers, attn=attn)


def similarities(states: Tensor) -> Tensor:
    """Return cosines [k, n] float32 of input and output of k attentions, from states [2k, n, d] in that order."""
    pairs = zip(states[0::2], states[1::2])
    return torch.stack([F.cosine_similarity(before.float(), after.float(), dim=-1) for before, after in pairs])
