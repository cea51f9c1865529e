"""The sweep of `python -m ssd_bench -m`: products of choices, and experiments with their grids and scales.

Jobs -> distinct jobs -> one batch for Hydra's launcher, which may run them in parallel -> a summary of all jobs, and
the indices of experiments, written from the records on disk.
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
import sys
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import pandas as pd
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from ssd_bench import tables
from ssd_bench.compose.application import EXPECTED
from ssd_bench.conf import CHOSEN, choices
from ssd_bench.console import EXTRAS, FULL, disk_fault, installed_by, report
from ssd_bench.errors import ConfigError, JobsFailed, one_line
from ssd_bench.lease import PATIENT, LeaseHeld
from ssd_bench.papers.claims import claims
from ssd_bench.papers.ours.cells import load_records
from ssd_bench.papers.runs import grid, index
from ssd_bench.papers.runs import scale as scales
from ssd_bench.papers.runs.grid import key_of
from ssd_bench.papers.runs.index import HELD, Outcome
from ssd_bench.paths import local_path
from ssd_bench.quoting import plain_value
from ssd_bench.records.pack import records_folder, unpacked_folder
from ssd_bench.report.closing import comparison_text
from ssd_bench.run_warnings import clear_notes, count_warnings, log_warnings
from ssd_bench.sweep import dry
from ssd_bench.sweep.forecast import REFERENCE, Forecast

Overrides = tuple[str, ...]
MOST_JOBS = 100_000  # most jobs of a sweep
REQUEUED = -1  # exit code of a process whose job submitit has queued again


@dataclass
class Attempt:
    """A job for the launcher that returns its outcome instead of raising, in whatever process it runs.

    The outcome is also written to disk when the job ends, so that an interrupted sweep can be reported.

    Attributes:
        work: the job itself; it may return the folder of a record.
        total: number of jobs in the sweep.
        sweep: unique name of the sweep.
        wait: wait for a run that another process works on; if false, the outcome is `HELD`.
        notes: folder in which jobs note the kinds of warnings shown; None: that of the job's outcome.
    """

    work: TaskFunction
    total: int = 0
    sweep: str = field(default_factory=lambda: uuid.uuid4().hex)
    wait: bool = False
    notes: Path | None = None

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run the job and return its outcome; only a BaseException, such as a KeyboardInterrupt, is raised."""
        job = HydraConfig.get()
        overrides = list(job.overrides.task)
        print(f"\n[run {job.job.num + 1} of {self.total}] {' '.join(overrides)}", flush=True)
        runs_dir = local_path("runs_dir", cfg.runs_dir)
        try:
            with index.mark_running(runs_dir, overrides, self.sweep):
                with log_warnings(self.notes or runs_dir / index.OUTCOMES, self.sweep) as log:
                    outcome = replace(self._outcome(cfg), warnings=tuple(log.kinds))
                index.note_outcome(runs_dir, overrides, outcome, self.sweep)
        except OSError as error:
            return Outcome(error=f"runs_dir={str(cfg.runs_dir)!r} cannot be written: {error}", code=2)
        return outcome

    def _outcome(self, cfg: DictConfig) -> Outcome:
        patience = PATIENT.set(self.wait)
        try:
            record = self.work(cfg)
        except LeaseHeld as error:
            print(str(error), flush=True)
            return Outcome(error=str(error), code=HELD)
        except EXPECTED as error:
            return Outcome(error=str(error).strip(), code=report(error))
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code == REQUEUED and "SUBMITIT_EXECUTOR" in os.environ:
                raise  # submitit has queued this job again; it will resume
            if (fault := disk_fault(error)) is not None:
                print(f"error: {fault}", file=sys.stderr)
                return Outcome(error=fault, code=1)
            traceback.print_exc()
            return Outcome(error=one_line(error), code=1)
        finally:
            PATIENT.reset(patience)
        return Outcome(record.name if isinstance(record, Path) else None)


