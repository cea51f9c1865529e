"""Who works on a folder: a lease file with its owner and a heartbeat, also where a file system has no locks.

An owner that is gone loses its lease: at once where it was a process of this machine, else when its file has not been
touched for `SILENT` seconds by the clock of the file system that both see.
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
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from ssd_bench.errors import ConfigError, Lost

NAME = ".lease"
BEAT, SILENT = 10.0, 120.0  # seconds between heartbeats; without one, after which an owner elsewhere counts as gone
POLL = 0.05, 2.0  # seconds between looks of one that waits, at first and at most
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of a file system that has none
PATIENT: ContextVar[bool] = ContextVar("patient", default=True)
"""Whether a run that another process works on is waited for; a sweep does its others first."""


class LeaseHeld(ConfigError):
    """Another process has the lease, and this one was not to wait for it."""


@dataclass(frozen=True)
class Owner:
    """A process that holds a lease.

    Attributes:
        token: no two leases have the same.
        host: its name.
        space: where its number means this process: the machine since it was started, and the container.
        pid, begun: its number, and when it began, which the next process of that number did not.
        since: when it took the lease (UTC).
    """

    token: str
    host: str
    space: str
    pid: int
    begun: float
    since: str

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        begun = psutil.Process().create_time()
        return cls(uuid.uuid4().hex, socket.gethostname(), _space(), os.getpid(), begun, now)

    @property
    def dead(self) -> bool | None:
        """Whether it is known to be gone; None of a process elsewhere, of which this cannot be seen."""
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
    found = [socket.gethostname()]
    with suppress(OSError):
        found += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]
        found += [os.readlink("/proc/self/ns/pid")]
    return " ".join(found)


class Lease:
    """A folder that is this process's own until `close`, or until its process ends.

    Args:
        folder: exists and can be written.
        wait: for another owner to be done; else it is refused.
        name: of the file.

    Raises:
        Held: another process has it.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, wait: bool = True, name: str = NAME):
        self._path, self._own = folder / name, Owner.current()
        self._breaking = folder / f"{name}.breaking"
        self._done = threading.Event()
        pause, said = POLL[0], False
        while (other := self._take()) is not None:
            if not wait:
                raise LeaseHeld("run", str(folder), f"one that nobody else works on: {other} does")
            if not said and pause > 1:
                print(f"{folder}: {other} works on it; waiting", file=sys.stderr, flush=True)
                said = True
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
        # of processes that were killed while they tried; nobody takes the lease from this one meanwhile
        for leftover in [*folder.glob(f"{glob.escape(name)}.*.tmp"), self._breaking]:
            if leftover.exists() and has_expired(leftover, holder(leftover)):
                leftover.unlink(missing_ok=True)
        threading.Thread(target=self._beat, name="lease", daemon=True).start()

    def _take(self) -> Owner | str | None:
        """Take it if it is free or its owner is gone; else who has it."""
        content = json.dumps(asdict(self._own)).encode()
        if _create(self._path, content):
            return None
        other = holder(self._path)
        if not has_expired(self._path, other):
            return other or "another process"
        if not _create(self._breaking, content):  # one at a time, or the second would take what the first just took
            if not has_expired(self._breaking, holder(self._breaking)):
                return other or "another process"
            self._breaking.unlink(missing_ok=True)
            return self._take()
        try:
            if holder(self._path) == other:
                mine = self._path.with_name(f"{self._path.name}.{self._own.token}.tmp")
                mine.write_bytes(content)
                os.replace(mine, self._path)
        finally:
            self._breaking.unlink(missing_ok=True)
        return None if self.is_held else holder(self._path) or "another process"

    @property
    def is_held(self) -> bool:
        """Whether the file still says so."""
        found = holder(self._path)
        return found is not None and found.token == self._own.token

    def check(self) -> None:
        """Raises `Lost` if another process has taken it."""
        if not self._path.exists():
            raise Lost(f"{self._path.parent}: the folder, or {self._path.name} in it, was deleted during the run")
        if not self.is_held:
            raise Lost(f"{self._path.parent}: this process was silent for too long, and another one took it over")

    def _beat(self) -> None:
        while not self._done.wait(BEAT):
            with suppress(OSError):  # the next one may work; `check` finds out whether it came too late
                if self.is_held:
                    os.utime(self._path)

    def close(self) -> None:
        """Let go of it; may be called again."""
        if not self._done.is_set():
            self._done.set()
            with suppress(OSError):
                if self.is_held:
                    self._path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def hold_lease(folder: Path, name: str = NAME) -> Iterator[None]:
    """A folder that is made if need be and is this process's own meanwhile; others are waited for.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Lease(folder, name=name):
        yield


def holder(path: Path) -> Owner | None:
    """Whose a lease is; None of one that is not there, or is just being written."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # of a pipe nobody may ever write
        with os.fdopen(descriptor, "rb") as file:
            return Owner(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None


def has_expired(path: Path, owner: Owner | None) -> bool:
    """Whether the owner of a lease that is there has ended, or has been silent for too long."""
    if owner is not None and (dead := owner.dead) is not None:
        return dead
    try:
        return _now(path.parent) - path.stat().st_mtime > SILENT
    except FileNotFoundError:
        return True


def abandoned_leases(leases: Iterable[Path]) -> set[Path]:
    """Those that are there and whose owner has ended; one elsewhere has `SILENT` seconds to show that it has not."""
    found, seen = set(), {path: _touched(path) for path in leases}
    unclear = {path for path in seen if seen[path] is not None}
    while unclear:
        for path in sorted(unclear):
            if (
                (now := _touched(path)) is None
                or now != seen[path]
                or ((owner := holder(path)) and owner.dead is False)
            ):
                unclear.remove(path)
            elif has_expired(path, owner):
                found.add(path)
        unclear -= found
        if unclear:
            time.sleep(BEAT / 2)
    return found


def _touched(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _now(folder: Path) -> float:
    """The time by the clock that dates the files of a folder."""
    probe = folder / f"{NAME}.{uuid.uuid4().hex}.tmp"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> bool:
    """Write a file that is not there, whole at once; False if it is."""
    whole = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    whole.write_bytes(content)
    try:
        os.link(whole, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return False
        os.replace(whole, path)  # till then it is there and empty
    finally:
        whole.unlink(missing_ok=True)
    return True
