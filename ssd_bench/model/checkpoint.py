"""Where a model comes from: this package, a folder, the hub, or a GGUF file in an installed package; no fallback."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

TEMPLATES = ("chat", "plain")
KINDS = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights that can be read, as safetensors names them."""

NOT_WEIGHTS = ("rotary_emb.inv_freq",)
"""Ends of names of tensors in old checkpoints that are derived from the config."""

EMBEDDED = Path(__file__).parents[1] / "miniature" / "weights"


def cache_dir() -> Path:
    """Folder for converted checkpoints and latency profiles: `$SSD_BENCH_CACHE`, else `~/.cache/ssd-bench`."""
    return Path(os.environ.get("SSD_BENCH_CACHE") or Path.home() / ".cache" / "ssd-bench")


@dataclass(frozen=True)
class ModelSource:
    """One entry of `conf/model`: exactly one of `embedded`, `path`, `hub` and `gguf` says where the checkpoint is.

    Attributes:
        name: name in tables and run ids.
        template: `chat` (the tokenizer's chat template) or `plain` (the text as it is).
        embedded: name of a model that this project trained and ships (`ssd_bench/miniature/weights`).
        path: folder of a checkpoint in Hugging Face format.
        hub: hub id, with `revision` pinning it.
        gguf: `package` (import name of an installed package) and `file` within it.
        shape: sizes, the fields of `Shape`, so that what a run takes is known without its weights; None: not known.
    """

    name: str
    template: str
    embedded: str | None = None
    path: str | None = None
    hub: str | None = None
    revision: str | None = None
    gguf: dict[str, str] | None = None
    shape: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.template not in TEMPLATES:
            raise ConfigError("model.template", self.template, f"one of {', '.join(TEMPLATES)}")
        given = [k for k in ("embedded", "path", "hub", "gguf") if getattr(self, k)]
        if len(given) != 1:
            allowed = "exactly one of model.embedded, model.path, model.hub and model.gguf"
            raise ConfigError("model", given, allowed)
        if self.embedded and not (EMBEDDED / self.embedded / "config.json").is_file():
            present = sorted(path.parent.name for path in EMBEDDED.glob("*/config.json"))
            raise ConfigError("model.embedded", self.embedded, f"one of {', '.join(present)}")

    @property
    def rehearsal(self) -> bool:
        """Whether numbers on this model stand for themselves only: no paper has results on an embedded model."""
        return self.embedded is not None

    def open(self) -> Checkpoint:
        """The checkpoint's folder with its config read; loads no weights.

        Raises:
            ConfigError: the weights are not there; the message names the command that gets them.
        """
        if self.embedded:
            folder = EMBEDDED / self.embedded
        elif self.gguf:
            folder = _converted(self.gguf["package"], self.gguf["file"])
        elif self.hub:
            folder = _downloaded(self.hub, self.revision)
        else:
            folder = Path(str(self.path)).expanduser()
            if not (folder / "config.json").is_file():
                raise ConfigError(
                    "model.path", str(folder), "a folder with config.json and weights in Hugging Face format"
                )
        return Checkpoint(folder)


