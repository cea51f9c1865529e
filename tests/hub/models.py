"""Small checkpoints for the models of `conf/model`, in repositories laid out as the real ones.

A config has the keys of the family's real config.json, in the form of its time (`rope_theta`, `torch_dtype`);
sizes are small, weights random. Tokenizers are of the family's kind, trained on a few lines. Chat templates are ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from omegaconf import OmegaConf
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import decoders as token_decoders
from transformers import AutoConfig, AutoModelForCausalLM

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF
from ssd_bench.model.checkpoint import ModelSource
from tests.conftest import CHAT, CORPUS, save_model
from tests.hub.server import Hub, Repository
from tests.runs import chosen

LAYERS, HEADS, HEAD_DIM, CONTEXT = 4, 8, 8, 4096
SHARD = "80KB"
UNWANTED = {
    ".gitattributes": "*.safetensors filter=lfs\n",
    "README.md": "---\nlicense: other\n---\n# A model\n",
    "LICENSE.txt": "terms",
    "original/consolidated.00.pth": b"weights of another format",
    "original/params.json": "{}",
    "original/tokenizer.model": b"a tokenizer of another format",
    "onnx/model.onnx": b"weights of another format",
    "onnx/config.json": "{}",
    "consolidated.safetensors": b"weights of another format",
    "model.fp16.safetensors": b"weights of another precision",
    "training_args.bin": b"a pickle",
    "pytorch_model-00001-of-00001.bin": b"a pickle",
    "runs/events.out.tfevents": b"a log",
}
"""Files of real repositories that no run reads."""


def sentencepiece_tokenizer(specials: tuple[str, ...]) -> Tokenizer:
    """Make a BPE tokenizer with byte fallback, as SentencePiece's in tokenizer.json."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
    settings = {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    core = Tokenizer(models.BPE(**settings))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, special_tokens=[*specials, *alphabet]))
    model = json.loads(core.to_str())["model"]
    core = Tokenizer(models.BPE(model["vocab"], [tuple(merge) for merge in model["merges"]], **settings))
    core.add_special_tokens([*specials])
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    parts = token_decoders.Replace("▁", " "), token_decoders.ByteFallback(), token_decoders.Fuse()
    core.decoder = token_decoders.Sequence([*parts, token_decoders.Strip(" ", 1, 0)])
    return core


