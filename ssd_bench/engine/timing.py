"""Marks on a device's time line, and the milliseconds between them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

Mark = float | torch.cuda.Event


@dataclass
class Clock:
    """Marks on the device's own time line: CUDA events on a GPU, the monotonic clock on a CPU.

    A mark does not wait for the device; `settle` waits once, before differences are read.
    """

    device: torch.device

    def mark(self) -> Mark:
        """Return a mark of the present; on a GPU, of the moment when it reaches this point of its queue."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @staticmethod
    def ms(start: Mark, end: Mark) -> float:
        """Return the milliseconds between two marks, after `settle`."""
        if isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
            return start.elapsed_time(end)
        return (float(end) - float(start)) * 1e3  # type: ignore[arg-type]
