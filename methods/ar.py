"""Autoregressive decoding: one token per full forward pass, the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Sequence

from methods.settings import Name
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.settings import settings


@settings("method")
class AR:
    """No candidates: the tree is the root alone, so a step is one plain forward pass (M = 1)."""

    taps = Taps()
    reuse_prefix = False
    greedy_only = False

    name: Name = "ar"

    def check(self, dims: ModelDims) -> None:
        """Accept every model."""

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Prepare nothing."""

    def start(self, prefill: Prefill) -> None:
        """Reset nothing: there is no state."""

    def propose(self, context: Context) -> TokenTree:
        """Propose the root alone."""
        return TokenTree((context.output[-1],), (-1,))

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Learn nothing."""
        return None
