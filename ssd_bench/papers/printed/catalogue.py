"""Folders of the papers, each with `paper.yaml`, the paper's numbers, checks and figures."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ssd_bench.conf import read_yaml
from ssd_bench.errors import ConfigError

FOLDER = Path(__file__).parents[1]
NAMES: Mapping[str, Mapping[str, Any]] = read_yaml(FOLDER / "names.yaml")


@dataclass(frozen=True)
class MetricDefinition:
    """A paper's definition of a metric, and our `statistic` with this definition in `digest.summarise`.

    `baseline` is the paper's divisor: "ar", plain decoding in the method's loop, as here; "hf", Hugging Face
    `generate`; "" for none.
    """

    statistic: str
    meaning: str
    source: str
    baseline: str = ""


@dataclass(frozen=True)
class PaperFolder:
    """Folder of a paper in all versions, with the content of `paper.yaml`.

    Attributes:
        rank: position among the papers.
        versions: names in `results.csv` -> names for readers, the latest version first.
        hardware: GPUs, by a part of their names; empty if not stated.
        skip_ratio: sublayers counted in r: "all", or "inner" between the first and last block.
        counts: metric -> the paper's definition, if unlike ours.
        telling: keys of settings that distinguish numbers of an exhibit, also in ids.
        conditions: keys of settings of the measurement, which never do.
        not_measured: key of a setting -> why a whole run has no such number.
        compared: metric as a ratio to another run of the exhibit -> that run's axis and label.
        tasks: the paper's names of tasks only in streams -> choices of `task=`.
        all_tasks, all_models: names for all labels of an axis.
        series: series of models -> its models.
        prose: version -> passage -> its exhibits, if its numbers' notes do not name them; the first with such a number
            counts.
        imposed: `exhibit` whose speedups (`metric`) can be modelled at the paper's acceptance, exhibit with its
            `drafts` (α, M, skip ratio), their largest length (`draft_len`), and, by method, the source of the share
            `skipped` if not in that exhibit: `skip_by_layers` of a `preset` of conf/method, or the mean of released
            `sets`, with the `source` in words and its `models` (default: all).
    """

    path: Path
    rank: int
    versions: Mapping[str, str]
    hardware: Sequence[str] = ()
    skip_ratio: str = "all"
    counts: Mapping[str, MetricDefinition] = field(default_factory=dict)
    telling: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()
    not_measured: Mapping[str, str] = field(default_factory=dict)
    compared: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)
    all_tasks: Sequence[str] = ()
    all_models: Sequence[str] = ()
    series: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prose: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    imposed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of its folder, run sets and files in a report."""
        return self.path.name

    @property
    def latest(self) -> str:
        """Latest version, the default of exhibits."""
        return next(iter(self.versions))

    @property
    def numbers(self) -> Path | None:
        """Path of `results.csv`; None for a folder without a paper."""
        path = self.path / "results.csv"
        return path if path.is_file() else None

    def module(self, name: str) -> ModuleType | None:
        """Import `checks` or `figures`; None if missing."""
        if not (self.path / f"{name}.py").is_file():
            return None
        return importlib.import_module(f"ssd_bench.papers.{self.name}.{name}")

    def figures(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that draw its exhibits by name (`figure2a`, `table13`)."""
        module = self.module("figures")
        functions = {} if module is None else vars(module)
        return {
            name: draw
            for name, draw in functions.items()
            if re.fullmatch(r"(figure|table)\d+[a-z]?|comparison|drafts|real|windows", name)
        }


@cache
def paper_folders() -> tuple[PaperFolder, ...]:
    """Return all papers' folders by rank.

    Raises:
        ConfigError: an invalid `paper.yaml`; names file and key.
    """
    return tuple(sorted(map(read_folder, FOLDER.glob("*/paper.yaml")), key=lambda folder: (folder.rank, folder.name)))


def read_folder(path: Path) -> PaperFolder:
    """Return the folder of one `paper.yaml`.

    Raises:
        ConfigError: as `paper_folders`.
    """
    location = f"{path.parent.name}/{path.name}"
    content = read_yaml(path)
    if not isinstance(content, dict) or not {"rank", "versions"} <= set(content):
        raise ConfigError(location, content, "at least the keys rank and versions")
    settings, names = content.pop("settings", {}), content.pop("names", {})
    try:
        content["counts"] = {
            metric: MetricDefinition(**definition) for metric, definition in content.get("counts", {}).items()
        }
        content["compared"] = {
            metric: next(iter(run_label.items())) for metric, run_label in content.get("compared", {}).items()
        }
        content |= {key: frozenset(keys) for key, keys in settings.items()} | names
        folder = PaperFolder(path.parent, **content)
    except TypeError as error:
        raise ConfigError(location, sorted(content), reason=str(error)) from error
    for metric, definition in folder.counts.items():
        if definition.baseline not in ("", "ar", "hf"):
            raise ConfigError(f"{location} counts.{metric}.baseline", definition.baseline, "ar, hf or nothing")
    if folder.skip_ratio not in ("all", "inner"):
        raise ConfigError(f"{location} skip_ratio", folder.skip_ratio, "all or inner")
    if unknown := set(folder.prose) - set(folder.versions):
        raise ConfigError(f"{location} prose", sorted(unknown), f"versions among {', '.join(folder.versions)}")
    return folder


@cache
def paper_versions() -> tuple[str, ...]:
    """Return every version of every paper with numbers, in order."""
    return tuple(version for folder in paper_folders() if folder.numbers for version in folder.versions)


def find_folder(name: str) -> PaperFolder:
    """Return the folder with this name.

    Raises:
        ConfigError: no such folder.
    """
    folders = {folder.name: folder for folder in paper_folders()}
    if name not in folders:
        raise ConfigError("paper", name, f"a folder of ssd_bench/papers: {', '.join(folders)}")
    return folders[name]


def folder_of(paper: str) -> PaperFolder:
    """Return the folder of a version of a paper.

    Raises:
        ConfigError: no such version.
    """
    folders = {version: folder for folder in paper_folders() for version in folder.versions}
    if paper not in folders:
        raise ConfigError("paper", paper, f"one of {', '.join(folders)}")
    return folders[paper]


def version_name(paper: str) -> str:
    """Return the name of a version of a paper for readers."""
    return folder_of(paper).versions[paper]
