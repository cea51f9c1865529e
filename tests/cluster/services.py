"""Background processes of the cluster tests: started, awaited with a bound, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

LOOPBACK = "127.0.0.1"
MARK = "SSD_BENCH_CLUSTER_TEST"
"""Environment variable that every process of a test cluster inherits, even daemons of daemons."""


def free_ports(count: int) -> list[int]:
    """Find unused ports, below those that connections get."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def until(holds: Callable[[], object], event: str, seconds: float = 30.0) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: too late.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{event}: not within {seconds:g} s")
        time.sleep(0.1)


class Services:
    """Processes in the foreground of their own sessions, marked so that all their children are found.

    Args:
        folder: for their logs.
        mark: value of the mark, unique for this cluster.
    """

    def __init__(self, folder: Path, mark: str) -> None:
        self._folder, self._mark = folder, mark
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, **variables: str) -> dict[str, str]:
        return os.environ | {MARK: self._mark} | variables

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        with open(self._folder / f"{name}.out", "ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(**(variables or {})),
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill one process, but not its children."""
        process = self.running.pop(name)
        process.kill()
        process.wait(timeout=10)

    def all(self) -> list[psutil.Process]:
        """Return all other processes with the mark."""
        marked = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == self._mark:
                    marked.append(process)
        return marked

    def stop(self) -> None:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            processes = self.all()
            for process in processes:
                with suppress(psutil.Error):
                    process.send_signal(sent)
            psutil.wait_procs(processes, timeout=10)
        for process in self.running.values():
            process.wait(timeout=10)
        self.running.clear()

    def log(self) -> str:
        logs = [*self._folder.glob("*.out"), *self._folder.glob("*.log")]
        ends = [(log.name, log.read_text(encoding="utf-8", errors="replace")[-1500:]) for log in sorted(logs)]
        return "\n".join(f"--- {name}\n{text}" for name, text in ends)
