"""The best of all layer sets, by exhaustive search: an upper bound for searches, on models of few blocks.

Every set has the score of an offline search (`layer_search.Objective`, `expected`): the speedup of greedy drafts over
the calibration prompts at measured times of attention and MLP.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Annotated

from tqdm import tqdm

from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import Objective, SearchSettings
from methods.settings import Calibration, DraftLen, Name, NewTokens, ReusePrefix, StopBelow
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe, Sample
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, settings


@settings("method")
class Oracle(StoppedDraft):
    """Drafting with the best of all layer sets, or of all with `skipped` sublayers."""

    searched = True

    name: Name = "oracle"
    calibration: Calibration = 8
    skipped: Annotated[int, Range(0, what="a number of sublayers")] | None = None
    """Number of skipped sublayers; null: any."""
    new_tokens: NewTokens = 32
    draft_len: DraftLen = 8
    stop_below: StopBelow = 0.7
    most_sets: Count = 4096
    """Most sets; a model with more is refused."""
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        self._stop = DraftStop(self.draft_len, self.stop_below, reading=self._reading)
        self._scoring = SearchSettings(
            new_tokens=self.new_tokens, draft_len=self.draft_len, stop_below=self.stop_below, target_rate=None
        )

    def check(self, dims: ModelDims) -> None:
        """Refuse a model with too many sets.

        Raises:
            ConfigError: too many sets, or fewer sublayers than `skipped`.
        """
        n_sub = 2 * dims.n_layers
        if self.skipped is not None and self.skipped > n_sub:
            raise ConfigError("method.skipped", self.skipped, f"at most {n_sub}, the sublayers of {dims.name}")
        count = 2**n_sub if self.skipped is None else math.comb(n_sub, self.skipped)
        if count > self.most_sets:
            expected = (
                f"a model, or method.skipped, with at most {self.most_sets} sets (method.most_sets); there are {count}"
            )
            raise ConfigError("method", f"oracle on {dims.name}, {dims.n_layers} blocks", expected)
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        prompts = [sample.prompt for sample in samples]
        objective = Objective(self._scoring, probe, prompts, reading=self._reading)
        sets = list(all_layer_sets(probe.n_layers, self.skipped))
        bar = tqdm(sets, desc="oracle", unit="set", disable=not sys.stderr.isatty())
        scores = {layer_set: objective(layer_set) for layer_set in bar}
        self._layer_set = max(scores, key=scores.__getitem__)  # of equal ones the first, which skips fewest
        print(f"oracle: score {scores[self._layer_set]:.4f}, the best of {len(sets)} sets", file=sys.stderr)


def all_layer_sets(n_layers: int, skipped: int | None = None) -> Iterator[LayerSet]:
    """Yield a model's layer sets, or those with `skipped` sublayers; sets that skip fewer come first."""
    for count in range(2 * n_layers + 1) if skipped is None else (skipped,):
        for indices in combinations(range(2 * n_layers), count):
            yield LayerSet(n_layers, frozenset(indices))
