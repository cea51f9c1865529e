"""The sweep of `python -m ssd_bench -m`: products of choices, and experiments with their grids and scales.

Jobs -> distinct jobs -> one batch for Hydra's launcher, perhaps in parallel -> a summary of all jobs, and the
experiments' indices, from the records on disk.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pandas as pd
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssd_bench import tables
from ssd_bench.compose.application import JobFunction
from ssd_bench.conf import REFERENCE
from ssd_bench.console import EXTRAS, FULL, installed_by
from ssd_bench.errors import ConfigError, JobsFailed
from ssd_bench.papers.runs import index
from ssd_bench.papers.runs import scale as scales
from ssd_bench.papers.runs.grid import key_of
from ssd_bench.papers.runs.index import Outcome
from ssd_bench.paths import local_path
from ssd_bench.quoting import unresolved
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.report.closing import comparison_text
from ssd_bench.results.folder import load_records
from ssd_bench.run_warnings import clear_notes, count_warnings
from ssd_bench.sweep import dry
from ssd_bench.sweep.batch import Attempt, JobBatch
from ssd_bench.sweep.experiments import ScaledExperiments, scale_experiments
from ssd_bench.sweep.forecast import Forecast
from ssd_bench.sweep.overrides import Overrides, SweepRequest, product


class Sweep:
    """All jobs of one command line.

    Args:
        task_function: runs one job.
        config: Hydra's own options, composed.

    Raises:
        ConfigError: the launcher's package is not installed.
    """

    def __init__(self, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._loader, self._config = hydra_context.config_loader, config
        self._context, self._work = hydra_context, cast(JobFunction, task_function)  # of `application.command`
        self._folders: dict[Overrides, Path] = {}
        self._choosers: dict[str, bool] = {}
        self._plans: dict[Overrides, dry.Planned] = {}
        _check_launcher(config)

    def __call__(self, arguments: Sequence[str]) -> None:
        """Run all jobs of the experiments, or without experiments the product of all choices.

        Raises:
            ConfigError: an unknown experiment or scale, a scale without an experiment, an experiment with several
                values of an option, or an option that no job can have.
            JobsFailed: at least one job failed; the others are done.
        """
        request = SweepRequest.parse(self._loader, arguments)
        parts = self._scaled_experiments(request)
        runs_of_parts = self._select_runs(request, parts)
        jobs = list(dict.fromkeys(overrides for runs in runs_of_parts for overrides in runs))
        if not jobs:
            print("retry=failed: no run of this sweep has failed")
        elif request.describes:
            self._describe([part.heading for part in parts] or [f"{len(jobs)} runs"], runs_of_parts)
        else:
            self._run(jobs, parts)

    def _scaled_experiments(self, request: SweepRequest) -> list[ScaledExperiments]:
        if not request.experiments:
            return []
        options = request.single_options()
        return [
            scale_experiments(request.experiments, scales.load_checked(name), options, request.minutes, self._compose)
            for name in request.scales or ["paper"]
        ]

    def _select_runs(self, request: SweepRequest, parts: Sequence[ScaledExperiments]) -> list[list[Overrides]]:
        runs_of_parts = [self._runs_in_time(part) for part in parts]
        if not parts:
            runs_of_parts = [product(request.options)]
        elif not any(runs_of_parts):
            limits = ", ".join(f"{part.minutes:g}" for part in parts)
            raise ConfigError("minutes", limits, "enough time for the first run")
        if request.repeats_failed:
            runs_of_parts = [[job for job in runs if self._failed(job)] for runs in runs_of_parts]
        return runs_of_parts

    def _describe(self, headings: Sequence[str], runs_of_parts: Sequence[Sequence[Overrides]]) -> None:
        first = next(run for runs in runs_of_parts for run in runs)
        recorded = self._forecast(first).hours
        descriptions = [
            dry.describe(heading, [self._planned(run) for run in runs], recorded)
            for heading, runs in zip(headings, runs_of_parts, strict=True)
        ]
        print(*descriptions, sep="\n\n")

    def _forecast(self, run: Overrides) -> Forecast:
        runs_dir = local_path("runs_dir", self._compose(run).runs_dir)  # it may not exist yet
        return Forecast([unpacked_folder(REFERENCE), unpacked_folder(runs_dir)])

    def _runs_in_time(self, part: ScaledExperiments) -> list[Overrides]:
        """Return the first runs that fit into `minutes`; print the others."""
        runs = part.distinct_runs
        if part.minutes is None:
            return runs
        forecast, hours = self._forecast(runs[0]), []
        for planned in map(self._planned, runs):
            hours.append(forecast.hours(planned) or dry.estimate(planned.cfg, planned.choices["hardware"]).hours or 0.0)
        fits = [sum(hours[: i + 1]) * 60 <= part.minutes for i in range(len(runs))]
        if omitted := [run for run, fit in zip(runs, fits, strict=True) if not fit]:
            time_text = dry.spell(sum(time for time, fit in zip(hours, fits, strict=True) if not fit))
            limit = f"they exceed the limit of {part.minutes:g} minutes"
            print(f"left out: {len(omitted)} of {len(runs)} runs, about {time_text}, because {limit}:")
            print(*(f"  {' '.join(run)}" for run in omitted), "minutes=N sets another limit", sep="\n", flush=True)
        return [run for run, fit in zip(runs, fits, strict=True) if fit]

    def _run(self, jobs: Sequence[Overrides], parts: Sequence[ScaledExperiments]) -> None:
        for overrides in jobs:  # refuse an option that no job can have before the first job begins
            self._runs_dir(overrides)
        folder = Path(str(self._config.hydra.sweep.dir))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self._config, folder / "multirun.yaml")
        except OSError as error:
            if error.errno in FULL:
                raise
            raise ConfigError("runs_dir", str(folder.parent), f"a directory that can be written ({error})") from error
        runs_dir = unpacked_folder(self._runs_dir(jobs[0]))
        for part in parts:  # also now, so that a killed sweep leaves indices of earlier records
            part.write_indices(runs_dir)
        attempt = Attempt(self._work, len(jobs), uuid.uuid4().hex, runs_dir / index.OUTCOMES)
        index.note_request(runs_dir, jobs, attempt.sweep)
        try:
            ends = JobBatch(self._launcher, _launcher_name(self._config), attempt, runs_dir).outcomes(jobs)
        finally:
            clear_notes(attempt.notes, attempt.sweep)
            for part in parts:
                part.write_indices(runs_dir)
        if not parts:  # runs of experiments are in the tables and figures of `report`
            folders = [
                self._runs_dir(overrides) / end.run
                for overrides, end in zip(jobs, ends, strict=True)
                if end.run is not None
            ]
            if text := comparison_text(load_records(folders)):
                print(f"\n{text}", flush=True)
        _conclude(jobs, ends)

    def _launcher(self, attempt: Attempt) -> Launcher:
        return Plugins.instance().instantiate_launcher(
            hydra_context=self._context, task_function=attempt, config=self._config
        )

    def _failed(self, overrides: Overrides) -> bool:
        return index.read_outcome(self._runs_dir(overrides), overrides).error is not None

    def _planned(self, overrides: Overrides) -> dry.Planned:
        if overrides not in self._plans:
            cfg = self._compose(overrides)
            options = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
            self._plans[overrides] = dry.Planned(overrides, cfg.hydra.runtime.choices, options)
        return self._plans[overrides]

    def _runs_dir(self, overrides: Sequence[str]) -> Path:
        """Return a job's `runs_dir`; jobs that differ only in plain values are composed (0.1 s) once."""
        kind = tuple(
            override if self._is_chooser(key_of(override)) else override.partition("=")[0] for override in overrides
        )
        if kind in self._folders:
            return self._folders[kind]
        cfg = self._compose(overrides)
        try:
            folder = local_path("runs_dir", cfg.runs_dir)
        except OmegaConfBaseException as error:
            raise unresolved(cfg, "runs_dir", error) from None
        if not OmegaConf.is_interpolation(cfg, "runs_dir"):  # which may differ between jobs of a kind
            self._folders[kind] = folder
        return folder

    def _is_chooser(self, key: str) -> bool:
        """Return whether an option changes more than a plain value: a group's choice, runs_dir, or Hydra's own."""
        if key not in self._choosers:  # searching its files takes as long as a run of the miniature
            group = key.partition("@")[0]
            is_group = bool(self._loader.get_group_options(group))
            self._choosers[key] = is_group or key.startswith(("runs_dir", "hydra"))
        return self._choosers[key]

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        return self._loader.load_sweep_config(self._config, list(overrides))


