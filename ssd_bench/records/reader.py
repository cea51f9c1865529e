"""Reading of records; runs do not use this module, so changes here make none stale."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.errors import ConfigError
from ssd_bench.paths import record_files
from ssd_bench.records.consistency import check_tables
from ssd_bench.records.files import check_table, read_header, read_json, read_table
from ssd_bench.records.header import RunHeader
from ssd_bench.records.schema import SCHEMAS

Result = TypeVar("Result")

RUNS = "runs"
"""Default folder of records (option `runs_dir`)."""

SIZES = ("n_layers", "n_attn", "n_mlp", "first_changed")
"""Columns of `Run.set_sizes` from attributes of `LayerSet`."""
ROUNDED_SIZES = tuple(f"n_{kind}_int{bits}" for bits in BITS for kind in ("attn", "mlp"))
"""Columns of `Run.set_sizes` for sublayers with rounded weights."""


@dataclass(frozen=True, eq=False)  # tables cannot be compared by ==: a run is equal to itself alone
class Run:
    """A complete run, read from the record in `path`.

    Attributes:
        header: content of run.json.
        prompts, steps, layer_sets, work: the tables; nullable integer columns have dtype Int32.
    """

    path: Path
    header: RunHeader
    prompts: pd.DataFrame
    steps: pd.DataFrame
    layer_sets: pd.DataFrame
    work: pd.DataFrame

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Tables by name."""
        return {name: getattr(self, name) for name in SCHEMAS}

    def layer_set(self, set_id: int) -> LayerSet:
        """Return a layer set by its id in the tables."""
        row = self._set_rows[set_id]
        skipping = LayerSet.skipping(row.n_layers, map(int, row.skip_attn), map(int, row.skip_mlp))
        window = None if pd.isna(row.recent) else Window(int(row.sinks), int(row.recent))
        of_bits = [(bits, getattr(row, f"int{bits}")) for bits in BITS]
        rounded = frozenset((int(i), bits) for bits, sublayers in of_bits if sublayers is not None for i in sublayers)
        return replace(skipping, rounded=rounded, window=window)

    def set_sizes(self, ids: Iterable[int]) -> pd.DataFrame:
        """Return how much these layer sets run, by `layer_set_id`.

        Returns:
            Columns `SIZES` and `ROUNDED_SIZES`; read: most positions that an attention reads, infinite without a
            window.
        """
        rows = self.layer_sets[self.layer_sets["layer_set_id"].isin([*ids])]
        set_ids = [int(i) for i in rows["layer_set_id"]]
        sizes = [
            [getattr(of, name) for name in SIZES] + [n for bits in BITS for n in of.n_rounded.get(bits, (0, 0))]
            for of in map(self.layer_set, set_ids)
        ]
        index = pd.Index(set_ids, name="layer_set_id")
        frame = pd.DataFrame(sizes, index=index, columns=[*SIZES, *ROUNDED_SIZES], dtype="int64")
        read = (rows["sinks"] + rows["recent"]).astype("float64").fillna(float("inf"))
        return frame.assign(read=read.to_numpy())

    @cached_property
    def _set_rows(self) -> dict[int, Any]:
        """Rows of `layer_sets` by id, the first of a repeated one."""
        rows: list[Any] = [*self.layer_sets.itertuples(index=False)]
        return {row.layer_set_id: row for row in reversed(rows)}


def load_run(run_dir: Path | str) -> Run:
    """Read a complete run.

    Raises:
        ConfigError: no run, not complete, damaged, or of a newer schema; names the path.
    """
    run, stored = read_run(Path(run_dir))
    check_tables(run.path, stored, run.tables)
    return run


def read_run(path: Path) -> tuple[Run, dict[str, Any]]:
    """Read a complete run whose tables may be contradictory or changed.

    Raises:
        ConfigError: no run, not complete, unreadable, or of a newer schema; names the path.
    """
    if not (path / "run.json").is_file():
        raise ConfigError("run", str(path), f"the folder of a run{_suggestion(path)}")
    stored = read_header(path)
    header = RunHeader.of_file(stored, path)
    if header.status != "complete":
        raise ConfigError("record", str(path), reason="the run is not complete; the same command continues it")
    if (blocks := header.model.n_layers) < 1:
        raise ConfigError("model.n_layers", blocks, f"an integer >= 1; in {path / 'run.json'}")
    frames = {name: read_table(path / f"{name}.parquet", schema) for name, schema in SCHEMAS.items()}
    return Run(path, header, **frames), stored


def _suggestion(path: Path) -> str:
    """Say why a path is no run's folder, and which may be meant."""
    if path.exists():
        return ", and it has no run.json" if path.is_dir() else ", and it is a file"
    near = Path(RUNS, os.path.relpath(path))
    is_run = (near / "run.json").is_file()
    return f"; there is no such folder{f', but {near}: run={near}' if is_run else ''}"


def find_runs(runs_dir: Path | str) -> list[Path]:
    """Return the folders of complete runs anywhere under `runs_dir`, oldest first, except as in `record_files`.

    Folders with an unreadable run.json are listed, for `load_run` to report.
    """
    runs = []
    for file in record_files(Path(runs_dir), "run.json"):
        try:
            header = RunHeader.of(read_json(file))
        except ConfigError:
            runs.append(("", str(file.parent)))
            continue
        if header.status == "complete":
            runs.append((header.finished_at, str(file.parent)))
    return [Path(directory) for _, directory in sorted(runs)]


def read_each(paths: Iterable[Path], read: Callable[[Path], Result]) -> Iterator[Result]:
    """Yield what `read` returns for each record; name those that it refuses on stderr."""
    for path in paths:
        try:
            yield read(path)
        except ConfigError as error:
            print(f"a record is left out: {error}", file=sys.stderr)


def is_complete(run_dir: Path | str, content_key: str) -> bool:
    """Check whether `run_dir` holds a complete run of this content key.

    Raises:
        ConfigError: it does, but a table is missing or damaged; names the path.
    """
    path = Path(run_dir)
    try:
        stored = read_header(path)
        header = RunHeader.of_file(stored, path)
    except ConfigError:
        return False
    finished = header.status == "complete" and header.content_key == content_key
    if finished:
        for name in SCHEMAS:
            check_table(path / f"{name}.parquet")
    return finished
