"""Sampled tokens of every kind of draft are distributed as AR's.

Tests in other files have prepared trees (`test_lookahead.py`, `test_swift_decoding.py`, `test_self_ssd.py`), windows
(`tests/engine/test_windows.py`) and rounded weights (`tests/model/test_int8.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.lossless import Load, check_sampled, method_of

QUICK = {"context_window": 1, "interval": 2, "draft_len": 2, "stop_below": 0.1, "mode": "sample"}
SEARCHED = {"capture_steps": 1, "min_similarity": -1.0, "protect_first_last": True, "include_zero_skip": False}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "set that changes with every step": (
        "asd",
        {"min_similarity": -1, "refresh": 1, "draft_len": 2, "stop_below": 0.2},
        {},
    ),
    "searches on prompt and every step": ("clasp", {"interval": 1, "draft_len": 2}, {}),
    "tree": ("conflayers_paper", QUICK | {"k_set": "code"}, {}),
    "chain": ("conflayers_logs", QUICK | {"k_set": "chain"}, {}),
    "exit that changes, on saved states": ("del", {"draft_cap": 3}, {"position": 3}),
    "exit, on saved states": ("layerskip", {"exit_layer": 2, "draft_len": 2}, {}),
    "nothing before a search": ("knapspec", SEARCHED | {"draft_len": 1}, {"position": 5, "draws": 300}),
    "set searched offline": (
        "knn_ssd",
        {"calibration": 2, "draft_len": 2, "stop_below": 0.1, "search": {"iterations": 0, "new_tokens": 4}},
        {},
    ),
    "copy": ("prompt_lookup_hf", {}, {}),
    "chain of copies": ("suffix", {}, {}),
    "tree of copies": ("suffix_tree", {}, {}),
    "router": (
        "adaptive",  # a prior that trusts arms at once, so that the tokens come from drafts
        {"rows": 1, "interval": 1, "stake": 8, "margin": 0.0, "prior": 20.0, "thresholds": [0.9]},
        {"position": 4, "draws": 300},
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_samples_are_distributed_as_ar_s(kind: str, decoders: Load) -> None:
    preset, changes, options = CASES[kind]
    check_sampled(lambda: method_of(preset, **changes), decoders, **options)