def byte_level_tokenizer(specials: tuple[str, ...]) -> Tokenizer:
    """Make a byte-level BPE tokenizer; a first special token that begins texts is put before each."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = token_decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=340, special_tokens=[*specials], initial_alphabet=alphabet)
    )
    if "begin" in specials[0]:
        core.post_processor = processors.TemplateProcessing(
            single=f"{specials[0]} $A", special_tokens=[(specials[0], 0)]
        )
    return core


@dataclass(frozen=True)
class Kind:
    """Common features of the repositories of one family.

    Attributes:
        config: keys of config.json, without sizes.
        specials: special tokens of the tokenizer, the end last; `<unk>` is one of SentencePiece.
        tokenizer_class: as tokenizer_config.json names it.
        padding: rows of the embedding without a token.
        ends: `eos_token_id` of generation_config.json as indices of special tokens.
        template: place of the chat template: a file's name, `named` for a list in tokenizer_config.json, or `text`.
        files: of the tokenizer, besides tokenizer.json.
    """

    config: Mapping[str, Any]
    specials: tuple[str, ...]
    tokenizer_class: str
    padding: int = 0
    ends: tuple[int, ...] = (-1,)
    template: str = "text"
    dtype: torch.dtype = torch.bfloat16
    files: tuple[str, ...] = ()

    @property
    def sentencepiece(self) -> bool:
        return "<unk>" in self.specials

    def tokenizer(self) -> Tokenizer:
        return (sentencepiece_tokenizer if self.sentencepiece else byte_level_tokenizer)(self.specials)


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "attention_bias": False}
QWEN = {"rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None, "max_window_layers": LAYERS}
QWEN2 = QWEN | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e6}
QWEN3 = QWEN | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_theta": 1e6}
LLAMA2 = LLAMA | {"rope_scaling": None, "pretraining_tp": 1}
STRETCHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3_1 = LLAMA | {"rope_theta": 5e5, "rope_scaling": STRETCHED | {"rope_type": "llama3", "factor": 8.0}}
LLAMA3_2 = LLAMA | {"rope_theta": 5e5, "rope_scaling": STRETCHED | {"rope_type": "llama3", "factor": 32.0}}
DEEPSEEK = LLAMA | {"rope_theta": 1e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
SENTENCEPIECE = ("<unk>", "<s>", "</s>")
LLAMA3 = ("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>")
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
FAST, JINJA = "PreTrainedTokenizerFast", "chat_template.jinja"
LISTS, TOOLS = ("vocab.json", "merges.txt"), "additional_chat_templates/tool_use.jinja"
KINDS = {
    "llama2": Kind(LLAMA2, SENTENCEPIECE, "LlamaTokenizer", dtype=torch.float16),
    "codellama": Kind(LLAMA | {"rope_theta": 1e6}, SENTENCEPIECE, "CodeLlamaTokenizer", padding=16),
    "llama3": Kind(LLAMA | {"rope_theta": 5e5}, LLAMA3, FAST, ends=(-1, 1), template=JINJA),
    "llama3_1": Kind(LLAMA3_1 | {"mlp_bias": False}, LLAMA3, FAST),
    "llama3_2": Kind(LLAMA3_2, LLAMA3, FAST),
    "qwen2_5": Kind(QWEN2, CHATML, "Qwen2Tokenizer", padding=25, ends=(1, 2), template="named", files=LISTS),
    "qwen3": Kind(QWEN3, CHATML, "Qwen2Tokenizer", padding=25, ends=(1, 2), files=LISTS),
    "deepseek_coder": Kind(DEEPSEEK, ("<|begin_of_sentence|>", "<|EOT|>"), "LlamaTokenizerFast", padding=9),
    "yi": Kind(LLAMA | {"rope_theta": 5e6}, (*SENTENCEPIECE, "<|im_end|>"), "LlamaTokenizer"),
    "smollm2": Kind(LLAMA | {"rope_theta": 1e5}, CHATML, "GPT2Tokenizer", template=JINJA, files=(*LISTS, TOOLS)),
}
HUB_MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml") if OmegaConf.load(path).get("hub"))


def kind_of(name: str) -> str:
    base = name.removeprefix("layerskip_")
    return max((kind for kind in KINDS if base.startswith(kind)), key=len)


@cache
def source_of(name: str) -> ModelSource:
    return build(OmegaConf.create({"model": chosen("model", name)}), "model")


def checkpoint_files(name: str) -> dict[str, bytes]:
    """Return a small checkpoint for a model of `conf/model`: shards and their index, configs, tokenizer, template."""
    source = source_of(name)
    sizes = source.shape or {}
    wide = sizes["head_dim"] * sizes["n_heads"] != sizes["width"]
    kv_heads = max(1, HEADS * sizes["n_kv_heads"] // sizes["n_heads"])
    chat = source.prompting.form == "chat"
    return dict(_checkpoint_files(kind_of(name), kv_heads, wide, sizes.get("tied", False), chat))


@cache
def _checkpoint_files(kind: str, kv_heads: int, wide: bool, tied: bool, chat: bool) -> dict[str, bytes]:
    """Return a checkpoint's files, shared by models of the same kind and form."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write_checkpoint(KINDS[kind], kv_heads, wide, tied, folder)
        _write_tokenizer_config(KINDS[kind], chat, folder)
        assert len([*folder.glob("model-*.safetensors")]) > 2
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _write_checkpoint(kind: Kind, kv_heads: int, wide: bool, tied: bool, folder: Path) -> None:
    tokenizer = kind.tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary, end = tokenizer.get_vocab_size() + kind.padding, tokenizer.token_to_id(kind.specials[-1])
    config = (
        dict(kind.config)
        | {
            "hidden_size": HEADS * HEAD_DIM,
            "intermediate_size": 96,
            "num_hidden_layers": LAYERS,
            "hidden_act": "silu",
            "num_attention_heads": HEADS,
            "num_key_value_heads": kv_heads,
            "vocab_size": vocabulary,
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": tied,
            "bos_token_id": 0,
            "eos_token_id": end,
            "torch_dtype": str(kind.dtype).removeprefix("torch."),
            "initializer_range": 0.2,
            "transformers_version": "4.40.0",
            "use_cache": True,
        }
        | ({"head_dim": 2 * HEAD_DIM} if wide else {})
    )
    text = json.dumps(config, indent=2)
    (folder / "config.json").write_text(text, encoding="utf-8")
    save_model(AutoConfig.from_pretrained(folder), folder, shard=SHARD)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind.dtype)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    model.save_pretrained(folder, max_shard_size=SHARD)
    (folder / "config.json").write_text(text, encoding="utf-8")  # as of its time, not as transformers writes it today
    ends = [tokenizer.token_to_id(kind.specials[i]) for i in kind.ends]
    written = {"bos_token_id": 0, "eos_token_id": ends if len(ends) > 1 else ends[0], "do_sample": True, "top_p": 0.9}
    (folder / "generation_config.json").write_text(json.dumps(written), encoding="utf-8")


def _write_tokenizer_config(kind: Kind, chat: bool, folder: Path) -> None:
    """Write the tokenizer's config, the chat template, and further files besides tokenizer.json."""
    config: dict[str, Any] = {"tokenizer_class": kind.tokenizer_class, "eos_token": kind.specials[-1]}
    config |= {"clean_up_tokenization_spaces": True, "model_max_length": CONTEXT}
    if kind.sentencepiece:
        config |= {"bos_token": "<s>", "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False}
    elif "begin" in kind.specials[0]:
        config["bos_token"] = kind.specials[0]
    if chat and kind.template == "text":
        config["chat_template"] = CHAT
    elif chat and kind.template == "named":
        tools = {"name": "tool_use", "template": "{{ tools }}"}
        config["chat_template"] = [tools, {"name": "default", "template": CHAT}]
    elif chat:
        (folder / kind.template).write_text(CHAT, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    contents = {
        "vocab.json": json.dumps(model["vocab"]),
        "merges.txt": "#version: 0.2\n" + "".join(f"{' '.join(merge)}\n" for merge in model["merges"]),
        TOOLS: "{{ tools }}",
    }
    for file in kind.files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(contents[file], encoding="utf-8")


def add_model(hub: Hub, name: str, path: str | None = None) -> Repository:
    """Serve a small checkpoint for a model of `conf/model`, at its commit or branch.

    Args:
        path: id of the repository; None: the model's own.
    """
    source = source_of(name)
    pinned = source.revision if source.revision and len(source.revision) == 40 else None
    repository = hub.model(path or str(source.hub))
    repository.commit(UNWANTED | checkpoint_files(name), sha=pinned)
    return repository


def wanted_files(repository: Repository) -> set[str]:
    """Return the files of a repository's newest commit that a run reads."""
    return {path for path in repository.commits[repository.branches["main"]] if path not in UNWANTED}