@dataclass(frozen=True)
class ScaledExperiments:
    """Experiments at one scale.

    Attributes:
        experiments: their names.
        scale: its name.
        jobs: every job, with its overrides at this scale.
        ranks: overrides -> position of the first claim that needs them; only of runs that a claim reads.
        minutes: limit on the time of all runs together; None for no limit.
    """

    experiments: Sequence[str]
    scale: str
    jobs: Sequence[tuple[grid.Job, Overrides]]
    ranks: Mapping[Overrides, int]
    minutes: float | None = None

    @property
    def distinct_runs(self) -> list[Overrides]:
        """Runs of all jobs, each once: first those that claims need, claim by claim; repeated timings spread evenly."""
        repeats = {overrides for job, overrides in self.jobs if grid.load(job.experiment).spread}
        runs = sorted(dict.fromkeys(overrides for _, overrides in self.jobs), key=self._rank)
        return spread_repeats([run for run in runs if run not in repeats], [run for run in runs if run in repeats])

    def _rank(self, overrides: Overrides) -> float:
        return self.ranks.get(overrides, inf)

    @property
    def heading(self) -> str:
        """Line with the numbers of experiments, jobs and runs."""
        counts = f"{len(self.jobs)} results, {len(self.distinct_runs)} distinct runs"
        return f"{len(self.experiments)} experiments at scale {self.scale}: {counts}"

    def write_indices(self, runs_dir: Path) -> None:
        """Write each experiment's index, which names the run of every job, from the records on disk."""
        for name in self.experiments:
            jobs = [(job.labels, overrides) for job, overrides in self.jobs if job.experiment == name]
            index.refresh(runs_dir, name, self.scale, jobs)


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
        self._attempt = Attempt(task_function)
        self._folders: dict[Overrides, Path] = {}
        self._choosers: dict[str, bool] = {}
        _check_launcher(config)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=self._attempt, config=config
        )

    def __call__(self, arguments: Sequence[str]) -> None:
        """Run all jobs of the given experiments, or without experiments the product of all choices.

        Raises:
            ConfigError: an unknown experiment or scale, a scale without an experiment, an experiment with several
                values of an option, or an option that no job can have.
            JobsFailed: at least one job failed; the others are done.
        """
        parser = OverridesParser.create(config_loader=self._loader)
        options = {o.get_key_element(): o for o in parser.parse_overrides(list(arguments))}
        minutes = _minutes(options.pop("minutes")) if "minutes" in options else None
        describes = dry.is_requested(options.pop("dry").value()) if "dry" in options else False
        repeats_failed = _retry(options.pop("retry")) if "retry" in options else False
        sizes = _values(options.pop("scale")) if "scale" in options else []
        if "experiment" in options:
            experiments = experiment_names(options.pop("experiment"))
            command_line = [_single(override) for override in options.values()]
            parts = [self._scaled(experiments, scales.load_checked(name), command_line) for name in sizes or ["paper"]]
            parts = parts if minutes is None else [replace(part, minutes=minutes) for part in parts]
            runs_of_parts = [self._runs_in_time(part) for part in parts]
            jobs = list(dict.fromkeys(overrides for runs in runs_of_parts for overrides in runs))
            if not jobs:
                raise ConfigError(
                    "minutes", ", ".join(f"{part.minutes:g}" for part in parts), "enough time for the first run"
                )
        elif sizes or minutes is not None:
            raise ConfigError("scale" if sizes else "minutes", ", ".join(arguments), "experiment=NAME with this option")
        else:
            parts, jobs = [], product(options.values())
            runs_of_parts = [jobs]
        if repeats_failed:
            runs_of_parts = [[job for job in runs if self._failed(job)] for runs in runs_of_parts]
            jobs = [job for job in jobs if self._failed(job)]
            if not jobs:
                print("retry=failed: no run of this sweep has failed")
                return
        if describes:
            headings = [part.heading for part in parts] or [f"{len(jobs)} runs"]
            recorded = self._forecast(jobs[0]).hours
            descriptions = [
                dry.describe(heading, [self._planned(run) for run in runs], recorded)
                for heading, runs in zip(headings, runs_of_parts, strict=True)
            ]
            print(*descriptions, sep="\n\n")
        else:
            self._run(jobs, parts)

    def _scaled(
        self, experiments: Sequence[str], scale: scales.Scale, command_line: Sequence[str]
    ) -> ScaledExperiments:
        """Return the experiments at a scale; overrides of the command line win over those of jobs and scale."""
        jobs = [job for name in experiments for job in grid.load(name).jobs]
        jobs_by_run: dict[Overrides, list[grid.Job]] = {}
        for job in jobs:
            jobs_by_run.setdefault(grid.merge_overrides([*scale.map_job(job), *command_line]), []).append(job)
        run_of_job: dict[int, Overrides] = {}
        ranks: dict[Overrides, int] = {}
        claim_ranks = claims.claim_ranks(scale)
        for overrides, same_jobs in jobs_by_run.items():
            cap = max((n for n in map(scale.prompt_limit, same_jobs) if n is not None), default=None)
            run = grid.merge_overrides([*scale.apply_caps(overrides, self._compose(overrides), cap), *command_line])
            run_of_job |= dict.fromkeys(map(id, same_jobs), run)
            ranks_of_jobs = [claim_ranks[mapped] for mapped in map(scale.map_job, same_jobs) if mapped in claim_ranks]
            ranks |= {run: min(ranks_of_jobs)} if ranks_of_jobs else {}
        return ScaledExperiments(
            experiments, scale.name, [(job, run_of_job[id(job)]) for job in jobs], ranks, scale.minutes
        )

    def _forecast(self, run: Overrides) -> Forecast:
        """Return a forecast by the project's reference records and those in the run's own folder."""
        return Forecast([unpacked_folder(REFERENCE), records_folder("runs_dir", self._compose(run).runs_dir)])

    def _runs_in_time(self, part: ScaledExperiments) -> list[Overrides]:
        """Return the first runs that fit into `minutes`, in order; print the others."""
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
        """Run all jobs as one batch, so that the launcher may run them in parallel."""
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
        self._attempt.total, self._attempt.notes = len(jobs), runs_dir / index.OUTCOMES
        index.note_request(runs_dir, jobs, self._attempt.sweep)
        try:
            ends = JobBatch(self._launcher, _launcher_name(self._config), self._attempt, runs_dir).outcomes(jobs)
        finally:
            clear_notes(runs_dir / index.OUTCOMES, self._attempt.sweep)
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

    def _failed(self, overrides: Overrides) -> bool:
        return index.read_outcome(self._runs_dir(overrides), overrides).error is not None

    def _planned(self, overrides: Overrides) -> dry.Planned:
        cfg = self._compose(overrides)
        options = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        return dry.Planned(overrides, cfg.hydra.runtime.choices, options)

    def _runs_dir(self, overrides: Sequence[str]) -> Path:
        """Return the `runs_dir` of a job.

        Composing takes 0.1 s, so jobs that differ only in plain values are composed once.
        """
        kind = tuple(
            override if self._is_chooser(key_of(override)) else override.partition("=")[0] for override in overrides
        )
        if kind in self._folders:
            return self._folders[kind]
        cfg = self._compose(overrides)
        folder = local_path("runs_dir", plain_value(cfg, "runs_dir"))
        if not OmegaConf.is_interpolation(cfg, "runs_dir"):  # which may differ between jobs of a kind
            self._folders[kind] = folder
        return folder

    def _is_chooser(self, key: str) -> bool:
        """Return whether an option changes more than a plain value: a choice of a group, runs_dir, or Hydra's own."""
        if key not in self._choosers:  # searching its files takes as long as a run of the miniature
            group = key.partition("@")[0]
            is_group = bool(self._loader.get_group_options(group))
            self._choosers[key] = is_group or key.startswith(("runs_dir", "hydra"))
        return self._choosers[key]

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        return self._loader.load_sweep_config(self._config, list(overrides))


