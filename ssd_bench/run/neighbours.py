"""Concurrent runs on this machine: each records the others, or waits with `hardware.exclusive`.

Each run has a lease in the machine's folder of temporary files, and next to it a file with its cores and GPUs. Two runs
share the machine if they may use the same core or GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch

from ssd_bench.lease import POLL, Lease, has_expired, hold_lease, holder
from ssd_bench.run.hardware import Hardware

SUFFIX = ".run"


@dataclass(frozen=True)
class ActiveRun:
    """A run that is measuring, by its record's name, with the names of the cores and GPUs that it may use."""

    name: str
    places: list[str]
    exclusive: bool


class Neighbours:
    """Other runs that measure on this machine while this run does; a context manager.

    With `hardware.exclusive`, entering waits until no other run with that option shares a core or GPU.
    """

    def __init__(self, name: str, hardware: Hardware) -> None:
        self._this_run = ActiveRun(name, places(hardware), hardware.exclusive)
        self._folder = Path(tempfile.gettempdir(), f"ssd-bench-{os.getuid()}")
        self._token = uuid.uuid4().hex
        self._seen: dict[tuple[str, bool], None] = {}

    def __enter__(self) -> Self:
        pause, announced = POLL[0], False
        while (blocking := self._try_enter()) is not None:
            if not announced and pause > 1:
                message = f"waiting until run {blocking.name} has ended (hardware.exclusive=true)"
                print(message, file=sys.stderr, flush=True)
                announced = True
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._about_path(self._token).unlink(missing_ok=True)
        self._lease.close()

    def _try_enter(self) -> ActiveRun | None:
        """Register this run and return None, or return a run to wait for."""
        with hold_lease(self._folder):  # so that two runs cannot register at once
            for run in self._other_runs():
                if self._this_run.exclusive and run.exclusive and self._shares(run):
                    return run
            self._about_path(self._token).write_text(json.dumps(asdict(self._this_run)), encoding="utf-8")
            self._lease = Lease(self._folder, name=f"{self._token}{SUFFIX}")
            return None

    def look(self) -> None:
        """Remember the current runs."""
        self._seen |= {(run.name, self._shares(run)): None for run in self._other_runs()}

    @property
    def seen(self) -> list[dict[str, object]]:
        """Name of every other run seen by `look`, and whether it shares a core or GPU."""
        return [{"run": name, "shares": shares} for name, shares in sorted(self._seen)]

    def _shares(self, run: ActiveRun) -> bool:
        return not set(self._this_run.places).isdisjoint(run.places)

    def _other_runs(self) -> Iterator[ActiveRun]:
        for lease in self._folder.glob(f"*{SUFFIX}"):
            if lease.stem != self._token:
                about_file = self._about_path(lease.stem)
                if has_expired(lease, holder(lease)):
                    about_file.unlink(missing_ok=True)
                    lease.unlink(missing_ok=True)
                    continue
                try:
                    yield ActiveRun(**json.loads(about_file.read_bytes()))
                except (OSError, ValueError, TypeError):
                    continue  # the run has just ended

    def _about_path(self, token: str) -> Path:
        return self._folder / f"{token}.json"


def places(hardware: Hardware) -> list[str]:
    """Return the cores and GPUs that a run may use, by the same names in every process."""
    cores = [f"core {core}" for core in sorted(os.sched_getaffinity(0))]
    return [name for device in hardware.devices for name in (cores if device.type == "cpu" else [_gpu(device)])]


def _gpu(device: torch.device) -> str:
    """Return a GPU's name by its number on the machine; `device.index` counts only visible GPUs."""
    index = device.index or 0
    visible = [identifier for identifier in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if identifier]
    return f"GPU {visible[index] if index < len(visible) else index}"
