"""Machine load by other processes during a measurement."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

QUIET = 0.1
"""Share of the machine that other processes may use during a measurement."""


class LoadWatch:
    """Meter of the CPU share of other processes and the hypervisor."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return seconds: wall-clock, busy CPUs of the machine, CPUs of this process and its children."""
        process, total = psutil.Process(), psutil.cpu_times()
        process_s = 0.0
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # a child that has ended
                times = member.cpu_times()
                process_s += times.user + times.system
        return time.perf_counter(), sum(total) - total.idle - getattr(total, "iowait", 0.0), process_s

    def other_share(self) -> float:
        """Return the share of all cores that others used since construction, in [0, 1]."""
        wall_s, busy_s, process_s = (now - start for now, start in zip(self._read(), self._start))
        # busy seconds of others over all CPU seconds of this time
        return min(1.0, max(0.0, (busy_s - process_s) / max(wall_s * (psutil.cpu_count() or 1), 1e-9)))
