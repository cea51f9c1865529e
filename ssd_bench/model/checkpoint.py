"""Sources of a model: this package, a folder, the hub, or a GGUF file (in wheels or on the hub); no fallbacks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ssd_bench.contract.shape import Shape
from ssd_bench.errors import ConfigError, shortened
from ssd_bench.model.headers import (
    NOT_WEIGHTS,
    Header,
    check_link,
    check_no_code,
    open_weights,
    read_headers,
    read_object,
    reason,
    same_numbers,
    silence_transformers,
)
from ssd_bench.model.packaged import PackagedFile
from ssd_bench.model.snapshot import TEXTS, Snapshot
from ssd_bench.model.template import PLAIN, Template
from ssd_bench.model.tokenizer import load_tokenizer
from ssd_bench.paths import cache_dir, local_path
from ssd_bench.settings import Count, Fits, Range, Whole, arguments, check_value, describe_type, fits, kinds

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

DTYPES = ("F64", "F32", "F16", "BF16")
"""Supported dtypes of stored weights, in safetensors' notation."""

FAMILIES = ("llama", "qwen2", "qwen3")
Family = Annotated[str, Fits(f"one of {', '.join(FAMILIES)}", FAMILIES.__contains__)]
Positive = Annotated[float, Range(above=0)]
KEYS: dict[str, Any] = {
    "model_type": Family,
    "architectures": Sequence[str] | None,
    "num_hidden_layers": Count,
    "hidden_size": Count,
    "intermediate_size": Count,
    "num_attention_heads": Count,
    "num_key_value_heads": Count | None,
    "head_dim": Count | None,
    "vocab_size": Count,
    "max_position_embeddings": Count,
    "rms_norm_eps": Positive,
    "tie_word_embeddings": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
    "rope_theta": Positive | None,
    "rope_scaling": Mapping[str, Any] | None,
    "rope_parameters": Mapping[str, Any] | None,
    "eos_token_id": Whole | Sequence[Whole] | None,
}
"""Checked keys of config.json, with their types; transformers has defaults for absent keys."""

PROCESSORS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "guidance_scale"), (None, 1)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (None, 0)),
    **dict.fromkeys(("min_length", "min_new_tokens"), (None, 0)),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids"), (None, [])),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), (None,)),
    **dict.fromkeys(("sequence_bias", "watermarking_config"), (None, {}, [])),
}
"""Keys of generation_config.json that also change greedy outputs, with their neutral values."""

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

EMBEDDED = Path(__file__).parents[1] / "miniature" / "weights"
"""Folder of the checkpoints in this package."""


@dataclass(frozen=True)
class ModelSource:
    """One entry of `conf/model`; exactly one of `embedded`, `path`, `hub` and `gguf` locates the checkpoint.

    Attributes:
        name: name in tables and run ids.
        template: settings of the `Template`, or only its form.
        embedded: name of a model trained for this project (`ssd_bench/miniature/weights`).
        path: folder in Hugging Face format.
        hub: hub id; `revision` pins its commit.
        gguf: fields of `PackagedFile`.
        shape: fields of `Shape`, for predictions without the weights.
    """

    name: str
    template: str | Mapping[str, Any]
    embedded: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    gguf: dict[str, Any] | None = None
    shape: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        Template.of(self.template)
        if self.hub and not HUB_ID.fullmatch(self.hub):
            raise ConfigError("model.hub", self.hub, "the id of a repository of the hub, such as Qwen/Qwen3-8B")
        sources = [k for k in ("embedded", "path", "hub", "gguf") if getattr(self, k)]
        if len(sources) != 1:
            expected = "exactly one of model.embedded, model.path, model.hub and model.gguf"
            raise ConfigError("model", sources, expected)
        if self.shape is not None:
            for name, size in arguments("model.shape", Shape, self.shape).items():
                check_value(f"model.shape.{name}", kinds(Shape)[name], size)
        _ = self.packaged
        if self.embedded and not (EMBEDDED / self.embedded / "config.json").is_file():
            present = sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))
            raise ConfigError("model.embedded", self.embedded, f"one of {', '.join(present)}")

    @property
    def packaged(self) -> PackagedFile | None:
        """The GGUF file; None for other sources."""
        if self.gguf is None:
            return None
        return PackagedFile(**arguments("model.gguf", PackagedFile, self.gguf))

    @property
    def prompting(self) -> Template:
        return Template.of(self.template)

    @property
    def toy(self) -> bool:
        """Whether the model is embedded, so that no paper has results on it."""
        return self.embedded is not None

    def check_shape(self, actual: Shape) -> None:
        """Raise ConfigError if a checkpoint's sizes differ from `shape`: predictions would be wrong."""
        declared = {} if self.shape is None else {"tied": False, **self.shape}  # without `tied` the head is untied
        differing = [name for name, size in declared.items() if getattr(actual, name, None) != size]
        if differing:
            sizes = ", ".join(f"{name} {getattr(actual, name, 'unknown')}" for name in differing)
            raise ConfigError("model.shape", self.shape, f"the sizes of its checkpoint: {sizes}")

    def open(self) -> Checkpoint:
        """Return the checkpoint without loading weights.

        `Checkpoint.headers` downloads hub weights; a GGUF file is fetched and converted now.

        Raises:
            ConfigError: the checkpoint is missing or unavailable; the message says how to get it.
        """
        if self.embedded:
            folder = EMBEDDED / self.embedded
        elif self.packaged:
            folder = self.packaged.folder(cache_dir())
        elif self.hub:
            snapshot = Snapshot.of(self.hub, self.revision)
            _check_folder(snapshot.folder)
            return Checkpoint(snapshot.folder, self.prompting, snapshot)
        else:
            folder = local_path("model.path", self.path)
            _check_folder(folder)
        return Checkpoint(folder, self.prompting)


