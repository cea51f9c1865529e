"""Models whose config ties the head to the embedding, or not, with files that agree or disagree."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ssd_bench.contract.shape import Shape
from ssd_bench.errors import ConfigError
from ssd_bench.model import checkpoint as checkpoints
from ssd_bench.model import headers
from ssd_bench.model.backend import select
from ssd_bench.model.checkpoint import EMBEDDING, HEAD, Checkpoint, ModelSource
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.weights import architecture
from tests.conftest import FAMILIES, save_model
from tests.model.test_weights_files import INDEX, PICKLE, WEIGHTS, assert_lossless, edit, save
from tests.runs import executed, local_model

ENDS: dict[str, tuple[bool | None, str, bool]] = {  # tie_word_embeddings, what the files have, and whether it is tied
    "tied, a head that differs": (True, "differs", False),
    "tied, a head that differs in one number": (True, "differs slightly", False),
    "tied, an equal head": (True, "equal", True),
    "tied, an equal head of another dtype": (True, "equal, float64", True),
    "tied, no head": (True, "embedding alone", True),
    "tied, no embedding": (True, "head alone", True),
    "untied, a head that differs": (False, "differs", False),
    "untied, an equal head": (False, "equal", False),
    "silent, an equal head": (None, "equal", False),
}


def with_ends(family: str, folder: Path, tie: bool | None, ends: str, kind: str) -> Path:
    """Write a model of a family with this embedding and head in config and files."""
    save_model(FAMILIES[family](), folder)
    tensors = load_file(folder / WEIGHTS)
    embedding = tensors[EMBEDDING]
    head = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1)) * 0.2
    if ends != "differs":
        head = embedding.clone()
    if ends == "differs slightly":
        head[-1, -1] += 0.5
    tensors[HEAD] = head.double() if "float64" in ends else head
    if ends in ("embedding alone", "head alone"):
        del tensors[HEAD if ends == "embedding alone" else EMBEDDING]
    (folder / WEIGHTS).unlink()
    save(tensors, folder / kind)
    edit(folder, tie_word_embeddings=tie)
    return folder


def without(name: str, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[name]
    save(tensors, folder / WEIGHTS)


def prefilled(decoder: Decoder, ids: Tensor) -> Tensor:
    return decoder.logits(decoder.prefill(ids, decoder.new_cache(len(ids) + 1))[0])[0]


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        *((name, "llama", WEIGHTS) for name in ENDS),
        ("tied, a head that differs", "qwen2", INDEX),
        ("tied, an equal head", "qwen3", PICKLE),
    ],
)
def test_a_head_is_tied_as_in_transformers(name: str, family: str, kind: str, tmp_path: Path) -> None:
    """Logits, number of weights and their bytes follow the model that runs."""
    tie, ends, tied = ENDS[name]
    folder = with_ends(family, tmp_path / "model", tie, ends, kind)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    checkpoint = Checkpoint(folder)
    arch = architecture(checkpoint)
    decoder = select("cpu", torch.float64, "torch").load(checkpoint, torch.float64, [torch.device("cpu")])
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
    with torch.no_grad():
        expected = theirs(ids[None]).logits[0, -1]
    assert (prefilled(decoder, ids) - expected).abs().max() < 1e-6
    assert arch.tied is tied is (theirs.lm_head.weight is theirs.model.embed_tokens.weight)
    assert decoder.arch.n_params == arch.n_params
    parameters = {p.data_ptr(): p.nbytes for p in theirs.parameters()}
    assert decoder.weights.nbytes == sum(parameters.values())
    differs = tie is True and not tied
    assert checkpoint.head_differs is differs
    assert ("differs" in checkpoint.head, checkpoint.head == "embedding") == (differs, tied)


def test_a_model_without_a_head_is_refused_unless_its_embedding_is_one(tmp_path: Path) -> None:
    """Transformers would make up a random one."""
    folder = with_ends("llama", tmp_path / "model", None, "embedding alone", WEIGHTS)
    with pytest.raises(ConfigError, match=r"missing: lm_head\.weight; .*tie_word_embeddings true"):
        architecture(Checkpoint(folder))
    edit(folder, tie_word_embeddings=True)
    without(EMBEDDING, folder)
    with pytest.raises(ConfigError, match=r"missing: model\.embed_tokens\.weight"):
        architecture(Checkpoint(folder))


def test_a_head_is_compared_in_blocks_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first different block ends it; two plans and the loading of a checkpoint share the answer."""
    monkeypatch.setattr(headers, "ROWS", 8)
    checkpoint = Checkpoint(with_ends("llama", tmp_path / "model", True, "differs slightly", WEIGHTS))
    assert architecture(checkpoint).tied is False
    monkeypatch.setattr(checkpoints, "same_numbers", lambda *_: pytest.fail("compared again"))
    assert architecture(checkpoint).tied is False


def test_a_record_says_which_head_ran(folder: Path, threaded: None, tmp_path: Path) -> None:
    edit(folder, tie_word_embeddings=True)
    options = ("task=gsm8k", "limit=1", "method=fixed_layers", "decode.max_new_tokens=6")
    run = executed(tmp_path / "runs", *local_model(folder), *options, "baseline=hf")
    assert_lossless(run)
    model = run.header.model
    assert "differs from the embedding" in model.lm_head
    assert any("LM head" in text for text in run.header.warnings)
    outputs = {arm: [list(ids) for ids in rows["output_ids"]] for arm, rows in run.prompts.groupby("arm")}
    assert outputs["hf"] == outputs["ar"] == outputs["method"]
    edit(folder, tie_word_embeddings=False)
    plain = executed(tmp_path / "runs", *local_model(folder), *options)
    assert plain.header.model.lm_head == HEAD and plain.header.model.n_params == model.n_params
    assert not any("LM head" in text for text in plain.header.warnings)


def test_a_shape_that_is_silent_means_untied(folder: Path) -> None:
    """Predictions for an absent model go by `model.shape`, whose `tied` is false by default."""
    arch = architecture(Checkpoint(folder))
    sizes = {size.name: getattr(arch, size.name) for size in fields(Shape) if size.name not in ("tied", "context")}
    source = ModelSource("local", "chat", path=str(folder), shape=sizes)
    source.check_shape(architecture(source.open()))
    edit(folder, tie_word_embeddings=True)
    without(HEAD, folder)
    arch = architecture(source.open())
    with pytest.raises(ConfigError, match=r"model\.shape=.* the sizes of its checkpoint: tied True"):
        source.check_shape(arch)