def _check_launcher(config: DictConfig) -> None:
    """Refuse a launcher whose package is not installed.

    Composing refuses most of them, except a launcher whose config does not need its package.

    Raises:
        ConfigError: names the extra that has the package.
    """
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
    """Return the chosen `hydra/launcher`."""
    return str(config.hydra.runtime.choices["hydra/launcher"])


@dataclass
class JobBatch:
    """Runs jobs with a launcher until each has an outcome, even if processes of the launcher die.

    Attributes:
        name: the chosen `hydra/launcher`.
        runs_dir: folder in which jobs note their beginning and their outcome.
    """

    launcher: Launcher
    name: str
    attempt: Attempt
    runs_dir: Path

    def outcomes(self, jobs: Sequence[Overrides]) -> list[Outcome]:
        """Run the jobs and return their outcomes; jobs that another process works on come last."""
        outcomes = self._launch_all(jobs)
        if held := [job for job in jobs if outcomes[job].code == HELD]:
            print(f"\nwaiting for {len(held)} runs of other processes", flush=True)
            self.attempt.wait = True
            outcomes |= self._launch_all(held)
        return [outcomes[job] for job in jobs]

    def _launch_all(self, jobs: Sequence[Overrides]) -> dict[Overrides, Outcome]:
        """Launch the jobs again and again until each has an outcome.

        A job whose process died in two broken launches runs alone; if that launch breaks as well, the job has failed.

        Raises:
            ConfigError: the launcher cannot start jobs.
        """
        outcomes: dict[Overrides, Outcome] = {}
        breaks: Counter[Overrides] = Counter()
        while pending := [job for job in jobs if job not in outcomes]:
            batchable = [job for job in pending if breaks[job] < 2]
            batch = batchable or pending[:1]  # each suspect alone
            new_outcomes, error = self._launch(batch, len(outcomes))
            outcomes |= new_outcomes
            if error is None:
                continue
            message = f"{type(error).__name__}: {str(error).strip()}"
            lost = index.lost_jobs(self.runs_dir, (job for job in batch if job not in new_outcomes), self.attempt.sweep)
            if not new_outcomes and not lost:
                raise ConfigError("hydra/launcher", self.name, f"a launcher that works here ({message})") from error
            breaks.update(map(tuple, lost))
            print(
                f"\nthe process of {len(lost)} runs has died ({message.splitlines()[0]})", file=sys.stderr, flush=True
            )
            if not batchable:
                end = Outcome(error="its process ended three times: killed, or out of memory", code=1)
                index.note_outcome(self.runs_dir, batch[0], end, self.attempt.sweep)
                outcomes[batch[0]] = end
        return outcomes

    def _launch(
        self, jobs: Sequence[Overrides], first_number: int
    ) -> tuple[dict[Overrides, Outcome], Exception | None]:
        """Launch one batch; return the outcomes of the jobs that ended, and the error that broke the launch, if any."""
        try:
            returned = self.launcher.launch([list(job) for job in jobs], initial_job_idx=first_number)
        except EXPECTED:
            raise
        except Exception as error:  # a launcher may raise anything
            outcomes = {job: index.read_outcome(self.runs_dir, job, self.attempt.sweep) for job in jobs}
            return {job: end for job, end in outcomes.items() if end.has_ended}, error
        return {job: job_return.return_value for job, job_return in zip(jobs, returned, strict=True)}, None


