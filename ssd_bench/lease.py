"""Leases on folders: a file names the owner, who touches it as a heartbeat. Works without file locks.

An ended owner loses its lease: at once on this machine, else after `SILENT` seconds without a heartbeat, by the shared
file system's clock.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import psutil

from ssd_bench.errors import ConfigError, Lost

NAME = ".lease"
BEAT, SILENT = 10.0, 120.0  # seconds between heartbeats; seconds without one after which a remote owner counts as ended
POLL = 0.05, 2.0  # seconds between attempts of a waiting process, at first and at most
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of a file system without hard links


class LeaseHeld(ConfigError):
    """Another process has the lease, and this one does not wait."""


@dataclass(frozen=True)
class Owner:
    """A process that holds a lease.

    Attributes:
        token: unique for each lease.
        space: identity of the machine since its start, and of the container; within it a process number is unique.
        pid, begun: process number and start time, since numbers are reused.
        since: time of taking the lease (UTC).
    """

    token: str
    host: str
    space: str
    pid: int
    begun: float
    since: str

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        begun = psutil.Process().create_time()
        return cls(uuid.uuid4().hex, socket.gethostname(), _space(), os.getpid(), begun, now)

    @property
    def dead(self) -> bool | None:
        """Whether the process has ended; None if it runs elsewhere, out of sight."""
        if self.space != _space():
            return None
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.begun) > 1 or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


def _space() -> str:
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
        parts += [os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


class Lease:
    """Exclusive use of a folder by this process until `close` or its end.

    Args:
        folder: exists and can be written.
        wait: wait for another owner; False: refuse.
        name: of the lease file.

    Raises:
        LeaseHeld: another process has the lease.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, wait: bool = True, name: str = NAME):
        self._path, self._owner = folder / name, Owner.current()
        self._done = threading.Event()
        pause, reported = POLL[0], False
        while (owner := self._take()) is not None:
            if not wait:
                raise LeaseHeld("run", str(folder), f"one that nobody else works on: {owner} does")
            if not reported and pause > 1:
                print(f"waiting for {owner}, which works on {folder}", file=sys.stderr, flush=True)
                reported = True
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
        # leftovers of processes that were killed while they tried to take the lease, which this process now has
        for leftover in folder.glob(f"{glob.escape(name)}.*.tmp"):
            if leftover.exists() and has_expired(leftover, holder(leftover)):
                leftover.unlink(missing_ok=True)
        threading.Thread(target=self._beat, name="lease", daemon=True).start()

    def _take(self) -> Owner | str | None:
        """Take a free or ended lease and return None; else return the owner.

        Only the process that first created a claim on an ended owner replaces its lease; a second one would replace the
        lease just taken. If the claim's owner has also ended, a claim on that owner is needed, and so on.
        """
        content = json.dumps(asdict(self._owner)).encode()
        if _create(self._path, content):
            return None
        ended: list[Owner | None] = []
        file = self._path
        while not ended or not _create(file, content):
            owner = holder(file)
            if not file.exists():  # released meanwhile: no owner to follow, so the lease may be anyone's by now
                return self._take()
            if not has_expired(file, owner):
                return owner or "another process"
            # by position if it cannot be read, or if copied files name the same owner twice
            of = str(len(ended)) if owner is None or owner in ended else owner.token
            file = self._path.with_name(f"{self._path.name}.{of}.claim.tmp")
            ended.append(owner)
        try:
            owner = holder(self._path)
            if owner in ended and self._path.exists() and has_expired(self._path, owner):
                fresh_file = self._path.with_name(f"{self._path.name}.{self._owner.token}.tmp")
                fresh_file.write_bytes(content)
                os.replace(fresh_file, self._path)
        finally:
            file.unlink(missing_ok=True)
        return None if self.is_held else holder(self._path) or "another process"

    @property
    def is_held(self) -> bool:
        """Whether the lease file still names this process."""
        owner = holder(self._path)
        return owner is not None and owner.token == self._owner.token

    def check(self) -> None:
        """Raise `Lost` if another process has taken or deleted the lease."""
        if not self._path.exists():
            raise Lost(f"{self._path.parent}: the folder, or {self._path.name} in it, was deleted during the run")
        if not self.is_held:
            raise Lost(f"{self._path.parent}: no heartbeat of this process for too long, so another process took over")

    def _beat(self) -> None:
        while not self._done.wait(BEAT):
            with suppress(OSError):  # the next heartbeat may work; `check` notices if it came too late
                if self.is_held:
                    os.utime(self._path)

    def close(self) -> None:
        """Release the lease; may be called again."""
        if not self._done.is_set():
            self._done.set()
            with suppress(OSError):
                if self.is_held:
                    self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def hold_lease(folder: Path, name: str = NAME) -> Iterator[None]:
    """Hold the lease of a folder, created if necessary; wait for other owners.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Lease(folder, name=name):
        yield


def holder(path: Path) -> Owner | None:
    """Return a lease's owner; None if it does not exist or is just being written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait if it is a pipe
        with os.fdopen(descriptor, "rb") as file:
            return Owner(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def has_expired(path: Path, owner: Owner | None) -> bool:
    """Check whether a lease's owner has ended, or been silent too long."""
    if owner is not None and (dead := owner.dead) is not None:
        return dead
    try:
        return _file_system_time(path.parent) - path.stat().st_mtime > SILENT
    except FileNotFoundError:
        return True


def abandoned_leases(leases: Iterable[Path]) -> set[Path]:
    """Return the existing leases of ended owners; a remote owner gets `SILENT` seconds for a heartbeat."""
    ended, touched_at = set(), {path: _mtime(path) for path in leases}
    undecided = {path for path in touched_at if touched_at[path] is not None}
    while undecided:
        for path in sorted(undecided):
            if (
                (touched := _mtime(path)) is None
                or touched != touched_at[path]
                or ((owner := holder(path)) and owner.dead is False)
            ):
                undecided.remove(path)
            elif has_expired(path, owner):
                ended.add(path)
        undecided -= ended
        if undecided:
            time.sleep(BEAT / 2)
    return ended


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _file_system_time(folder: Path) -> float:
    probe = folder / f"{NAME}.{uuid.uuid4().hex}.tmp"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> bool:
    """Create a file with its full content in one step; return False if it exists."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.write_bytes(content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return False
        os.replace(temporary, path)  # until then it exists and is empty
    finally:
        temporary.unlink(missing_ok=True)
    return True
