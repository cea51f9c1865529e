"""Scales (`conf/scale`): every model replaced by one, numbers of prompts, tokens and search steps capped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ssd_bench.command import CONF, choices
from ssd_bench.compose import build
from ssd_bench.errors import ConfigError
from ssd_bench.papers import claims, grid
from ssd_bench.papers.grid import Job, choice, key_of, merged

FOLDER = CONF / "scale"


@dataclass(frozen=True)
class Scale:
    """How the papers' jobs are made smaller; all else is kept.

    Attributes:
        name: in `conf/scale`.
        model: what every model becomes; None: it stays.
        models: experiment -> model -> what it becomes there instead, where an exhibit compares two.
        overrides: of every job, before its own.
        replace: override -> what takes its place.
        limit: most prompts of a job, None for no cap; of a stream most prompts of each part are `items`.
        limits: experiment -> likewise of its jobs, where more than `limit`.
        new_tokens: most new tokens; a smaller limit of the task stays.
        minutes: that its runs may take together on the machine at hand; the last that do not fit are left out.
        caps: option -> its largest value, where a job's method or task has the option.
        notes: experiment -> a sentence on what this scale takes from it, for the report.
    """

    name: str
    model: str | None = None
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    replace: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    items: int | None = None
    new_tokens: int | None = None
    minutes: float | None = None
    caps: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def mapped(self, job: Job) -> tuple[str, ...]:
        """The job's overrides with model and replacements; the caps need the composed config (`capped`)."""
        replaced = [new for o in self.remodelled(job) for new in self.replace.get(o, [o])]
        return merged([*self.overrides, *replaced])

    def remodelled(self, job: Job) -> list[str]:
        """The job's overrides with the scale's model."""
        if not self.model:
            return list(job.overrides)
        there = self.models.get(job.experiment, {}).get(choice(job.overrides, "model"), self.model)
        own = [f"model={there}" if key_of(o) == "model" else o for o in job.overrides]
        return [o for o in own if not key_of(o).startswith("model.")]  # options of a model that is not there any more

    @cached_property
    def ranks(self) -> Mapping[tuple[str, ...], int]:
        """`mapped` overrides of every job that a claim reads -> which claim is the first to read it, from 0."""
        found: dict[tuple[str, ...], int] = {}
        for rank, claim in enumerate(claims.claims()):
            for job in claims.jobs(claim):
                found.setdefault(self.mapped(job), rank)
        return found

    def most(self, job: Job) -> int | None:
        """Most prompts of a job; None for no cap."""
        asked = [self.limits.get(job.experiment), self.limit]
        return max((limit for limit in asked if limit is not None), default=None)

    def capped(self, overrides: Sequence[str], cfg: DictConfig, most: int | None) -> tuple[str, ...]:
        """The overrides with what the caps add to them.

        Args:
            cfg: the config that `overrides` compose.
            most: prompts.
        """
        caps: dict[str, float] = dict(self.caps) | ({"task.items": self.items} if self.items else {})
        more = []
        for option, largest in caps.items():
            value = OmegaConf.select(cfg, option)
            if value is not None and value > largest:
                more.append(f"{option}={largest:g}")
        is_stream = OmegaConf.select(cfg, "task.parts") is not None
        if most and not is_stream and (cfg.limit is None or cfg.limit > most):
            more.append(f"limit={most}")
        if self.new_tokens:
            asked = cfg.decode.max_new_tokens or build(cfg, "task").max_new_tokens
            if asked > self.new_tokens:
                more.append(f"decode.max_new_tokens={self.new_tokens}")
        return merged([*overrides, *more])


@cache
def load(name: str) -> Scale:
    """Read a scale.

    Raises:
        ConfigError: there is none of that name, or it has a key that no scale has.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError("scale", name, f"one of {', '.join(choices('scale'))}")
    content: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    try:
        return Scale(name, **content | {"overrides": tuple(content.get("overrides") or ())})
    except TypeError as error:
        raise ConfigError(f"scale {name}", sorted(content), str(error)) from error


@cache
def checked(name: str) -> Scale:
    """Read a scale of which every key matches something, in any experiment.

    Raises:
        ConfigError: as `load`, or a key matches nothing: most likely it is misspelt, or what it was for is gone.
    """
    scale = load(name)
    jobs = [job for experiment in grid.names() for job in grid.load(experiment).jobs]
    there = {override for job in jobs for override in scale.remodelled(job)}
    compared = {(job.experiment, choice(job.overrides, "model")) for job in jobs}
    if wrong := [f"{name}.{one}" for name, own in scale.models.items() for one in own if (name, one) not in compared]:
        raise ConfigError(f"scale {scale.name} models", ", ".join(wrong), "models of jobs of that experiment")
    for key, known, allowed in (
        ("replace", there, "overrides that a job of an experiment has"),
        ("notes", set(grid.names()), "names of experiments"),
        ("limits", set(grid.names()), "names of experiments"),
        ("caps", {option for option in scale.caps if _is_option(option)}, "options of a config in conf/"),
    ):
        unmatched = sorted(set(getattr(scale, key)) - known)
        if unmatched:
            raise ConfigError(f"scale {name} {key}", ", ".join(unmatched), allowed)
    return scale


def _is_option(option: str) -> bool:
    """Whether any choice of the option's group has it, or the config itself."""
    group, _, path = option.partition(".")
    files = (CONF / group).glob("*.yaml") if path else [CONF / "config.yaml"]
    return any(_has(file, (path or group).split(".")) for file in files)


def _has(file: Path, keys: Sequence[str]) -> bool:
    """Whether a YAML file holds a key within a key, whatever its value."""
    content: Any = yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            return False
        content = content[key]
    return True