def spread_repeats(runs: Sequence[Overrides], repeats: Sequence[Overrides]) -> list[Overrides]:
    """Return the runs with the repeated timings inserted at equal distances, one at the start and one at the end."""
    gaps = max(len(repeats) - 1, 1)
    positions = [round(i * len(runs) / gaps) for i in range(len(repeats))]
    mixed: list[Overrides] = []
    for i in range(len(runs) + 1):
        mixed += [repeat for repeat, position in zip(repeats, positions, strict=True) if position == i]
        mixed += runs[i : i + 1]
    return mixed


def product(overrides: Iterable[Override]) -> list[Overrides]:
    """Return every combination of the overrides' values, each once.

    Raises:
        ConfigError: the values of an override cannot be listed.
    """
    values = [_choices(override) for override in overrides]
    if (count := math.prod(map(len, values))) > MOST_JOBS:
        raise ConfigError("-m", f"{count} runs", f"at most {MOST_JOBS} in one sweep")
    return list(dict.fromkeys(itertools.product(*values)))


def register_experiments(arguments: Sequence[str]) -> None:
    """Register the names of experiments with Hydra, which lists, completes and composes only names it knows.

    Tables and figures are experiments without config files of their own.

    Args:
        arguments: arguments of the command line; unknown experiments are refused before anything is composed.

    Raises:
        ConfigError: as `grid.expand_name`, or a run set is written as Hydra writes a choice of a nested group.
    """
    for name in grid.names():
        ConfigStore.instance().store(name=name, node={}, group="experiment")
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.startswith("experiment/"):
            raise ConfigError(key, value, f"experiment={key.removeprefix('experiment/')}/{value}")
        if key == "experiment" and "(" not in value:
            for name in map(str.strip, value.split(",")):
                grid.expand_name(name)
                if "/" not in name:  # a run set by its file's name alone
                    ConfigStore.instance().store(name=name, node={}, group="experiment")


