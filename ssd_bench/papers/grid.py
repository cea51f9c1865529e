"""Run sets (`conf/experiment`): from the names that a paper uses to jobs, each a list of overrides, and to exhibits.

A job is written in one set, and shown by any number of exhibits. An exhibit by itself, with the jobs that it shows, is
an experiment.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ssd_bench.command import CONF
from ssd_bench.errors import ConfigError
from ssd_bench.papers.rooms import named

AXES = ("model", "task", "method", "setting")
KINDS = ("table", "figure", "sets", "cases", "vectors")
GROUPS = ("model", "method", "task", "task@calibrate", "data", "hardware", "decode")
FOLDER = CONF / "experiment"


@dataclass(frozen=True)
class Job:
    """One run that an exhibit asks for.

    Attributes:
        experiment: name of the exhibit.
        labels: axis -> the paper's own name; "" for a setting where there is none.
        overrides: of the command line `python -m ssd_bench`.
    """

    experiment: str
    labels: Mapping[str, str]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Experiment:
    """One exhibit of a paper and the jobs behind it.

    Attributes:
        name: on the command line, as `swift_figure2a`.
        paper, exhibit: as in the reported numbers; panels of one figure are several experiments.
        kind: one of `KINDS`.
        jobs: in the exhibit's order.
        not_run: what of the exhibit no job gives, and why.
        also: exhibits of other versions of the paper with the same runs, as (paper, exhibit).
        spread: its jobs are shared out over a sweep, so that they are runs at different moments of it.
    """

    name: str
    paper: str
    exhibit: str
    kind: str
    jobs: tuple[Job, ...]
    not_run: tuple[Mapping[str, str], ...] = ()
    also: tuple[tuple[str, str], ...] = field(default=())
    spread: bool = False


@dataclass(frozen=True)
class Grid:
    """The product of four axes.

    Attributes:
        axes: axis -> the paper's own name -> overrides.
        first, last: overrides of all its jobs, before and after those of the axes.
    """

    axes: Mapping[str, Mapping[str, Sequence[str]]]
    first: Sequence[str] = ()
    last: Sequence[str] = ()

    def overrides(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Of the job with one label of each axis."""
        own = (self.axes[axis][label] for axis, label in zip(AXES, labels, strict=True))
        return merged([o for part in (self.first, *own, self.last) for o in part])

    def jobs(self) -> list[tuple[str, ...]]:
        """The overrides of every job."""
        return [self.overrides(labels) for labels in itertools.product(*(self.axes[axis] for axis in AXES))]


@dataclass(frozen=True)
class RunSet:
    """A file of `conf/experiment`.

    Attributes:
        name: of its folder and file, as `swift/text`.
        grids: by name.
        exhibits: name on the command line -> what the file says of it.
    """

    name: str
    grids: Mapping[str, Grid]
    exhibits: Mapping[str, Mapping[str, Any]]


def names() -> list[str]:
    """All experiments.

    Raises:
        ConfigError: as `read`.
    """
    return sorted(read(FOLDER)[1])


def load(name: str) -> Experiment:
    """An experiment.

    Raises:
        ConfigError: there is none of that name; or as `read`.
    """
    found = read(FOLDER)[1].get(name)
    if found is None:
        raise _unknown(name)
    return found


def sets() -> Mapping[str, RunSet]:
    """All run sets by name.

    Raises:
        ConfigError: as `read`.
    """
    return read(FOLDER)[0]


def filled(name: str) -> list[str]:
    """The experiments that a name on the command line stands for: all of a run set, or the one of that name.

    A run set may be called by its file's name alone, where no other has it.

    Raises:
        ConfigError: there is neither; or as `read`.
    """
    if name not in sets() and name not in names():
        alike = [one for one in sets() if one.partition("/")[2] == name]
        name = alike[0] if len(alike) == 1 else name
    return [*sets()[name].exhibits] if name in sets() else [load(name).name]


def _unknown(name: str) -> ConfigError:
    """With the names that begin as it does, else the nearest, else all run sets."""
    known = [*sets(), *names()]
    near = [one for one in known if one.startswith(name)] or get_close_matches(name, known, cutoff=0.75) or sets()
    told = f"an exhibit or a run set, as {', '.join(near)}; python -m ssd_bench run --help lists all"
    return ConfigError("experiment", name, told)


@cache
def read(folder: Path) -> tuple[Mapping[str, RunSet], Mapping[str, Experiment]]:
    """All run sets of a folder, and all experiments, by name.

    Raises:
        ConfigError: a file is not as described in `conf/experiment/README.md`, or two fill one exhibit.
    """
    files = sorted(folder.glob("*/*.yaml"))
    found = {one.name: one for one in map(_run_set, files)}
    experiments: dict[str, Experiment] = {}
    home: dict[str, str] = {}
    for one in found.values():
        for name, said in one.exhibits.items():
            if name in home:
                raise ConfigError(f"experiment {one.name} exhibits", name, f"an exhibit that {home[name]} has not")
            home[name] = one.name
            experiments[name] = _experiment(name, said, one, found)
    return found, experiments


def _run_set(path: Path) -> RunSet:
    paper, name = path.parent.name, f"{path.parent.name}/{path.stem}"
    # the C parser: a report reads all run sets
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        written = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"experiment {name}", path.name, f"YAML ({' '.join(str(error).split())})") from error
    content = _mapping(f"experiment {name}", written, ("overrides", "grids", "exhibits"), ("exhibits",))
    exhibits = _mapping(f"experiment {name} exhibits", content["exhibits"])
    if not exhibits:
        raise ConfigError(f"experiment {name} exhibits", exhibits, "at least one")
    grids = {
        key: _grid(f"experiment {name} grids.{key}", grid, content.get("overrides") or ())
        for key, grid in _mapping(f"experiment {name} grids", content.get("grids") or {}).items()
    }
    return RunSet(name, grids, {f"{paper}_{key}": said or {} for key, said in exhibits.items()})


