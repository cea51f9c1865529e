"""ASD-style drafting: skip the attentions that change the prompt's states least (after Metel et al., EMNLP 2024).

Known of "Draft on the Fly" (in its Findings; ADMG or ASD elsewhere) from its abstract and others' accounts: only
attentions are skipped; one goes when the cosine similarity of its input and output, taken while the full model reads
the prompt, exceeds a threshold; drafting ends by Draft & Verify's adaptive exit. The body of the paper was not read:
its threshold and its two further rules of removal are not here, hence the name. Decided here:

* the output includes the residual; the similarity of attention l, s_l, is the mean over the last q prompt positions;
* attention l is skipped for s_l >= τ, that of the first and of the last block never;
* on request, the set is chosen anew every T steps, from the tokens accepted since the last choice.

Draft & Verify (Zhang et al., ACL 2024; decoding.py) moves its exit threshold γ after every step by a moving average ρ
of the acceptance rate. Its notebooks carry γ from prompt to prompt; here every prompt starts anew.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.draft_stop import MovedDraft
from methods.settings import Name, ReusePrefix
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, Prefill, Probe, Taps, Verification
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Count, Fits, settings


@settings("method")
class ASD(MovedDraft):
    """Skips attentions by the similarity of their input and output on the prompt."""

    searched = True

    name: Name = "asd_style"
    min_similarity: float = 0.95
    """τ, an attention at least this similar is skipped; above 1 none is, at -1 all that may be."""
    positions: Count | None = None
    """q, last positions of the prompt (with `refresh`: of the accepted tokens) that count; null: all."""
    refresh: Count | None = None
    """T, steps after which the set is chosen anew; null: never."""
    rules_extra: Annotated[bool, Fits("false: the paper's two further rules are not known", lambda on: not on)] = False
    """The paper's two further rules."""
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taps = Taps()
        self.caveat = (
            f"{self.name} is not all of ASD: the paper's two further rules of removal are not known, and its threshold "
            f"τ is not either; here τ = {self.min_similarity:g}, by our choice"
        )

    def check(self, dims: ModelDims) -> None:
        """Ask for the states around every attention that may be skipped.

        Raises:
            ConfigError: a model without a block between the first and the last.
        """
        if dims.n_layers < 3:
            raise ConfigError("model", dims.name, f"at least 3 blocks with method={self.name}; it has {dims.n_layers}")
        self._n_layers = dims.n_layers
        around = tuple(range(2, 2 * dims.n_layers - 2))
        self.taps = Taps(prefill=around, verify=around if self.refresh else (), prompt_end=self.positions)

    def start(self, prefill: Prefill) -> None:
        """Choose the set by the prompt; γ and ρ as at the start."""
        assert prefill.hidden is not None, "the taps ask for it"
        self._layer_set = self._chosen(similarities(prefill.hidden))
        self._recent: list[Tensor] = []
        self._stop.start()

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Move γ; with `refresh`, collect similarities and choose again when it is time."""
        self._stop.observe(verification)
        if self.refresh:
            assert verification.hidden is not None, "the taps ask for it"
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._recent.append(similarities(verification.hidden.index_select(1, rows)))
            if verification.step % self.refresh == 0:
                self._layer_set = self._chosen(self._last(torch.cat(self._recent, dim=1)))
                self._recent = []
        return None

    def _last(self, by_position: Tensor) -> Tensor:
        """The last q positions of a tensor [_, n, ...]."""
        return by_position if self.positions is None else by_position[:, -self.positions :]

    def _chosen(self, cosines: Tensor) -> LayerSet:
        """The set that skips the attentions of high mean similarity, from [L - 2, n] cosines of blocks 1 .. L - 2."""
        means = cosines.mean(-1).tolist()
        attn = [block for block, mean in enumerate(means, start=1) if mean >= self.min_similarity]
        return LayerSet.skipping(self._n_layers, attn=attn)


def similarities(states: Tensor) -> Tensor:
    """Cosines [k, n], in float32, of the input and output of k attentions, from states [2k, n, d] in that order."""
    pairs = zip(states[0::2], states[1::2])
    return torch.stack([F.cosine_similarity(before.float(), after.float(), dim=-1) for before, after in pairs])
