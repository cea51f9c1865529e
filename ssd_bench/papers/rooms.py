"""The papers that there are: a folder each beside this file, with `paper.yaml`, its numbers, checks and figures."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ssd_bench.errors import ConfigError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Statistic:
    """What a paper's metric is, where papers that use its name differ.

    Attributes:
        statistic: ours that is counted alike, over our AR, by its name in `metrics.summarise`.
        meaning: in words.
        source: how that is known.
        baseline: what the paper divides by: ar, plain decoding in the method's own loop, as ours; hf, Hugging Face
            `generate`; "" for a metric that is over nothing.
    """

    statistic: str
    meaning: str
    source: str
    baseline: str = ""


@dataclass(frozen=True)
class Room:
    """A paper in all its versions, as `paper.yaml` has it.

    Attributes:
        folder: of all that is known of it.
        rank: its place among the papers, in tables and pages.
        versions: names in `results.csv` -> as a reader calls them, the latest first.
        hardware: GPUs that it names, by a part of their names; none where it does not state its own.
        skip_ratio: what r is counted of: all sublayers, or the `inner` ones between the first and the last block.
        counts: metric -> what it is here, where the paper counts it in a way of its own.
        telling: settings that tell one number of an exhibit from another, and are part of its id.
        conditions: settings under which a number was measured, the same for all numbers it could be mistaken for.
        not_measured: setting of a number -> why no whole run has such a number.
        compared: metric that is a ratio to another run of the exhibit -> axis and label of that run.
        tasks: the paper's names of tasks that only streams have -> choices of `task=`.
        all_tasks, all_models: names that stand for all of an axis.
        series: name that stands for several models -> these.
        prose: version -> passage -> the exhibits that it is about, where the notes of its numbers do not say so; the
            first that has such a number.
        imposed: the `exhibit` whose speedups (`metric`) can be measured at the paper's acceptance, the exhibit that
            says how its `drafts` went (α, M, skip ratio), their longest length (`draft_len`), and by method the share
            of all sublayers that is `skipped` where that exhibit does not say.
    """

    folder: Path
    rank: int
    versions: Mapping[str, str]
    hardware: Sequence[str] = ()
    skip_ratio: str = "all"
    counts: Mapping[str, Statistic] = field(default_factory=dict)
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
        """Of its folder, its run sets and its files of the report."""
        return self.folder.name

    @property
    def latest(self) -> str:
        """The version that exhibits are of, where they do not say another."""
        return next(iter(self.versions))

    @property
    def numbers(self) -> Path | None:
        """Its `results.csv`; None for a room without a paper."""
        path = self.folder / "results.csv"
        return path if path.is_file() else None

    def module(self, name: str) -> ModuleType | None:
        """Its `checks` or `figures`; None where it has no such file."""
        if not (self.folder / f"{name}.py").is_file():
            return None
        return importlib.import_module(f"{__package__}.{self.name}.{name}")

    def figures(self) -> dict[str, Callable[..., Any]]:
        """What draws its exhibits, by their names (`figure2a`, `table13`): functions of `figures.py` are called so."""
        own = self.module("figures")
        named = {} if own is None else vars(own)
        return {
            name: made
            for name, made in named.items()
            if re.fullmatch(r"(figure|table)\d+[a-z]?|comparison|windows", name)
        }


@cache
def rooms() -> tuple[Room, ...]:
    """All papers by rank.

    Raises:
        ConfigError: a `paper.yaml` that does not fit; names the file and the key.
    """
    return tuple(sorted(map(read, FOLDER.glob("*/paper.yaml")), key=lambda room: (room.rank, room.name)))


def read(path: Path) -> Room:
    """One `paper.yaml`; as `rooms`."""
    where = f"{path.parent.name}/{path.name}"
    content: Any = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(content, dict) or not {"rank", "versions"} <= set(content):
        raise ConfigError(where, content, "rank and versions at least")
    settings, names = content.pop("settings", {}), content.pop("names", {})
    try:
        content["counts"] = {metric: Statistic(**counted) for metric, counted in content.get("counts", {}).items()}
        content["compared"] = {m: next(iter(other.items())) for m, other in content.get("compared", {}).items()}
        content |= {key: frozenset(found) for key, found in settings.items()} | names
        room = Room(path.parent, **content)
    except TypeError as error:
        raise ConfigError(where, sorted(content), str(error)) from error
    for metric, counted in room.counts.items():
        if counted.baseline not in ("", "ar", "hf"):
            raise ConfigError(f"{where} counts.{metric}.baseline", counted.baseline, "ar, hf or nothing")
    if room.skip_ratio not in ("all", "inner"):
        raise ConfigError(f"{where} skip_ratio", room.skip_ratio, "all or inner")
    if unknown := set(room.prose) - set(room.versions):
        raise ConfigError(f"{where} prose", sorted(unknown), f"of {', '.join(room.versions)}")
    return room


@cache
def papers() -> tuple[str, ...]:
    """Every version of every paper that reports numbers, in their order."""
    return tuple(version for room in rooms() if room.numbers for version in room.versions)


def named(name: str) -> Room:
    """The room of a folder.

    Raises:
        ConfigError: there is none.
    """
    for room in rooms():
        if room.name == name:
            return room
    raise ConfigError("paper", name, f"a folder of ssd_bench/papers: {', '.join(room.name for room in rooms())}")


def room_of(paper: str) -> Room:
    """The room of a version of a paper.

    Raises:
        ConfigError: no room has it.
    """
    for room in rooms():
        if paper in room.versions:
            return room
    raise ConfigError("paper", paper, f"one of {', '.join(version for room in rooms() for version in room.versions)}")


def name_of(paper: str) -> str:
    """A version of a paper as a reader calls it."""
    return room_of(paper).versions[paper]
