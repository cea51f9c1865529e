"""Load that other processes put on the machine during a measurement."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

QUIET = 0.1
"""Share of the machine that other processes may use during a measurement."""


class LoadWatch:
    """Watch over the share of the machine's cores that other processes and the hypervisor use from now on."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return the wall clock, the busy CPU seconds of the machine and those of this process and its children."""
        process, total = psutil.Process(), psutil.cpu_times()
        process_s = 0.0
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # a child that has ended
                times = member.cpu_times()
                process_s += times.user + times.system
        return time.perf_counter(), sum(total) - total.idle - getattr(total, "iowait", 0.0), process_s

    def other_share(self) -> float:
        """Return the share so far, in [0, 1]."""
        wall_s, busy_s, process_s = (now - start for now, start in zip(self._read(), self._start))
        # CPU seconds that neither idled nor went to this process and its children, over all CPU seconds
        return min(1.0, max(0.0, (busy_s - process_s) / max(wall_s * (psutil.cpu_count() or 1), 1e-9)))
