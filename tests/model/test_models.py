"""The models of `conf/model`: each composes, is planned without weights, and says how to get them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.contract.shape import Shape
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.sweep import dry
from tests.runs import ROOT, chosen, composed

MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
LAYERSKIP = {  # models, and the ends of their checkpoints' ids
    "llama2_7b": "llama2-7B",
    "llama2_13b": "llama2-13B",
    "llama2_70b": "llama2-70B",
    "llama3_8b": "llama3-8B",
    "llama3_2_1b": "llama3.2-1B",
    "codellama_7b": "codellama-7B",
    "codellama_34b": "codellama-34B",
}
SIZES = {  # billions of parameters, where a name does not say them
    "layerskip_llama3_2_1b": 1.24,
    "llama3_2_1b": 1.24,
    "llama3_2_3b": 3.21,
    "qwen3_0_6b": 0.6,
    "qwen3_1_7b": 1.72,
    "qwen3_4b": 4.02,
    "miniature": 0.0029,
    "miniature_plain": 0.0029,
    "smollm2_135m": 0.135,
    "smollm2_135m_hub": 0.135,
    "qwen2_5_coder_0_5b": 0.63,  # with a head of its own
    "qwen2_5_coder_0_5b_hub": 0.494,
    "qwen2_5_coder_1_5b": 1.78,
    "qwen2_5_coder_1_5b_hub": 1.54,
}


@pytest.fixture(scope="module")
def options() -> DictConfig:
    return composed("model=miniature", "data=hub", "task=gsm8k", "limit=2", "method=del")


def comments(name: str) -> list[str]:
    text = (CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line.startswith("#")]


@pytest.mark.parametrize("name", [name for name in MODELS if name != "local"])
def test_a_model_can_be_planned_without_its_weights(name: str, options: DictConfig) -> None:
    options.model = chosen("model", name)
    source = build(options, "model")
    assert source.name == name and source.shape is not None
    shape = Shape(**source.shape)
    stated = re.search(r"_(\d+)b(?:_|$)", name)
    size = SIZES.get(name) or float(stated[1] if stated else "nan")
    assert shape.n_params / 1e9 == pytest.approx(size, rel=0.1), name
    assert shape.n_heads % shape.n_kv_heads == 0
    found = dry.estimate(options, "sim_h100")
    assert found.prompts == 2 and found.hours and found.gigabytes


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_its_licence_and_how_to_get_in(name: str) -> None:
    (licence,) = [line for line in comments(name) if line.startswith("# Licence: ")]
    assert not any("Gated:" in line for line in comments(name))
    hub = str(OmegaConf.load(CONF / "model" / f"{name}.yaml").get("hub") or "")
    gated = hub.startswith(("meta-llama/", "facebook/"))
    assert ("; gated: " in licence and "`hf auth login`" in licence) == gated
    assert ("request form" in licence) == hub.startswith("facebook/")
    assert gated or not hub or "; not gated" in licence


def test_the_checkpoints_of_layerskip_are_there_with_their_bases_sizes() -> None:
    assert {name for name in MODELS if name.startswith("layerskip")} == {f"layerskip_{base}" for base in LAYERSKIP}
    for base, end in LAYERSKIP.items():
        source = chosen("model", f"layerskip_{base}")
        assert (source.hub, source.template) == (f"facebook/layerskip-{end}", chosen("model", "llama3_8b").template)
        assert "FAIR Noncommercial Research License" in " ".join(comments(f"layerskip_{base}"))
        assert base == "codellama_7b" or source.shape == chosen("model", base).shape


def test_the_limits_count_the_pinned_models() -> None:
    entries = [OmegaConf.load(path) for path in Path(CONF / "model").glob("*.yaml")]
    revisions = [str(one.revision) for one in entries if one.get("hub")]
    pinned = sum(re.fullmatch(r"[0-9a-f]{40}", one) is not None for one in revisions)
    assert pinned + revisions.count("main") == len(revisions)
    limits = " ".join((ROOT / "docs" / "limits.md").read_text(encoding="utf-8").split())
    assert f"{pinned} of {len(revisions)} models are pinned" in limits


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8}, "repetition_penalty=1.05"),
        ({"suppress_tokens": [1, 2], "no_repeat_ngram_size": 3}, "no_repeat_ngram_size=3, suppress_tokens=[1, 2]"),
        ({"bad_words_ids": [[7]] * 500}, "bad_words_ids=[[7]"),
        ({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "bad_words_ids": None, "do_sample": True}, None),
        (None, None),
    ],
)
def test_a_checkpoint_says_which_logits_processors_are_not_applied(
    settings: dict[str, object] | None, named: str | None, tmp_path: Path
) -> None:
    if settings is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    warnings = Checkpoint(tmp_path).unapplied_settings()
    assert len(warnings) == (named is not None)
    for warning in warnings:
        assert f"in the papers: {named}" in warning and "temperature" not in warning and len(warning) < 400


# ---- places of a checkpoint


def test_an_unreachable_hub_names_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.*hf download nobody/nothing.*model=smollm2_135m"):
        ModelSource("m", "plain", hub="nobody/nothing").open()


def test_eos_ids_follow_generation_config(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(checkpoints["llama"] / "config.json", tmp_path)
    assert Checkpoint(tmp_path).eos_ids == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}), encoding="utf-8")
    assert Checkpoint(tmp_path).eos_ids == {7, 9}
