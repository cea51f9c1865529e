"""How a run ends when the system asks for it: SIGTERM, as a scheduler sends it, or SIGUSR1, its warning before."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
CODE = 128 + signal.SIGTERM  # the exit code of a process that it ended


class Stopped(BaseException):
    """The system asked this process to end; like an interrupt from the keyboard, it is no failure of a job."""


class Stopping:
    """From its start until its end such a signal raises `Stopped`, within `finishing` only when that is over.

    A second signal ends the process at once, as if there were no `Stopping`.
    """

    def __init__(self) -> None:
        self._finishing, self._asked = False, False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        self._asked = True
        if not self._finishing:
            raise Stopped

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While it is open signals are heard; in the main thread alone, the only one that Python tells of them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self._handle) for each in SIGNALS}
        try:
            yield
        finally:
            if not self._asked:
                for each, handler in before.items():
                    signal.signal(each, handler)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """What is in this block is done to its end."""
        self._finishing = True
        try:
            yield
        finally:
            self._finishing = False
        if self._asked:
            raise Stopped
