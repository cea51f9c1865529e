"""Layer searches on disk, which other runs continue and reuse.

A search is a folder: `search.json` has its description and provenance, `evaluations.jsonl` a line per evaluated layer
set, so that a killed search, or one with a larger budget, continues. Best set, trace and cost follow from them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.lease import Lease
from ssd_bench.paths import write_atomic
from ssd_bench.records import provenance

HEADER, EVALUATIONS = "search.json", "evaluations.jsonl"
LONGEST_LABEL = 150  # characters of the part of a name that comes from model and domain
KEY_DIGITS = 10  # of the content key, at the end of a name


@dataclass(frozen=True)
class Evaluation:
    """One evaluated layer set.

    Attributes:
        point: the optimiser's proposal for `layer_set`.
        score: higher is better.
        seconds: time of proposing and evaluating it.
    """

    point: tuple[float, ...]
    layer_set: LayerSet
    score: float
    seconds: float


@dataclass(frozen=True)
class SearchRecord:
    """A search on disk, finished or not.

    Attributes:
        path: folder, named like the search.
        header: `search.json`: content_key, n_layers, model, weights, task, domain, dtype, machine, seed, latency,
            settings, prompts (their number) and provenance.
        evaluations: in order of time.
    """

    path: Path
    header: Mapping[str, Any]
    evaluations: list[Evaluation]

    @property
    def name(self) -> str:
        """Name of the search, for `find`."""
        return self.path.name

    @property
    def best(self) -> Evaluation:
        """Evaluation with the highest score, the first of ties.

        Raises:
            ConfigError: nothing was evaluated yet.
        """
        if not self.evaluations:
            raise ConfigError("search", self.name, "a search that has evaluated at least one layer set")
        return max(self.evaluations, key=lambda evaluation: evaluation.score)

    @property
    def seconds(self) -> float:
        """Seconds of all proposals and evaluations, over all runs."""
        return sum(evaluation.seconds for evaluation in self.evaluations)

    def cut_to_budget(self, count: int, seconds: float) -> SearchRecord:
        """Return the part within a budget of evaluations and seconds; an evaluation begun in time counts."""
        ends = accumulate((evaluation.seconds for evaluation in self.evaluations), initial=0.0)
        begun = sum(end < seconds for end in list(ends)[:-1])
        return SearchRecord(self.path, self.header, self.evaluations[: min(count, begun)])

    def add(self, evaluation: Evaluation) -> None:
        """Append an evaluation; it is on disk when this returns, and a kill before loses it alone."""
        layers, numbers = evaluation.layer_set, {"score": evaluation.score, "seconds": evaluation.seconds}
        line = numbers | {"skip_attn": layers.skip_attn, "skip_mlp": layers.skip_mlp, "point": evaluation.point}
        with open(self.path / EVALUATIONS, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.evaluations.append(evaluation)


@contextmanager
def open_search(folder: Path, label: str, header: Mapping[str, Any], command: str) -> Iterator[SearchRecord]:
    """Open the search with this content key for adding evaluations; create it if missing.

    Another process that opens it meanwhile waits, and then sees the evaluations added here.

    Args:
        folder: contains all searches.
        label: start of a new search's name, which ends with digits of its content key.
        header: as in `SearchRecord`, without provenance; a header on disk stays as it is.
        command: command line of the run, for the provenance.

    Raises:
        ConfigError: the folder cannot be written, or a file is damaged.
    """
    key = header["content_key"]
    new = folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label)[:LONGEST_LABEL]}-{key[:KEY_DIGITS]}"
    path = next((path for path in folder.glob(f"*-{key[:KEY_DIGITS]}") if (path / HEADER).is_file()), new)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lease = Lease(path)
    except OSError as error:
        raise ConfigError("runs_dir", str(path), f"a directory that can be written ({error})") from error
    with lease:
        if not (path / HEADER).is_file():
            content = {**header, "provenance": _provenance(command)}
            write_atomic(path / HEADER, json.dumps(content, indent=1).encode())
        artifact = load(path)
        if artifact.header["content_key"] != key:
            raise ConfigError("search", str(path), "a folder that holds this search; move the other one away")
        _drop_torn_line(path / EVALUATIONS)
        yield artifact


@cache
def _provenance(command: str) -> dict[str, Any]:
    return provenance.collect(command)


def _drop_torn_line(file: Path) -> None:
    """Cut a killed process's unfinished last line."""
    if file.is_file():
        os.truncate(file, file.read_bytes().rfind(b"\n") + 1)


def load(path: Path) -> SearchRecord:
    """Read a search without an unfinished last line.

    Raises:
        ConfigError: missing or damaged; names the path.
    """
    try:
        header = json.loads((path / HEADER).read_bytes())
        file = path / EVALUATIONS
        lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
        evaluations = [_evaluation(json.loads(line), header["n_layers"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError("search", str(path), f"a readable search ({error}); delete it to repeat it") from error
    return SearchRecord(path, header, evaluations)


def _evaluation(row: Mapping[str, Any], n_layers: int) -> Evaluation:
    layer_set = LayerSet.skipping(n_layers, row["skip_attn"], row["skip_mlp"])
    return Evaluation(tuple(row["point"]), layer_set, row["score"], row["seconds"])


def search_names(folder: Path) -> list[str]:
    """Return the names of the searches in a folder, sorted."""
    return sorted(path.parent.name for path in folder.glob(f"*/{HEADER}"))


def find(folder: Path, name: str, field: str) -> SearchRecord:
    """Return a search by its name in the option `field`.

    Raises:
        ConfigError: no such search (the message lists the names), or a damaged one.
    """
    available = search_names(folder)
    if name not in available:
        raise ConfigError(field, name, f"a search in {folder}, which holds: {', '.join(available) or 'no search'}")
    return load(folder / name)


def searches_table(folder: Path) -> str:
    """Return a table of a folder's searches: task, evaluations, best score, seconds, skipped sublayers."""
    rows = []
    for name in search_names(folder):
        artifact = load(folder / name)
        header, score, skipped = artifact.header, "", ""
        if artifact.evaluations:
            best = artifact.best
            layers, score = best.layer_set, f"{best.score:.4f}"
            skipped = f"{len(layers.skip_attn)}+{len(layers.skip_mlp)} of {2 * layers.n_layers}"
        search = (name, header["model"], f"{header['task']}/{header['domain']}", header["settings"]["objective"])
        rows.append((*search, str(len(artifact.evaluations)), score, f"{artifact.seconds:.1f}", skipped))
    columns = ("name", "model", "task/domain", "objective", "evaluations", "score", "seconds", "skips attn+mlp")
    return tables.terminal(pd.DataFrame(rows, columns=columns), columns[4:7])
