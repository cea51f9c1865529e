"""Where a model comes from: this package, a folder, the hub, or a GGUF file in an installed package; no fallback."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.gguf import converted
from ssd_bench.model.headers import (
    NOT_WEIGHTS,
    Header,
    check_link,
    check_no_code,
    headers,
    opened,
    read_object,
    reason,
    same_numbers,
    silent,
)
from ssd_bench.model.shape import Shape
from ssd_bench.model.snapshot import TEXTS, Snapshot
from ssd_bench.model.template import PLAIN, Template
from ssd_bench.model.tokenizer import load_tokenizer
from ssd_bench.paths import local_path
from ssd_bench.settings import Count, Fits, Range, Whole, arguments, check_value, describe_type, fits, kinds

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

KINDS = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights that can be read, as safetensors names them."""

FAMILIES = ("llama", "qwen2", "qwen3")
Family = Annotated[str, Fits(f"one of {', '.join(FAMILIES)}", FAMILIES.__contains__)]
Positive = Annotated[float, Range(above=0)]
Packaged = Annotated[
    Mapping[str, str], Fits("a table of two texts, package and file", lambda one: {*one} == {"package", "file"})
]
KEYS: dict[str, Any] = {
    "model_type": Family, "architectures": Sequence[str] | None, "num_hidden_layers": Count, "hidden_size": Count,
    "intermediate_size": Count, "num_attention_heads": Count, "num_key_value_heads": Count | None,
    "head_dim": Count | None, "vocab_size": Count, "max_position_embeddings": Count, "rms_norm_eps": Positive,
    "tie_word_embeddings": bool, "attention_bias": bool, "mlp_bias": bool, "rope_theta": Positive | None,
    "rope_scaling": Mapping[str, Any] | None, "rope_parameters": Mapping[str, Any] | None,
    "eos_token_id": Whole | Sequence[Whole] | None,
}  # fmt: skip
"""What config.json may say, where it says it; transformers has defaults for the rest."""

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

EMBEDDED = Path(__file__).parents[1] / "miniature" / "weights"


def cache_dir() -> Path:
    """Folder for converted checkpoints and latency profiles: `$SSD_BENCH_CACHE`, else `~/.cache/ssd-bench`."""
    return Path(os.environ.get("SSD_BENCH_CACHE") or Path.home() / ".cache" / "ssd-bench")


