"""The other runs that measure on this machine: in the record of each, and waited for where a run asks for that.

They find each other in the machine's folder of temporary files, where each is a lease with what it uses beside it:
cores and GPUs. A run that may use some of the same cores, or the same GPU, shares them.
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
from types import TracebackType
from typing import Self

import torch

from ssd_bench.hardware import Hardware
from ssd_bench.records.lease import POLL, Lease, has_expired, hold_lease, holder

SUFFIX = ".run"


@dataclass(frozen=True)
class Run:
    """A run that measures.

    Attributes:
        name: of its record.
        places: the cores and GPUs that it may use.
        exclusive: `hardware.exclusive`.
    """

    name: str
    places: tuple[str, ...]
    exclusive: bool


class Neighbours:
    """The runs that measure on this machine beside one, from when it is entered.

    With `hardware.exclusive` it is entered when no other run with that switch shares a place.

    Args:
        name: of the run's record.
    """

    def __init__(self, name: str, hardware: Hardware) -> None:
        self._own = Run(name, tuple(places(hardware)), hardware.exclusive)
        self._folder = Path(tempfile.gettempdir(), f"ssd-bench-{os.getuid()}")
        self._token = uuid.uuid4().hex
        self._seen: dict[tuple[str, bool], None] = {}

    def __enter__(self) -> Self:
        pause, said = POLL[0], False
        while (other := self._entered()) is not None:
            if not said and pause > 1:
                print(f"waiting until {other.name} has measured on this machine", file=sys.stderr, flush=True)
                said = True
            time.sleep(pause)
            pause = min(1.5 * pause, POLL[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._about(self._token).unlink(missing_ok=True)
        self._lease.close()

    def _entered(self) -> Run | None:
        """Enter, or find the run that is to be waited for."""
        with hold_lease(self._folder):  # one at a time, so that no two enter at once
            for other in self._others():
                if self._own.exclusive and other.exclusive and self._shares(other):
                    return other
            self._about(self._token).write_text(json.dumps(asdict(self._own)), encoding="utf-8")
            self._lease = Lease(self._folder, name=f"{self._token}{SUFFIX}")
            return None

    def look(self) -> None:
        """Note who is there now."""
        self._seen |= {(other.name, self._shares(other)): None for other in self._others()}

    @property
    def seen(self) -> list[dict[str, object]]:
        """Every run that a look has found: its name, and whether it could use the same cores or GPU."""
        return [{"run": name, "shares": shares} for name, shares in sorted(self._seen)]

    def _shares(self, other: Run) -> bool:
        return not set(self._own.places).isdisjoint(other.places)

    def _others(self) -> Iterator[Run]:
        for lease in self._folder.glob(f"*{SUFFIX}"):
            if lease.stem != self._token:
                about = self._about(lease.stem)
                if has_expired(lease, holder(lease)):
                    about.unlink(missing_ok=True)
                    lease.unlink(missing_ok=True)
                    continue
                try:
                    told = json.loads(about.read_bytes())
                    yield Run(told["name"], tuple(told["places"]), told["exclusive"])
                except (OSError, ValueError, KeyError):
                    continue  # of a run that has just ended

    def _about(self, token: str) -> Path:
        return self._folder / f"{token}.json"


def places(hardware: Hardware) -> list[str]:
    """The cores and GPUs of this machine that a run may use, by names that are the same in every process."""
    found = []
    for device in hardware.devices:
        found += _cores() if device.type == "cpu" else [_gpu(device)]
    return found


def _cores() -> list[str]:
    number = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return [f"core {core}" for core in sorted(number)]


def _gpu(device: torch.device) -> str:
    """Its number among all of the machine: a process counts those that it sees."""
    index = device.index or 0
    visible = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    return f"GPU {visible[index] if index < len(visible) else index}"
