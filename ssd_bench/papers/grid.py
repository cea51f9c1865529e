"""Experiments (`conf/experiment`): from the names that a paper uses to jobs, each a list of overrides."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from ssd_bench.command import CONF
from ssd_bench.errors import ConfigError

AXES = ("model", "task", "method", "setting")
KINDS = ("table", "figure", "sets", "cases", "vectors")
KEYS = {"paper", "exhibit", "kind", "also", "overrides", "grids", "not_run"}
GROUPS = ("model", "method", "task", "task@calibrate", "data", "hardware", "decode")
FOLDER = CONF / "experiment"


@dataclass(frozen=True)
class Job:
    """One run that an exhibit asks for.

    Attributes:
        experiment: name in `conf/experiment`.
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
        name: in `conf/experiment`.
        paper, exhibit: as in the reported numbers.
        kind: one of `KINDS`.
        jobs: all elements of all grids.
        not_run: what of the exhibit no job gives, and why.
        also: exhibits of other versions of the paper with the same runs, as (paper, exhibit).
    """

    name: str
    paper: str
    exhibit: str
    kind: str
    jobs: tuple[Job, ...]
    not_run: tuple[Mapping[str, str], ...] = ()
    also: tuple[tuple[str, str], ...] = field(default=())


def names() -> list[str]:
    """All experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str) -> Experiment:
    """Read an experiment.

    Raises:
        ConfigError: there is none of that name, or its file is not as described in `conf/experiment/README.md`.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError("experiment", name, f"one of {', '.join(names())}")
    # the C parser: a report reads all experiments
    content: Any = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(content, dict) or not {"paper", "exhibit", "kind", "grids"} <= set(content) <= KEYS:
        raise ConfigError(
            f"experiment {name}", sorted(content or ()), f"paper, exhibit, kind, grids; of {sorted(KEYS)}"
        )
    if content["kind"] not in KINDS:
        raise ConfigError(f"experiment {name} kind", content["kind"], f"one of {', '.join(KINDS)}")
    jobs = [job for grid in content["grids"] for job in _jobs(name, grid, content.get("overrides") or [])]
    return Experiment(
        name, content["paper"], content["exhibit"], content["kind"], tuple(jobs),
        tuple(content.get("not_run") or ()), tuple((a["paper"], a["exhibit"]) for a in content.get("also") or ()),
    )  # fmt: skip


def _jobs(name: str, grid: Mapping[str, Any], common: Sequence[str]) -> list[Job]:
    """The product of the axes of one grid; a later override of the same key replaces an earlier one."""
    unknown = set(grid) - {*AXES, "overrides"}
    missing = {"model", "task", "method"} - set(grid)
    if unknown or missing:
        raise ConfigError(f"experiment {name} grid", sorted(unknown | missing), f"model, task, method; of {AXES}")
    axes = [grid.get(axis, {"": []}) for axis in AXES]
    found = []
    for labels in itertools.product(*axes):
        parts = [_overrides(axis, values[label]) for axis, values, label in zip(AXES, axes, labels, strict=True)]
        chosen = [o for part in (common, *parts, grid.get("overrides") or ()) for o in part]
        found.append(Job(name, dict(zip(AXES, labels, strict=True)), merged(chosen)))
    return found


def _overrides(axis: str, value: str | Sequence[str]) -> list[str]:
    """An axis value's overrides; its first plain word is the choice of the axis' own group."""
    values = [value] if isinstance(value, str) else list(value)
    return [v if "=" in v or v.startswith("~") else f"{axis}={v}" for v in values]


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
