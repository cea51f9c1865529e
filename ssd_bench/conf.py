"""The folder of configs, and the choices of its groups, including plug-ins'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ssd_bench.errors import ConfigError
from ssd_bench.plug_ins import PlugIn, plug_ins

CONF = next(path for path in (Path(__file__).with_name("conf"), Path(__file__).parents[1] / "conf") if path.is_dir())
"""Folder of configs: in an installed package, or at a clone's top level."""

REFERENCE = CONF.parent / "runs" / "reference"
"""Folder of the committed records; only in a clone."""

CHOSEN = ("model", "method", "task", "data", "hardware", "decode")
"""Config groups; a run has one choice of each."""


def choices(group: str) -> list[str]:
    """Return every choice of a config group, including plug-ins', sorted."""
    return sorted({path.stem for folder in _folders() for path in (folder / group).glob("*.yaml")})


def config_file(group: str, name: str) -> Path | None:
    """Return a choice's file, in `conf` or a plug-in; None without such a choice."""
    files = (folder / group / f"{name}.yaml" for folder in _folders())
    return next((file for file in files if file.is_file()), None)


def plug_in_with(group: str, name: str) -> PlugIn | None:
    """Return the plug-in that has a choice; None if it is in `conf`, or nowhere.

    Raises:
        ConfigError: several packages have this choice, of which Hydra would silently take the first.
    """
    owners = [plug_in for plug_in in plug_ins() if name in plug_in.choices(group)]
    packages = [str(owner) for owner in owners]
    if (CONF / group / f"{name}.yaml").is_file():
        packages.insert(0, "ssd-bench itself")
    if len(packages) > 1:
        reason = f"{' and '.join(packages)} have a {group} of this name; uninstall one, or rename {group}/{name}.yaml"
        raise ConfigError(group, name, reason=f"{reason} in the plug-in")
    return owners[0] if owners else None


def plug_ins_chosen(chosen: Mapping[str, Any]) -> list[PlugIn]:
    """Return the plug-ins that have a choice of a run.

    Args:
        chosen: config group -> its choice, as composed by Hydra; `task@calibrate` is a task.

    Raises:
        ConfigError: several packages have a choice. Hydra would silently take the first.
    """
    places = ((place.partition("@")[0], name) for place, name in chosen.items() if isinstance(name, str))
    owners = (plug_in_with(group, name) for group, name in places if group in CHOSEN)
    return [owner for owner in owners if owner]


def _folders() -> list[Path]:
    return [CONF, *(plug_in.conf for plug_in in plug_ins())]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        yaml.YAMLError: not valid YAML, or not UTF-8.
    """
    # prefer the C parser, which is faster: a report reads all run sets
    with path.open("rb") as file:
        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
