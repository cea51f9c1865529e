"""The config of a record, made ready for another run on this machine and by this version of the code."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator, Mapping, MutableMapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ssd_bench.compose.build import HYDRA_KEYS, TARGET
from ssd_bench.errors import ConfigError, brief
from ssd_bench.model.arithmetic import FORCED, LEVELS, available_levels
from ssd_bench.records.header import RunHeader
from ssd_bench.run.options import KNOWN, TABLES

SHOWN = {"force": False, "dry": False, "minutes": None, "retry": None, "shard": None}
"""Options of where or how a run is shown, with their values in a second run."""
PLACES = (
    *(f"hardware.{name}" for name in ("device", "threads", "isa", "kernels", "dtype", "exclusive")),
    *("model.path", "data.root", "task.path", "calibrate.path"),
)
"""Options that a second run may set: what computes, and where weights and prompts are."""


def config_again(header: RunHeader, options: Mapping[str, str], runs_dir: str) -> tuple[DictConfig, list[str]]:
    """Return a record's config for a second run, and notes on all changes.

    Args:
        options: values for `PLACES`, as on a command line.

    Raises:
        ConfigError: no config, one of another form, or an option outside `PLACES`.
    """
    if not header.config:
        raise ConfigError("record", header.run_id, "a record with the config of its run")
    config = deepcopy(dict(header.config))
    for name in TABLES:
        if not isinstance(config.get(name), dict):
            raise ConfigError(f"config.{name}", brief(config.get(name)), "an object with settings")
    notes = [f"unknown here and left out: {name}" for name in sorted(_drop_unknown(config))]
    notes += _fit_machine(config, header, options)
    config |= SHOWN | {"runs_dir": runs_dir, "wandb": {**config["wandb"], "mode": "disabled"}}
    for name, text in options.items():
        if name not in PLACES:
            raise ConfigError("option", name, f"one of {', '.join(PLACES)}: the record sets everything else")
        group, _, key = name.partition(".")
        if not isinstance(config.get(group), MutableMapping):
            raise ConfigError(name, text, f"no value: this record has no {group}")
        config[group][key] = yaml.safe_load(text)
    return OmegaConf.create(_escaped(config)), notes


def _drop_unknown(config: dict[str, Any]) -> Iterator[str]:
    """Remove keys unknown to this version, and yield their dotted names."""
    for name in [name for name in config if name not in KNOWN]:
        del config[name]
        yield name
    for name, table in TABLES.items():
        yield from _drop_keys(name, config.get(name) or {}, {part.name for part in fields(table)})
    for name, value in config.items():
        if name not in TABLES:
            yield from _drop_settings(name, value)


def _drop_settings(place: str, value: Any) -> Iterator[str]:
    """Remove settings that a table's class, or a nested one's, does not take."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return
    if (taken := _settings_of(value.get(TARGET))) is not None:
        yield from _drop_keys(place, value, {*taken, *HYDRA_KEYS})
    for name, entry in value.items():
        yield from _drop_settings(f"{place}.{name}", entry)


def _drop_keys(place: str, table: dict[str, Any], known: set[str]) -> Iterator[str]:
    for name in [name for name in table if name not in known]:
        del table[name]
        yield f"{place}.{name}"


def _settings_of(target: Any) -> list[str] | None:
    """Return a class's settings by its path; None if any may be given, or without such a class."""
    module, _, name = str(target).rpartition(".")
    try:
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    except (ImportError, AttributeError, ValueError, TypeError):
        return None  # the plan says what is wrong with it
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if takes_any else list(parameters)


def _fit_machine(config: dict[str, Any], header: RunHeader, options: Mapping[str, str]) -> Iterator[str]:
    """Set what `auto` and null meant in the recorded run, as far as this machine has it, and yield notes."""
    hardware, model = config["hardware"], header.model
    cores = len(os.sched_getaffinity(0))
    if "hardware.threads" not in options:
        hardware["threads"] = model.threads if model.threads and model.threads <= cores else None
        if model.threads and model.threads > cores:
            yield f"hardware.threads: the record has {model.threads}, and this machine {cores}"
    if "hardware.isa" not in options:
        hardware["isa"], recorded = "auto", (model.arithmetic or {}).get("isa")
        if recorded and not os.environ.get(FORCED):
            if recorded in {level.name for level in available_levels()}:
                on_gpu = options.get("hardware.device", model.device).startswith("cuda")
                hardware["isa"] = "auto" if on_gpu else recorded
            else:
                rounded = any(level.name == recorded and level.rounds for level in LEVELS)
                hint = "; hardware.isa=amx_emulated rounds its operands, slowly" if rounded else ""
                yield f"hardware.isa: the record has {recorded}, which this CPU lacks; near-ties may differ{hint}"


def _escaped(value: Any) -> Any:
    """Return plain values that OmegaConf does not resolve: a prompt may contain its interpolation sign."""
    if isinstance(value, dict):
        return {key: _escaped(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_escaped(entry) for entry in value]
    return value.replace("${", r"\${") if isinstance(value, str) else value
