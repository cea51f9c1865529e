"""Model folders with one fault each: refused before a weight is read, in one line that names it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen2Config, Qwen3Config

from ssd_bench.contract.task import Prompt
from ssd_bench.data.prompts import encode_all
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.model.weights import architecture
from ssd_bench.records import contents as module
from ssd_bench.records.contents import Content, check_finite, contents
from tests.conftest import CHAT, SIZES, make_tokenizer, rope, save_model
from tests.model.test_weights_files import INDEX, PICKLE, WEIGHTS, rewrite, save
from tests.runs import GIVEN_LATENCY, local_model, program

Break = Callable[[Path], object]
Fault = tuple[Break, str, tuple[str, ...]]
"""Faults of a sound folder: the change, the error's field, and further words of the message."""

UP, QUERY, HEAD = "model.layers.2.mlp.up_proj.weight", "model.layers.1.self_attn.q_proj.weight", "lm_head.weight"
BIAS, KEY_NORM, NORM = QUERY.replace("weight", "bias"), "model.layers.3.self_attn.k_norm.weight", "model.norm.weight"
GENERATION, PARTS = "generation_config.json", [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def opened(folder: Path, template: str = "chat") -> Checkpoint:
    """A checkpoint after a plan's checks; no weight is read."""
    source = ModelSource("local", template, path=str(folder))
    checkpoint = source.open()
    arch = architecture(checkpoint)
    assert checkpoint.eos_ids and set(checkpoint.shards.values())
    encode_all([Prompt("a", "", "the report", "", "", "")], [4], source, checkpoint, arch.context)
    return checkpoint


def edited(folder: Path, file: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / file
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    change(found)
    path.write_text(json.dumps(found), encoding="utf-8")


def says(file: str = "config.json", **keys: Any) -> Break:
    return lambda folder: edited(folder, file, lambda found: found.update(keys))


def scaled(**keys: Any) -> Break:
    """A rotary embedding as in files from before transformers 5."""

    def change(found: dict[str, Any]) -> None:
        del found["rope_parameters"]
        found.update({"rope_theta": 1e4, "rope_scaling": keys})

    return lambda folder: edited(folder, "config.json", change)


def text(file: str, content: str | bytes) -> Break:
    return lambda folder: (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)


def gone(*files: str) -> Break:
    return lambda folder: [(folder / file).unlink() for file in files]


def cut(folder: Path) -> None:
    """Cut off the end of the weights' file."""
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(0.9 * len(content))])


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Break:
    def rewrite(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save(found, folder / WEIGHTS)

    return rewrite


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Break:
    return tensors(lambda found: found.update({name: change(found[name])}))


def added(name: str, *shape: int) -> Break:
    return tensors(lambda found: found.update({name: torch.zeros(shape)}))


def without(name: str) -> Break:
    return tensors(lambda found: found.pop(name))


def sharded(change: Callable[[dict[str, str]], object] = lambda places: None) -> Break:
    """The weights in two files, with a changed index."""

    def split(folder: Path) -> None:
        rewrite(folder, INDEX)
        edited(folder, INDEX, lambda index: change(index["weight_map"]))

    return split


def placed(file: str) -> Break:
    return sharded(lambda places: places.update({UP: file}))


def both(*breaks: Break) -> Break:
    return lambda folder: [one(folder) for one in breaks]


def other(config: type, **sizes: Any) -> Break:
    def replace(folder: Path) -> None:
        vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        save_model(config(**SIZES | {"vocab_size": vocabulary} | sizes, rope_parameters=rope(1e5)), folder)

    return replace


def bin_of(content: object) -> Break:
    def replace(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(content, folder / PICKLE)

    return replace


def larger(folder: Path) -> None:
    """A tokenizer with more tokens than the model."""
    made = make_tokenizer("{{ messages }}")
    assert made.backend_tokenizer.get_vocab_size() > 300
    edited(folder, "config.json", lambda found: found.update(vocab_size=300))
    shorten = tensors(lambda found: found.update({n: t[:300] for n, t in found.items() if t.shape[0] == len(made)}))
    shorten(folder)


def odd_added(folder: Path) -> None:
    """A token beyond the model's vocabulary, put before every prompt."""
    made = make_tokenizer("<extra>{{ messages[0].content }}")
    made.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    made.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("<extra>{{ messages[0].content }}", encoding="utf-8")


def added_to_the_text(folder: Path) -> None:
    """A token of a word in prompts, beyond the model's vocabulary."""
    made = make_tokenizer(CHAT)
    made.add_tokens(["report"])
    made.save_pretrained(folder)


def split_otherwise(folder: Path) -> None:
    """A tokenizer that makes a token of each letter."""
    parts = [
        {"type": "Digits", "individual_digits": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False},
    ]
    edited(folder, "tokenizer.json", lambda found: found["model"].update(merges=[]))
    says("tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": parts})(folder)


def subfolder(name: str) -> Break:
    return lambda folder: (folder / name).mkdir()


def misplaced(places: dict[str, str]) -> None:
    (places[UP],) = {*PARTS} - {places[UP]}


OWN, RAISES = {"AutoConfig": "own.Config", "AutoTokenizer": ["own.Own", None]}, "raise SystemExit(3)"
SHORT_HEAD = changed(HEAD, lambda weight: weight[:-1])
CONFIG: dict[str, Fault] = {
    "no config": (gone("config.json"), "model.path", ("config.json",)),
    "junk config": (text("config.json", "{"), "model", ("config.json", "JSON")),
    "config that is a list": (text("config.json", "[]"), "model", ("config.json", "object", "list")),
    "no model_type": (says(model_type=None), "config.model_type", ("llama, qwen2, qwen3",)),
    "another model_type": (says(model_type="gpt2"), "config.model_type", ("gpt2", "config.json")),
    "another architecture": (says(architectures=["LlamaForSequenceClassification"]), "config.architectures", ("Seq",)),
    "architectures that are a text": (says(architectures="LlamaForCausalLM"), "config.architectures", ("list",)),
    "code of its own": (both(says(auto_map=OWN, model_type="own"), text("own.py", RAISES)), "model", ("never run",)),
    "quantised": (says(quantization_config={"quant_method": "awq"}), "model", ("quantization_config (awq)",)),
    "quantised, junk": (says(quantization_config="yes"), "model", ("quantization_config",)),
    "compressed": (says(compression_config={"format": "x"}), "model", ("compression_config",)),
    "sizes that are texts": (says(hidden_size="32"), "config.hidden_size", ("an integer", "config.json")),
    "ties that are a text": (says(tie_word_embeddings="no"), "config.tie_word_embeddings", ("true or false",)),
    "width that heads do not divide": (says(hidden_size=34, head_dim=None), "model", ("34", "config.json")),
    "other width": (says(hidden_size=64, head_dim=None), "model", ("hidden_size 64", WEIGHTS)),
    "other intermediate size": (says(intermediate_size=44), "model", ("intermediate_size 44", "mlp")),
    "no heads": (says(num_attention_heads=0), "config.num_attention_heads", (">= 1",)),
    "no KV heads": (says(num_key_value_heads=0), "config.num_key_value_heads", (">= 1",)),
    "three KV heads": (says(num_key_value_heads=3), "config.num_key_value_heads", ("divisor", "4", "config.json")),
    "one KV head": (says(num_key_value_heads=1), "model", ("num_key_value_heads * head_dim 8", "k_proj")),
    "odd head_dim": (says(head_dim=3), "config.head_dim", ("even",)),
    "odd head_dim, larger": (says(head_dim=7), "model", ("config.json", "even")),
    "endless heads": (says(head_dim=2**40), "config.head_dim", ("at most",)),
    "other head_dim": (says(head_dim=16), "model", ("head_dim 64", "_proj")),
    "no layers": (says(num_hidden_layers=0), "config.num_hidden_layers", (">= 1",)),
    "fewer layers than weights": (says(num_hidden_layers=3), "config.num_hidden_layers", ("4, as many",)),
    "fewer tokens than weights": (says(vocab_size=100, eos_token_id=2), "model", ("vocab_size 100", "embed_tokens")),
    "no context": (says(max_position_embeddings=0), "config.max_position_embeddings", (">= 1",)),
    "another activation": (says(hidden_act="gelu"), "config.hidden_act", ("silu",)),
    "attention to later tokens": (says(is_causal=False), "config.is_causal", ("true",)),
    "unknown dtype": (says(dtype="junk"), "model", ("config.json", "junk")),
    "attention biases that are not there": (says(attention_bias=True), "model", ("self_attn.q_proj.bias",)),
    "MLP biases that are not there": (says(mlp_bias=True), "model", ("mlp.gate_proj.bias",)),
    "biases that nothing asks for": (added(BIAS, 32), "model", ("q_proj.bias", "attention_bias")),
    "eos beyond": (both(gone(GENERATION), says(eos_token_id=9999)), "eos_token_id", ("config.json", "vocab_size")),
    "eos that is a text": (says(eos_token_id="</s>"), "config.eos_token_id", ("integer",)),
}

ROPE: dict[str, Fault] = {
    "that is a text": (says(rope_parameters="linear"), "config.rope_parameters", ("table",)),
    "of unknown type": (says(rope_parameters=rope(1e4, "spiral")), "config.rope_parameters.rope_type", ("spiral",)),
    "whose type is a list": (scaled(rope_type=["linear"]), "config.rope_parameters.rope_type", ("linear",)),
    "without a type": (scaled(factor=4.0), "config.rope_parameters", ("rope_type",)),
    "linear without factor": (scaled(type="linear"), "model", ("config.json", "factor")),
    "llama3 without keys": (scaled(rope_type="llama3", factor=8.0), "model", ("config.json", "low_freq_factor")),
    "linear by 0": (scaled(rope_type="linear", factor=0), "config.rope_parameters.factor", ("above 0",)),
    "yarn by a text": (scaled(rope_type="yarn", factor="four"), "config.rope_parameters.factor", ("above 0",)),
    "llama3 upside down": (
        scaled(rope_type="llama3", factor=8.0, low_freq_factor=4.0, high_freq_factor=1.0),
        "config.rope_parameters",
        ("low_freq_factor",),
    ),
    "of a part of a head": (
        scaled(rope_type="linear", factor=2.0, partial_rotary_factor=0.5),
        "config.rope_parameters",
        ("frequencies",),
    ),
    "base of 0": (says(rope_parameters=rope(0.0)), "config.rope_parameters.rope_theta", ("above 0",)),
    "base that is a text": (says(rope_parameters=None, rope_theta="big"), "config.rope_theta", ("number",)),
}

TENSORS: dict[str, Fault] = {
    "no weights": (gone(WEIGHTS), "model", ("safetensors",)),
    "a file cut short": (cut, "model", (WEIGHTS,)),
    "a renamed tensor": (tensors(lambda found: found.update({"odd": found.pop(UP)})), "model", ("odd",)),
    "an absent tensor": (without(UP), "model", (UP,)),
    "no head": (without(HEAD), "model", (HEAD,)),
    "no embedding": (without("model.embed_tokens.weight"), "model", ("embed_tokens",)),
    "a transposed tensor": (changed(UP, torch.t), "model", (UP, "[32, 48]", "intermediate_size 48", WEIGHTS)),
    "a scalar norm": (changed(NORM, lambda t: t[0]), "model", (NORM, "[]")),
    "another head": (SHORT_HEAD, "model", (HEAD, "vocab_size")),
    "another head, tied": (both(says(tie_word_embeddings=True), SHORT_HEAD), "model", (HEAD, "vocab_size")),
    "integers": (changed(UP, lambda t: t.to(torch.int8)), "model", (UP, "I8", "BF16")),
    "other names": (
        tensors(lambda found: [found.update({n.replace("layers", "h"): found.pop(n)}) for n in [*found]]),
        "config.num_hidden_layers",
        ("0, as many", "model.layers.*"),
    ),
    "an adapter": (text("adapter_config.json", "{}"), "model", ("adapter_config.json",)),
    "LoRA in the weights": (added(UP.replace("weight", "lora_A.weight"), 4, 32), "model", ("lora_A", "merged")),
    "qwen2 without a bias": (both(other(Qwen2Config), without(BIAS)), "model", ("q_proj.bias",)),
    "qwen3 without a norm": (both(other(Qwen3Config, head_dim=8), without(KEY_NORM)), "model", (KEY_NORM,)),
    "a pickle of a list": (bin_of([torch.zeros(2)]), "model", (PICKLE,)),
    "a pickle of code": (bin_of({NORM: Path("x")}), "model", (PICKLE,)),
}

SHARDS: dict[str, Fault] = {
    "junk index": (both(gone(WEIGHTS), text(INDEX, "{")), "model", (INDEX,)),
    "index without a map": (both(gone(WEIGHTS), text(INDEX, "{}")), "model", (INDEX, "weight_map")),
    "index of numbers": (both(gone(WEIGHTS), text(INDEX, '{"weight_map": {"a": 1}}')), "model", (INDEX, "weight_map")),
    "empty index": (both(gone(WEIGHTS), text(INDEX, '{"weight_map": {}}')), "model", (INDEX, "weight_map")),
    "absent shard": (both(sharded(), gone(PARTS[1])), "model", (PARTS[1], "index")),
    "junk shard": (both(sharded(), text(PARTS[1], "junk")), "model", (PARTS[1],)),
    "path upwards": (placed(f"../{PARTS[0]}"), "model", (INDEX, UP, "../")),
    "absolute path": (placed("/etc/passwd"), "model", (INDEX, UP, "/etc/passwd")),
    "another kind of file": (placed("x.bin"), "model", (INDEX, UP, "x.bin")),
    "shard that is a folder": (both(placed("a.safetensors"), subfolder("a.safetensors")), "model", ("a.safetensors",)),
    "tensor that the index lacks": (sharded(lambda places: places.pop(UP)), "model", (INDEX, UP)),
    "tensor that its shard lacks": (sharded(misplaced), "model", (INDEX, UP)),
}

TOKENIZER: dict[str, Fault] = {
    "no tokenizer": (gone("tokenizer.json", "tokenizer_config.json"), "model", ("tokenizer.json",)),
    "junk tokenizer": (text("tokenizer.json", "junk"), "model", ("tokenizer.json",)),
    "junk tokenizer config": (text("tokenizer_config.json", "{"), "model", ("tokenizer_config.json",)),
    "tokenizer with code": (
        says("tokenizer_config.json", auto_map=OWN),
        "model",
        ("tokenizer_config.json", "auto_map"),
    ),
    "more tokens than the model": (larger, "model", ("vocab_size 300", "tokenizer")),
    "a class with rules of its own": (
        both(split_otherwise, says("tokenizer_config.json", tokenizer_class="Qwen2Tokenizer")),
        "model",
        ("tokenizer.json", "Qwen2Tokenizer", "splits"),
    ),
    "a task's text with an id beyond": (added_to_the_text, "prompt", ("report", "vocab_size")),
    "a prompt with an id beyond": (odd_added, "model", ("<extra>", "vocab_size")),
    "no chat template": (gone("chat_template.jinja"), "model.template", ("no chat template", "plain")),
    "template that raises": (text("chat_template.jinja", "{{ raise_exception('no') }}"), "model.template", ("(no)",)),
    "template of nothing": (text("chat_template.jinja", "{# #}"), "model.template", ("chat_template.jinja", "user's")),
    "template that is no text": (text("chat_template.jinja", b"\xff\xfe"), "model", ("tokenizer",)),
    "junk generation config": (text(GENERATION, "{"), "model", (GENERATION,)),
    "eos that is a text": (says(GENERATION, eos_token_id="x"), "eos_token_id", ("generation_config",)),
    "eos beyond": (says(GENERATION, eos_token_id=[2, 9999]), "eos_token_id", ("generation_config",)),
}


def spoiled(value: float) -> Callable[[Tensor], Tensor]:
    def spoil(weight: Tensor) -> Tensor:
        weight[17, 5] = value
        return weight

    return spoil


KINDS = {"config": CONFIG, "rope": ROPE, "weights": TENSORS, "shards": SHARDS, "tokenizer": TOKENIZER}
FAULTS = {f"{of}: {name}": fault for of, faults in KINDS.items() for name, fault in faults.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_folder_is_refused_before_its_weights_are_read(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    breaks, field, words = FAULTS[name]
    breaks(folder)
    capfd.readouterr()  # what was said while it was made
    monkeypatch.setattr(Checkpoint, "read", lambda *_: pytest.fail("weights were read"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))
    with pytest.raises(ConfigError) as caught:
        opened(folder)
    message = str(caught.value)
    assert caught.value.field == field and not [word for word in words if word not in message], message
    assert "\n" not in message and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "change",
    [
        sharded(),
        says(num_key_value_heads=2, head_dim=8),
        says(architectures=None),
        says(auto_map={}),
        scaled(rope_type="yarn", factor=4.0),
        says(GENERATION, eos_token_id=[2, 7]),
        added("model.layers.0.self_attn.rotary_emb.inv_freq", 4),
        both(says(tie_word_embeddings=True), without(HEAD)),
        says(tie_word_embeddings=True),
        other(Qwen2Config),
        other(Qwen3Config, head_dim=8),
        says(hidden_act="swish"),
    ],
)
def test_a_sound_folder_is_not(change: Break, folder: Path) -> None:
    change(folder)
    assert opened(folder).headers


def test_a_broken_template_matters_only_where_it_is_used(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ 1 / 0 }}", encoding="utf-8")
    assert opened(folder, "plain").tokenizer.is_fast


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1e6])
def test_a_weight_that_is_not_finite_is_named(value: float, folder: Path) -> None:
    """The value -1e6 is infinite in float16 alone."""
    changed(UP, spoiled(value))(folder)
    found = contents(opened(folder).shards.values())
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        finite = value == -1e6 and dtype != torch.float16
        with nullcontext() if finite else pytest.raises(ConfigError, match=rf"model.safetensors.*finite.*{UP}"):
            check_finite(found, dtype)


