"""Pack the complete runs of a folder and their searches into one file, and unpack it.

One file in git replaces hundreds of small ones. `DIR.zip` replaces the folder `DIR` next to it. A command turns its
option into a folder with `records_folder`, which unpacks the file once, and again when it has changed; code that reads
runs sees folders only.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from ssd_bench.errors import ConfigError
from ssd_bench.lease import hold_lease
from ssd_bench.paths import REFERENCE_FOLDER, local_path, record_files, write_atomic
from ssd_bench.records.header import RunHeader

SUFFIX, STAMP = ".zip", ".packed"
OUTCOMES = ".outcomes"
OTHER_FOLDERS = ("replication", OUTCOMES, "searches", "frontier")
"""Folders that are packed in addition to the runs."""
LEFT_OUT = ("parts", "report", REFERENCE_FOLDER)
"""Folders that are not packed: unfinished work, results that can be computed from the runs, the project's records."""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can store
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)  # what zipfile raises


def records_folder(field: str, value: object, missing_ok: bool = False) -> Path:
    """Return the absolute path of the records that an option names, with all packs there unpacked.

    Args:
        field: the option, for errors.
        value: a folder of records, the folder of a run, or the pack of either.
        missing_ok: return the path also if nothing is there, for a default that need not exist.

    Raises:
        ConfigError: no such folder or pack, unless `missing_ok`; or as `local_path` and `unpacked_folder`.
    """
    folder = unpacked_folder(local_path(field, value))
    if not missing_ok and not folder.is_dir():
        raise ConfigError(field, str(value), f"an existing folder of runs, the folder of a run, or a pack ({SUFFIX})")
    return folder


def pack(folder: Path, out: Path) -> int:
    """Write the complete runs under a folder into one file; the same files give the same bytes.

    Returns:
        The number of runs.

    Raises:
        ConfigError: no run is complete, a run.json is damaged, or `out` is no `.zip` or cannot be written.
    """
    if out.suffix != SUFFIX:
        raise ConfigError("out", str(out), f"a file whose name ends with {SUFFIX}")
    runs, files = _members(folder)
    if not runs:
        raise ConfigError("runs_dir", str(folder), "a folder with at least one complete run")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # Unix, on any system
            entry.compress_type = zipfile.ZIP_DEFLATED  # a third of a small Parquet file is plain text
            archive.writestr(entry, (folder / name).read_bytes())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content.getvalue())
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error})") from error
    return len(runs)


def _members(folder: Path) -> tuple[set[Path], list[str]]:
    """Return the complete runs under a folder, and the names of all files to pack, sorted."""
    headers = [file for file in record_files(folder, "run.json") if _is_packed(file.relative_to(folder))]
    runs = {file.parent for file in headers if RunHeader.read(file.parent).status == "complete"}
    folders = {path for name in OTHER_FOLDERS for path in folder.rglob(name) if path.is_dir()}
    paths = {file for root in runs | folders for file in root.rglob("*") if file.is_file()}
    names = (file.relative_to(folder) for file in paths)
    return runs, sorted(name.as_posix() for name in names if _is_packed(name))


def _is_packed(name: PurePath) -> bool:
    """Check by its name within the folder that a file is no lock, leftover or product."""
    hidden = any(part.startswith(".") and part != OUTCOMES for part in name.parts)
    return not hidden and name.suffix not in (".tmp", ".lock") and not {*LEFT_OUT} & {*name.parts}


def unpacked_folder(runs_dir: Path) -> Path:
    """Unpack all packs of `runs_dir` and return the folder to read.

    Looks for the pack of the folder, for packs of the folders above it (it may be one run of a pack), and for all packs
    within it, except in a subfolder `reference` (`paths.record_files`). A folder that was not unpacked from the pack
    next to it belongs to the user and is read as it is.

    Args:
        runs_dir: a folder, or its pack.

    Raises:
        ConfigError: a pack is damaged or would write outside its folder, or the folder cannot be written or replaced.
    """
    folder = runs_dir.with_suffix("") if runs_dir.suffix == SUFFIX else runs_dir
    for place in (*reversed(folder.parents), folder):
        _unpack(place)
    for path, folders, files in os.walk(folder):  # unlike rglob it tolerates folders that another process removes
        folders[:] = [name for name in folders if not name.startswith(".") and name != REFERENCE_FOLDER]
        for name in files:
            if name.endswith(SUFFIX) and name != f"{REFERENCE_FOLDER}{SUFFIX}":
                _unpack(Path(path, name).with_suffix(""))
    return folder


