"""Orderly end of a run on SIGTERM from a scheduler, SIGUSR1, its earlier warning, or SIGINT (Ctrl-C)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
CODE = 128 + signal.SIGTERM  # exit code of a process ended by SIGTERM


class Stopped(BaseException):
    """The system asked this process to end; a BaseException, because no job failed."""


class Stopping:
    """Handler that turns a signal into `Stopped`, after the current block of `finishing`.

    A second signal ends the process at once. SIGINT is a `KeyboardInterrupt` at once, raised again after the block
    where Python ignores it, as in a `__del__`.
    """

    def __init__(self) -> None:
        self._finishing, self._stop_requested, self._interrupted = False, False, False

    def _handle(self, signal_number: int, frame: FrameType | None) -> None:
        for handled in SIGNALS:
            signal.signal(handled, signal.SIG_DFL)
        self._stop_requested = True
        if not self._finishing:
            raise Stopped

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals in this block; Python delivers them to the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous_handlers = {number: signal.signal(number, self._handle) for number in SIGNALS}
        # a process in the background of a shell ignores SIGINT, and a caller may have a handler of its own
        interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if interruptible:
            signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            if interruptible:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            if not self._stop_requested:
                for number, handler in previous_handlers.items():
                    signal.signal(number, handler)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish this block before a signal takes effect."""
        self._finishing = True
        try:
            yield
        finally:
            self._finishing = False
        if self._interrupted:
            raise KeyboardInterrupt
        if self._stop_requested:
            raise Stopped
