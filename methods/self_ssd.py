"""Self-SD (Draft & Verify, Zhang et al., ACL 2024): one layer set, searched before the run, and an adaptive exit.

`methods.layer_search` finds the set; in `methods.draft_stop` γ, the threshold of the exit, follows the acceptance rate.
`methods/fidelity.md` has the presets and the differences from the released code (dilab-zju/self-speculative-decoding).
When sampling, drafted tokens come from the warped distribution, and γ is compared with their raw probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from methods.draft_stop import MovedDraft
from methods.layer_search import SearchSettings, named_set, search
from methods.settings import Calibration, Name, ReusePrefix
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Fits, settings


def are_widths(widths: Sequence[Sequence[float]]) -> bool:
    """Check for pairs of a bound and a count >= 1, the highest bound first."""
    bounds = [pair[0] for pair in widths if len(pair) == 2 and pair[1] >= 1]
    return len(bounds) == len(widths) and bounds == sorted(bounds, reverse=True)


Widths = Annotated[
    Sequence[Sequence[float]],
    Fits("pairs of a probability and a number of candidates >= 1, in descending order", are_widths),
]


@settings("method")
class SelfSSD(MovedDraft):
    """Drafting with an offline search's best layer set; a reused set needs no calibration prompts."""

    searched = True

    search: SearchSettings
    """Settings of the search, or in `reuse` the name of a set to use instead."""
    name: Name = "self_ssd"
    calibration: Calibration = 8
    search_on: Literal["all", "first"] = "all"
    """Search on all domains together, or on the run's first."""
    carry_stop: bool = True
    """Start a prompt with the last prompt's γ."""
    widths: Widths = ()
    """Candidates verified at a depth, by the drafted token's probability (`LayerDraft.widths`); empty: a chain."""
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.search.reuse, Mapping):
            raise ConfigError("method.search.reuse", self.search.reuse, "one name: this method has one set")
        self.calibration = 0 if self.search.reuse else self.calibration

    def check(self, dims: ModelDims) -> None:
        """Draft with the full model until `prepare`.

        Raises:
            ConfigError: an unknown published set, or one for another model.
        """
        self.search.check(dims.n_layers)
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Search on the samples, or take the set to reuse.

        Raises:
            ConfigError: the set to reuse does not exist, or is for another model.
        """
        if isinstance(self.search.reuse, str):
            self._layer_set = named_set(self.search.reuse, probe)
            return
        domains = list(dict.fromkeys(sample.domain for sample in samples))
        if self.search_on == "first":
            samples = [sample for sample in samples if sample.domain == domains[0]]
            domains = domains[:1]
        samples = sorted(samples, key=lambda sample: sample.domain)  # one search, whatever the order of the run
        label = domains[0] if len(domains) == 1 else "mixed"
        self._layer_set = search(self.search, probe, samples, label, self._reading).best.layer_set

    def start(self, prefill: Prefill) -> None:
        self._stop.start(self.carry_stop)

    def propose(self, context: Context) -> LayerDraft:
        return self._stop.draft(self._layer_set, self.widths, self.searched)

    def state(self) -> bytes:
        return self._stop.value.hex().encode()

    def restore(self, state: bytes) -> None:
        self._stop.value = float.fromhex(state.decode())
