"""How long runs take, before they are run: as the same run on record took, by how fast this machine is beside its own.

Records are looked for in `runs/reference` and in the folder of runs. A machine's speed is the time of a plain step by
its latency profile, measured where it is not known yet. What has no record takes as long as if its method were as fast
as AR and its outputs as long as they may be (`ssd_bench.dry`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ssd_bench import dry
from ssd_bench.command import CONF
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.papers import index
from ssd_bench.records.files import read_header

REFERENCE = CONF.parent / "runs" / "reference"
CONTEXT = 256  # of the plain step that machines are compared by
BETWEEN = 0.5  # seconds from one run of a sweep to the next


@dataclass(frozen=True)
class Known:
    """What a record says of a run's time.

    Attributes:
        seconds: from its first to its last line.
        model: its name.
        step_ms: of a plain step on its machine; None without a profile.
    """

    seconds: float
    model: str
    step_ms: float | None


@dataclass(frozen=True)
class Forecast:
    """Of runs to come, by the records in some folders."""

    folders: Sequence[Path]

    @cached_property
    def known(self) -> Mapping[tuple[str, ...], Known]:
        """By what determines a run; of several records the last folder's."""
        found: dict[tuple[str, ...], Known] = {}
        for path in (path for folder in self.folders if folder.exists() for path in index.find(folder)):
            for line in index.read(path)[2]:
                header = _complete(path.parents[1] / line.run) if line.run else None
                if header is not None:
                    found[index.identity(line.overrides)] = _known(header)
        return found

    def hours(self, run: dry.Planned) -> float | None:
        """Of a run; None where no record of it is there."""
        known = self.known.get(index.identity(run.overrides))
        return None if known is None else (known.seconds * self._slower(run, known) + BETWEEN) / 3600

    def _slower(self, run: dry.Planned, known: Known) -> float:
        """Times that a plain step takes here what it took there, by the first run of the model that has a profile.

        One profile beside another of the same run: profiles of other contexts are measurements of other moments.
        """
        if known.step_ms is not None and known.model not in self._ratios:
            from ssd_bench.plan import plan  # torch, only where a model is timed
            from ssd_bench.run import latency_of, load_engine

            made = plan(run.cfg)
            engine = load_engine(made)
            here = latency_of(made, engine).target_ms(made.dims.n_layers, CONTEXT)
            self._ratios[known.model] = here / known.step_ms
        return self._ratios.get(known.model, 1.0)

    @cached_property
    def _ratios(self) -> dict[str, float]:
        """By model."""
        return {}


def _complete(folder: Path) -> Mapping[str, Any] | None:
    """The header of a complete record; None of one that is not, or cannot be read."""
    try:
        header = read_header(folder)
    except ConfigError:
        return None
    return header if header.get("status") == "complete" else None


def _known(header: Mapping[str, Any]) -> Known:
    model, latency = header["model"], header.get("latency")
    keys = ("t_mlp_ms", "t_attn_slope_ms", "t_attn_intercept_ms")
    step = Latency(**{key: latency[key] for key in keys}).target_ms(model["n_layers"], CONTEXT) if latency else None
    return Known(float(header["wall_s"]), str(model["name"]), step)
