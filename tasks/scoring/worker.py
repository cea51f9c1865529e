"""A process that answers requests one at a time, and is killed if an answer takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

START_SECONDS = 60.0


class Worker:
    """Client of a process, started when first needed, that lives until it hangs, dies or this object is deleted.

    The process reads requests from stdin and writes answers to stdout, one line of JSON each, after any first line once
    it is ready. It has a session of its own and is killed with its process group: after a request that takes too long,
    when this object is deleted, and at the interpreter's exit. It should end with its stdin. Threads take turns. Forks
    start their own process.

    Args:
        seconds: wall-clock time for one request; the start has `START_SECONDS`.
        environment: additional variables.
    """

    def __init__(self, command: Sequence[str], seconds: float, environment: dict[str, str] | None = None) -> None:
        self.command, self.seconds, self.environment = tuple(command), seconds, dict(environment or {})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Worker] | None = None
        self._owner = os.getpid()

    def ask(self, request: Any) -> Any | None:
        """Return the answer, or None if it took too long or the process died; the next request starts another.

        Raises:
            RuntimeError: a new process did not become ready.
        """
        if self._owner != os.getpid():  # a fork: the parent's process, and a lock that may be held for ever
            self._lock, self._process, self._owner = threading.Lock(), None, os.getpid()
        with self._lock:
            process = self._running()
            line = self._line(process, json.dumps(request).encode() + b"\n", self.seconds)
            return json.loads(line) if line else None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and _alive(self._process):
            return self._process
        self._stop()
        process = self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | self.environment,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _kill, process, os.getpid())
        if not self._line(process, b"", START_SECONDS):
            raise RuntimeError(f"{' '.join(self.command)} did not start within {START_SECONDS:.0f} s; see its messages")
        return process

    def _line(self, process: subprocess.Popen[bytes], sent: bytes, seconds: float) -> bytes:
        """Return the line written after reading `sent`; empty if the process had to be killed."""
        assert process.stdin is not None
        assert process.stdout is not None
        # the process may hang while reading or while writing: a timer covers both
        timer = threading.Timer(seconds, _kill_group, [process.pid])
        timer.daemon = True
        timer.start()
        line = b""
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(sent)
                process.stdin.flush()
            line = process.stdout.readline()
        finally:  # after an interrupt, too: a late answer would be taken for that of the next request
            timer.cancel()
            timer.join()  # else it could kill the process during the next request
            if not line.endswith(b"\n"):
                self._stop()
        return line if line.endswith(b"\n") else b""

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._process = self._end = None


def _alive(process: subprocess.Popen[bytes]) -> bool:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _kill_group(pid: int) -> None:
    os.killpg(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    """End the process and close its pipes, but not in a fork of the owner, which runs the same code at its exit."""
    if os.getpid() != owner:
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # a request that the process did not read
                pipe.close()
