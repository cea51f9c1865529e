"""Run-to-run variation in the intervals of a comparison.

It is measured on runs of one trace on the same side. Two runs of one trace on different sides measure nothing: their
difference may be the one in question, such as between two versions of the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ssd_bench.compare.pairing import Configuration
from ssd_bench.errors import ConfigError
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import find_runs, load_run, read_each
from ssd_bench.results.evidence import RunTiming, RunVariation, run_to_run_variation
from ssd_bench.results.quantity import Spread
from ssd_bench.results.store import FEW, DigestStore

ASSUMED = {"speedup": Spread(0.04, 7), "rate": Spread(0.23, 7)}
"""Variation where none was measured: the largest of the three run lengths in docs/evidence.md, each timed eight times.
"""
STATED_DOF = 1_000_000  # a stated standard deviation counts as known exactly


@dataclass(frozen=True)
class Variation:
    """Run-to-run variation by kind of speed.

    Attributes:
        measured: variations of models and machines timed repeatedly.
        stated: the user's standard deviation for all speeds; None: use the measured, else `ASSUMED`.
    """

    measured: Sequence[RunVariation] = ()
    stated: float | None = None

    def spread(self, configuration: Configuration, kind: str) -> tuple[Spread, str]:
        """Return the variation of a configuration's timing, by kind ("speedup" or "rate"), and its source."""
        if self.stated is not None:
            return Spread(self.stated, STATED_DOF), "stated"
        timing = configuration.timing
        level = next((part.at(timing.seconds) for part in self.measured if part.machine == timing.machine), None)
        return (ASSUMED[kind], "assumed") if level is None else (getattr(level, kind), "measured")


def read_variation(option: str | None, folders: Sequence[Path]) -> Variation:
    """Return the variation named by an option, or measured by the runs of both sides.

    Args:
        option: a standard deviation such as 0.02, or a folder of repeated timings; None: the sides' `folders`.

    Raises:
        ConfigError: neither a number from 0 to 1 nor a folder with repeated timings of one trace.
    """
    if option is None:
        timings = [
            replace(timing, trace=f"{number}:{timing.trace}")
            for number, folder in enumerate(dict.fromkeys(folders))
            for timing in _timings(folder)
        ]
        return Variation(run_to_run_variation(timings))
    try:
        stated = float(option)
    except ValueError:
        measured = run_to_run_variation(_timings(records_folder("variation", option)))
        if not measured:
            expected = "a standard deviation such as 0.02, or a folder with two runs of one trace or more"
            raise ConfigError("variation", option, expected) from None
        return Variation(measured)
    if not 0 <= stated < 1:
        raise ConfigError("variation", option, "a standard deviation from 0 to 1, such as 0.02 for 2 %")
    return Variation(stated=stated)


def _timings(folder: Path) -> list[RunTiming]:
    """Return the timing of every run in a folder; copies of a record count once."""
    paths = find_runs(folder)
    if len(paths) < FEW:  # a digest has many more numbers
        timings = [RunTiming.of(run) for run in read_each(paths, load_run)]
    else:
        store = DigestStore(folder)
        store.fill(paths)
        timings = [*read_each(paths, lambda path: store.digest(path, partial(load_run, path)).timing)]
    return [*{(timing.trace, timing.seconds): timing for timing in timings}.values()]
