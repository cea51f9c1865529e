"""Pairs of configurations to compare from two sets of records.

A set of records is a run, a folder of runs, or a pack. Its runs of one configuration and one choice of prompts are
repeated timings. Two sets of one configuration each are compared whatever their methods, settings and code. Larger sets
are compared in the configurations that both have.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.records.header import RunHeader
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, find_runs, load_run, read_each
from ssd_bench.records.schema import PAIR
from ssd_bench.results.evidence import RunTiming

SHOWN = 6  # configurations that an error lists


@dataclass(frozen=True)
class Configuration:
    """Runs of one configuration on one choice of prompts: repeated timings.

    Attributes:
        settings: JSON of model, task, decoding, method and its settings, equal in a pair.
        subject: the same without method and settings, to compare two methods.
        prompts: JSON of limit, repeats and seed, which choose the prompts.
    """

    paths: tuple[Path, ...]
    method: str
    task: str
    settings: str
    subject: str
    prompts: str

    @property
    def label(self) -> str:
        return f"{self.method} on {self.task}"

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Runs with their tables; unreadable runs are left out, unless all are."""
        return tuple(read_each(self.paths, load_run)) or (load_run(self.paths[0]),)

    @cached_property
    def timing(self) -> RunTiming:
        return RunTiming.of(self.runs[0])


@dataclass(frozen=True)
class ConfigurationPair:
    """Two configurations to compare, b with a."""

    label: str
    a: Configuration
    b: Configuration


@dataclass(frozen=True)
class RecordSet:
    """Records that the option `field` names, by configuration and choice of prompts; a pack is unpacked."""

    field: str
    folder: Path
    configurations: tuple[Configuration, ...]

    @classmethod
    def read(cls, field: str, value: str, method: str | None = None) -> RecordSet:
        """Read the headers of the records named by an option.

        Args:
            value: a run, a folder of runs, or a pack.
            method: the only method to read.

        Raises:
            ConfigError: no complete run (of the method).
        """
        folder = records_folder(field, value)
        groups: dict[tuple[str, str], dict[tuple[str, str], Configuration]] = {}
        for configuration, copy in read_each(find_runs(folder), _configuration):
            # a copy of a record has the same name and time, and is no further timing
            groups.setdefault((configuration.settings, configuration.prompts), {})[copy] = configuration
        if not groups:
            raise ConfigError(field, value, "a complete run, a folder of complete runs, or a pack (.zip) of them")
        configurations = [
            replace(first, paths=(*first.paths, *(path for part in others for path in part.paths)))
            for first, *others in (group.values() for group in groups.values())
        ]
        methods = sorted({configuration.method for configuration in configurations})
        if method is not None and method not in methods:
            raise ConfigError(f"method_{field}", method, f"one of the methods of {field}: {', '.join(methods)}")
        kept = [configuration for configuration in configurations if method in (None, configuration.method)]
        return cls(field, folder, tuple(kept))


def _configuration(path: Path) -> tuple[Configuration, tuple[str, str]]:
    """Return the configuration of a run, and a key shared by copies of its record."""
    run = RunHeader.read(path)
    subject = {
        "model": run.model.name,
        "task": [run.task.name, {**run.options("task")}, run.config.get("variant")],
        "decode": [run.decode.mode, run.decode.max_new_tokens, run.decode.temperature],
    }
    settings = {**subject, "method": [run.method, run.settings]}
    prompts = {name: run.config.get(name) for name in ("limit", "repeats", "seed", "data")}
    texts = (json.dumps(part, sort_keys=True, default=str) for part in (settings, subject, prompts))
    return Configuration((path,), run.method, run.task.name, *texts), (run.run_id, run.finished_at)


def pairs(a: RecordSet, b: RecordSet, by_method: bool) -> tuple[list[ConfigurationPair], list[str]]:
    """Return the pairs of two sets of records, and a line per configuration without a partner.

    Args:
        by_method: names and settings of methods may differ.

    Raises:
        ConfigError: the sets share no configuration.
    """
    keys = "subject" if by_method else "settings", "prompts"
    matched = [*_matched(a.configurations, b.configurations, keys)]
    if not matched:
        labels = [_listed(part.configurations) for part in (a, b)]
        raise ConfigError(
            b.field,
            str(b.folder),
            f"a configuration (model, task, decoding, method, settings) that {a.field} has, once on each side",
            f"{a.field} has {labels[0]}; {b.field} has {labels[1]}",
        )
    paired = {path for pair in matched for side in (pair.a, pair.b) for path in side.paths}
    unpaired = [
        f"only in {part.field}, or in several versions: {configuration.label} ({configuration.paths[0].name})"
        for part in (a, b)
        for configuration in part.configurations
        if not paired & {*configuration.paths}
    ]
    return _distinct_labels(matched), unpaired


def _matched(
    a: Sequence[Configuration], b: Sequence[Configuration], keys: Sequence[str]
) -> Iterator[ConfigurationPair]:
    """Yield the pair of two single configurations; among several, pairs with an equal first key, then with the next."""
    if len(a) == len(b) == 1:
        label = a[0].label if a[0].label == b[0].label else f"{b[0].label} against {a[0].label}"
        yield ConfigurationPair(label, a[0], b[0])
    elif keys:
        for value in dict.fromkeys(getattr(configuration, keys[0]) for configuration in a):
            equal_a, equal_b = ([c for c in side if getattr(c, keys[0]) == value] for side in (a, b))
            yield from _matched(equal_a, equal_b, keys[1:])


def _distinct_labels(matched: Sequence[ConfigurationPair]) -> list[ConfigurationPair]:
    """Add a run's name to labels that several pairs share."""
    counts = Counter(pair.label for pair in matched)
    return [
        replace(pair, label=f"{pair.label} ({pair.b.paths[0].name})") if counts[pair.label] > 1 else pair
        for pair in matched
    ]


def _listed(configurations: Sequence[Configuration]) -> str:
    labels = list(dict.fromkeys(configuration.label for configuration in configurations))
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(labels[:SHOWN]) + more


def check_pair(pair: ConfigurationPair) -> None:
    """Refuse a pair whose runs differ in model or decoding.

    Raises:
        ConfigError: names the differing fields with both values.
    """
    first = pair.a.runs[0]
    for run in (*pair.a.runs[1:], *pair.b.runs):
        differences = _differing_settings(first.header, run.header)
        if differences:
            texts = [f"{field} is {a!r} in {first.path.name} and {b!r} here" for field, (a, b) in differences.items()]
            raise ConfigError(
                "run", str(run.path), "runs of one model with the same decoding; rerun one of them", "; ".join(texts)
            )
        if not (run.prompts["arm"] == PAIR[1]).any():
            raise ConfigError("run", str(run.path), "a run with at least one answer of its method")


def _differing_settings(a: RunHeader, b: RunHeader) -> dict[str, tuple[Any, Any]]:
    """Return the differing properties of model and decoding -> both values.

    Names of models count only without digests of weights, and sampling settings only if one run samples.
    """
    names = ["weights", "dtype", "n_layers", "n_params"] if a.model.weights and b.model.weights else ["name", "dtype"]
    fields = [("model", name) for name in names] + [("decode", "mode"), ("decode", "max_new_tokens")]
    if not (a.decode.greedy and b.decode.greedy):
        fields += [("decode", name) for name in ("temperature", "top_p", "top_k")]
    differences = {}
    for group, name in fields:
        first, second = getattr(getattr(a, group), name), getattr(getattr(b, group), name)
        if first != second:
            differences[f"{group}.{name}"] = first, second
    return differences
