"""Seconds of things that are compared: taken in turn, within one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Of one call, until the device is done."""
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def interleaved(runs: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round; one uncounted round first, then in turn, so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, run in runs.items():
            took = seconds(run, device)
            if index:
                times[name].append(took)
    return times
