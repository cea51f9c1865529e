"""The exhaustive search: every set once, nothing better than its answer, and no model too large for it."""

from __future__ import annotations

import math

import torch

from methods.layer_search import Objective, SearchSettings
from methods.oracle import Oracle, all_layer_sets
from ssd_bench.contract.method import Probe, Sample
from ssd_bench.contract.shape import ModelDims
from tests.conftest import LAYERS

SAMPLES = [Sample([5, 6, 7], "a"), Sample([40, 41], "a")]
SCORING = SearchSettings(new_tokens=6, draft_len=3, stop_below=0.0, target_rate=None)


def test_every_set_comes_once() -> None:
    assert len(set(all_layer_sets(3))) == len(list(all_layer_sets(3))) == 2**6
    some = list(all_layer_sets(3, skipped=2))
    assert len(set(some)) == len(some) == math.comb(6, 2) and all(len(s.skipped) == 2 for s in some)


def test_no_set_is_better(probe: Probe) -> None:
    with torch.inference_mode():
        method = Oracle(calibration=2, skipped=1, new_tokens=6, draft_len=3, stop_below=0.0)
        method.check(ModelDims("tiny", LAYERS, 1, 64, 64))
        method.prepare(probe, SAMPLES)
        objective = Objective(SCORING, probe, [sample.prompt for sample in SAMPLES])
        scores = {layer_set: objective(layer_set) for layer_set in all_layer_sets(LAYERS, 1)}
        assert scores[method._layer_set] == max(scores.values())