def _unpack(folder: Path) -> None:
    """Unpack the pack of `folder`, if it has one; killed at any point, this can be called again."""
    packed = Path(f"{folder}{SUFFIX}")
    if not packed.is_file():
        return
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    if _is_up_to_date(folder, packed) and not new.exists() and not old.exists():
        return
    try:
        with hold_lease(folder.parent, f".{folder.name}.lock"):  # one process unpacks, the others wait
            for leftover in (new, old):  # left by a killed process: its runs would be found twice
                if leftover.exists():
                    shutil.rmtree(leftover)
            if _is_up_to_date(folder, packed):
                return
            try:
                _extract(packed, new)
                if folder.exists():
                    _check_nothing_lost(folder, new, packed)
                    os.replace(folder, old)
                os.replace(new, folder)
            finally:
                shutil.rmtree(new, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ConfigError("runs_dir", str(folder), f"a folder that {packed} can be unpacked into ({error})") from error


def _is_up_to_date(folder: Path, packed: Path) -> bool:
    """Check that nothing is to be unpacked: the folder is the user's own, or has everything from its pack."""
    if not (folder / STAMP).is_file():
        return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    stamp = _stamp(folder)
    if not all((folder / name).is_file() for name in stamp.get("files", ())):
        return False  # git removes files when it checks out a commit that has them unpacked, and back
    status = packed.stat()
    if (stamp.get("size"), stamp.get("mtime_ns")) == (status.st_size, status.st_mtime_ns):
        return True
    with open(packed, "rb") as file:
        identity = _identity(file)
    if stamp.get("sha256") != identity["sha256"]:
        return False
    with suppress(OSError):  # a folder that cannot be written is read all the same
        _write_stamp(folder, {**stamp, **identity})
    return True


def _stamp(folder: Path) -> dict[str, Any]:
    """Read the stamp of an unpacked folder: `_identity` and `files` of its pack; empty if it is damaged."""
    try:
        content = json.loads((folder / STAMP).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_stamp(folder: Path, content: Mapping[str, Any]) -> None:
    write_atomic(folder / STAMP, json.dumps(content).encode())


def _identity(file: BinaryIO) -> dict[str, Any]:
    """Return the identity of an open pack (digest, size, mtime), which shows whether it was replaced."""
    status = os.fstat(file.fileno())
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed asks for more
    return {"sha256": digest, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _extract(packed: Path, new: Path) -> None:
    """Unpack into a new folder, and stamp it.

    Raises:
        ConfigError: the pack is damaged, or a name in it leads out of the folder.
    """
    new.mkdir()
    with open(packed, "rb") as file:
        identity = _identity(file)
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                outside = [name for name in names if _leaves_folder(name)]
                if not outside:
                    archive.extractall(new)
        except DAMAGED as error:
            raise ConfigError("runs_dir", str(packed), f"an intact pack ({error}); fetch it again") from error
    if outside:
        raise ConfigError("runs_dir", str(packed), f"a pack whose paths stay in its folder; it holds {outside[0]!r}")
    _write_stamp(new, {**identity, "files": [name for name in names if not name.endswith("/")]})


def _leaves_folder(name: str) -> bool:
    """Check whether a name in a pack leads out of the folder, on any system."""
    path = PurePosixPath(name)
    return "\\" in name or path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)


def _check_nothing_lost(folder: Path, new: Path, packed: Path) -> None:
    """Refuse to replace an unpacked folder that has runs of its own: they took hours.

    Raises:
        ConfigError: a file is neither from the former pack nor in this one.
    """
    packed_names = {PurePath(name) for stamp in (_stamp(folder), _stamp(new)) for name in stamp.get("files", ())}
    files = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file())
    kept = {"parts", REFERENCE_FOLDER}  # not in a pack, but not to be computed again either
    unpacked = [str(name) for name in files if name not in packed_names and (_is_packed(name) or kept & {*name.parts})]
    if unpacked:
        raise ConfigError(
            "runs_dir",
            str(folder),
            f"{packed} has changed and lacks {unpacked[0]} ({len(unpacked)} such files); move them away",
        )
