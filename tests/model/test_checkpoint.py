"""Sources of models, refusals, and real models against transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ssd_bench.compose.build import build
from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.decoder import Pass
from ssd_bench.model.weights import architecture
from ssd_bench.paths import cache_dir
from ssd_bench.run import arms
from tests.run.test_third_arm import Here
from tests.runs import composed, executed


@pytest.mark.parametrize("places", [{}, {"path": "a", "hub": "b"}])
def test_exactly_one_place(places: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        ModelSource("m", "plain", **places)  # type: ignore[arg-type]


def test_an_unreachable_hub_names_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.*hf download nobody/nothing.*model=smollm2_135m"):
        ModelSource("m", "plain", hub="nobody/nothing").open()


def test_eos_ids_follow_generation_config(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(checkpoints["llama"] / "config.json", tmp_path)
    assert Checkpoint(tmp_path).eos_ids == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}), encoding="utf-8")
    assert Checkpoint(tmp_path).eos_ids == {7, 9}


def test_text_is_decoded_without_clean_up(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`decode` removes spaces before punctuation if tokenizer_config.json asks for it, which changes scores."""
    folder = Path(shutil.copytree(small_checkpoint, tmp_path / "model"))
    size = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    words = ["<unk>", *("it", "'s", "ok", ".", ",", "!", "?", "do", "n't"), *(f".w{i}" for i in range(10, size))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", clean_up_tokenization_spaces=True)
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["clean_up_tokenization_spaces"] is True
    checkpoint = ModelSource("local", "plain", path=str(folder)).open()
    ids = [1, 2, 3, 4, 5, 8, 9]
    assert checkpoint.tokenizer.decode(ids) == "it's ok., don't"
    assert checkpoint.text(ids) == "it 's ok . , do n't"
    local = ("model=local", f"model.path={folder}", "model.template=plain")
    options = ("task=gsm8k", "limit=1", "method=fixed_layers", "decode.max_new_tokens=32", "baseline=hf")
    monkeypatch.setattr(arms, "HFProcess", Here)
    run = executed(tmp_path / "runs", *local, *options)
    for ids, text in zip(run.prompts["output_ids"], run.prompts["text"], strict=True):
        assert text == " ".join(words[i] for i in ids if i) and " .w" in text
    assert set(run.prompts["arm"]) == {"ar", "method", "hf"}


@pytest.mark.smollm2
def test_smollm2_parity_with_transformers() -> None:
    """The real model, float32: prefill, cached decode and a tree within 1e-4 of transformers' logits."""
    kernels = ["torch"] if native_problem() else ["torch", "native"]
    agrees_with_transformers(build(composed("model=smollm2_135m"), "model").open(), kernels, rope_theta=100_000)


@pytest.mark.smollm2
@pytest.mark.skipif(bool(native_problem()), reason=native_problem())
def test_qwen2_5_coder_parity_with_transformers() -> None:
    """The real model with biases, an untied head and the largest activations, if it was fetched."""
    source = build(composed("model=qwen2_5_coder_0_5b"), "model")
    if not (source.packaged.converted(cache_dir()) / "config.json").is_file():
        pytest.skip("needs 0.5 GB: make weights MODEL=qwen2_5_coder_0_5b")
    checkpoint = source.open()
    prompt = checkpoint.tokenizer.decode(source.prompting.ids(checkpoint.tokenizer, ["Write a haiku."]))
    assert prompt.endswith("<|im_start|>user\nWrite a haiku.<|im_end|>\n<|im_start|>assistant\n")
    source.check_shape(architecture(checkpoint))
    agrees_with_transformers(checkpoint, ["native"], rope_theta=1_000_000)


def agrees_with_transformers(checkpoint: Checkpoint, all_kernels: list[str], rope_theta: float) -> None:
    model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32)
    assert model.config.rope_parameters["rope_theta"] == rope_theta
    text = "A train leaves at nine and covers sixty miles an hour. " * 3
    ids = torch.tensor(checkpoint.tokenizer(text)["input_ids"])
    with torch.no_grad():
        expected = model(torch.cat([ids, torch.tensor([504, 260])])[None]).logits[0]
    for kernels in all_kernels:
        decoder = select("cpu", torch.float32, kernels).load(checkpoint, torch.float32, [torch.device("cpu")])
        cache = decoder.new_cache(len(ids) + 8)
        last, _ = decoder.prefill(ids[:-4], cache)
        got = [decoder.logits(last)]
        for token in ids[-4:-1]:
            hidden, _ = decoder.run(Pass(decoder.all_sublayers, token[None], cache.length), cache)
            got.append(decoder.logits(hidden))
            cache.commit([0])
        assert (torch.cat(got) - expected[-7:-3]).abs().max() <= 1e-4
        tree = TokenTree((int(ids[-1]), 28, 504, 260), (-1, 0, 0, 2))
        hidden, _ = decoder.run(Pass(decoder.all_sublayers, torch.tensor(tree.tokens), cache.length, tree), cache)
        assert (decoder.logits(hidden)[3] - expected[-1]).abs().max() <= 1e-4
