"""Forecast of runs' durations: the same run's time on record, scaled by this machine's speed.

Records are searched in `runs/reference` and in the folder of runs. A machine's speed is the time of a plain step by its
latency profile, measured if none is stored. A run without a record is estimated as if its method were as fast as AR and
all outputs had full length (`ssd_bench.sweep.dry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ssd_bench.errors import ConfigError
from ssd_bench.papers.runs import index
from ssd_bench.records.header import RunHeader
from ssd_bench.sweep import dry

CONTEXT = 256  # tokens before the plain step by which machines are compared
BETWEEN = 0.5  # seconds from one run of a sweep to the next


@dataclass(frozen=True)
class Forecast:
    """Forecast of runs by the records in some folders; `_ratios` has the slowdown by model."""

    folders: Sequence[Path]
    _ratios: dict[str, float] = field(default_factory=dict)

    @cached_property
    def headers(self) -> Mapping[tuple[str, ...], RunHeader]:
        """Complete runs on record by `index.job_identity`; the last folder's of several."""
        headers: dict[tuple[str, ...], RunHeader] = {}
        for path in (path for folder in self.folders if folder.exists() for path in index.find(folder)):
            for line in index.read(path)[2]:
                header = _complete_header(path.parents[1] / line.run) if line.run else None
                if header is not None:
                    headers[index.job_identity(line.overrides)] = header
        return headers

    def hours(self, run: dry.Planned) -> float | None:
        """Return a run's hours; None without a record."""
        header = self.headers.get(index.job_identity(run.overrides))
        return None if header is None else (header.wall_s * self._slowdown(run, header) + BETWEEN) / 3600

    def _slowdown(self, run: dry.Planned, header: RunHeader) -> float:
        """Return the time of a plain step on this machine over that on the record's machine.

        Each model has one ratio, by its first run with a profile, since other runs' profiles are from other times.
        """
        model, latency = header.model, header.latency
        if latency is not None and model.name not in self._ratios:
            from ssd_bench.run.loading import latency_of, load_model
            from ssd_bench.run.plan import plan  # torch, only where a model is timed

            planned = plan(run.cfg)
            decoder, cache = load_model(planned)
            local_ms = latency_of(planned, decoder, cache).target_ms(planned.model.dims.n_layers, CONTEXT)
            # not the estimate of `dry`: on the machine of the record, the ratio must be 1
            self._ratios[model.name] = local_ms / latency.target_ms(model.n_layers, CONTEXT)
        return self._ratios.get(model.name, 1.0)


def _complete_header(folder: Path) -> RunHeader | None:
    try:
        header = RunHeader.read(folder)
    except ConfigError:
        return None
    return header if header.status == "complete" else None
