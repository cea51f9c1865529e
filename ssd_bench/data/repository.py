"""Repositories of data sets: one commit of the Hugging Face hub, or a folder with the same layout."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.model.fetch import failure, reason
from ssd_bench.paths import file_hash, local_path, write_atomic

COMMIT = re.compile(r"[0-9a-f]{40}")
CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
"""Files that assign data files to configurations and splits."""

ARCHIVES = (".zip",)
"""Suffixes of data files that `datasets` opens to find out how to read them."""

LISTS = ".ssd-bench"
"""Folder for lists of files, by commit, in the hub's cache of a repository."""

SHARD = re.compile(r"(?P<stem>.*-)\d{5}-of-(?P<count>\d{5})(?P<suffix>\.[^/]*)")


@dataclass(frozen=True)
class Repository:
    """Files of one commit; a file is downloaded at that commit when first read.

    Attributes:
        path: id on the hub, or a folder.
        commit: 40 hex digits; None: a folder.
        names: paths of all files; None: a folder, which is searched.
    """

    path: str
    commit: str | None
    names: tuple[str, ...] | None = None

    def file(self, name: str) -> Path:
        """Return a file on this machine, downloaded unless cached."""
        if self.names is None:
            return Path(self.path, name)
        from huggingface_hub import hf_hub_download

        # given the 40 digits of a commit, the client takes only files of this commit from its cache
        return Path(hf_hub_download(self.path, name, repo_type="dataset", revision=self.commit))

    def content_hash(self, name: str) -> str:
        """Return a hash of a file: its blob's name in the hub's cache, else its bytes' sha256."""
        file = self.file(name)
        target = file.resolve()
        if file.is_symlink() and target.parent.name == "blobs":
            return target.name
        return file_hash(file)

    @contextmanager
    def outline(self) -> Iterator[Path]:
        """Make a folder with all file names; only files that describe others have content.

        `datasets` looks up files there, so that only those of a run's splits are downloaded.
        """
        if self.names is None:
            yield Path(self.path).resolve()
            return
        with tempfile.TemporaryDirectory(prefix="ssd-bench-") as folder:
            for name in self.names:
                place = Path(folder, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                if name in CARDS or name.endswith(ARCHIVES):
                    place.symlink_to(self.file(name).resolve())
                else:
                    place.touch()
            yield Path(folder).resolve()


def open_repository(path: str, revision: str | None, option: str) -> Repository:
    """Return the repository at the present commit of a revision.

    If the hub does not answer, a branch or tag means its commit in the cache; a line on stderr says so.

    Raises:
        ConfigError: the revision is not available.
    """
    if (folder := local_path(f"{option.removesuffix('revision')}path", path)).is_dir():
        commit_of_folder = folder.name if COMMIT.fullmatch(folder.name) else None  # a snapshot in the hub's cache
        if revision is not None and COMMIT.fullmatch(revision) and revision != commit_of_folder:
            holds = f"holds commit {commit_of_folder}" if commit_of_folder else "has no commits"
            raise ConfigError(option, revision, f"null: the folder {path} {holds}")
        return Repository(str(folder), commit_of_folder)
    try:
        commit = _resolve(path, revision or "main")
        return Repository(path, commit, _names(path, commit))
    except ConfigError:
        raise
    except Exception as error:  # the hub's clients raise OSError, ValueError, RuntimeError and errors of httpx
        cause = failure(error, "dataset", path, revision)
        commits = ", ".join(sorted(folder.name for folder in (_storage(path) / "snapshots").glob("*")))
        commits = f"; the cache has commit {commits}, which {option}=COMMIT reads" if commits else ""
        raise ConfigError(option, revision, reason=f"{path} could not be loaded ({cause}){commits}") from error


def _resolve(path: str, revision: str) -> str:
    from huggingface_hub import HfApi

    if COMMIT.fullmatch(revision):
        return revision
    cached_reference = _storage(path) / "refs" / revision
    try:
        commit = HfApi().repo_info(path, repo_type="dataset", revision=revision).sha
    except Exception as error:
        if not (_unanswered(error) and cached_reference.is_file()):
            raise
        commit = cached_reference.read_text(encoding="utf-8").strip()
        substitute = f"using the cached commit {commit} of {revision}"
        print(f"{path}: the hub does not answer ({reason(error)}); {substitute}", file=sys.stderr)
        return commit
    assert commit is not None, "the hub names a commit unless it is told not to"
    _write(cached_reference, commit)
    return commit


def _names(path: str, commit: str) -> tuple[str, ...]:
    """Return the hub's list of a commit's files, cached for copies of the cache on machines without a network."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    cached_list = _storage(path) / LISTS / f"{commit}.json"
    with suppress(OSError, ValueError):  # no list yet, or a damaged one
        return tuple(json.loads(cached_list.read_text(encoding="utf-8")))
    try:
        tree = HfApi().list_repo_tree(path, recursive=True, revision=commit, repo_type="dataset")
        names = sorted(entry.path for entry in tree if isinstance(entry, RepoFile))
    except Exception as error:
        snapshot = _storage(path) / "snapshots" / commit
        if not (_unanswered(error) and snapshot.is_dir()):
            raise
        files = (file.relative_to(snapshot).as_posix() for file in snapshot.rglob("*") if file.is_file())
        return _complete_files(path, sorted(files))
    _write(cached_list, json.dumps(names))
    return tuple(names)


def _complete_files(path: str, names: list[str]) -> tuple[str, ...]:
    families = {name: match.groups() for name in names if (match := SHARD.fullmatch(name))}
    present = Counter(families.values())
    partial = {family for family, count in present.items() if count < int(family[1])}
    for stem, count, suffix in sorted(partial):
        shards = f"{stem}*-of-{count}{suffix}"
        print(f"{path}: the cache lacks some of {shards}, so none of these files is read", file=sys.stderr)
    return tuple(name for name in names if families.get(name) not in partial)


def _unanswered(error: BaseException) -> bool:
    """Return whether the hub said nothing about the repository: not reached, busy, or at fault."""
    from huggingface_hub.errors import HfHubHTTPError

    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    return status is None or status == 429 or status >= 500


def _storage(path: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"datasets--{path.replace('/', '--')}"


def _write(file: Path, text: str) -> None:
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode())