@dataclass(frozen=True)
class Checkpoint:
    """A folder in Hugging Face format; code in it is never run.

    Attributes:
        template: `ModelSource.prompting`, used to test the tokenizer.
        snapshot: of the hub, with weights downloaded when first needed; None: not from the hub.
    """

    folder: Path
    template: Template = PLAIN
    snapshot: Snapshot | None = None

    @property
    def commit(self) -> str | None:
        """Commit on the hub."""
        return None if self.snapshot is None else self.snapshot.commit

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration as transformers reads it, from old and new formats of config.json.

        Raises:
            ConfigError: config.json cannot be read, or the model is quantised or needs custom code.
        """
        from transformers import AutoConfig

        path = self.folder / "config.json"
        _check_config(read_object(path), path)
        try:
            with silence_transformers():
                return AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # its errors have no common type
            raise ConfigError("model", str(path), f"a readable config.json ({reason(error)})") from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the checkpoint.

        Raises:
            ConfigError: as `load_tokenizer`.
        """
        return load_tokenizer(self.folder, self.template, self.config.vocab_size)

    def text(self, ids: Sequence[int]) -> str:
        """Return the uncleaned text of token ids without special tokens."""
        # tokenizer_config.json may ask for clean_up_tokenization_spaces, which removes spaces before punctuation: that
        # changes code and, with transformers 5.0 to 5.3, the text of byte-level tokenizers
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end an output, by generation_config.json if present, as in Hugging Face `generate`.

        Raises:
            ConfigError: a value is no id of the model.
        """
        path = self.folder / "generation_config.json"
        value = read_object(path).get("eos_token_id") if path.is_file() else None
        if value is None:
            path, value = self.folder / "config.json", self.config.eos_token_id
        ids = value if isinstance(value, list) else [] if value is None else [value]
        valid_id = Annotated[int, Range(0, below=self.config.vocab_size)]
        if not all(fits(valid_id, token) for token in ids):
            expected = f"ids below vocab_size {self.config.vocab_size} of config.json, in {path}"
            raise ConfigError("eos_token_id", value, expected)
        return frozenset(ids)

    def unapplied_settings(self) -> list[str]:
        """Return a warning with generation_config.json settings that change greedy outputs; else nothing."""
        path = self.folder / "generation_config.json"
        settings = read_object(path) if path.is_file() else {}
        changing = {key: settings[key] for key, neutral in PROCESSORS.items() if settings.get(key) not in neutral}
        if not changing:
            return []
        values = ", ".join(shortened(f"{key}={value}") for key, value in changing.items())
        return [
            "generation_config.json sets logits processors that are not applied, as in the papers: "
            f"{values}. `generate` of transformers applies them by default, and so has other outputs."
        ]

    @cached_property
    def headers(self) -> dict[str, Header]:
        """Headers of all tensors, by name; hub weights are downloaded now.

        Raises:
            ConfigError: weights cannot be downloaded; the folder has no weights, unreadable files or an adapter.
        """
        if adapters := sorted(path.name for path in self.folder.glob("adapter_*")):
            expected = f"a model without an adapter: merge {', '.join(adapters)} into it"
            raise ConfigError("model", str(self.folder), expected)
        if self.snapshot is not None:
            self.snapshot.fetch_weights()
        return read_headers(self.folder)

    @property
    def head(self) -> str:
        """Tensor of the LM head, for the record."""
        if self.head_differs:
            return "lm_head.weight, which differs from the embedding that config.json ties it to"
        return "embedding" if self.config.tie_word_embeddings else HEAD

    @cached_property
    def head_differs(self) -> bool:
        """Whether config.json ties the LM head to the embedding, but the files hold a head with other numbers.

        transformers (`PreTrainedModel.tie_weights`) then leaves the two untied, with a warning.
        """
        if not (self.config.tie_word_embeddings and {EMBEDDING, HEAD} <= {*self.headers}):
            return False
        return not same_numbers(self.headers[EMBEDDING], EMBEDDING, self.headers[HEAD], HEAD)

    @cached_property
    def shards(self) -> dict[str, Path]:
        """Files of the tensors, by name."""
        return {name: header.shard for name, header in self.headers.items()}

    def check_all_read(self, shapes: Mapping[str, Mapping[str, int]]) -> None:
        """Raise ConfigError unless the files hold exactly the model's tensors; read only their headers.

        Args:
            shapes: by tensor name, keys of config.json -> sizes.
        """
        unread = sorted(name for name in self.headers if name not in shapes and not name.endswith(NOT_WEIGHTS))
        if unread:
            expected = f"weights without unused tensors: no sublayer reads {_first_names(unread)}"
            expected += " (biases need attention_bias or mlp_bias; scales and adapters must be merged)"
            raise ConfigError("model", str(self.folder), expected)
        if missing := [name for name in shapes if name not in self.headers]:
            expected = f"weights with all tensors of config.json; missing: {_first_names(missing)}"
            if missing == [HEAD]:
                expected += "; a model whose head is its embedding has tie_word_embeddings true in config.json"
            raise ConfigError("model", str(self.folder), expected)
        for name, sizes in shapes.items():
            header = self.headers[name]
            if header.shape != tuple(sizes.values()):
                shape = " and ".join(f"{key} {size}" for key, size in sizes.items())
                expected = f"weights with the shapes of config.json: {name} is {list(header.shape)}, not {shape}"
                raise ConfigError("model", str(header.shard), expected)
            if header.dtype not in DTYPES:
                expected = f"weights of {', '.join(DTYPES)}: {name} is {header.dtype}"
                raise ConfigError("model", str(header.shard), expected)

    def read(self, names: list[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the named tensors in `dtype`; without conversion they are parts of the mapped files.

        A file's pages leave memory with its last tensor, so loading by block never holds all weights twice.
        """
        tensors: dict[str, Tensor] = {}
        for shard in sorted({self.shards[name] for name in names}):
            with open_weights(shard) as file:
                in_shard = [name for name in names if self.shards[name] == shard]
                tensors.update({name: file.get(name).to(dtype) for name in in_shard})
        return tensors


