"""`python -m ssd_bench pack runs_dir=DIR out=FILE.zip`: the complete runs of a folder and what belongs to them, packed.

Hundreds of small files are one in git that way. `DIR.zip` beside where `DIR` would be stands for the folder: who reads
runs asks `opened` for it, which unpacks the file once, and again when it has changed.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

from ssd_bench.command import options, run_tool
from ssd_bench.errors import ConfigError
from ssd_bench.paths import local_path
from ssd_bench.records.files import read_header, write_atomic
from ssd_bench.records.lease import hold_lease

OPTIONS = ("runs_dir", "out")
SUFFIX, STAMP = ".zip", ".packed"
OUTCOMES = ".outcomes"
ROOMS = ("replication", OUTCOMES, "searches", "frontier")
"""Folders that are packed beside the runs."""
LEFT_OUT = ("parts", "report")
"""Folders that are not: of unfinished work, and of what is made from the runs at any time."""
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip can name
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)  # what zipfile raises


def pack(runs_dir: Path, out: Path) -> int:
    """Write the complete runs under a folder into one file; the same files make the same bytes.

    Returns:
        The number of runs.

    Raises:
        ConfigError: there is no complete run, a run.json is damaged, or `out` is no `.zip` or cannot be written.
    """
    if out.suffix != SUFFIX:
        raise ConfigError("out", str(out), f"a file whose name ends with {SUFFIX}")
    folder = unpacked_folder(runs_dir)
    runs, files = _members(folder)
    if not runs:
        raise ConfigError("runs_dir", str(runs_dir), "a folder with at least one complete run")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # Unix, wherever it is packed
            entry.compress_type = zipfile.ZIP_DEFLATED  # of a small Parquet file, too, a third is plain text
            archive.writestr(entry, (folder / name).read_bytes())
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content.getvalue())
    except OSError as error:
        raise ConfigError("out", str(out), f"a file that can be written ({error})") from error
    return len(runs)


def _members(folder: Path) -> tuple[set[Path], list[str]]:
    """The complete runs under a folder, and the names of all files to pack, sorted."""
    headers = [file for file in folder.rglob("run.json") if _kept(file.relative_to(folder))]
    runs = {file.parent for file in headers if read_header(file.parent).get("status") == "complete"}
    rooms = {path for room in ROOMS for path in folder.rglob(room) if path.is_dir()}
    found = {file for place in runs | rooms for file in place.rglob("*") if file.is_file()}
    names = (file.relative_to(folder) for file in found)
    return runs, sorted(name.as_posix() for name in names if _kept(name))


def _kept(name: PurePath) -> bool:
    """Whether a file, by its name within the folder, is more than a lock, a leftover or a product."""
    hidden = any(part.startswith(".") and part != OUTCOMES for part in name.parts)
    return not hidden and name.suffix not in (".tmp", ".lock") and not {*LEFT_OUT} & {*name.parts}


def unpacked_folder(runs_dir: Path) -> Path:
    """The folder to read for `runs_dir`, in which everything that is packed is unpacked.

    Looks for a pack beside the folder, beside the folders that it is in (it may be one run of a pack), and for all
    packs within it. A folder beside its pack that was not unpacked from it is somebody's own and is read as it is.

    Args:
        runs_dir: a folder, or its pack, which stands for the folder.

    Raises:
        ConfigError: a pack is damaged or would write outside its folder, or the folder cannot be written or replaced.
    """
    folder = runs_dir.with_suffix("") if runs_dir.suffix == SUFFIX else runs_dir
    for place in (*reversed(folder.parents), folder):
        _unpack(place)
    for path, folders, files in os.walk(folder):  # unlike rglob it bears folders that vanish: others unpack too
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.endswith(SUFFIX):
                _unpack(Path(path, name).with_suffix(""))
    return folder


def _unpack(folder: Path) -> None:
    """Make `folder` what its pack holds, if there is one; killed at any point, it can be called again."""
    packed = Path(f"{folder}{SUFFIX}")
    if not packed.is_file():
        return
    new, old = (folder.with_name(f".{folder.name}.{end}") for end in ("new", "old"))
    if _settled(folder, packed) and not new.exists() and not old.exists():
        return
    try:
        with hold_lease(
            folder.parent, f".{folder.name}.lock"
        ):  # of several processes one unpacks, the others find it done
            for leftover in (new, old):  # of a process that was killed: their runs would be found twice
                if leftover.exists():
                    shutil.rmtree(leftover)
            if _settled(folder, packed):
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


def _settled(folder: Path, packed: Path) -> bool:
    """Whether there is nothing to unpack: the folder is somebody's own, or has all that its pack holds."""
    if not (folder / STAMP).is_file():
        return folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    known = _stamp(folder)
    if not all((folder / name).is_file() for name in known.get("files", ())):
        return False  # git removes them where it goes to a commit that has them unpacked, and back
    status = packed.stat()
    if (known.get("size"), known.get("mtime_ns")) == (status.st_size, status.st_mtime_ns):
        return True
    with open(packed, "rb") as file:
        seen = _identity(file)
    if known.get("sha256") != seen["sha256"]:
        return False
    with suppress(OSError):  # a folder that cannot be written is read all the same
        _write_stamp(folder, {**known, **seen})
    return True


