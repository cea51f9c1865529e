"""The three worlds that rows come from: the Hugging Face hub, a folder of JSONL files, the samples shipped here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_bench.errors import ConfigError
from ssd_bench.task import DataSpec

if TYPE_CHECKING:
    from datasets import Dataset

OFFLINE = "without the hub use data=sample (a few items shipped here) or data=local data.root=DIR (JSONL files)"


class LocalSource:
    """JSONL files of a folder, one object per line, `DIR/NAME.jsonl` for each file that a task reads.

    Every row needs `id` and the fields of the `DataSpec`, all non-empty strings; optional fields may be missing or
    empty; other fields are ignored, and so are blank lines.

    Args:
        root: the folder; None is accepted so that the config composes, and refused when rows are asked for.
    """

    def __init__(self, root: str | Path | None) -> None:
        self.root = None if root is None else Path(root).expanduser()

    def rows(self, spec: DataSpec) -> list[dict[str, str]]:
        """All rows of `root/NAME.jsonl` in file order.

        Raises:
            ConfigError: no root, no such file, or a row that cannot be used (named as FILE:LINE).
        """
        path = self._path(spec)
        lines: dict[str, int] = {}
        rows = []
        for number, line in enumerate(_text(path).split("\n"), start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            row = checked_row(_json_object(line, where), ("id", *spec.fields), where, spec.optional)
            first = lines.setdefault(row["id"], number)
            if first != number:
                raise ConfigError(f"{where} id", row["id"], f"ids must be unique; line {first} has the same id")
            rows.append(row)
        if not rows:
            raise ConfigError(str(path), "", "the file must hold at least one row")
        return rows

    def fingerprint(self, spec: DataSpec) -> str:
        """`sha256:` and the hash of the file's bytes."""
        return "sha256:" + hashlib.sha256(_bytes(self._path(spec))).hexdigest()

    def _path(self, spec: DataSpec) -> Path:
        name = f"{spec.name}.jsonl"
        if self.root is None:
            raise ConfigError("data.root", None, f"data=local reads DIR/{name}: give data.root=DIR, or use data=sample")
        if not self.root.is_dir():
            raise ConfigError("data.root", str(self.root), f"it must be an existing folder that holds {name}")
        path = self.root / name
        if not path.is_file():
            present = ", ".join(sorted(p.name for p in self.root.glob("*.jsonl"))) or "no JSONL file"
            raise ConfigError("data.root", str(self.root), f"this task reads {name} there; the folder holds: {present}")
        return path


class SampleSource(LocalSource):
    """The few items of `tasks/sample/`, written for this project: for first runs and tests, not for results."""

    def __init__(self) -> None:
        super().__init__(Path(str(files("tasks.sample"))))


class HubSource:
    """Data sets of the Hugging Face hub, by the id, configuration, split and revision that a task pins.

    Ids are `<name>-<split>-<index>` with the index in the split, so that a row can be traced back. The name is the
    part of `DataSpec.name` before the first dot.
    """

    def rows(self, spec: DataSpec) -> list[dict[str, str]]:
        """All rows of the split in the data set's order, columns renamed to the local fields.

        Raises:
            ConfigError: the hub cannot be reached, the split lacks a column, or a row cannot be used.
        """
        data = self._load(spec)
        column_of = {field: column for column, field in spec.rename.items()}
        columns = {field: column_of.get(field, field) for field in (*spec.fields, *spec.optional)}
        columns = {f: column for f, column in columns.items() if f in spec.fields or column in data.column_names}
        missing = sorted(set(columns.values()) - set(data.column_names))
        if missing:
            exist = ", ".join(data.column_names)
            raise ConfigError(f"{_label(spec)} column", ", ".join(missing), f"the columns that exist are: {exist}")
        name = spec.name.split(".", maxsplit=1)[0]
        rows = []
        for index, values in enumerate(zip(*(data[column] for column in columns.values()), strict=True)):
            row = dict(zip(columns, values, strict=True)) | {"id": f"{name}-{spec.hub['split']}-{index}"}
            rows.append(checked_row(row, ("id", *spec.fields), f"{_label(spec)}:{index}", spec.optional))
        if not rows:
            raise ConfigError(_label(spec), 0, "the split must hold at least one row")
        return rows

    def fingerprint(self, spec: DataSpec) -> str:
        """`PATH@COMMIT sha256:HASH`, the commit that the revision stood for and the hash of the rows' content.

        A branch such as `main` may move; the hash is over what was read, so it tells whether two runs saw the same
        rows whatever the revision was called.
        """
        content = json.dumps(self.rows(spec), ensure_ascii=False, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        return f"{spec.hub['path']}@{self._commit(spec)} sha256:{digest}"

    def _commit(self, spec: DataSpec) -> str:
        # `datasets` names the cache folder of a hub data set after the repository's commit.
        cached = " ".join(str(file["filename"]) for file in self._load(spec).cache_files)
        found = re.search(r"[/\\]([0-9a-f]{40})[/\\]", cached)
        return found[1] if found else spec.hub["revision"]

    def _load(self, spec: DataSpec) -> Dataset:
        absent = sorted({"path", "name", "split", "revision"} - set(spec.hub))
        if absent:
            raise ConfigError(f"task.hub of {spec.name}", dict(spec.hub), f"it must also name: {', '.join(absent)}")
        try:
            import datasets

            return datasets.load_dataset(**spec.hub)
        except Exception as error:  # the hub's clients raise OSError, ValueError, RuntimeError and httpx errors alike
            reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:300]
            allowed = f"it could not be loaded ({reason}); {OFFLINE}"
            raise ConfigError("data", f"hub ({_label(spec)})", allowed) from error


def checked_row(
    row: Mapping[str, Any], fields: Iterable[str], where: str, optional: Iterable[str] = ()
) -> dict[str, str]:
    """The named fields of one row, or a `ConfigError` that says which of them cannot be used.

    Args:
        fields: must be non-empty strings.
        optional: must be strings, or null or missing, which both become "".
    """
    checked = {}
    for field in fields:
        if field not in row:
            present = ", ".join(row) or "no field"
            raise ConfigError(f"{where} {field}", None, f"the field is missing; the row has: {present}")
        if not isinstance(row[field], str) or not row[field].strip():
            raise ConfigError(f"{where} {field}", row[field], "it must be a non-empty string")
        checked[field] = row[field]
    for field in optional:
        value = row.get(field)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{where} {field}", value, "it must be a string, null or missing")
        checked[field] = value or ""
    return checked


def _label(spec: DataSpec) -> str:
    return " ".join(str(spec.hub[key]) for key in ("path", "name", "split") if key in spec.hub)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("data.root", str(path), f"the file must be readable ({error.strerror})") from error


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}", error.object[error.start : error.end], "the file must be UTF-8") from error


def _json_object(line: str, where: str) -> dict[str, Any]:
    shown = line.strip() if len(line) <= 80 else line.strip()[:77] + "..."
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(where, shown, f"every line must be a JSON object ({error.msg} at {error.colno})") from error
    if not isinstance(value, dict):
        raise ConfigError(where, shown, "every line must be a JSON object")
    return value
