"""`python -m ssd_bench searches [FOLDER=runs/searches]`: the layer searches on disk, one a line.

A search is a folder: `search.json` says what was searched and where (its provenance), and `evaluations.jsonl` grows by
one line per evaluated layer set, so that a search that was killed goes on and one with a larger budget continues.
Whatever else is asked of a search (best set, trace, cost) follows from these two.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.command import run_tool
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.paths import local_path
from ssd_bench.records import pack, provenance
from ssd_bench.records.files import write_atomic
from ssd_bench.records.lease import Lease

HEADER, EVALUATIONS = "search.json", "evaluations.jsonl"
DEFAULT = Path("runs", "searches")
LONGEST_LABEL = 150  # characters of a name that a model and a domain, perhaps of a row, make up
KEY_DIGITS = 10  # of the content key, at the end of a name


@dataclass(frozen=True)
class Evaluation:
    """One evaluated layer set.

    Attributes:
        point: what the optimiser proposed, of which the set was made.
        layer_set: the set.
        score: of the objective, higher is better.
        seconds: spent on proposing and evaluating it.
    """

    point: tuple[float, ...]
    layer_set: LayerSet
    score: float
    seconds: float


@dataclass(frozen=True)
class SearchRecord:
    """A search, finished or not.

    Attributes:
        path: its folder; the folder's name is the search's.
        header: `search.json`: content_key, n_layers, model, weights, task, domain, dtype, machine, seed, latency,
            settings, prompts (their number) and provenance.
        evaluations: in the order in which they were made.
    """

    path: Path
    header: Mapping[str, Any]
    evaluations: list[Evaluation]

    @property
    def name(self) -> str:
        """What `find` knows it by."""
        return self.path.name

    @property
    def best(self) -> Evaluation:
        """The evaluation of the highest score, the first among equals.

        Raises:
            ConfigError: nothing was evaluated yet.
        """
        if not self.evaluations:
            raise ConfigError("search", self.name, "a search that has evaluated at least one layer set")
        return max(self.evaluations, key=lambda evaluation: evaluation.score)

    @property
    def seconds(self) -> float:
        """Cost: all evaluations and proposals, over all runs that took part."""
        return sum(evaluation.seconds for evaluation in self.evaluations)

    def cut_to_budget(self, count: int, seconds: float) -> SearchRecord:
        """The part that a budget of evaluations and seconds would have made: what is begun in time is finished."""
        ends = accumulate((evaluation.seconds for evaluation in self.evaluations), initial=0.0)
        begun = sum(end < seconds for end in list(ends)[:-1])
        return SearchRecord(self.path, self.header, self.evaluations[: min(count, begun)])

    def add(self, evaluation: Evaluation) -> None:
        """Append an evaluation; it is on disk when this returns, and a kill meanwhile loses it alone."""
        layers = evaluation.layer_set
        line = {
            "score": evaluation.score, "seconds": evaluation.seconds, "skip_attn": layers.skip_attn,
            "skip_mlp": layers.skip_mlp, "point": evaluation.point,
        }  # fmt: skip
        with open(self.path / EVALUATIONS, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.evaluations.append(evaluation)


@contextmanager
def open_search(folder: Path, label: str, header: Mapping[str, Any]) -> Iterator[SearchRecord]:
    """The search with this content key to add evaluations to, new unless it is there.

    Another process that opens it meanwhile waits, and then finds what this one added.

    Args:
        folder: of all searches.
        label: begins the name of a new search, which ends with digits of its content key.
        header: as in `Artifact`, without provenance; the one on disk stays where there is one.

    Raises:
        ConfigError: the folder cannot be written, or a file is damaged.
    """
    key = header["content_key"]
    kept = [path for path in folder.glob(f"*-{key[:KEY_DIGITS]}") if (path / HEADER).is_file()]
    path = kept[0] if kept else folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', label)[:LONGEST_LABEL]}-{key[:KEY_DIGITS]}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        lease = Lease(path)
    except OSError as error:
        raise ConfigError("runs_dir", str(path), f"a directory that can be written ({error})") from error
    with lease:
        if not (path / HEADER).is_file():
            content = {**header, "provenance": _provenance()}
            write_atomic(path / HEADER, json.dumps(content, indent=1).encode())
        artifact = load(path)
        if artifact.header["content_key"] != key:
            raise ConfigError("search", str(path), "a folder that holds this search; move the other one away")
        _drop_torn_line(path / EVALUATIONS)
        yield artifact


@cache
def _provenance() -> dict[str, Any]:
    return provenance.collect(["python", "-m", "ssd_bench", *sys.argv[1:]])


def _drop_torn_line(file: Path) -> None:
    """Cut what a killed process left of a line."""
    if file.is_file():
        content = file.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(file, whole)


def load(path: Path) -> SearchRecord:
    """Read a search; an unfinished last line does not count.

    Raises:
        ConfigError: missing or damaged (named with its path).
    """
    try:
        header = json.loads((path / HEADER).read_bytes())
        file = path / EVALUATIONS
        lines = file.read_bytes().split(b"\n")[:-1] if file.is_file() else []
        evaluations = [_evaluation(json.loads(line), header["n_layers"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "search", str(path), f"a search that can be read ({error}); delete it to repeat it"
        ) from error
    return SearchRecord(path, header, evaluations)


def _evaluation(row: Mapping[str, Any], n_layers: int) -> Evaluation:
    layer_set = LayerSet.skipping(n_layers, row["skip_attn"], row["skip_mlp"])
    return Evaluation(tuple(row["point"]), layer_set, row["score"], row["seconds"])


def search_names(folder: Path) -> list[str]:
    """The searches in a folder, sorted."""
    return sorted(path.parent.name for path in folder.glob(f"*/{HEADER}"))


def find(folder: Path, name: str, field: str) -> SearchRecord:
    """A search by name.

    Args:
        field: the option that names it, for errors.

    Raises:
        ConfigError: there is none of this name (the message lists the known ones), or it is damaged.
    """
    known = search_names(folder)
    if name not in known:
        raise ConfigError(field, name, f"a search in {folder}: {', '.join(known) or 'there is none yet'}")
    return load(folder / name)


def searches_table(folder: Path) -> str:
    """All searches of a folder: where, how many evaluations, best score, seconds, sublayers skipped."""
    rows = []
    for name in search_names(folder):
        artifact = load(folder / name)
        header, best = artifact.header, artifact.best if artifact.evaluations else None
        skipped = ""
        if best is not None:
            layers = best.layer_set
            skipped = f"{len(layers.skip_attn)}+{len(layers.skip_mlp)} of {2 * layers.n_layers}"
        rows.append(
            (name, header["model"], f"{header['task']}/{header['domain']}", header["settings"]["objective"],
             str(len(artifact.evaluations)), f"{best.score:.4f}" if best else "", f"{artifact.seconds:.1f}", skipped)
        )  # fmt: skip
    columns = ("name", "model", "task/domain", "objective", "evaluations", "score", "seconds", "skips attn+mlp")
    return tables.terminal(pd.DataFrame(rows, columns=columns), columns[4:7])


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if there is nothing to list or an option cannot work."""
    return run_tool(_print, __doc__, arguments)


def _print(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise ConfigError("arguments", list(arguments), "one folder of searches")
    folder = pack.unpacked_folder(local_path("folder", arguments[0]) if arguments else DEFAULT)
    if not search_names(folder):
        raise ConfigError("folder", str(folder), "a folder with searches (method=self_ssd makes one)")
    print(searches_table(folder))
