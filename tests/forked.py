"""The program in forks of a process that has imported what runs import, which takes four seconds."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from subprocess import CompletedProcess
from types import TracebackType
from typing import Self
from unittest.mock import patch

from joblib.externals.loky.backend.context import set_start_method
from joblib.externals.loky.process_executor import _python_exit

from ssd_bench.cli import dispatch
from tests.runs import ROOT, environment

IMPORTED = ["tests.forked", "tests.preloaded"]
TIMEOUT_S = 300


class Forked:
    """The program in its own process; a context manager that ends a process not waited for.

    Args:
        forks: whether the workers of a parallel sweep are also forked.
    """

    def __init__(self, words: Sequence[str], variables: Mapping[str, str] | None = None, forks: bool = False) -> None:
        context = get_context("forkserver")
        with patch.dict(os.environ, environment()):  # of the process that is forked; it is started once
            forkserver.set_forkserver_preload(IMPORTED)
            forkserver.ensure_running()
        pipes = [context.Pipe(duplex=False) for _ in range(2)]
        ends = [end for _, end in pipes]
        self._process = context.Process(target=_work, args=(words, *ends, dict(variables or environment()), forks))
        self._process.start()
        for end in ends:
            end.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(pipe.fileno()), encoding="utf-8") for pipe, _ in pipes)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal; the process is not waited for yet, so that its number is still its own."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Return the exit code, negative after a signal."""
        self._process.join(TIMEOUT_S)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def communicate(self) -> CompletedProcess[str]:
        with ThreadPoolExecutor(2) as readers:
            out, err = readers.map(lambda stream: stream.read(), (self.stdout, self.stderr))
        return CompletedProcess("ssd_bench", self.wait(), out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.stdout.close()
        self.stderr.close()


def _work(words: Sequence[str], out: Connection, err: Connection, variables: Mapping[str, str], forks: bool) -> None:
    """Run the program like a new process."""
    if forks:
        set_start_method("fork")
    for number, end in enumerate((out, err), start=1):
        os.dup2(end.fileno(), number)
        end.close()
    # new streams: those of the server may have been of a file, in which a pipe cannot seek
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = variables["PYTHONPATH"].split(os.pathsep)
    tempfile.tempdir = None  # depends on the environment
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
    code = dispatch(words)
    if forks:
        _python_exit()  # which ends idle workers; a process of multiprocessing ends without it and waits for them
    sys.exit(code)


def at_once(lines: Sequence[Sequence[str]], variables: Mapping[str, str] | None = None) -> list[CompletedProcess[str]]:
    """Start the program with all these lines at once, and return their ends."""
    started = [Forked(line, variables) for line in lines]
    with ThreadPoolExecutor(len(started)) as readers:
        ends = list(readers.map(Forked.communicate, started))
    for process in started:
        process.__exit__(None, None, None)
    return ends
