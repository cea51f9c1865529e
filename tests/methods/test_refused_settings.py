"""Settings of methods that cannot work, alone or with a model of so many blocks, are refused by field.

`tests/compose/test_settings.py` tries values outside a setting's type.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ssd_bench.errors import ConfigError
from tests.conftest import LAYERS, VOCAB
from tests.lossless import DIMS, method_of


@pytest.mark.parametrize(
    ("preset", "options", "message"),
    [
        ("adaptive", {"thresholds": [0.5, 0.3]}, "method.thresholds="),
        ("adaptive", {"thresholds": [1.0]}, "method.thresholds="),
        ("adaptive", {"exits": []}, "method.exits="),
        ("adaptive", {"pool": 3}, "method.pool="),
        ("adaptive", {"memory": 1}, "method.memory="),
        ("adaptive", {"windows": [[4]]}, "method.windows="),
        ("asd", {"rules_extra": True}, "method.rules_extra="),
        ("clasp", {"skip_blocks": LAYERS}, f"method.skip_blocks=.*this model's {LAYERS}"),  # g[L, M] is undefined
        ("clasp", {"skip_blocks": LAYERS - 1, "protect_first_last": True}, "method.skip_blocks="),
        ("clasp", {"skip_by_layers": {LAYERS: LAYERS - 1}, "protect_first_last": True}, "method.skip_by_layers="),
        ("clasp", {"skip_ratio": 0.9}, f"method.skip_ratio=.*this model's {LAYERS}"),
        ("clasp", {"skip_by_layers": {8: 8}}, "method.skip_by_layers="),
        ("clasp", {"skip_by_layers": {8: -1}}, "method.skip_by_layers="),
        ("conflayers", {"interval": 25}, "method.interval=25 .*even"),
        ("conflayers", {"interval": 0}, "method.interval="),
        ("del", {"draft_len_grid": [5, 1]}, "method.draft_len_grid="),
        ("del", {"draft_len_grid": [1]}, "method.draft_len_grid="),
        ("fixed_layers", {"ratio": None, "skip_attn": [LAYERS]}, "skip_attn="),
        ("fixed_layers", {"ratio": None, "skip_mlp": [-1]}, "skip_mlp="),
        ("fixed_layers", {"ratio": 0.9, "pattern": "attention"}, "method.ratio="),
        ("fixed_layers", {"ratio": None, "published": "swift/none/none"}, "method.published="),
        ("fixed_layers", {"ratio": None, "published": "swift/llama-2-13b/cnndm"}, "method.published="),
        ("fixed_layers", {"ratio": 0.5, "skip_attn": [1]}, "method="),
        ("fixed_layers", {"ratio": None}, "method="),
        ("jacobi", {"pad_id": VOCAB}, "method.pad_id="),
        ("jacobi", {"mode": "HGJ"}, "method.assumed_len="),
        ("jacobi", {"assumed_len": 9}, "method.assumed_len="),
        ("knapspec", {"warmup": "full", "search_on": "prefill"}, "method.warmup="),
        ("knn_ssd", {"groups": 2}, "method.groups="),
        ("knn_ssd", {"search": {"reuse": "x"}}, "method.search.reuse="),
        ("layerskip", {"exit_layer": 8, "exit_ratio": 0.25}, "method.exit_ratio=0.25 .*null, since .*exit_layer=8"),
        ("layerskip", {"exit_layer": LAYERS + 1}, "method.exit_layer="),
        ("layerskip_swept", {"exits": []}, "method.exits="),
        ("layerskip_swept", {"exits": [1, LAYERS]}, "method.exits="),
        ("layerskip_swept", {"draft_lens": []}, "method.draft_lens="),
        ("lookahead", {"window": 60, "ngram": 8, "guesses": 60}, "method.window="),
        ("lookahead", {"window": 21, "ngram": 5, "guesses": 20, "cap": "full"}, "method.window="),
        ("lookahead", {"window": 1, "ngram": 27, "guesses": 0}, "method.window="),
        ("nested_draft", {"draft_window": (4, 60)}, "method.draft_window="),
        ("oracle", {"skipped": 2 * LAYERS + 1}, "method.skipped="),
        ("prompt_lookup", {"min_ngram": 4}, "method.min_ngram=4 .*at most method.max_ngram=3"),
        ("self_ssd", {"widths": [[0.5, 1], [0.9, 3]]}, "method.widths="),
        ("self_ssd", {"widths": [[0.5, 0]]}, "method.widths="),
        ("self_ssd", {"search": {"reuse": {"a": "b"}}}, "method.search.reuse="),
        ("swift", {"reduce_below": 0.7, "max_steps": 0}, "method.reduce_below="),
        ("swift", {"k_set": [1, 2, 3]}, "method.k_set="),
    ],
)
def test_settings_that_cannot_work_are_refused(preset: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        method_of(preset, **options).check(DIMS)


@pytest.mark.parametrize(
    ("preset", "options", "n_layers", "message"),
    [
        ("adaptive", {}, 1, "model.n_layers="),
        ("asd", {}, 2, ".*at least 3 blocks"),
        ("conflayers", {}, 3, ".*at least 4 blocks"),
        ("del", {}, 1, "model.n_layers="),
        ("knapspec", {"protect_first_last": True}, 2, "method.protect_first_last="),
        ("oracle", {}, 16, ".*at most 4096 sets"),
        ("layerskip_swept", {}, 1, "model.n_layers="),
        ("swift", {}, 2, ".*at least 3 blocks"),
    ],
)
def test_models_that_a_method_cannot_decode_are_refused(
    preset: str, options: dict[str, Any], n_layers: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        method_of(preset, **options).check(replace(DIMS, n_layers=n_layers))


@pytest.mark.parametrize(
    ("preset", "options", "n_layers"),
    [
        ("clasp", {"skip_blocks": LAYERS - 1}, LAYERS),
        ("clasp", {"skip_blocks": LAYERS - 2, "protect_first_last": True}, LAYERS),
        ("del", {}, 2),
        ("oracle", {"skipped": 2}, 16),
    ],
)
def test_the_last_that_can_work_is_not_refused(preset: str, options: dict[str, Any], n_layers: int) -> None:
    method_of(preset, **options).check(replace(DIMS, n_layers=n_layers))
