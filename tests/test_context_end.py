"""Outputs that may be longer than the model's context: they end there and say so; the cache holds no more than that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ssd_bench.core.engine import SCRATCH
from ssd_bench.errors import ConfigError
from ssd_bench.metrics import summarise
from ssd_bench.model.kv_cache import BUCKET
from tests.conftest import LAYERS, SIZES
from tests.runs import executed, local_model, planned

CONTEXT = 900


@pytest.fixture(scope="module")
def short_context(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 900 positions that never ends an output by itself."""
    folder = tmp_path_factory.mktemp("short") / "model"
    shutil.copytree(small_checkpoint, folder)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        content.pop("eos_token_id")
        (folder / name).write_text(json.dumps(content | {"max_position_embeddings": CONTEXT}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("method", ["swift", "jacobi"])
def test_aime_with_32k_new_tokens_ends_at_the_context(method: str, short_context: Path, tmp_path: Path) -> None:
    options = ("task=aime24", "limit=2", f"method={method}", "decode.max_new_tokens=32768")
    run = executed(tmp_path, *local_model(short_context), *options)
    assert set(run.prompts["finish_reason"]) == {"context"}
    # the last token's own keys and values are never needed: it may stand one position past the context
    assert (run.prompts["prompt_len"] + run.prompts["new_tokens"] == CONTEXT + 1).all()
    method_rows = run.prompts[run.prompts["arm"] == "method"]
    assert set(method_rows["lossless"]) == {"identical"}
    summary = summarise(run)
    assert summary["finish_context"] == 2
    assert any("2 of 2 outputs ended at the end of the model's context" in text for text in summary["warnings"])
    row_bytes = 2 * LAYERS * SIZES["num_key_value_heads"] * 8 * 4  # keys and values, head width 8, float32
    model = run.header["model"]
    assert (
        model["cache_rows"] == min(CONTEXT + SCRATCH, BUCKET)
        and model["cache_bytes"] == (CONTEXT + SCRATCH) * row_bytes
    )


def test_a_prompt_as_long_as_the_context_is_refused_before_anything_loads(short_context: Path, tmp_path: Path) -> None:
    text = json.dumps({"id": "long", "problem": "what is 1 + 1 " * 200, "answer": "2"})
    (tmp_path / "aime24.jsonl").write_text(text + "\n", encoding="utf-8")
    options = ("task=aime24", "data=local", f"data.root={tmp_path}", *local_model(short_context))
    with pytest.raises(ConfigError, match=r"prompt='long' .*at most 899 tokens \(context 900\).*aime24 does not clip"):
        planned(tmp_path, *options)


def test_a_task_that_clips_keeps_room_for_the_whole_answer(short_context: Path, tmp_path: Path) -> None:
    options = ("task=cnn_dm", "decode.max_new_tokens=800", *local_model(short_context))
    with pytest.raises(ConfigError, match=r"decode\.max_new_tokens=800 .*at most 649.*reserve of 250"):
        planned(tmp_path, *options)
