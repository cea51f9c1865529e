"""Writing of records: run.json and four Parquet tables; a kill at any moment loses nothing.

    runs/<run id>/run.json            header: resolved config, provenance, status; written first and last
    runs/<run id>/parts/00012-000.json   one finished unit (prompt x repeat, all its arms), until the run is complete
    runs/<run id>/{prompts,steps,layer_sets,work}.parquet   the tables; columns: `ssd_bench.records.schema`

The tables have only raw values; `ssd_bench.results` derives the other numbers (M, alpha, speedup, TPT), and writes them
to results.parquet when the run ends.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ssd_bench.errors import ConfigError, one_line
from ssd_bench.lease import NAME, Lease, LeaseHeld
from ssd_bench.model.headers import reason
from ssd_bench.paths import write_atomic
from ssd_bench.records.files import RESULTS, read_header
from ssd_bench.records.header import RunHeader
from ssd_bench.records.schema import DIGESTS, SCHEMA_VERSION, SCHEMAS, PromptRecord, Unit, check_unit, merge, pack
from ssd_bench.records.units import FAULTS, dump, read_sealed, read_unit, sealed, unit_name

SHARD = "shard"  # status of a finished shard, which is a part of a run
FAILED, STOPPED = "failed", "stopped"  # ended by an error, or by a signal; run.json has the reason under `error`
DISCARDED = ".discarded"
LEFTOVERS = (DISCARDED, "parts", NAME)
"""Files and folders removed last, after the record is finished."""
TABLES = tuple(f"{name}.parquet" for name in SCHEMAS)


class RunWriter:
    """Writer of one run, unit by unit. Added units survive a kill; the same command continues the run.

    A folder with finished units of the same content key is resumed: its header stays, and `resumed` grows by a time
    stamp. In a complete folder `finish` changes nothing. The writing process holds the folder's lease until `finish`,
    `close` or its end.

    Args:
        header: run.json; `content_key` is required, `schema_version` and `status` are set here.
        fresh: remove the folder's content (`force=true`).
        wait: wait for another process that writes this run; False: refuse.

    Raises:
        LeaseHeld: another process writes this run.
        ConfigError: the folder cannot be written, or holds a run of another content key, schema or machine, or a
            damaged file.
    """

    def __init__(self, run_dir: Path | str, header: Mapping[str, Any], fresh: bool = False, wait: bool = False) -> None:
        self.path = Path(run_dir)
        self._parts = self.path / "parts"
        self._seq: dict[Unit, int] = {}
        self._last_state: bytes | None = None
        self._lease = self._take_lease(wait)
        try:
            self.header = self._open(dict(header), fresh)
            self._read_done()
        except BaseException:
            self.close()
            raise

    def _take_lease(self, wait: bool) -> Lease:
        try:
            while True:
                self.path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # a refused run removed the folder meanwhile
                    return Lease(self.path, wait)
        except OSError as error:
            raise ConfigError("runs_dir", str(self.path), f"a directory that can be written ({error})") from error

    def _open(self, header: dict[str, Any], fresh: bool) -> dict[str, Any]:
        for leftover in _unfinished(self.path):
            _remove(leftover)
        if fresh or not (self.path / "run.json").exists():
            _discard_parts(self.path)  # before the header: parts must never outlive the header they belong to
            _remove(self.path / RESULTS)
            for name in (*TABLES, "run.json") if fresh else ():  # a folder of this name would make `finish` fail
                if (self.path / name).is_dir():
                    _remove(self.path / name)
            current = {"schema_version": SCHEMA_VERSION, **header, "status": "running"}
        else:
            current = self._resume(read_header(self.path), header)
            if current["status"] == "complete":
                _discard_parts(self.path)  # killed between the last write of `finish` and its clean-up
                return current
        for name in ("parts", *TABLES):
            if os.path.lexists(path := self.path / name) and path.is_dir() != (name == "parts"):
                self._set_aside(path, "in the way")
        self._parts.mkdir(exist_ok=True)
        write_atomic(self.path / "run.json", dump(current, indent=2))
        return current

    def _resume(self, stored: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
        begun, present = (RunHeader.of(content) for content in (stored, json.loads(dump(header))))
        if begun.content_key != present.content_key:
            difference = "it holds another configuration, code or data; use force=true"
            raise ConfigError("run", str(self.path), reason=difference)
        if begun.status == "complete":
            return stored
        if begun.hardware != present.hardware:
            difference = f"it was begun on {begun.hardware} and this is {present.hardware}; use force=true"
            raise ConfigError("run", str(self.path), reason=difference)
        if begun.model.commit != present.model.commit:
            expected = f"the commit that {self.path} was begun with: model.revision={begun.model.commit}; "
            raise ConfigError("model.revision", present.model.commit, f"{expected}or use force=true")
        for file, fingerprint in begun.data.items():
            stored_commit, commit = map(_commit, (fingerprint, present.data.get(file)))
            if stored_commit != commit:
                expected = f"the commit that {self.path} was begun with: {stored_commit}, as that file's revision; "
                raise ConfigError(f"data set of {file}", commit, f"{expected}or use force=true")
        status = "running" if begun.status in (FAILED, STOPPED) else begun.status
        continued = {key: value for key, value in stored.items() if key != "error"}
        return {**continued, "status": status, "resumed": [*begun.resumed, _timestamp()]}

    def _read_done(self) -> None:
        """Take the finished units; move damaged ones to `.damaged` and report them, so that they are measured again."""
        parts: dict[Path, dict[str, Any]] = {}
        for file in sorted(self._parts.glob("*.json")):
            try:
                parts[file] = read_unit(file, self.header)
            except FAULTS as error:
                self._set_aside(file, f"damaged ({reason(error)})")
        learns = any(part["state"] is not None for part in parts.values())
        for number, file in enumerate(sorted(parts, key=lambda file: parts[file]["seq"])):
            part = parts[file]
            if learns and part["seq"] != number:  # a method with a state needs all units before the last one
                self._set_aside(file, "preceded by a missing one")
            else:
                self._seq[part["prompt_index"], part["repeat"]] = part["seq"]
                self._last_state = None if part["state"] is None else base64.b64decode(part["state"])

    def _set_aside(self, file: Path, why: str) -> None:
        aside = self.path / ".damaged"
        aside.mkdir(exist_ok=True)
        target = aside / f"{_timestamp().replace(':', '')}-{file.name}"
        print(f"{file} is {why}: moved to {target}, and measured again", file=sys.stderr, flush=True)
        os.replace(file, target)

    def _read_parts(self) -> list[dict[str, Any]]:
        parts = []
        for file in self._parts.glob("*.json"):
            try:
                parts.append(read_sealed(file))
            except ValueError as error:
                expected = f"a unit as the run wrote it ({reason(error)}); the same command measures it again"
                raise ConfigError("record", str(file), expected) from error
        return sorted(parts, key=lambda part: part["seq"])

    @property
    def complete(self) -> bool:
        """Whether the record is finished."""
        return bool(self.header["status"] == "complete")

    @property
    def done(self) -> set[Unit]:
        """Units (prompt_index, repeat) of an unfinished record on disk."""
        return set(self._seq)

    def last_state(self) -> bytes | None:
        """Return `method_state` of the last finished unit, in the order of `add`; None without one."""
        return self._last_state

    def add(self, prompt_index: int, repeat: int, records: list[PromptRecord], method_state: bytes | None) -> None:
        """Write one finished unit to disk; after this returns, no kill can lose it.

        Args:
            records: the unit's arms (in every turn of a conversation), in any order.
            method_state: state of a stateful method after this unit.

        Raises:
            ValueError: the unit is done already, a row belongs to another unit, or a value does not fit its column.
            Lost: another process has taken over the run.
        """
        unit = (prompt_index, repeat)
        if unit in self._seq or self.complete:
            raise ValueError(f"unit {unit} of {self.path} is done already")
        check_unit(unit, records)
        part = pack(records) | {
            "seq": 1 + max(self._seq.values(), default=-1),
            "prompt_index": prompt_index,
            "repeat": repeat,
            "state": None if method_state is None else base64.b64encode(method_state).decode(),
        }
        data = sealed(part)
        self._lease.check()
        merge([json.loads(data)])  # a value of a wrong type must fail now, not after hours in `finish`
        write_atomic(self._parts / unit_name(unit), data)
        self._seq[unit] = part["seq"]
        self._last_state = method_state

    def answers(self) -> list[tuple[str, int, int, str]]:
        """Return arm, prompt_index, turn and text of every answer on disk, in stream order."""
        names = ("arm", "prompt_index", "turn", "text")
        units = ([part["prompts"][name] for name in names] for part in self._read_parts())
        return [answer for columns in units for answer in zip(*columns, strict=True)]

    def finish(self, extra: Mapping[str, Any]) -> None:
        """Merge the units into the tables and mark the record complete; if killed, call it again.

        Keys of `extra` are added to run.json (`finished_at` is set if missing).
        """
        if not self.complete:
            self._lease.check()
            digests = {}
            for name, table in merge(self._read_parts()).items():
                sink = pa.BufferOutputStream()
                pq.write_table(table, sink, compression="zstd")
                data = sink.getvalue().to_pybytes()
                write_atomic(self.path / f"{name}.parquet", data)
                digests[name] = hashlib.sha256(data).hexdigest()
            self.header = {**self.header, "finished_at": _timestamp(), **extra, DIGESTS: digests, "status": "complete"}
            write_atomic(self.path / "run.json", dump(self.header, indent=2))
            _discard_parts(self.path)
        self.close()

    def finish_shard(self, extra: Mapping[str, Any]) -> None:
        """Mark a shard as done, and add the keys of `extra` to run.json; its units stay as they are, for `adopt`."""
        self._lease.check()
        self.header = {**self.header, **extra, "status": SHARD}
        write_atomic(self.path / "run.json", dump(self.header, indent=2))
        self.close()

    def adopt(self, folders: Sequence[Path], order: Iterable[Unit]) -> None:
        """Copy missing units from the run's shards, in stream order.

        Raises:
            ConfigError: a unit is missing in all shards, or damaged; names the path.
        """
        for seq, unit in enumerate(order):
            if unit not in self._seq:
                file = next((path for folder in folders if (path := folder / "parts" / unit_name(unit)).exists()), None)
                if file is None:
                    raise ConfigError("shard", unit_name(unit), f"parts of all prompts in {folders[0].parent}")
                try:
                    part = read_unit(file, self.header)
                except FAULTS as error:
                    raise ConfigError("shard", str(file), f"an intact file ({reason(error)})") from error
                write_atomic(self._parts / unit_name(unit), sealed(part | {"seq": seq}))
                self._seq[unit] = seq

    def _note_end(self, error: BaseException) -> None:
        """Write to run.json what ended the run, if the disk allows."""
        if self.header["status"] == "running" and self._lease.is_held:
            status = FAILED if isinstance(error, Exception) else STOPPED
            self.header = {**self.header, "status": status, "error": one_line(error)}
            with suppress(OSError):  # on a full disk the error itself is still reported
                write_atomic(self.path / "run.json", dump(self.header, indent=2))

    def close(self) -> None:
        """Release the lease; added units stay."""
        self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        refused = isinstance(error, ConfigError) and not self._seq
        if refused and self._lease.is_held:
            _discard_parts(self.path)
            (self.path / "run.json").unlink(missing_ok=True)
        elif error is not None:
            self._note_end(error)
        self.close()
        if refused:  # a refused configuration leaves no record, and no folder unless it holds other files
            with suppress(OSError):
                self.path.rmdir()
                self.path.parent.rmdir()


def clear_leftovers(path: Path) -> None:
    """Remove leftovers of a process killed while finishing a record, unless another one works on it."""
    if any(os.path.lexists(path / name) for name in LEFTOVERS) or [*_unfinished(path), *path.glob(f"{NAME}.*")]:
        # OSError: a folder that cannot be written can still be read
        with suppress(LeaseHeld, OSError), Lease(path, wait=False):
            _discard_parts(path)
            for leftover in _unfinished(path):
                _remove(leftover)


def _unfinished(path: Path) -> list[Path]:
    """Return a killed writer's temporary files; those of leases begin with a dot."""
    return [*path.glob("[!.]*.tmp"), *path.glob("parts/*.tmp")]


def _discard_parts(path: Path) -> None:
    trash, parts = path / DISCARDED, path / "parts"
    _remove(trash)
    if parts.exists():
        os.replace(parts, trash)  # all at once: some parts alone would look like a shorter run
        _remove(trash)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _commit(fingerprint: object) -> str | None:
    match = re.search(r"@([0-9a-f]{40}) ", str(fingerprint))
    return match[1] if match else None