def _grid(where: str, content: Any, first: Sequence[str]) -> Grid:
    given = _mapping(where, content, (*AXES, "overrides"), ("model", "task", "method"))
    axes = {axis: _mapping(f"{where}.{axis}", given.get(axis, {"": []})) for axis in AXES}
    overrides = {axis: {label: _overrides(axis, v) for label, v in values.items()} for axis, values in axes.items()}
    return Grid(overrides, first, given.get("overrides") or ())


def _overrides(axis: str, value: str | Sequence[str]) -> list[str]:
    """An axis value's overrides; its first plain word is the choice of the axis' own group."""
    values = [value] if isinstance(value, str) else list(value)
    return [v if "=" in v or v.startswith("~") else f"{axis}={v}" for v in values]


def _experiment(name: str, content: Any, home: RunSet, among: Mapping[str, RunSet]) -> Experiment:
    folder = home.name.partition("/")[0]
    key = name.removeprefix(f"{folder}_")
    where = f"experiment {home.name} exhibits"
    told = re.fullmatch(r"([a-z]+?(?:_[a-z]+?)*)(\d+[a-z]?)?", key)
    if not told:
        raise ConfigError(where, key, "a word, a number and perhaps the letter of a panel, as figure2a")
    where = f"{where}.{key}"
    said = _mapping(where, content, ("kind", "also", "jobs", "not_run", "spread"))
    kind = said.get("kind", told[1])
    if kind not in KINDS:
        raise ConfigError(f"{where}.kind", kind, f"one of {', '.join(KINDS)}")
    jobs = [
        Job(name, dict(zip(AXES, labels, strict=True)), overrides)
        for i, part in enumerate(said.get("jobs") or [{"grid": grid} for grid in home.grids])
        for labels, overrides in _part(f"{where}.jobs[{i}]", part, home, among)
    ]
    if not jobs:
        raise ConfigError(f"{where}.jobs", jobs, "at least one")
    number = re.sub(r"\D", "", told[2] or "")
    return Experiment(
        name, named(folder).latest, f"{told[1].replace('_', ' ').capitalize()} {number}".strip(), kind, tuple(jobs),
        tuple(said.get("not_run") or ()), tuple((a["paper"], a["exhibit"]) for a in said.get("also") or ()),
        said.get("spread", False) is True,
    )  # fmt: skip


def _part(
    where: str, content: Any, home: RunSet, among: Mapping[str, RunSet]
) -> Iterator[tuple[Sequence[str], tuple[str, ...]]]:
    """Labels, as the exhibit has them, and overrides of those jobs of a grid that a part of an exhibit asks for."""
    part = _mapping(where, content, ("from", "grid", *AXES), ("grid",))
    source = among.get(part.get("from", home.name))
    if source is None:
        raise ConfigError(f"{where}.from", part["from"], f"one of {', '.join(among)}")
    if part["grid"] not in source.grids:
        raise ConfigError(f"{where}.grid", part["grid"], f"one of {', '.join(source.grids)}")
    grid = source.grids[part["grid"]]
    axes = [_only(f"{where}.{axis}", part.get(axis, [*grid.axes[axis]]), [*grid.axes[axis]]) for axis in AXES]
    for pairs in itertools.product(*(axis.items() for axis in axes)):
        yield [shown for _, shown in pairs], grid.overrides([label for label, _ in pairs])


def _only(where: str, content: Any, known: Sequence[str]) -> dict[str, str]:
    """Labels of a grid, in the order asked for -> what the exhibit calls them."""
    if not isinstance(content, list) or not content or not all(isinstance(one, str | dict) for one in content):
        raise ConfigError(where, content, "a list of labels, each as it is or {label: what the exhibit calls it}")
    found: dict[str, str] = {}
    for one in content:
        found |= one if isinstance(one, dict) else {one: one}
    for label in found:
        if label not in known:
            raise ConfigError(where, label, f"labels of the grid: {', '.join(map(repr, known))}")
    return found


def _mapping(
    where: str, content: Any, allowed: Sequence[str] | None = None, needed: Sequence[str] = ()
) -> Mapping[str, Any]:
    """A mapping of a file, with keys that are allowed (None: any) and those that are needed.

    Raises:
        ConfigError: it is none, or a key is unknown or missing.
    """
    told = "a mapping" if allowed is None else f"a mapping of {', '.join(allowed)}"
    if not isinstance(content, Mapping):
        raise ConfigError(where, content, told)
    for key in content:
        if allowed is not None and key not in allowed:
            raise ConfigError(where, key, told)
    for key in needed:
        if key not in content:
            raise ConfigError(where, [*content], f"{told}; {key} is missing")
    return content


def merged(overrides: Sequence[str]) -> tuple[str, ...]:
    """One override a key, the last, choices of groups first: what is composed is what the order said."""
    last = {key_of(override): override for override in overrides}
    groups = [o for key, o in last.items() if key in GROUPS]
    return (*groups, *sorted(o for o in last.values() if o not in groups))


def choice(overrides: Sequence[str], group: str) -> str:
    """What is chosen of a config group."""
    return next((o.partition("=")[2] for o in overrides if o.startswith(f"{group}=")), "")


def key_of(override: str) -> str:
    """What an override sets: `+method.x=1` sets method.x."""
    return override.partition("=")[0].lstrip("+~")
