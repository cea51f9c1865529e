"""The best layer set there is, found by trying every one: what a search can be held against, on models of few blocks.

Every set is scored as an offline search scores it (`layer_search.Objective`, `expected`): the speedup that greedy
drafts over the calibration prompts imply with the measured times of attention and MLP. So no search with the same
objective and prompts finds a better one, and the gap between the two is what the search missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from tqdm import tqdm

from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import Objective, SearchSettings
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Probe, Sample
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims


class Oracle(StoppedDraft):
    """Drafts with the best of all layer sets, or of all that skip a given number of sublayers.

    Args:
        name: name in tables.
        calibration: prompts of each domain that sets are scored on.
        skipped: sublayers that a set skips; None: any number.
        new_tokens: decoded per prompt and set.
        draft_len, stop_below: K and γ, in the scoring and in the run.
        most_sets: refuse a model with more sets than this.
        reuse_prefix: verify from the first skipped sublayer on saved states.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(
        self, name: str = "oracle", calibration: int = 8, skipped: int | None = None, new_tokens: int = 32,
        draft_len: int = 8, stop_below: float = 0.7, most_sets: int = 4096, reuse_prefix: bool = False,
    ):  # fmt: skip
        checks = (
            ("calibration", calibration >= 1, calibration, "at least 1 prompt"),
            ("skipped", skipped is None or skipped >= 0, skipped, "0 or more sublayers, or null for any number"),
            ("new_tokens", new_tokens >= 2, new_tokens, "at least 2: the first comes from the prefill"),
            ("most_sets", most_sets >= 1, most_sets, "at least 1"),
        )
        refuse("method", checks)
        self.name, self.calibration, self.reuse_prefix = name, calibration, reuse_prefix
        self._skipped, self._most, self._stop = skipped, most_sets, DraftStop(draft_len, stop_below)
        self._scoring = SearchSettings(
            objective="expected", new_tokens=new_tokens, draft_len=draft_len, stop_below=stop_below, target_rate=None
        )

    def check(self, dims: ModelDims) -> None:
        """Count the sets.

        Raises:
            ConfigError: there are too many to try, or fewer sublayers than are to be skipped.
        """
        n_sub = 2 * dims.n_layers
        if self._skipped is not None and self._skipped > n_sub:
            raise ConfigError("method.skipped", self._skipped, f"at most {n_sub}, the sublayers of {dims.name}")
        count = 2**n_sub if self._skipped is None else math.comb(n_sub, self._skipped)
        if count > self._most:
            allowed = (
                f"a model, or method.skipped, with at most {self._most} sets (method.most_sets); there are {count}"
            )
            raise ConfigError("method", f"oracle on {dims.name}, {dims.n_layers} blocks", allowed)
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Try every set."""
        objective = Objective(self._scoring, probe, [sample.prompt for sample in samples])
        sets = list(every_set(probe.n_layers, self._skipped))
        bar = tqdm(sets, desc="oracle", unit="set", disable=not sys.stderr.isatty())
        self._layer_set, score = best_set(objective, bar)
        print(f"oracle: score {score:.4f}, the best of {len(sets)} sets", file=sys.stderr)


def every_set(n_layers: int, skipped: int | None = None) -> Iterator[LayerSet]:
    """All layer sets of a model of L blocks, or all that skip so many sublayers, those that skip fewer first."""
    for count in range(2 * n_layers + 1) if skipped is None else (skipped,):
        for indices in combinations(range(2 * n_layers), count):
            yield LayerSet(n_layers, frozenset(indices))


def best_set(objective: Callable[[LayerSet], float], sets: Iterable[LayerSet]) -> tuple[LayerSet, float]:
    """The set of highest score and that score; the first among equals.

    Raises:
        ValueError: no sets.
    """
    score, _, best = max((objective(layer_set), -i, layer_set) for i, layer_set in enumerate(sets))
    return best, score
