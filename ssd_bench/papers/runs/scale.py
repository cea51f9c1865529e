"""Scales (`conf/scale`): every model replaced by one; prompts, tokens and search steps capped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ssd_bench.compose.build import build
from ssd_bench.conf import CONF, choices, config_file, read_yaml
from ssd_bench.errors import ConfigError
from ssd_bench.papers.runs import grid
from ssd_bench.papers.runs.grid import Job, choice, key_of, merge_overrides

FOLDER = CONF / "scale"
MISSING = object()


@dataclass(frozen=True)
class Scale:
    """Rules that make the papers' jobs smaller.

    Attributes:
        model: replaces every model; None: models stay.
        models: experiment -> model -> its replacement, where an exhibit compares two models.
        overrides: of every job, before its own.
        replace: override -> its replacements.
        limit: most prompts of a job, None for no cap; `items` for each part of a stream.
        limits: experiment -> most prompts of its jobs, if larger than `limit`.
        new_tokens: most new tokens; a task's smaller limit stays.
        minutes: limit on its runs' total time on this machine; the last runs are left out.
        caps: option -> its largest value.
        notes: experiment -> sentence for the report on what this scale leaves out.
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

    def map_job(self, job: Job) -> tuple[str, ...]:
        """Return the job's overrides with the scale's model and replacements; `apply_caps` then adds caps."""
        replaced = [
            replacement
            for override in self.replace_model(job)
            for replacement in self.replace.get(override, [override])
        ]
        return merge_overrides([*self.overrides, *replaced])

    def replace_model(self, job: Job) -> list[str]:
        """Return the job's overrides with the scale's model."""
        if not self.model:
            return list(job.overrides)
        model = self.models.get(job.experiment, {}).get(choice(job.overrides, "model"), self.model)
        overrides = [f"model={model}" if key_of(override) == "model" else override for override in job.overrides]
        # drop options of the replaced model
        return [override for override in overrides if not key_of(override).startswith("model.")]

    def prompt_limit(self, job: Job) -> int | None:
        """Return the most prompts of a job; None for no cap."""
        limits = [self.limits.get(job.experiment), self.limit]
        return max((limit for limit in limits if limit is not None), default=None)

    def apply_caps(self, overrides: Sequence[str], cfg: DictConfig, prompt_limit: int | None) -> tuple[str, ...]:
        """Add the overrides of the caps to a config composed from `overrides`."""
        caps: dict[str, float] = dict(self.caps) | ({"task.items": self.items} if self.items else {})
        values = {option: OmegaConf.select(cfg, option) for option in caps}
        additions = [f"{key}={caps[key]:g}" for key, value in values.items() if value is not None and value > caps[key]]
        is_stream = OmegaConf.select(cfg, "task.parts") is not None
        if prompt_limit and not is_stream and (cfg.limit is None or cfg.limit > prompt_limit):
            additions.append(f"limit={prompt_limit}")
        if self.new_tokens:
            max_new_tokens = cfg.decode.max_new_tokens or build(cfg, "task").max_new_tokens
            if max_new_tokens > self.new_tokens:
                additions.append(f"decode.max_new_tokens={self.new_tokens}")
        return merge_overrides([*overrides, *additions])


@cache
def load(name: str) -> Scale:
    """Read a scale.

    Raises:
        ConfigError: an unknown name or key.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError("scale", name, f"one of {', '.join(choices('scale'))}")
    content: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    try:
        return Scale(name, **content | {"overrides": tuple(content.get("overrides") or ())})
    except TypeError as error:
        raise ConfigError(f"scale {name}", sorted(content), reason=str(error)) from error


def command(experiment: str, scale: str) -> str:
    """Return the command line that creates an experiment's runs at a scale, which may have been removed since."""
    known = scale in choices("scale")
    data = " data=local data.root=DIR" if known and "data=local" in load(scale).overrides else ""
    return f"python -m ssd_bench -m experiment={experiment} scale={scale}{data}"


@cache
def load_checked(name: str) -> Scale:
    """Read a scale and check that each key matches something in an experiment.

    Raises:
        ConfigError: as `load`, or a key matches nothing.
    """
    scale = load(name)
    jobs = [job for experiment in grid.names() for job in grid.load(experiment).jobs]
    overrides = {override for job in jobs for override in scale.replace_model(job)}
    models = {f"{job.experiment}.{choice(job.overrides, 'model')}" for job in jobs}
    replaced_models = [f"{experiment}.{model}" for experiment, names in scale.models.items() for model in names]
    for key, keys, allowed_keys, expected in (
        ("models", replaced_models, models, "models of jobs of that experiment"),
        ("replace", sorted(scale.replace), overrides, "overrides that a job of an experiment has"),
        ("notes", sorted(scale.notes), grid.names(), "names of experiments"),
        ("limits", sorted(scale.limits), grid.names(), "names of experiments"),
        ("caps", sorted(scale.caps), list(filter(_is_option, scale.caps)), "options of a config in conf/"),
    ):
        if unmatched := [entry for entry in keys if entry not in allowed_keys]:
            raise ConfigError(f"scale {name} {key}", ", ".join(unmatched), expected)
    return scale


def _is_option(option: str) -> bool:
    """Return whether any choice of the option's group, or the config itself, has it."""
    group, _, path = option.partition(".")
    files = (CONF / group).glob("*.yaml") if path else [CONF / "config.yaml"]
    return any(_has(file, (path or group).split(".")) for file in files)


def _has(file: Path, keys: Sequence[str]) -> bool:
    content = read_yaml(file)
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            return False
        content = content[key]
    return True


def scaled_settings(overrides: Sequence[str], paper_overrides: Sequence[str]) -> list[str]:
    """Return the method's settings replaced by a scale: `interval 32 for 64`."""
    paper_values = {key_of(override): override.partition("=")[2] for override in paper_overrides}
    texts = []
    for override in overrides:
        key, value = key_of(override), override.partition("=")[2]
        if key.startswith("method.") and paper_values.get(key) != value:
            of_preset = _preset_value(choice(paper_overrides, "method"), key.split(".")[1:])
            texts.append(f"{key.removeprefix('method.')} {value} for {paper_values.get(key, of_preset)}")
    return texts


def _preset_value(method: str, keys: Sequence[str]) -> Any:
    path = config_file("method", method)
    content: Any = read_yaml(path) if path else {}
    value = content
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    if value is not MISSING:
        return "the paper's rule" if value is None else value
    parents = [name for name in content.get("defaults", ()) if isinstance(name, str) and name != "_self_"]
    return next((value for parent in parents if (value := _preset_value(parent, keys)) is not None), None)
