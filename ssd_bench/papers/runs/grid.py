"""Run sets (`conf/experiment`): jobs, each a list of overrides, by a paper's names, and their exhibits.

Each job is defined in one run set; any number of exhibits may show it. An experiment is an exhibit with its jobs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ssd_bench.conf import CONF, read_yaml
from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import find_folder

AXES = ("model", "task", "method", "setting")
KINDS = ("table", "figure", "sets", "cases", "vectors")
GROUPS = ("model", "method", "task", "task@calibrate", "data", "hardware", "decode")  # config groups
FOLDER = CONF / "experiment"


@dataclass(frozen=True)
class Job:
    """Run of an exhibit; `labels` maps axes to the paper's own names, "" for a setting without one."""

    experiment: str
    labels: Mapping[str, str]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """Exhibit of a paper and its jobs.

    Attributes:
        name: on the command line, such as `swift_figure2a`.
        paper, exhibit: as in the reported numbers; panels of one figure are several experiments.
        kind: one of `KINDS`.
        jobs: in the exhibit's order.
        not_run: parts of the exhibit without a job, with the reason.
        also: (paper, exhibit) of other versions of the paper with the same runs.
        spread: whether its jobs are spread over a sweep's time.
    """

    name: str
    paper: str
    exhibit: str
    kind: str
    jobs: tuple[Job, ...]
    not_run: tuple[Mapping[str, str], ...] = ()
    also: tuple[tuple[str, str], ...] = ()
    spread: bool = False


