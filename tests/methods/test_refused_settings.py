"""Settings of methods that cannot work, alone or with a model of so many blocks, are refused by field.

`tests/compose/test_settings.py` tries values outside a setting's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from methods.adaptive import Adaptive
from methods.asd import ASD
from methods.clasp import CLaSp
from methods.conflayers import ConfLayers
from methods.dynamic_exit import DEL
from methods.fixed_layers import FixedLayers
from methods.jacobi import Jacobi
from methods.knapspec import KnapSpec
from methods.knn_ssd import KNNSSD
from methods.layer_search import SearchSettings
from methods.layerskip import LayerSkip, SweptLayerSkip
from methods.lookahead import Lookahead
from methods.nested_draft import NestedDraft
from methods.oracle import Oracle
from methods.prompt_lookup import PromptLookup
from methods.self_ssd import SelfSSD
from methods.swift import SWIFT
from ssd_bench.contract.method import Method
from ssd_bench.errors import ConfigError
from tests.conftest import LAYERS, VOCAB
from tests.lossless import DIMS

SEARCH = SearchSettings()


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (Adaptive, {"thresholds": [0.5, 0.3]}, "method.thresholds="),
        (Adaptive, {"thresholds": [1.0]}, "method.thresholds="),
        (Adaptive, {"exits": []}, "method.exits="),
        (Adaptive, {"pool": 3}, "method.pool="),
        (Adaptive, {"memory": 1}, "method.memory="),
        (Adaptive, {"windows": [[4]]}, "method.windows="),
        (Adaptive, {"windows": [[4, 0]]}, "method.windows="),
        (ASD, {"rules_extra": True}, "method.rules_extra="),
        (CLaSp, {"skip_blocks": LAYERS}, f"method.skip_blocks=.*this model's {LAYERS}"),  # g[L, M] is undefined
        (CLaSp, {"skip_blocks": LAYERS - 1, "protect_first_last": True}, "method.skip_blocks="),
        (CLaSp, {"skip_by_layers": {LAYERS: LAYERS - 1}, "protect_first_last": True}, "method.skip_by_layers="),
        (CLaSp, {"skip_ratio": 0.9}, f"method.skip_ratio=.*this model's {LAYERS}"),
        (CLaSp, {"skip_by_layers": {8: 8}}, "method.skip_by_layers="),
        (CLaSp, {"skip_by_layers": {8: -1}}, "method.skip_by_layers="),
        (ConfLayers, {"interval": 25}, "method.interval=25 .*even"),
        (ConfLayers, {"interval": 0}, "method.interval="),
        (ConfLayers, {"k_set": [1, 2]}, "method.k_set="),
        (DEL, {"draft_len_grid": [5, 1]}, "method.draft_len_grid="),
        (DEL, {"draft_len_grid": [-1, 1]}, "method.draft_len_grid="),
        (DEL, {"draft_len_grid": [1]}, "method.draft_len_grid="),
        (FixedLayers, {"skip_attn": [LAYERS]}, "skip_attn="),
        (FixedLayers, {"skip_mlp": [-1]}, "skip_mlp="),
        (FixedLayers, {"ratio": 0.9, "pattern": "attention"}, "method.ratio="),
        (FixedLayers, {"published": "swift/none/none"}, "method.published="),
        (FixedLayers, {"published": "swift/llama-2-13b/cnndm"}, "method.published="),
        (FixedLayers, {"ratio": 0.5, "skip_attn": [1]}, "method="),
        (FixedLayers, {}, "method="),
        (Jacobi, {"pad_id": VOCAB}, "method.pad_id="),
        (Jacobi, {"mode": "HGJ"}, "method.assumed_len="),
        (Jacobi, {"assumed_len": 9}, "method.assumed_len="),
        (KnapSpec, {"draft_len_grid": [5, 1]}, "method.draft_len_grid="),
        (KnapSpec, {"warmup": "full", "search_on": "prefill"}, "method.warmup="),
        (KNNSSD, {"search": SEARCH, "groups": 2}, "method.groups="),
        (KNNSSD, {"search": replace(SEARCH, reuse="x")}, "method.search.reuse="),
        (LayerSkip, {"exit_layer": 8, "exit_ratio": 0.25}, "method.exit_ratio=0.25 .*null, since .*exit_layer=8"),
        (LayerSkip, {"exit_layer": LAYERS + 1}, "method.exit_layer="),
        (SweptLayerSkip, {"exits": []}, "method.exits="),
        (SweptLayerSkip, {"exits": [1, LAYERS]}, "method.exits="),
        (SweptLayerSkip, {"draft_lens": []}, "method.draft_lens="),
        (Lookahead, {"window": 60, "ngram": 8, "guesses": 60}, "method.window="),
        (Lookahead, {"window": 21, "ngram": 5, "guesses": 20, "cap": "full"}, "method.window="),
        (Lookahead, {"window": 1, "ngram": 27, "guesses": 0}, "method.window="),
        (NestedDraft, {"draft_window": (4, 60)}, "method.draft_window="),
        (Oracle, {"skipped": 2 * LAYERS + 1}, "method.skipped="),
        (PromptLookup, {"min_ngram": 4}, "method.min_ngram=4 .*at most method.max_ngram=3"),
        (SelfSSD, {"search": SEARCH, "widths": [[0.5, 1], [0.9, 3]]}, "method.widths="),
        (SelfSSD, {"search": SEARCH, "widths": [[0.5, 0]]}, "method.widths="),
        (SelfSSD, {"search": replace(SEARCH, reuse={"a": "b"})}, "method.search.reuse="),
        (SWIFT, {"reduce_below": 0.7, "max_steps": 0}, "method.reduce_below="),
        (SWIFT, {"k_set": [1, 2, 3]}, "method.k_set="),
        (SWIFT, {"k_set": [0, 1, 2, 3]}, "method.k_set="),
    ],
)
def test_settings_that_cannot_work_are_refused(
    made: Callable[..., Method], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        made(**options).check(DIMS)


@pytest.mark.parametrize(
    ("made", "options", "n_layers", "message"),
    [
        (Adaptive, {}, 1, "model.n_layers="),
        (ASD, {}, 2, ".*at least 3 blocks"),
        (ConfLayers, {}, 3, ".*at least 4 blocks"),
        (DEL, {}, 1, "model.n_layers="),
        (KnapSpec, {"protect_first_last": True}, 2, "method.protect_first_last="),
        (Oracle, {}, 16, ".*at most 4096 sets"),
        (SweptLayerSkip, {}, 1, "model.n_layers="),
        (SWIFT, {}, 2, ".*at least 3 blocks"),
    ],
)
def test_models_that_a_method_cannot_decode_are_refused(
    made: Callable[..., Method], options: dict[str, Any], n_layers: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        made(**options).check(replace(DIMS, n_layers=n_layers))


@pytest.mark.parametrize(
    ("made", "n_layers"),
    [
        (CLaSp(skip_blocks=LAYERS - 1), LAYERS),
        (CLaSp(skip_blocks=LAYERS - 2, protect_first_last=True), LAYERS),
        (DEL(), 2),
        (Oracle(skipped=2), 16),
    ],
)
def test_the_last_that_can_work_is_not_refused(made: Method, n_layers: int) -> None:
    made.check(replace(DIMS, n_layers=n_layers))