def _check_launcher(config: DictConfig) -> None:
    """Refuse a launcher whose package is not installed, as composing does for some launchers; name its extra."""
    package = str(config.hydra.launcher._target_).rpartition(".")[0]
    try:
        importlib.import_module(package)
    except ImportError as error:
        extra = next((extra for name, extra in EXTRAS.items() if f"_{name}_" in package), None)
        if extra is None:
            raise
        expected = f"an installed launcher: {installed_by(extra)}"
        raise ConfigError("hydra/launcher", _launcher_name(config), expected) from error


def _launcher_name(config: DictConfig) -> str:
    return str(config.hydra.runtime.choices["hydra/launcher"])


def _conclude(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> None:
    """Print how many runs had each kind of warning; after a failure, print every job's outcome and raise JobsFailed."""
    if text := count_warnings([end.warnings for end in ends]):
        print(f"\n{text}", flush=True)
    failed = [end for end in ends if end.error is not None]
    if failed:
        print(f"\n{summary(jobs, ends)}", flush=True)
        # 1, an unexpected error, takes precedence over 2, input that cannot work
        raise JobsFailed(f"{len(failed)} of {len(ends)} runs failed", min(end.code for end in failed))


def summary(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> str:
    """Return a table of the jobs, by differing options, and their outcomes."""
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else set()
    rows = [
        (
            number,
            " ".join(o for o in overrides if o not in shared),
            "failed" if end.error else "done",
            end.error or end.run or "",
        )
        for number, (overrides, end) in enumerate(zip(jobs, ends, strict=True), start=1)
    ]
    header = ["run", "options", "state", "record or error"]
    return tables.terminal(pd.DataFrame(rows, columns=header), wrap=[None, 60, None, None])
