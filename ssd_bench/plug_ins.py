"""Installed packages with methods, tasks, models and hardware (docs/tutorials/plugin.md).

A package is an entry point of the group `ssd_bench.conf`; its folder `conf` has the same groups as ours. Plug-ins are
not imported here, so a broken one stops only the runs that choose it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError, one_line

ENTRY_POINTS = "ssd_bench.conf"
"""Group of entry points; each value is a package with a folder `conf`."""


@dataclass(frozen=True)
class PlugIn:
    """An installed package with choices of config groups.

    Attributes:
        name: name of its entry point.
        distribution: name of the installed distribution.
        module, folder: its Python package.
    """

    name: str
    distribution: str
    version: str
    module: str
    folder: Path

    @property
    def conf(self) -> Path:
        """Folder of its configs, with a folder per group."""
        return self.folder / "conf"

    def choices(self, group: str) -> list[str]:
        """Return its choices of a config group, sorted."""
        return sorted(path.stem for path in (self.conf / group).glob("*.yaml"))

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@cache
def plug_ins() -> tuple[PlugIn, ...]:
    """Return the usable installed plug-ins, sorted by distribution."""
    return tuple(plug_in for plug_in in _entries() if isinstance(plug_in, PlugIn))


def faults() -> list[str]:
    """Return a message for each entry point without package or configs."""
    return [fault for fault in _entries() if isinstance(fault, str)]


@cache
def _entries() -> tuple[PlugIn | str, ...]:
    """Return each entry point's plug-in, or what is wrong.

    Raises:
        ConfigError: a package whose entry points cannot be read, with which importing torch fails, too.
    """
    described: dict[str, list[tuple[str, str, importlib.metadata.EntryPoint]]] = {}
    for distribution in importlib.metadata.distributions():
        try:
            points = distribution.entry_points.select(group=ENTRY_POINTS)
        except Exception as error:  # its errors have no common type
            expected = (
                f"lines NAME = VALUE in the package's entry_points.txt ({one_line(error)}); repair or uninstall it"
            )
            raise ConfigError("package", " ".join(_named(distribution)), expected) from error
        if points:  # of several distributions with one name, the first on the path is imported
            name, version = _named(distribution)
            described.setdefault(name.lower(), [(name or point.name, version, point) for point in points])
    parts = [part for parts in described.values() for part in parts]
    return tuple(_resolve(*part) for part in sorted(parts, key=lambda part: (part[0], part[2].name)))


def _named(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    metadata = distribution.metadata
    name, version = (str(metadata[key]) if key in metadata else "" for key in ("Name", "Version"))
    return name, version


def _resolve(distribution: str, version: str, point: importlib.metadata.EntryPoint) -> PlugIn | str:
    if not point.pattern.match(point.value):
        return _fault(distribution, version, point, f"value {point.value!r} names no package")
    folders = list(_folders(point.module))
    for folder in folders:
        if any((folder / "conf").glob("*/*.yaml")):
            return PlugIn(point.name, distribution, version, point.module, folder)
    reason = f"has no folder conf with files GROUP/NAME.yaml in {folders[0]}" if folders else "is not installed"
    return _fault(distribution, version, point, f"package {point.module} {reason}")


def _fault(distribution: str, version: str, point: importlib.metadata.EntryPoint, fault: str) -> str:
    return (
        f"plug-in {point.name} of {distribution} {version} is not used: its {fault}; "
        f"expected {point.name} = PACKAGE under {ENTRY_POINTS}"
    )


def _folders(module: str) -> Iterator[Path]:
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module that was put into sys.modules without a spec
        return
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location, *below)
        if folder.is_dir():
            yield folder


def plug_in_of(target: str) -> PlugIn | None:
    """Return the plug-in of a class, by its dotted path, or None."""
    return next((plug_in for plug_in in plug_ins() if f"{target}.".startswith(f"{plug_in.module}.")), None)


def plug_ins_with_code(value: Any) -> list[PlugIn]:
    """Return the plug-ins with a class in a config (`_target_`, at any depth), each once."""
    entries = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    plug_ins_below = [plug_in for entry in entries for plug_in in plug_ins_with_code(entry)]
    plug_in = plug_in_of(str(value.get("_target_"))) if isinstance(value, Mapping) else None
    return list(dict.fromkeys([plug_in, *plug_ins_below] if plug_in else plug_ins_below))
