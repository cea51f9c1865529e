"""Parts shared by methods that draft with layers: stop rules, a window of the cache, rounded weights.

All are `ModelDraft`s; a `StoppedDraft` has one layer set and a stop, a `MovedDraft` a threshold that follows the
acceptance rate.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar

from methods.settings import DraftLen, DraftWeights, DraftWindow, StopBelow, TargetRate
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method, Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.window import Window
from ssd_bench.settings import Range, Share, settings


@dataclass(frozen=True)
class Reading:
    """Parts of the model that drafts read.

    Attributes:
        window: read positions; None: all.
        bits: bits of all weights, including the head; 0: as loaded.
    """

    window: Window | None = None
    bits: int = 0

    def set_of(self, layer_set: LayerSet) -> LayerSet:
        """Return a set as it drafts."""
        return layer_set if self == ALL else _as_read(layer_set, self)


@lru_cache
def _as_read(layer_set: LayerSet, reading: Reading) -> LayerSet:
    return replace(layer_set.in_bits(reading.bits) if reading.bits else layer_set, window=reading.window)


DRAFT_BITS = {f"int{bits}": (bits,) for bits in BITS}
"""Bits of all sublayers' weights, by the value of `draft_weights`."""
ALL = Reading()


@dataclass
class DraftStop:
    """A stop rule: draft at most K tokens, and stop after one less likely than γ, which follows the acceptance rate ρ.

    After a step that drafted k > 0 tokens, of which m were accepted (Zhang et al., ACL 2024; decoding.py:62-183):

        ρ ← β1 ρ + (1 - β1) m/k;  γ' = γ + ε if ρ < α*, γ if k = K, else γ - ε;  γ ← β2 γ + (1 - β2) γ'

    Attributes:
        draft_len: K.
        stop_below: γ at the start; the token less likely than γ stays in the draft.
        target_rate: α*, acceptance rate below which γ rises; None keeps γ fixed.
        rate_decay, stop_step, stop_decay: β1, ε and β2.
        value: γ.
    """

    draft_len: int
    stop_below: float
    target_rate: float | None = None
    rate_decay: float = 0.5
    stop_step: float = 0.01
    stop_decay: float = 0.9
    reading: Reading = ALL

    def __post_init__(self) -> None:
        self.value, self._rate = self.stop_below, 0.0

    def start(self, carry: bool = False) -> None:
        """Reset ρ to 0, and γ to its start unless carried over."""
        self._rate = 0.0
        if not carry:
            self.value = self.stop_below

    def draft(
        self, layer_set: LayerSet, widths: Sequence[Sequence[float]] = (), searched: bool | None = None
    ) -> LayerDraft:
        """Return the next step's draft; `widths` and `searched` as in `LayerDraft`."""
        pairs = tuple((bound, int(k)) for bound, k in widths)
        return LayerDraft(self.reading.set_of(layer_set), self.draft_len, self.value, pairs, searched)

    def observe(self, verification: Verification) -> None:
        """Move γ after a step with a draft."""
        drafted, accepted = verification.tree.draft_len, len(verification.path) - 1
        if self.target_rate is None or not drafted:
            return
        # ρ ← β1 ρ + (1 - β1) m/k
        self._rate = self.rate_decay * self._rate + (1 - self.rate_decay) * accepted / drafted
        moved = self.value  # γ'
        if self._rate < self.target_rate:
            moved += self.stop_step
        elif drafted < self.draft_len:
            moved -= self.stop_step
        # γ ← β2 γ + (1 - β2) γ'
        self.value = self.stop_decay * self.value + (1 - self.stop_decay) * moved


@settings("method", kw_only=True)
class ModelDraft(Method):
    """A method that drafts with layers, perhaps with a window of the cache and rounded weights."""

    draft_window: DraftWindow | None = None
    """Window of a draft's attentions, [sinks, recent]: they read the first `sinks` and the last `recent` positions, and
    `reuse_prefix` has no effect; null: all positions."""
    draft_weights: DraftWeights = "full"
    """Weights that drafts read: as loaded (full), or in 8 or 4 bits (int8, int4), where `reuse_prefix` has no effect.
    Searches on states read full weights; draft times are those of rounded weights."""

    @property
    def bits(self) -> Collection[int]:
        """Bits of the rounded weights that drafts read."""
        return DRAFT_BITS.get(self.draft_weights, ())

    @cached_property
    def _reading(self) -> Reading:
        window = None if self.draft_window is None else Window(*self.draft_window)
        return Reading(window, *DRAFT_BITS.get(self.draft_weights, ()))


class StoppedDraft(ModelDraft):
    """A method that drafts every step with one layer set until a stop; subclasses set `_layer_set` and `_stop`."""

    searched: ClassVar[bool | None] = None
    """Whether a search chooses the set, as in `LayerDraft`."""

    _layer_set: LayerSet
    _stop: DraftStop

    def start(self, prefill: Prefill) -> None:
        self._stop.start()

    def propose(self, context: Context) -> LayerDraft:
        return self._stop.draft(self._layer_set, searched=self.searched)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        self._stop.observe(verification)
        return None


@settings("method", kw_only=True)
class WholeDraft(StoppedDraft):
    """A method that drafts with all sublayers."""

    draft_len: DraftLen = 4
    stop_below: StopBelow = 0.0

    def __post_init__(self) -> None:
        self._stop = DraftStop(self.draft_len, self.stop_below, reading=self._reading)

    def check(self, dims: ModelDims) -> None:
        self._layer_set = LayerSet.full(dims.n_layers)


@settings("method", kw_only=True)
class MovedDraft(StoppedDraft):
    """A method whose threshold γ follows the acceptance rate."""

    draft_len: DraftLen = 12
    stop_below: StopBelow = 0.6
    """Initial γ; a token less likely than γ ends the draft, and stays in it."""
    target_rate: TargetRate = 0.9
    rate_decay: Share = 0.5
    """β1, weight that ρ keeps in a step."""
    stop_step: Annotated[float, Range(0)] = 0.01
    """ε, step of γ."""
    stop_decay: Share = 0.9
    """β2, weight that γ keeps in a step."""

    def __post_init__(self) -> None:
        moved = self.target_rate, self.rate_decay, self.stop_step, self.stop_decay
        self._stop = DraftStop(self.draft_len, self.stop_below, *moved, reading=self._reading)
