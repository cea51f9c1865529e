"""Times of a decode loop, read from device-synchronised marks, and what else the machine did meanwhile."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import torch

QUIET = 0.1
"""Share of the machine that other processes may use during a measurement."""

Mark = float | torch.cuda.Event


@dataclass
class Clock:
    """Marks on the device's own time line: CUDA events on a GPU, the monotonic clock on a CPU.

    Marks cost no synchronisation. Read differences after `settle`, which waits for the device once.
    """

    device: torch.device

    def mark(self) -> Mark:
        """Now, on the device."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        """Wait until the device has passed every mark."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @staticmethod
    def ms(start: Mark, end: Mark) -> float:
        """Milliseconds between two marks."""
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            return start.elapsed_time(end)
        return (float(end) - float(start)) * 1e3  # type: ignore[arg-type]


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
