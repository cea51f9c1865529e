"""Rows from a folder of JSONL files: a user's folder, or the project's samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from ssd_bench.contract.task import DataSpec
from ssd_bench.data.rows import Row, UnusableRow, examine_row, faults_of
from ssd_bench.errors import NOT_GIVEN, ConfigError, shortened
from ssd_bench.paths import file_hash, local_path

LINE_LIMIT = 32 * 2**20  # bytes; rows of tasks are far shorter: a longer line means a file without line ends


class LocalSource:
    """JSONL files of a folder, one object per line, `DIR/NAME.jsonl` for each file of a task.

    Every row needs `id` (an integer or a non-empty string) and the required fields of the `DataSpec`, under their local
    or source names. Other fields and blank lines are ignored. Besides the rows, one line at a time is held in memory.

    Args:
        root: the folder; None composes, but is refused when rows are read.
    """

    def __init__(self, root: str | Path | None) -> None:
        self.root = None if root is None else local_path("data.root", root)
        self._faults: dict[str, list[ConfigError]] = {}

    def rows(self, spec: DataSpec) -> list[Row]:
        """Return all rows of `root/NAME.jsonl` in file order; one with faults is an `UnusableRow`.

        Raises:
            ConfigError: no root, no such file, or no usable row (the message names FILE:LINE).
        """
        rows = [row for _, row in self.scan(spec)]
        faults = [fault for row in rows for fault in faults_of(row)]
        if all(map(faults_of, rows)):
            raise faults[0]
        self._faults[str(self._path(spec))] = faults
        return rows

    def unusable(self) -> Mapping[str, Sequence[ConfigError]]:
        return self._faults

    def scan(self, spec: DataSpec) -> Iterator[tuple[str, Row]]:
        """Yield FILE:LINE and row; one with faults is an `UnusableRow`, and so is that of an empty file.

        Raises:
            ConfigError: no root, or no readable file.
        """
        path = self._path(spec)
        line_of: dict[str, tuple[int, bool]] = {}  # id -> line, and whether the id is only the line's number
        any_row = False
        for number, raw in _lines(path):
            where, unnamed = f"{path}:{number}", False
            try:
                text = _text(raw, where, first=number == 1)
                if not text.strip():
                    continue
                values = _rename_fields(_json_object(text, where), spec.rename)
                unnamed = spec.numbered and values.get("id") is None
                values |= {"id": number} if unnamed else {}
                row, faults = examine_row(values, spec, where)
            except ConfigError as error:
                row, faults = {}, [error]
            if "id" in row and (earlier := line_of.setdefault(row["id"], (number, unnamed)))[0] != number:
                faults.append(_repeated_id(where, None if unnamed else row["id"], *earlier))
            any_row = True
            yield where, UnusableRow(row, faults) if faults else row
        if not any_row:
            yield str(path), UnusableRow({}, [ConfigError(str(path), "", "a file with at least one row")])

    def fingerprint(self, spec: DataSpec) -> str:
        """Return `sha256:` and the hash of the file's bytes."""
        path = self._path(spec)
        try:
            return f"sha256:{file_hash(path)}"
        except OSError as error:
            raise _unreadable(path, error) from error

    def _path(self, spec: DataSpec) -> Path:
        name = f"{spec.name}.jsonl"
        if self.root is None:
            expected = f"data.root=DIR, from which data=local reads DIR/{name}; or use data=sample"
            raise ConfigError("data.root", NOT_GIVEN, expected)
        if not self.root.is_dir():
            raise ConfigError("data.root", str(self.root), f"an existing folder that holds {name}")
        path = self.root / name
        if path.is_dir():
            raise ConfigError("data.root", str(self.root), f"a folder in which {name} is a file, not a folder")
        if not path.is_file():
            present = ", ".join(sorted(p.name for p in self.root.glob("*.jsonl"))) or "no JSONL file"
            expected = f"a folder with {name}, which this task reads; it holds: {present}"
            raise ConfigError("data.root", str(self.root), expected)
        return path


class SampleSource(LocalSource):
    """Items of `tasks/sample/`: generated, held out from the miniature's training; for toy-model runs."""

    def __init__(self) -> None:
        super().__init__(Path(str(files("tasks.sample"))))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line; a longer line is cut to one byte more than the limit."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(LINE_LIMIT + 1):
                number += 1
                yield number, raw
                if _too_long(raw):
                    while (piece := file.readline(2**20)) and not piece.endswith(b"\n"):
                        pass
    except OSError as error:
        raise _unreadable(path, error) from error


def _too_long(raw: bytes) -> bool:
    return len(raw) > LINE_LIMIT and not raw.endswith(b"\n")


def _text(raw: bytes, where: str, first: bool) -> str:
    if _too_long(raw):
        shown = shortened(raw[:100].decode(errors="replace"))
        expected = f"at most {LINE_LIMIT} bytes (32 MiB) a line; {len(raw)} were read and it had not ended"
        raise ConfigError(where, shown, expected)
    try:
        text = raw.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(where, error.object[error.start : error.end], "a file in UTF-8") from error
    if "\0" in text:
        raise ConfigError(where, "\0", "UTF-8 text; the file has NUL bytes, as UTF-16 and binary files do")
    return text


def _json_object(line: str, where: str) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ConfigError(where, constant, "a JSON object in every line; JSON has no such number")

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            raise ConfigError(where, shortened(repeated), "an object in which every key is unique")
        return values

    try:
        value = json.loads(line, parse_constant=refuse, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        expected = f"a JSON object in every line ({error.msg} at {error.colno})"
        raise ConfigError(where, shortened(line.strip()), expected) from error
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        expected = f"a JSON object in every line that Python can read ({error})"
        raise ConfigError(where, shortened(line.strip()), expected) from error
    if not isinstance(value, dict):
        raise ConfigError(where, shortened(line.strip()), "a JSON object in every line")
    return value


def _rename_fields(row: dict[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    renamed = dict(row)
    for path, field in rename.items():
        value: Any = row
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            renamed.setdefault(field, value)
    return renamed


def _repeated_id(where: str, name: str | None, earlier: int, unnamed: bool) -> ConfigError:
    """Return the error for an earlier line's id (`unnamed`: its line number); `name` is None for a row without one."""
    if name is None:
        expected = f"a unique id: a row without an id gets its line number, {where.rpartition(':')[2]}, "
        expected += f"which is also the id of line {earlier}"
    else:
        has = "has no id, and gets its line number" if unnamed else "has the same id"
        expected = f"a unique id; line {earlier} {has}"
    return ConfigError(f"{where} id", name, expected)


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("data.root", str(path), f"a readable file ({error.strerror})")
