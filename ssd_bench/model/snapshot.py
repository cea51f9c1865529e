"""A hub model, downloaded in two steps at one commit: first config and tokenizer, then the weights."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.model.fetch import command, failure
from ssd_bench.model.headers import read_object, weights_file_names

TEXTS = (
    *("config.json", "generation_config.json", "adapter_config.json"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
    *("tokenizer.json", "tokenizer.*.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),
)
"""Files read besides the weights, by transformers' names."""

ELSEWHERE = "or choose a model that works offline: model=miniature, model=smollm2_135m, or model=local model.path=DIR"
GB = 1e9


@dataclass(frozen=True)
class Snapshot:
    """A model of the hub at one commit, in this machine's cache, in a folder named by the commit."""

    hub: str
    folder: Path

    @classmethod
    def of(cls, hub: str, revision: str | None) -> Snapshot:
        """Return a model's snapshot with its config and tokenizer files; weights only if the cache has them.

        Raises:
            ConfigError: these files cannot be downloaded, or the repository has no model in Hugging Face format.
        """
        from huggingface_hub import snapshot_download

        # names, not `*.json`: that reaches into subfolders with other formats of the model (`original/`, `onnx/`)
        try:
            with _no_progress():
                folder = snapshot_download(hub, revision=revision, allow_patterns=[*TEXTS])
        except Exception as error:  # the hub's clients raise many unrelated types
            raise _failed(error, hub, revision) from error
        snapshot = cls(hub, Path(folder))
        if not (snapshot.folder / "config.json").is_file():
            expected = "a repository with config.json and weights in Hugging Face format"
            if (snapshot.folder / "adapter_config.json").is_file():
                expected += "; this one is an adapter: merge it into its model, then model=local model.path=DIR"
            else:
                expected += snapshot._content_note()
            raise ConfigError("model.hub", hub, expected)
        return snapshot

    @property
    def commit(self) -> str:
        """Commit of the repository, 40 hex digits."""
        return self.folder.name

    def fetch_weights(self) -> None:
        """Download the weights that transformers would load, unless cached.

        Raises:
            ConfigError: they cannot be downloaded, have no supported format, or exceed the free disk space.
        """
        from huggingface_hub import snapshot_download

        if self._cached(".safetensors"):
            return
        try:
            listing = self._listing()
        except Exception as error:  # as above
            if self._cached(".bin"):  # offline, no other weights of the commit are known
                return
            raise _failed(error, self.hub, self.commit) from error
        missing = {path: size for path, size in listing.items() if not (self.folder / path).exists()}
        wanted = [path for path in self._weights(listing) if path in missing]
        self._check_disk_space(sum(missing[path] for path in wanted))
        try:
            patterns = [escape(path) for path in wanted]
            snapshot_download(self.hub, revision=self.commit, allow_patterns=patterns)
        except Exception as error:  # as above
            raise _failed(error, self.hub, self.commit) from error

    def _cached(self, kind: str) -> bool:
        """Return whether the cache has all weights files with a suffix."""
        for name, suffix in weights_file_names():
            if suffix == kind and (path := self.folder / name).is_file():
                files = _indexed(path) if name.endswith(".index.json") else [name]
                return bool(files) and all((self.folder / file).is_file() for file in files)
        return False

    def _listing(self) -> dict[str, int]:
        """Return the commit's files with their download bytes; 0 if cached."""
        from huggingface_hub import HfApi

        blobs, sizes = self.folder.parents[1] / "blobs", {}
        for entry in HfApi().list_repo_tree(self.hub, recursive=True, revision=self.commit):
            if (size := getattr(entry, "size", None)) is not None:  # else a folder
                lfs: Any = getattr(entry, "lfs", None)
                sizes[entry.path] = 0 if lfs and (blobs / lfs.sha256).exists() else size
        return sizes

    def _weights(self, listing: Collection[str]) -> list[str]:
        """Return the commit's files that transformers would load as weights."""
        for name, _ in weights_file_names():
            if name not in listing:
                continue
            if not name.endswith(".index.json"):
                return [name]
            files = _indexed(self.folder / name)
            if absent := [file for file in files if file not in listing]:
                expected = f"a repository with all files of its {name}; {absent[0]} is missing"
                raise ConfigError("model.hub", self.hub, expected)
            return files
        expected = "a repository with model.safetensors or pytorch_model.bin (or shards with an index)"
        raise ConfigError("model.hub", self.hub, expected + _some(listing))

    def _check_disk_space(self, needed: int) -> None:
        cache = self.folder.parents[2]
        if needed > (free := shutil.disk_usage(cache).free):
            expected = f"a model that fits on the disk of {cache}: its weights need {needed / GB:.1f} GB more and "
            expected += f"{free / GB:.1f} GB are free; free some space, or let HF_HOME name a folder on another disk"
            # a killed download leaves its partial files, which the hub's client neither deletes nor continues
            leftover = sum(path.stat().st_size for path in (self.folder.parents[1] / "blobs").glob("*.incomplete"))
            if leftover:
                expected += f"; {leftover / GB:.1f} GB are in *.incomplete of {self.folder.parents[1]}, left by "
                expected += "downloads that were killed: delete them unless one is running"
            raise ConfigError("model.hub", self.hub, expected)

    def _content_note(self) -> str:
        try:
            return _some(self._listing())
        except Exception:  # the message does without it
            return ""


@contextmanager
def _no_progress() -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            enable_progress_bars()


def _indexed(index: Path) -> list[str]:
    places = read_object(index).get("weight_map")
    return sorted({str(name) for name in places.values()}) if isinstance(places, Mapping) else []


def _some(listing: Collection[str]) -> str:
    files = sorted(path for path in listing if not path.startswith(".git"))
    return f"; it has {', '.join(files[:3])}{', ...' if len(files) > 3 else ''}" if files else ""


def _failed(error: Exception, hub: str, revision: str | None) -> ConfigError:
    cause = failure(error, "model", hub, revision)
    advice = command("model", hub, revision)
    message = cause if advice in cause else f"{cause}; {advice}"
    return ConfigError("model.hub", hub, f"a model that can be downloaded: {message}, {ELSEWHERE}")
