"""Options of a sweep's command line: the sweep's own, and its runs' with their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override

from ssd_bench.conf import CHOSEN, choices
from ssd_bench.errors import ConfigError
from ssd_bench.papers.runs import grid
from ssd_bench.sweep import dry

Overrides = tuple[str, ...]
MOST_JOBS = 100_000  # most jobs of a sweep


@dataclass(frozen=True)
class SweepRequest:
    """Checked options of a sweep.

    Attributes:
        experiments: names; empty: the product of all choices.
        scales: names of their scales; empty: the default.
        minutes: limit on all runs together; None: the scale's.
        describes: describe the runs instead of running them (`dry=true`).
        repeats_failed: run only what failed before (`retry=failed`).
        options: of the runs.
    """

    experiments: Sequence[str]
    scales: Sequence[str]
    minutes: float | None
    describes: bool
    repeats_failed: bool
    options: Sequence[Override]

    @classmethod
    def parse(cls, loader: ConfigLoader, arguments: Sequence[str]) -> SweepRequest:
        """Parse the arguments of a command line.

        Raises:
            ConfigError: an unknown experiment, a scale or limit without an experiment, or an invalid value.
        """
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
        options = {override.get_key_element(): override for override in parsed}
        minutes = _minutes(options.pop("minutes")) if "minutes" in options else None
        describes = dry.is_requested(options.pop("dry").value()) if "dry" in options else False
        repeats_failed = _retry(options.pop("retry")) if "retry" in options else False
        scales = _values(options.pop("scale")) if "scale" in options else []
        experiments = experiment_names(options.pop("experiment")) if "experiment" in options else []
        if not experiments and (scales or minutes is not None):
            option = "scale" if scales else "minutes"
            raise ConfigError(option, ", ".join(arguments), "experiment=NAME with this option")
        return cls(experiments, scales, minutes, describes, repeats_failed, list(options.values()))

    def single_options(self) -> list[str]:
        """Return the options of experiments' runs, which define the grid themselves.

        Raises:
            ConfigError: an option has several values.
        """
        choices_of = [_choices(override) for override in self.options]
        for override, values in zip(self.options, choices_of):
            if len(values) > 1:
                expected = "one value: the experiment defines the grid"
                raise ConfigError(override.get_key_element(), override.input_line, expected)
        return [value for values in choices_of for value in values]


def product(overrides: Iterable[Override]) -> list[Overrides]:
    """Return every combination of the overrides' values, each once.

    Raises:
        ConfigError: the values of an override cannot be listed.
    """
    values = [_choices(override) for override in overrides]
    if (count := math.prod(map(len, values))) > MOST_JOBS:
        raise ConfigError("-m", f"{count} runs", f"at most {MOST_JOBS} in one sweep")
    return list(dict.fromkeys(itertools.product(*values)))


def register_experiments(arguments: Sequence[str]) -> None:
    """Register experiments' names with Hydra, which lists, completes and composes only known names.

    Unknown experiments of the command line are refused before anything is composed.

    Raises:
        ConfigError: as `grid.expand_name`, or a run set is written as Hydra writes a choice of a nested group.
    """
    for name in grid.names():
        ConfigStore.instance().store(name=name, node={}, group="experiment")
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.startswith("experiment/"):
            raise ConfigError(key, value, f"experiment={key.removeprefix('experiment/')}/{value}")
        if key == "experiment" and "(" not in value:
            for name in map(str.strip, value.split(",")):
                grid.expand_name(name)
                if "/" not in name:  # a run set by its file's name alone
                    ConfigStore.instance().store(name=name, node={}, group="experiment")


def experiment_names(override: Override) -> list[str]:
    """Return the experiments of `experiment=`, each once: a table or figure, a run set, or a glob pattern.

    Raises:
        ConfigError: an unknown name, or a pattern without a match.
    """
    pattern = override.value()
    if not isinstance(pattern, Glob):
        return list(dict.fromkeys(name for value in _values(override) for name in grid.expand_name(value)))
    names = pattern.filter(grid.names())
    if not names:
        expected = "a pattern that matches names of tables or figures, such as glob(swift_*)"
        raise ConfigError("experiment", str(override.input_line).partition("=")[2], expected)
    return names


def _choices(override: Override) -> list[str]:
    """Return KEY=VALUE for every value of an override, each once.

    Raises:
        ConfigError: values that cannot be listed, none, or more than `MOST_JOBS`.
    """
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(override.get_key_element(), override.input_line, "values that can be listed, such as a,b")
    key, text = override.get_key_element(), str(override.input_line).partition("=")[2]
    try:
        values = [f"{key}={value}" for value in itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)]
    except ValueError as error:  # raised by Python's range
        raise ConfigError(key, text, f"values that can be listed ({error})") from None
    if not values:
        known_choices = f", among {', '.join(choices(key))}" if key in CHOSEN else ""
        raise ConfigError(key, text, f"at least one value{known_choices}")
    if len(values) > MOST_JOBS:
        raise ConfigError(key, text, f"at most {MOST_JOBS} values")
    return list(dict.fromkeys(values))


def _values(override: Override) -> list[str]:
    return [choice.partition("=")[2] for choice in _choices(override)]


def _minutes(override: Override) -> float:
    value = override.value()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ConfigError("minutes", str(value), "a number above 0")
    return float(value)


def _retry(override: Override) -> bool:
    if (value := override.value()) not in ("failed", None):
        raise ConfigError("retry", str(value), "failed, or null")
    return value is not None
