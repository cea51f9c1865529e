"""Forecast of runs' durations: the same run's time on record, scaled by this machine's speed.

Records are searched in `runs/reference` and in the folder of runs. A machine's speed is the time of a plain step by its
latency profile, measured if none is stored. A run without a record is estimated as if its method were as fast as AR and
all outputs had full length (`ssd_bench.sweep.dry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.papers.runs import index
from ssd_bench.records.header import RunHeader
from ssd_bench.sweep import dry

CONTEXT = 256  # tokens before the plain step by which machines are compared
BETWEEN = 0.5  # seconds from one run of a sweep to the next


@dataclass(frozen=True)
class RecordedTime:
    """Time of a run on record.

    Attributes:
        seconds: wall time of the whole run.
        step_ms: milliseconds of a plain step on its machine; None without a profile.
    """

    seconds: float
    model: str
    step_ms: float | None


@dataclass(frozen=True)
class Forecast:
    """Forecast of runs by the records in some folders."""

    folders: Sequence[Path]

    @cached_property
    def timings(self) -> Mapping[tuple[str, ...], RecordedTime]:
        """Times on record by `index.job_identity`; the last folder's of several."""
        timings: dict[tuple[str, ...], RecordedTime] = {}
        for path in (path for folder in self.folders if folder.exists() for path in index.find(folder)):
            for line in index.read(path)[2]:
                header = _complete_header(path.parents[1] / line.run) if line.run else None
                if header is not None:
                    timings[index.job_identity(line.overrides)] = _recorded_time(header)
        return timings

    def hours(self, run: dry.Planned) -> float | None:
        """Return a run's hours; None without a record."""
        timing = self.timings.get(index.job_identity(run.overrides))
        return None if timing is None else (timing.seconds * self._slowdown(run, timing) + BETWEEN) / 3600

    def _slowdown(self, run: dry.Planned, timing: RecordedTime) -> float:
        """Return the time of a plain step on this machine over that on the record's machine.

        Each model has one ratio, by its first run with a profile, since other runs' profiles are from other times.
        """
        if timing.step_ms is not None and timing.model not in self._ratios:
            from ssd_bench.run.loading import latency_of, load_model
            from ssd_bench.run.plan import plan  # torch, only where a model is timed

            planned = plan(run.cfg)
            decoder, cache = load_model(planned)
            local_ms = latency_of(planned, decoder, cache).target_ms(planned.model.dims.n_layers, CONTEXT)
            # not the estimate of `dry`: on the machine of the record, the ratio must be 1
            self._ratios[timing.model] = local_ms / timing.step_ms
        return self._ratios.get(timing.model, 1.0)

    @cached_property
    def _ratios(self) -> dict[str, float]:
        """Slowdown by model."""
        return {}


def _complete_header(folder: Path) -> RunHeader | None:
    try:
        header = RunHeader.read(folder)
    except ConfigError:
        return None
    return header if header.status == "complete" else None


def _recorded_time(header: RunHeader) -> RecordedTime:
    step = None if header.latency is None else header.latency.target_ms(header.model.n_layers, CONTEXT)
    return RecordedTime(header.wall_s, header.model.name, step)
