"""What else the machine does during a measurement."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

QUIET = 0.1
"""Share of the machine that others may use during a measurement."""


class LoadWatch:
    """Share of the machine's cores that others use from now on: processes not of this one, and the hypervisor."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        process, total = psutil.Process(), psutil.cpu_times()
        own = 0.0
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # a child that has ended
                spent = one.cpu_times()
                own += spent.user + spent.system
        return time.perf_counter(), sum(total) - total.idle - getattr(total, "iowait", 0.0), own

    def others(self) -> float:
        """The share so far, in [0, 1]."""
        wall, busy, own = (now - then for now, then in zip(self._read(), self._start))
        return min(1.0, max(0.0, (busy - own) / max(wall * (psutil.cpu_count() or 1), 1e-9)))