@dataclass(frozen=True)
class Checkpoint:
    """A folder in Hugging Face format."""

    folder: Path

    @cached_property
    def config(self) -> PretrainedConfig:
        """The model's configuration, as transformers reads it (both old and new places of the rotary base).

        Raises:
            ConfigError: config.json cannot be read.
        """
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self.folder)
        except (OSError, ValueError) as error:
            raise ConfigError("model", str(self.folder), f"a readable config.json ({error})") from error

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The checkpoint's tokenizer."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends an output: generation_config.json's if present, as Hugging Face `generate` stops."""
        path = self.folder / "generation_config.json"
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        ids = self.config.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    @cached_property
    def shards(self) -> dict[str, Path]:
        """Tensor name -> file that holds it.

        Raises:
            ConfigError: the folder holds no weights.
        """
        for suffix in ("safetensors", "bin"):
            stem = "model" if suffix == "safetensors" else "pytorch_model"
            index = self.folder / f"{stem}.{suffix}.index.json"
            if index.is_file():
                return {
                    k: self.folder / v for k, v in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
                }
            single = self.folder / f"{stem}.{suffix}"
            if single.is_file():
                with _opened(single) as file:
                    return dict.fromkeys(file.names, single)
        raise ConfigError("model", str(self.folder), "a folder with model.safetensors or pytorch_model.bin (or shards)")

    def check_all_read(self, read: Collection[str]) -> None:
        """Refuse weights that this project would read only a part of, from the files' headers alone.

        Args:
            read: names of all tensors that the model reads.

        Raises:
            ConfigError: quantised weights, an adapter beside them, or tensors that nothing reads.
        """
        for key in ("quantization_config", "compression_config"):
            if (found := getattr(self.config, key, None)) is not None:
                kind = found.get("quant_method", "unnamed") if isinstance(found, dict) else type(found).__name__
                allowed = f"weights that are not quantised: config.json has {key} ({kind})"
                raise ConfigError("model", str(self.folder), allowed)
        if adapters := sorted(path.name for path in self.folder.glob("adapter_*")):
            raise ConfigError(
                "model", str(self.folder), f"a model without an adapter: merge {', '.join(adapters)} into it"
            )
        kinds = self._kinds()
        unread = sorted(name for name in kinds if name not in read and not name.endswith(NOT_WEIGHTS))
        if unread:
            some = ", ".join(unread[:3]) + (f" and {len(unread) - 3} more" if len(unread) > 3 else "")
            allowed = (
                f"weights of which every tensor is read: nothing reads {some} (scales and adapters must be merged)"
            )
            raise ConfigError("model", str(self.folder), allowed)
        for name, kind in kinds.items():
            if kind not in KINDS:
                raise ConfigError("model", str(self.folder), f"weights of {', '.join(KINDS)}: {name} is {kind}")

    def _kinds(self) -> dict[str, str]:
        """Names and dtypes of all tensors in the files that hold the weights.

        Raises:
            ConfigError: a file that cannot be read.
        """
        found = {}
        for shard in sorted(set(self.shards.values())):
            try:
                with _opened(shard) as file:
                    found.update({name: file.kind(name) for name in file.names})
            except Exception as error:  # safetensors' and pickle's errors have no common type
                reason = " ".join(str(error).split())[:200]
                raise ConfigError("model", str(shard), f"a weights file that can be read ({reason})") from error
        return found

    def read(self, names: list[str], dtype: torch.dtype) -> dict[str, Tensor]:
        """The named tensors, copied out of their files into `dtype`.

        A file is opened for this call alone: its pages leave memory with it, so that loading block by block
        never holds the weights twice.
        """
        tensors = {}
        for shard in sorted({self.shards[name] for name in names}):
            with _opened(shard) as file:
                here = [name for name in names if self.shards[name] == shard]
                tensors.update({name: file.get(name).to(dtype, copy=True) for name in here})
        return tensors


@dataclass(frozen=True)
class _Weights:
    """An open weights file: the names in it, and what reads a tensor, and its dtype (as safetensors writes it)."""

    names: list[str]
    get: Callable[[str], Tensor]
    kind: Callable[[str], str]


@contextmanager
def _opened(path: Path) -> Iterator[_Weights]:
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            yield _Weights(list(file.keys()), file.get_tensor, lambda name: str(file.get_slice(name).get_dtype()))
    else:
        import torch

        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        names = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
        yield _Weights(
            list(state), state.__getitem__, lambda name: names.get(state[name].dtype, str(state[name].dtype))
        )


def _downloaded(hub: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.safetensors", "*.json", "*.model", "*.jinja", "tokenizer*"]
    try:
        return Path(snapshot_download(hub, revision=revision, allow_patterns=patterns))
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
        raise ConfigError(
            "model.gguf", f"{package}/{file}", "an installed package; get the weights with `make weights`"
        )
    stat = source.stat()
    key = hashlib.sha256(f"{file}:{stat.st_size}:v1".encode()).hexdigest()[:12]
    folder = cache_dir() / "models" / f"{source.stem.lower()}-{key}"
    if not (folder / "config.json").is_file():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = f"a folder that can be written, for converted weights ({error})"
            raise ConfigError("SSD_BENCH_CACHE", str(cache_dir()), allowed) from error
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

    where: dict[str, Any] = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
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
