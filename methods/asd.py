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

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from methods.draft_stop import DraftStop, StoppedDraft
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, Prefill, Probe, Taps, Verification
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims


class ASD(StoppedDraft):
    """Skips attentions by the similarity of their input and output on the prompt.

    Args:
        name: name in tables.
        min_similarity: τ, an attention at least this similar is skipped; above 1 none is, at -1 all that may be.
        positions: q, last positions of the prompt (with `refresh`: of the accepted tokens) that count; None: all.
        refresh: T, steps after which the set is chosen anew; None: never.
        rules_extra: the paper's two further rules; not known, so only False is possible.
        draft_len: K, tokens drafted at most.
        stop_below: γ at the start of a prompt: drafting stops after a token less likely than γ.
        target_rate: α*, acceptance rate below which γ rises; None keeps γ fixed.
        rate_decay, stop_step, stop_decay: β1, ε and β2 of the update of γ.
        reuse_prefix: verify from the first skipped sublayer on saved states.

    Raises:
        ConfigError: a value out of range, or `rules_extra`.
    """

    def __init__(
        self, name: str = "asd_style", min_similarity: float = 0.95, positions: int | None = None,
        refresh: int | None = None, rules_extra: bool = False, draft_len: int = 12, stop_below: float = 0.6,
        target_rate: float | None = 0.9, rate_decay: float = 0.5, stop_step: float = 0.01, stop_decay: float = 0.9,
        reuse_prefix: bool = False,
    ):  # fmt: skip
        checks = (
            ("min_similarity", math.isfinite(min_similarity), min_similarity, "a number; above 1 nothing is skipped"),
            ("positions", positions is None or positions >= 1, positions, "at least 1, or null for all"),
            ("refresh", refresh is None or refresh >= 1, refresh, "at least 1, or null for never"),
            ("rules_extra", not rules_extra, rules_extra, "false: the paper's two further rules are not known"),
        )
        refuse("method", checks)
        self.name, self.reuse_prefix = name, reuse_prefix
        self.taps = Taps()
        self.caveat = (
            f"{name} is not all of ASD: the paper's two further rules of removal are not known, and its threshold τ is "
            f"not either; here τ = {min_similarity:g}, by our choice"
        )
        self._min_similarity, self._positions, self._refresh = min_similarity, positions, refresh
        self._stop = DraftStop(draft_len, stop_below, target_rate, rate_decay, stop_step, stop_decay)

    def check(self, dims: ModelDims) -> None:
        """Ask for the states around every attention that may be skipped.

        Raises:
            ConfigError: a model without a block between the first and the last.
        """
        if dims.n_layers < 3:
            raise ConfigError("model", dims.name, f"at least 3 blocks with method={self.name}; it has {dims.n_layers}")
        self._n_layers = dims.n_layers
        around = tuple(range(2, 2 * dims.n_layers - 2))
        self.taps = Taps(prefill=around, verify=around if self._refresh else (), prompt_end=self._positions)

    def start(self, prefill: Prefill) -> None:
        """Choose the set by the prompt; γ and ρ as at the start."""
        assert prefill.hidden is not None, "the taps ask for it"
        self._layer_set = self._chosen(similarities(prefill.hidden))
        self._recent: list[Tensor] = []
        self._stop.start()

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Move γ; with `refresh`, collect similarities and choose again when it is time."""
        self._stop.observe(verification)
        if self._refresh:
            assert verification.hidden is not None, "the taps ask for it"
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            self._recent.append(similarities(verification.hidden.index_select(1, rows)))
            if verification.step % self._refresh == 0:
                self._layer_set = self._chosen(self._last(torch.cat(self._recent, dim=1)))
                self._recent = []
        return None

    def _last(self, by_position: Tensor) -> Tensor:
        """The last q positions of a tensor [_, n, ...]."""
        return by_position if self._positions is None else by_position[:, -self._positions :]

    def _chosen(self, cosines: Tensor) -> LayerSet:
        """The set that skips the attentions of high mean similarity, from [L - 2, n] cosines of blocks 1 .. L - 2."""
        means = cosines.mean(-1).tolist()
        attn = [block for block, mean in enumerate(means, start=1) if mean >= self._min_similarity]
        return LayerSet.skipping(self._n_layers, attn=attn)


def similarities(states: Tensor) -> Tensor:
    """Cosines [k, n], in float32, of the input and output of k attentions, from states [2k, n, d] in that order."""
    pairs = zip(states[0::2], states[1::2])
    return torch.stack([F.cosine_similarity(before.float(), after.float(), dim=-1) for before, after in pairs])
