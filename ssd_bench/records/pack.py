"""Pack the complete runs of a folder and their searches into one file, and unpack it.

In git `DIR.zip` replaces hundreds of small files in the folder `DIR` next to it. Commands call `records_folder`, which
unpacks the file once; code that reads runs sees only folders.
"""

from __future__ import annotations

import io
import os
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

from ssd_bench.errors import ConfigError
from ssd_bench.paths import REFERENCE_FOLDER, UNPACKING, file_hash, local_path, record_files, write_atomic
from ssd_bench.records.files import RESULTS
from ssd_bench.records.header import RunHeader

SUFFIX = ".zip"
KEY = ".packed"
"""File of an unpacked folder with its pack's SHA-256."""
OUTCOMES = ".outcomes"
OTHER_FOLDERS = ("replication", OUTCOMES, "searches", "frontier")
"""Folders packed in addition to the runs."""
LEFT_OUT = ("parts", "report", RESULTS, REFERENCE_FOLDER)
"""Folders not packed: unfinished work, results that follow from the runs, the project's records."""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can store
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)  # what zipfile raises


def records_folder(field: str, value: object, missing_ok: bool = False) -> Path:
    """Return the absolute path of the records that an option names, with all packs there unpacked.

    Args:
        value: a folder of records or of a run, or the pack of either.
        missing_ok: accept a missing folder, for a default that need not exist.

    Raises:
        ConfigError: no such folder or pack, unless `missing_ok`; or as `local_path` and `unpacked_folder`.
    """
    folder = unpacked_folder(local_path(field, value))
    if not missing_ok and not folder.is_dir():
        raise ConfigError(field, str(value), f"an existing folder of runs, the folder of a run, or a pack ({SUFFIX})")
    return folder


def pack(folder: Path, out: Path) -> int:
    """Write a folder's complete runs into one file (same files, same bytes); return their number.

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
        if (key := out.with_suffix("") / KEY).is_file() and key.parent == folder:
            write_atomic(key, file_hash(out).encode())
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error})") from error
    return len(runs)


def _members(folder: Path) -> tuple[set[Path], list[str]]:
    headers = [file for file in record_files(folder, "run.json") if _is_packed(file.relative_to(folder))]
    runs = {file.parent for file in headers if RunHeader.read(file.parent).status == "complete"}
    folders = {path for name in OTHER_FOLDERS for path in folder.rglob(name) if path.is_dir()}
    paths = {file for root in runs | folders for file in root.rglob("*") if file.is_file()}
    names = (file.relative_to(folder) for file in paths)
    return runs, sorted(name.as_posix() for name in names if _is_packed(name))


def _is_packed(name: PurePath) -> bool:
    """Check that a file is no lock, leftover or product."""
    hidden = any(part.startswith(".") and part != OUTCOMES for part in name.parts)
    return not hidden and name.suffix not in (".tmp", ".lock") and not {*LEFT_OUT} & {*name.parts}


def unpacked_folder(runs_dir: Path) -> Path:
    """Unpack all packs of `runs_dir` and return the folder to read.

    Packs may be next to the folder (or its pack), above it (it may be one run of a pack) and within it, except in a
    subfolder `reference` (`paths.record_files`). A folder not unpacked from the pack next to it belongs to the user and
    is read as it is.

    Raises:
        ConfigError: a pack is damaged, would write outside its folder or cannot be unpacked, or the folder is from
            another pack.
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
    """Unpack the pack of `folder`, if any; two processes may do so at once, and either may be killed."""
    packed = Path(f"{folder}{SUFFIX}")
    if not packed.is_file():
        return
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        key = folder / KEY
        if key.is_file() and key.read_bytes() != file_hash(packed).encode():
            # it is not replaced, as it may have runs of its own
            expected = f"a folder unpacked from the present {packed}: move your own runs away and delete it"
            raise ConfigError("runs_dir", str(folder), expected)
        return
    prefix = f".{folder.name}."
    try:
        with tempfile.TemporaryDirectory(UNPACKING, prefix, folder.parent, ignore_cleanup_errors=True) as scratch:
            new = Path(scratch, folder.name)
            _extract(packed, new)
            os.rename(new, folder)
    except OSError as error:
        if not (folder / KEY).is_file():  # else another process was first
            expected = f"a folder that {packed} can be unpacked into ({error})"
            raise ConfigError("runs_dir", str(folder), expected) from error


def _extract(packed: Path, new: Path) -> None:
    """Unpack into a new folder, with the pack's key; refuse a damaged pack, or a name that leads out of the folder."""
    new.mkdir()
    (new / KEY).write_text(file_hash(packed), encoding="ascii")
    try:
        with zipfile.ZipFile(packed) as archive:
            outside = [name for name in archive.namelist() if _leaves_folder(name)]
            if not outside:
                archive.extractall(new)
    except DAMAGED as error:
        raise ConfigError("runs_dir", str(packed), f"an intact pack ({error}); fetch it again") from error
    if outside:
        raise ConfigError("runs_dir", str(packed), f"a pack whose paths stay in its folder; it holds {outside[0]!r}")


def _leaves_folder(name: str) -> bool:
    path = PurePosixPath(name)
    return "\\" in name or path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)
