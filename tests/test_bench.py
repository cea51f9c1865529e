"""The benchmark end to end on a tiny model: every key is there and means what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from ssd_bench import bench as module
from ssd_bench.command import CONF


def test_bench_writes_its_figures(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {
        "ROUNDS": 1,
        "NEW_TOKENS": 6,
        "NODES": (1, 8),
        "CONTEXTS": (16, 32, 64),
        "POLICY_TOKENS": 60,
        "BANDWIDTH_FLOATS": 1000,
    }
    for name, value in small.items():
        monkeypatch.setattr(module, name, value)
    options = [
        "model=local", f"model.path={small_checkpoint}", "model.template=chat", f"runs_dir={tmp_path}", "hardware=cpu",
        "hardware.dtype=float32", "hardware.threads=1",
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        written = json.loads(module.bench(compose("config", overrides=options)).read_text(encoding="utf-8"))
    assert written["ar_over_hf"] == pytest.approx(written["ar_tokens_per_s"] / written["hf_generate_tokens_per_s"])
    assert written["same_output"] == written["prompts"] == 2
    assert written["step_ms"].keys() == {"16", "32", "64"} and written["step_ms"]["16"].keys() == {"1", "8"}
    assert written["ar_4k_over_128"] == written["ar_ms_by_context"]["64"] / written["ar_ms_by_context"]["16"]
    assert 0 < written["outside_forward_share"] < 1 and 0 <= written["knapspec_policy_share"] < 1
    assert written["bandwidth_share"] == pytest.approx(written["ar_tokens_per_s"] / written["bandwidth_tokens_per_s"])
    for found in written["search"].values():
        assert found["tokens"] >= 1 and found["ratio"] == pytest.approx(found["search_ms"] / found["plain_ms"])
    assert written["search"].keys() == {"knapspec", "clasp"}
    assert "AR over Hugging Face" in capsys.readouterr().out
