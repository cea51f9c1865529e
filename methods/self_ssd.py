"""Self-SD (Draft & Verify, Zhang et al., ACL 2024): one layer set, searched before the run, and an adaptive exit.

The set comes from `methods.layer_search`; a step drafts up to K tokens with it, ends after a token less likely than γ,
and γ follows the acceptance rate (`methods.draft_stop`). Its published settings and those that later papers compare
with are presets: `self_ssd` (the evaluation notebooks, but for what the search maximises), `self_ssd_wallclock` (in
that, too), `self_ssd_fix` and `self_ssd_mix` (KNN-SSD's baselines on a stream of tasks: γ fixed, the set searched on
the first task or on all of them) and `self_ssd_dynamic_ver` (SWIFT's comparison: the searched set with SWIFT's tree of
candidates).

What differs from the released code (dilab-zju/self-speculative-decoding):

* nothing is drafted where the length limits leave no room (decoding.py drafts one token always), and nothing after
  EOS; its output runs over EOS to the end of the cycle;
* sampling draws each drafted token from the warped distribution, compares its raw probability with γ, and verifies
  with random numbers of their own; the code's default there is γ = 0.5 (decoding.py:190), the preset's is 0.6;
* γ is carried from prompt to prompt, as the notebooks do, so that a resumed run restores it; ρ is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import SearchSettings, named_set, search
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, LayerDraft, Prefill, Probe, Sample
from ssd_bench.errors import refuse
from ssd_bench.model.shape import ModelDims

SEARCH_ON = ("all", "first")


class SelfSSD(StoppedDraft):
    """Drafts with the best layer set of an offline search.

    Args:
        search: how to search, or what to reuse instead.
        name: name in tables.
        calibration: prompts of each domain for the search; none are asked for when a set is reused.
        search_on: `all` domains of the run together, or the `first` that it meets.
        draft_len: K, tokens drafted at most.
        stop_below: γ at the start: drafting stops after a token less likely than γ.
        target_rate: α*, acceptance rate below which γ rises; None keeps γ fixed.
        rate_decay, stop_step, stop_decay: β1, ε and β2 of the update of γ.
        carry_stop: a prompt starts with the γ that the one before ended with.
        widths: (probability, k) pairs, highest first: candidates verified at a depth, by the drafted token's
            probability (`LayerDraft.widths`); none verifies a chain.
        reuse_prefix: verify from the first skipped sublayer on saved states.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(
        self,
        search: SearchSettings,
        name: str = "self_ssd",
        calibration: int = 8,
        search_on: str = "all",
        draft_len: int = 12,
        stop_below: float = 0.6,
        target_rate: float | None = 0.9,
        rate_decay: float = 0.5,
        stop_step: float = 0.01,
        stop_decay: float = 0.9,
        carry_stop: bool = True,
        widths: Sequence[Sequence[float]] = (),
        reuse_prefix: bool = False,
    ):
        bounds = [pair[0] for pair in widths]
        falling = all(len(pair) == 2 and pair[1] >= 1 for pair in widths) and bounds == sorted(bounds, reverse=True)
        single = not isinstance(search.reuse, Mapping)
        checks = (
            ("calibration", calibration >= 1, calibration, "at least 1 prompt"),
            ("search_on", search_on in SEARCH_ON, search_on, f"one of {', '.join(SEARCH_ON)}"),
            ("widths", falling, widths, "pairs of a probability and at least 1 candidate, the highest first"),
            ("search.reuse", single, search.reuse, "one name: this method has one set"),
        )
        refuse("method", checks)
        self.name, self.reuse_prefix = name, reuse_prefix
        self.calibration = 0 if search.reuse else calibration
        self._search, self._search_on, self._carry, self._widths = search, search_on, carry_stop, widths
        self._stop = DraftStop(draft_len, stop_below, target_rate, rate_decay, stop_step, stop_decay)

    def check(self, dims: ModelDims) -> None:
        """Draft with the full model until `prepare`.

        Raises:
            ConfigError: a published set that is unknown or of another model.
        """
        self._search.check(dims.n_layers)
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Search on the samples, or take the set that is to be reused.

        Raises:
            ConfigError: nothing of the name to reuse is there, or it is of another model.
        """
        if isinstance(self._search.reuse, str):
            self._layer_set = named_set(self._search.reuse, probe)
            return
        domains = list(dict.fromkeys(sample.domain for sample in samples))
        if self._search_on == "first":
            samples = [sample for sample in samples if sample.domain == domains[0]]
            domains = domains[:1]
        label = domains[0] if len(domains) == 1 else "mixed"
        self._layer_set = search(self._search, probe, samples, label).best.layer_set

    def start(self, prefill: Prefill) -> None:
        """ρ starts anew, γ too unless it is carried over."""
        self._stop.start(self._carry)

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the searched set."""
        return self._stop.draft(self._layer_set, self._widths)

    def state(self) -> bytes:
        """γ."""
        return self._stop.value.hex().encode()

    def restore(self, state: bytes) -> None:
        """Continue with the γ of `state`."""
        self._stop.value = float.fromhex(state.decode())