def _check_folder(folder: Path) -> None:
    """Refuse a folder without a model; for a model's folder in the hub's cache, the message names its snapshot.

    Dangling links are refused: without generation_config.json or template, a model has other EOS ids or prompts.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if any(fnmatch(path.name, name) for name in TEXTS):
            check_link(path)
    if not (folder / "config.json").is_file():
        expected = "a folder with config.json and weights in Hugging Face format"
        if configs := sorted([*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]):
            expected += f", such as {configs[0].parent}"
        raise ConfigError("model.path", str(folder), expected)


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_config(config: Mapping[str, Any], path: Path) -> None:
    """Refuse custom code, quantised weights, other names of weights files, or unexpected values."""
    check_no_code(config, path)
    for key in ("quantization_config", "compression_config"):
        if (method := config.get(key)) is not None:
            kind = method.get("quant_method", "unnamed") if isinstance(method, dict) else type(method).__name__
            expected = f"weights that are not quantised: config.json has {key} ({kind})"
            raise ConfigError("model", str(path.parent), expected)
    if (name := config.get("transformers_weights")) is not None:  # transformers would load these and no other weights
        expected = f"null: weights are read from model.safetensors or its index, in {path}"
        raise ConfigError("config.transformers_weights", name, expected)
    for key, kind in KEYS.items():
        if (key in config or key == "model_type") and not fits(kind, config.get(key)):
            raise ConfigError(f"config.{key}", config.get(key), f"{describe_type(kind)}, in {path}")
    classes, expected = config.get("architectures") or [], f"{config['model_type']}forcausallm"
    if classes and expected not in [name.lower() for name in classes]:
        raise ConfigError("config.architectures", classes, f"the class of model_type for causal language, in {path}")