@dataclass(frozen=True)
class Grid:
    """Product of four axes.

    Attributes:
        axes: axis -> the paper's name -> overrides.
        first, last: overrides of all jobs, before and after the axes'.
    """

    axes: Mapping[str, Mapping[str, Sequence[str]]]
    first: Sequence[str] = ()
    last: Sequence[str] = ()

    def overrides(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the overrides of the job with these labels, one per axis."""
        axis_overrides = (self.axes[axis][label] for axis, label in zip(AXES, labels, strict=True))
        return merge_overrides([o for part in (self.first, *axis_overrides, self.last) for o in part])


@dataclass(frozen=True)
class RunSet:
    """File of `conf/experiment` (`swift/text`); `exhibits` has its entries by their names on the command line."""

    name: str
    grids: Mapping[str, Grid]
    exhibits: Mapping[str, Mapping[str, Any]]


def names() -> list[str]:
    """Return the names of all experiments.

    Raises:
        ConfigError: as `read_run_sets`.
    """
    return sorted(read_run_sets(FOLDER)[1])


def load(name: str) -> Experiment:
    """Return an experiment.

    Raises:
        ConfigError: an unknown name; suggests names with this beginning, else similar names, else all run sets.
    """
    run_sets, experiments = read_run_sets(FOLDER)
    if name in experiments:
        return experiments[name]
    known_names = [*run_sets, *names()]
    matches = [known_name for known_name in known_names if known_name.startswith(name)]
    suggestions = ", ".join(matches or get_close_matches(name, known_names, cutoff=0.75) or run_sets)
    expected = f"a table, a figure or a run set, such as {suggestions}; python -m ssd_bench run --help lists all"
    raise ConfigError("experiment", name, expected)


def sets() -> Mapping[str, RunSet]:
    """Return all run sets by name.

    Raises:
        ConfigError: as `read_run_sets`.
    """
    return read_run_sets(FOLDER)[0]


def expand_name(name: str) -> list[str]:
    """Return the experiments of a name on the command line: all of a run set (by its path or unique file name), or one.

    Raises:
        ConfigError: an unknown name; or as `read_run_sets`.
    """
    if name not in sets() and name not in names():
        matches = [run_set for run_set in sets() if run_set.partition("/")[2] == name]
        name = matches[0] if len(matches) == 1 else name
    return [*sets()[name].exhibits] if name in sets() else [load(name).name]


@cache
def read_run_sets(folder: Path) -> tuple[Mapping[str, RunSet], Mapping[str, Experiment]]:
    """Return all run sets and experiments of a folder by name.

    Raises:
        ConfigError: a file contradicts `conf/experiment/README.md`, or two files have the same exhibit.
    """
    files = sorted(folder.glob("*/*.yaml"))
    run_sets = {run_set.name: run_set for run_set in map(_run_set, files)}
    experiments: dict[str, Experiment] = {}
    for run_set in run_sets.values():
        for name, entry in run_set.exhibits.items():
            if name in experiments:
                owner = next(other.name for other in run_sets.values() if name in other.exhibits)
                raise ConfigError(f"experiment {run_set.name} exhibits", name, f"a name that {owner} does not use")
            experiments[name] = _experiment(name, entry, run_set, run_sets)
    return run_sets, experiments


def _run_set(path: Path) -> RunSet:
    paper, name = path.parent.name, f"{path.parent.name}/{path.stem}"
    try:
        written = read_yaml(path)
    except yaml.YAMLError as error:
        raise ConfigError(f"experiment {name}", path.name, f"valid YAML ({' '.join(str(error).split())})") from error
    content = _mapping(f"experiment {name}", written, ("overrides", "grids", "exhibits"), ("exhibits",))
    exhibits = _mapping(f"experiment {name} exhibits", content["exhibits"])
    if not exhibits:
        raise ConfigError(f"experiment {name} exhibits", exhibits, "at least one")
    grids = {
        key: _grid(f"experiment {name} grids.{key}", grid, content.get("overrides") or ())
        for key, grid in _mapping(f"experiment {name} grids", content.get("grids") or {}).items()
    }
    return RunSet(name, grids, {f"{paper}_{key}": entry or {} for key, entry in exhibits.items()})


def _grid(location: str, content: Any, first: Sequence[str]) -> Grid:
    entry = _mapping(location, content, (*AXES, "overrides"), ("model", "task", "method"))
    axes = {axis: _mapping(f"{location}.{axis}", entry.get(axis, {"": []})) for axis in AXES}
    overrides = {
        axis: {label: _overrides(axis, value) for label, value in values.items()} for axis, values in axes.items()
    }
    return Grid(overrides, first, entry.get("overrides") or ())


def _overrides(axis: str, value: str | Sequence[str]) -> list[str]:
    """Return an axis value's overrides; a plain word is a choice of the axis' group."""
    values = [value] if isinstance(value, str) else list(value)
    return [part if "=" in part or part.startswith("~") else f"{axis}={part}" for part in values]


def _experiment(name: str, content: Any, home: RunSet, run_sets: Mapping[str, RunSet]) -> Experiment:
    """Return the experiment of an exhibit's entry in the run set `home`, with grids of `run_sets`."""
    folder = home.name.partition("/")[0]
    key = name.removeprefix(f"{folder}_")
    location = f"experiment {home.name} exhibits"
    match = re.fullmatch(r"([a-z]+?(?:_[a-z]+?)*)(\d+[a-z]?)?", key)
    if not match:
        raise ConfigError(location, key, "a word, a number and optionally the letter of a panel, such as figure2a")
    location = f"{location}.{key}"
    entry = _mapping(location, content, ("kind", "also", "jobs", "not_run", "spread"))
    kind = entry.get("kind", match[1])
    if kind not in KINDS:
        raise ConfigError(f"{location}.kind", kind, f"one of {', '.join(KINDS)}")
    jobs = [
        Job(name, dict(zip(AXES, labels, strict=True)), overrides)
        for i, part in enumerate(entry.get("jobs") or [{"grid": grid} for grid in home.grids])
        for labels, overrides in _part(f"{location}.jobs[{i}]", part, home, run_sets)
    ]
    if not jobs:
        raise ConfigError(f"{location}.jobs", jobs, "at least one")
    number = re.sub(r"\D", "", match[2] or "")
    return Experiment(
        name,
        find_folder(folder).latest,
        f"{match[1].replace('_', ' ').capitalize()} {number}".strip(),
        kind,
        tuple(jobs),
        tuple(entry.get("not_run") or ()),
        tuple((row["paper"], row["exhibit"]) for row in entry.get("also") or ()),
        entry.get("spread", False) is True,
    )


def _part(
    location: str, content: Any, home: RunSet, run_sets: Mapping[str, RunSet]
) -> Iterator[tuple[Sequence[str], tuple[str, ...]]]:
    """Yield labels, as in the exhibit, and overrides of the jobs that its part selects."""
    part = _mapping(location, content, ("from", "grid", *AXES), ("grid",))
    source = run_sets.get(part.get("from", home.name))
    if source is None:
        raise ConfigError(f"{location}.from", part["from"], f"one of {', '.join(run_sets)}")
    if part["grid"] not in source.grids:
        raise ConfigError(f"{location}.grid", part["grid"], f"one of {', '.join(source.grids)}")
    grid = source.grids[part["grid"]]
    axes = [
        _select_labels(f"{location}.{axis}", part.get(axis, [*grid.axes[axis]]), [*grid.axes[axis]]) for axis in AXES
    ]
    for pairs in itertools.product(*(axis.items() for axis in axes)):
        yield [shown for _, shown in pairs], grid.overrides([label for label, _ in pairs])


def _select_labels(location: str, content: Any, grid_labels: Sequence[str]) -> dict[str, str]:
    """Return a grid's labels shown in an exhibit, in its order -> the exhibit's names."""
    if not isinstance(content, list) or not content or not all(isinstance(item, str | dict) for item in content):
        raise ConfigError(location, content, "a list of labels, each plain or as {label: name in the table or figure}")
    shown_labels: dict[str, str] = {}
    for item in content:
        shown_labels |= item if isinstance(item, dict) else {item: item}
    for label in shown_labels:
        if label not in grid_labels:
            raise ConfigError(location, label, f"labels of the grid: {', '.join(map(repr, grid_labels))}")
    return shown_labels


def _mapping(
    location: str, content: Any, allowed: Sequence[str] | None = None, required: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return a mapping of a file, with allowed (None: any) and required keys.

    Raises:
        ConfigError: no mapping, or an unknown or missing key.
    """
    expected = "a mapping" if allowed is None else f"a mapping of {', '.join(allowed)}"
    if not isinstance(content, Mapping):
        raise ConfigError(location, content, expected)
    for key in content:
        if allowed is not None and key not in allowed:
            raise ConfigError(location, key, expected)
    for key in required:
        if key not in content:
            raise ConfigError(location, [*content], f"{expected}; {key} is missing")
    return content


def merge_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return one override per key, the last of each, with choices of config groups first, as Hydra applies them."""
    last = {key_of(override): override for override in overrides}
    groups = [o for key, o in last.items() if key in GROUPS]
    return (*groups, *sorted(o for o in last.values() if o not in groups))


def choice(overrides: Sequence[str], key: str) -> str:
    """Return the first value of a config group or option; else ""."""
    return next((override.partition("=")[2] for override in overrides if key_of(override) == key), "")


def key_of(override: str) -> str:
    """Return the key that an override sets: `+method.x=1` sets method.x."""
    return override.partition("=")[0].lstrip("+~")