@pytest.mark.usefixtures("content_cache")
def test_of_runs_that_begin_at_once_one_reads_a_large_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, reading = module._read_weights, []

    def slowly(file: Path) -> Content:
        reading.append(file)
        time.sleep(0.3)
        return read(file)

    monkeypatch.setattr(module, "_read_weights", slowly)
    with ThreadPoolExecutor(8) as together:
        found = list(together.map(lambda _: contents(opened(folder).shards.values()), range(8)))
    assert all(one == found[0] for one in found) and len(reading) == 1


def test_what_is_in_a_large_file_is_known_until_it_changes(
    folder: Path, content_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = opened(folder).shards.values()
    first = contents(shards)
    assert [one.sha256 for one in first.values()] == [hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_read_weights", lambda _: pytest.fail("it was read again"))
        assert contents(shards) == first
    for kept in content_cache.rglob("*.json"):  # damaged: read again
        kept.write_text("{", encoding="utf-8")
    assert contents(shards) == first
    changed(UP, lambda tensor: 0.5 * tensor)(folder)  # of the same size
    assert contents(shards) != first


@pytest.mark.parametrize(
    ("breaks", "field"),
    [
        *(FAULTS[name][:2] for name in ("config: quantised", "weights: a file cut short", "tokenizer: eos beyond")),
        (changed(UP, spoiled(float("nan"))), "model"),
    ],
)
def test_on_the_command_line_it_is_one_line(breaks: Break, field: str, folder: Path, tmp_path: Path) -> None:
    breaks(folder)
    runs = tmp_path / "runs"
    done = program(*local_model(folder), "task=gsm8k", "limit=1", "method=ar", f"runs_dir={runs}")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(f"error: {field}="), done.stderr
    assert len(done.stderr.splitlines()) == 1 and not runs.exists()


def test_a_model_that_overflows_is_refused_when_it_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Its weights are finite; its MLPs' outputs are not."""
    changed(UP, lambda tensor: tensor * 0 + 3e38)(folder)
    line = ("task=gsm8k", "limit=1", "method=ar", f"runs_dir={tmp_path / 'runs'}", GIVEN_LATENCY, "hardware=cpu")
    done = program(*local_model(folder), *line, "hardware.dtype=float32")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    said = "error: hardware.dtype='float32' is invalid: expected one in which this model's logits"
    assert done.stderr.startswith(said)