def _stamp(folder: Path) -> dict[str, Any]:
    """What is known of the pack that a folder comes from: `_identity`, and `files`; empty where it is damaged."""
    try:
        content = json.loads((folder / STAMP).read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_stamp(folder: Path, content: Mapping[str, Any]) -> None:
    write_atomic(folder / STAMP, json.dumps(content).encode())


def _identity(file: BinaryIO) -> dict[str, Any]:
    """By what an open pack is known again; all of one file, whatever takes its name meanwhile."""
    status = os.fstat(file.fileno())
    digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed asks for more
    return {"sha256": digest, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _extract(packed: Path, new: Path) -> None:
    """Unpack into a new folder, and stamp it.

    Raises:
        ConfigError: damaged, or a name in it leaves the folder.
    """
    new.mkdir()
    with open(packed, "rb") as file:
        seen = _identity(file)
        try:
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
                outside = [name for name in names if _leaves(name)]
                if not outside:
                    archive.extractall(new)
        except DAMAGED as error:
            raise ConfigError("runs_dir", str(packed), f"a pack that is whole ({error}); fetch it again") from error
    if outside:
        raise ConfigError("runs_dir", str(packed), f"a pack that stays in its folder; it holds {outside[0]!r}")
    _write_stamp(new, {**seen, "files": [name for name in names if not name.endswith("/")]})


def _leaves(name: str) -> bool:
    """Whether a name in a pack is of something outside of the folder, on any system."""
    path = PurePosixPath(name)
    return "\\" in name or path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)


def _check_nothing_lost(folder: Path, new: Path, packed: Path) -> None:
    """Runs that were made in an unpacked folder are somebody's hours: they are not replaced unseen.

    Raises:
        ConfigError: there are files that are neither from the former pack nor in this one.
    """
    known = {PurePath(name) for stamp in (_stamp(folder), _stamp(new)) for name in stamp.get("files", ())}
    files = (file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file())
    own = [str(name) for name in files if name not in known and (_kept(name) or "parts" in name.parts)]
    if own:
        raise ConfigError(
            "runs_dir", str(folder), f"{packed} has changed and lacks {own[0]} ({len(own)} such files); move them away"
        )


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if there is nothing to pack or an option cannot work."""
    return run_tool(_main, __doc__, arguments)


def _main(arguments: Sequence[str]) -> None:
    given = options(arguments, OPTIONS)
    for name in OPTIONS:
        if name not in given:
            raise ConfigError(name, None, f"runs_dir=DIR out=FILE{SUFFIX}")
    out = local_path("out", given["out"])
    runs = pack(local_path("runs_dir", given["runs_dir"]), out)
    with zipfile.ZipFile(out) as archive:
        files = len(archive.namelist())
    print(f"{out}: {runs} runs, {files} files, {out.stat().st_size / 1e6:.1f} MB")