@dataclass(frozen=True)
class ModelSource:
    """One entry of `conf/model`: exactly one of `embedded`, `path`, `hub` and `gguf` says where the checkpoint is.

    Attributes:
        name: name in tables and run ids.
        template: the settings of a `Template`, or its form alone.
        embedded: name of a model that this project trained and ships (`ssd_bench/miniature/weights`).
        path: folder of a checkpoint in Hugging Face format.
        hub: hub id, with `revision` pinning it.
        gguf: `package` (import name of an installed package) and `file` within it.
        shape: sizes, the fields of `Shape`, so that what a run takes is known without its weights; None: not known.
    """

    name: str
    template: str | Mapping[str, Any]
    embedded: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    gguf: Packaged | None = None
    shape: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        Template.of(self.template)
        if self.hub and not ID.fullmatch(self.hub):
            raise ConfigError("model.hub", self.hub, "the id of a repository of the hub, such as Qwen/Qwen3-8B")
        given = [k for k in ("embedded", "path", "hub", "gguf") if getattr(self, k)]
        if len(given) != 1:
            allowed = "exactly one of model.embedded, model.path, model.hub and model.gguf"
            raise ConfigError("model", given, allowed)
        if self.shape is not None:
            for name, size in arguments("model.shape", Shape, self.shape).items():
                check_value(f"model.shape.{name}", kinds(Shape)[name], size)
        if self.embedded and not (EMBEDDED / self.embedded / "config.json").is_file():
            present = sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))
            raise ConfigError("model.embedded", self.embedded, f"one of {', '.join(present)}")

    @property
    def prompting(self) -> Template:
        """How prompts are put to it."""
        return Template.of(self.template)

    @property
    def rehearsal(self) -> bool:
        """Whether numbers on this model stand for themselves only: no paper has results on an embedded model."""
        return self.embedded is not None

    def check_shape(self, actual: Shape) -> None:
        """Refuse sizes of a checkpoint that differ from those here, which predictions without its weights go by.

        Raises:
            ConfigError: names the sizes that differ.
        """
        stated = {} if self.shape is None else {"tied": False, **self.shape}  # a shape that is silent says: not tied
        differing = [name for name, size in stated.items() if getattr(actual, name, None) != size]
        if differing:
            sizes = ", ".join(f"{name} {getattr(actual, name, 'unknown')}" for name in differing)
            raise ConfigError("model.shape", self.shape, f"the sizes of its checkpoint: {sizes}")

    def open(self) -> Checkpoint:
        """Return the checkpoint's folder; loads no weights, and downloads none: `Checkpoint.headers` does.

        Raises:
            ConfigError: the checkpoint is not there; the message names the command that gets it.
        """
        if self.embedded:
            folder = EMBEDDED / self.embedded
        elif self.gguf:
            folder = converted(**self.gguf, cache=cache_dir())
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
    """A folder in Hugging Face format, of which no code is ever run.

    Attributes:
        template: `ModelSource.prompting`; what the tokenizer is tried with.
        snapshot: where it comes from the hub, whose weights are downloaded once they are asked for.
    """

    folder: Path
    template: Template = PLAIN
    snapshot: Snapshot | None = None

    @property
    def commit(self) -> str | None:
        """Commit of the hub, where it comes from there."""
        return None if self.snapshot is None else self.snapshot.commit

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration, as transformers reads it (both old and new places of the rotary base).

        Raises:
            ConfigError: config.json cannot be read, or is of a model that cannot: quantised, or with code of its own.
        """
        from transformers import AutoConfig

        path = self.folder / "config.json"
        _check_config(read_object(path), path)
        try:
            with silent():
                return AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # its errors have no common type
            raise ConfigError("model", str(path), f"a config.json that can be read ({reason(error)})") from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the checkpoint.

        Raises:
            ConfigError: it cannot be read or used, or has ids that the model lacks.
        """
        return load_tokenizer(self.folder, self.template, self.config.vocab_size)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens, exactly as the tokenizer decodes it."""
        # said, not left to tokenizer_config.json: where that asks for it, spaces before punctuation are taken out,
        # which changes code and, by transformers 5.0 to 5.3, the text of byte-level tokenizers
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an output: generation_config.json's if present, as Hugging Face `generate` stops.

        Raises:
            ConfigError: something that is no id of the model.
        """
        path = self.folder / "generation_config.json"
        found = read_object(path).get("eos_token_id") if path.is_file() else None
        if found is None:
            path, found = self.folder / "config.json", self.config.eos_token_id
        ids = found if isinstance(found, list) else [] if found is None else [found]
        known = Annotated[int, Range(0, below=self.config.vocab_size)]
        if not all(fits(known, one) for one in ids):
            allowed = f"ids below vocab_size {self.config.vocab_size} of config.json, in {path}"
            raise ConfigError("eos_token_id", found, allowed)
        return frozenset(ids)

    @cached_property
    def headers(self) -> dict[str, Header]:
        """Headers of all tensors in the files, by name; of a model from the hub the files are downloaded now.

        Raises:
            ConfigError: weights that the hub does not give; a folder without weights, with files that cannot be read,
                or with an adapter.
        """
        if adapters := sorted(path.name for path in self.folder.glob("adapter_*")):
            raise ConfigError(
                "model", str(self.folder), f"a model without an adapter: merge {', '.join(adapters)} into it"
            )
        if self.snapshot is not None:
            self.snapshot.fetch_weights()
        return headers(self.folder)

    @property
    def head(self) -> str:
        """Weights of the LM head, for the record."""
        if self.head_differs:
            return "lm_head.weight, which differs from the embedding that config.json ties it to"
        return "embedding" if self.config.tie_word_embeddings else HEAD

    @cached_property
    def head_differs(self) -> bool:
        """Whether config.json ties the LM head to the embedding, but the files have a head with other numbers.

        transformers (`PreTrainedModel.tie_weights`) then leaves them untied, with a warning.
        """
        if not (self.config.tie_word_embeddings and {EMBEDDING, HEAD} <= {*self.headers}):
            return False
        return not same_numbers(self.headers[EMBEDDING], EMBEDDING, self.headers[HEAD], HEAD)

    @cached_property
    def shards(self) -> dict[str, Path]:
        """Tensor name -> file that holds it.

        Raises:
            ConfigError: as `headers`.
        """
        return {name: header.shard for name, header in self.headers.items()}

    def check_all_read(self, shapes: Mapping[str, Mapping[str, int]]) -> None:
        """Refuse weights other than those that the model reads, from the files' headers alone.

        Args:
            shapes: of all tensors that the model reads, by name: sizes with what config.json calls them.

        Raises:
            ConfigError: as `headers`; tensors that are absent, of another shape or dtype, or that nothing reads.
        """
        unread = sorted(name for name in self.headers if name not in shapes and not name.endswith(NOT_WEIGHTS))
        if unread:
            allowed = f"weights of which every tensor is read: nothing reads {_some(unread)}"
            allowed += " (biases need attention_bias or mlp_bias; scales and adapters must be merged)"
            raise ConfigError("model", str(self.folder), allowed)
        if missing := [name for name in shapes if name not in self.headers]:
            allowed = f"weights with the tensors that config.json asks for: there is no {_some(missing)}"
            if missing == [HEAD]:
                allowed += "; a model whose head is its embedding has tie_word_embeddings true in config.json"
            raise ConfigError("model", str(self.folder), allowed)
        for name, sizes in shapes.items():
            header = self.headers[name]
            if header.shape != tuple(sizes.values()):
                by = " and ".join(f"{key} {size}" for key, size in sizes.items())
                allowed = f"weights of the shapes that config.json asks for: {name} is {list(header.shape)}, not {by}"
                raise ConfigError("model", str(header.shard), allowed)
            if header.kind not in KINDS:
                raise ConfigError("model", str(header.shard), f"weights of {', '.join(KINDS)}: {name} is {header.kind}")

    def read(self, names: list[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """The named tensors, copied out of their files into `dtype`.

        A file is opened for this call alone: its pages leave memory with it, so that loading block by block
        never holds the weights twice.
        """
        tensors: dict[str, Tensor] = {}
        for shard in sorted({self.shards[name] for name in names}):
            with opened(shard) as file:
                here = [name for name in names if self.shards[name] == shard]
                tensors.update({name: file.get(name).to(dtype, copy=True) for name in here})
        return tensors


def _check_folder(folder: Path) -> None:
    """Refuse a folder without a model, and say where one is if it is the hub's cache of one.

    Raises:
        ConfigError: no config.json in it, or a link to a file that does not exist: without its generation_config.json
            or template a model would run all the same, with other ends or prompts.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if any(fnmatch(path.name, name) for name in TEXTS):
            check_link(path)
    if not (folder / "config.json").is_file():
        allowed = "a folder with config.json and weights in Hugging Face format"
        if below := sorted([*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json")]):
            allowed += f", such as {below[0].parent}"
        raise ConfigError("model.path", str(folder), allowed)


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many there are besides."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_config(found: Mapping[str, Any], path: Path) -> None:
    """Refuse what transformers would run, stumble over or replace by something else.

    Raises:
        ConfigError: by the key of config.json.
    """
    check_no_code(found, path)
    for key in ("quantization_config", "compression_config"):
        if (how := found.get(key)) is not None:
            kind = how.get("quant_method", "unnamed") if isinstance(how, dict) else type(how).__name__
            allowed = f"weights that are not quantised: config.json has {key} ({kind})"
            raise ConfigError("model", str(path.parent), allowed)
    if (name := found.get("transformers_weights")) is not None:  # which transformers would load whatever else is there
        allowed = f"null: weights are read from model.safetensors or its index, in {path}"
        raise ConfigError("config.transformers_weights", name, allowed)
    for key, kind in KEYS.items():
        if (key in found or key == "model_type") and not fits(kind, found.get(key)):
            raise ConfigError(f"config.{key}", found.get(key), f"{describe_type(kind)}, in {path}")
    classes, known = found.get("architectures") or [], f"{found['model_type']}forcausallm"
    if classes and known not in [name.lower() for name in classes]:
        raise ConfigError("config.architectures", classes, f"the class of model_type for causal language, in {path}")