def experiment_names(override: Override) -> list[str]:
    """Return the experiments of `experiment=`, each once: a table or figure, a run set, or a glob pattern.

    Raises:
        ConfigError: an unknown name, or a pattern without a match.
    """
    pattern = override.value()
    if not isinstance(pattern, Glob):
        return list(dict.fromkeys(name for value in _values(override) for name in grid.expand_name(value)))
    names = pattern.filter(grid.names())
    if not names:
        raise ConfigError(
            "experiment",
            str(override.input_line).partition("=")[2],
            "a pattern that matches names of tables or figures, such as glob(swift_*)",
        )
    return names


def _choices(override: Override) -> list[str]:
    """Return KEY=VALUE for every value of an override.

    Raises:
        ConfigError: values that cannot be listed, none, or more than `MOST_JOBS`.
    """
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(override.get_key_element(), override.input_line, "values that can be listed, such as a,b")
    key, text = override.get_key_element(), str(override.input_line).partition("=")[2]
    try:
        values = [f"{key}={value}" for value in itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)]
    except ValueError as error:  # raised by Python's range
        raise ConfigError(key, text, f"values that can be listed ({error})") from None
    if not values:
        known_choices = f", among {', '.join(choices(key))}" if key in CHOSEN else ""
        raise ConfigError(key, text, f"at least one value{known_choices}")
    if len(values) > MOST_JOBS:
        raise ConfigError(key, text, f"at most {MOST_JOBS} values")
    return values


def _values(override: Override) -> list[str]:
    return [choice.partition("=")[2] for choice in _choices(override)]


def _minutes(override: Override) -> float:
    value = override.value()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ConfigError("minutes", str(value), "a number above 0")
    return float(value)


def _retry(override: Override) -> bool:
    if (value := override.value()) not in ("failed", None):
        raise ConfigError("retry", str(value), "failed, or null")
    return value is not None


def _single(override: Override) -> str:
    if override.is_sweep_override():
        raise ConfigError(override.get_key_element(), override.input_line, "one value: the experiment defines the grid")
    return str(override.input_line)


def _conclude(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> None:
    """Print how many runs had each kind of warning, then the outcome of every job.

    Raises:
        JobsFailed: at least one job failed.
    """
    if text := count_warnings([end.warnings for end in ends]):
        print(f"\n{text}", flush=True)
    print(f"\n{summary(jobs, ends)}", flush=True)
    failed = [end for end in ends if end.error is not None]
    if failed:
        # 1, an unexpected error, takes precedence over 2, input that cannot work
        raise JobsFailed(f"{len(failed)} of {len(ends)} runs failed", min(end.code for end in failed))


def summary(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> str:
    """Return a table of the jobs, by the options in which they differ, and their outcomes."""
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
