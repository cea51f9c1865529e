"""The sweep of `python -m ssd_bench -m`: products of choices, and experiments with their grids and scales.

Jobs -> distinct jobs -> one batch to Hydra's launcher, which may run them at once -> a summary, and the indices of
experiments from what is on disk.
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

from ssd_bench import dry, tables
from ssd_bench.command import CHOSEN, EXPECTED, EXTRAS, FULL, choices, disk_fault, installed_by, plain_value, report
from ssd_bench.errors import ConfigError, JobsFailed, one_line
from ssd_bench.forecast import REFERENCE, Forecast
from ssd_bench.papers import grid, index
from ssd_bench.papers import scale as scales
from ssd_bench.papers.cells import these
from ssd_bench.papers.grid import key_of
from ssd_bench.papers.index import HELD, Outcome
from ssd_bench.paths import local_path
from ssd_bench.records.lease import PATIENT, LeaseHeld
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.report.runs import comparison_text

Overrides = tuple[str, ...]
MOST_JOBS = 100_000  # of one sweep
REQUEUED = -1  # what submitit ends a process with once it has queued its job again


@dataclass
class Attempt:
    """A job that never raises, for the launcher: in whatever process it runs, its outcome reaches the sweep.

    The outcome is also on disk when the job ends, so what is done of a sweep that was interrupted can be reported.

    Attributes:
        work: the job itself; it may return the folder of a record.
        total: number of jobs in the sweep.
        sweep: no two sweeps have the same.
        wait: for a run that another process works on; else that is its outcome.
    """

    work: TaskFunction
    total: int = 0
    sweep: str = field(default_factory=lambda: uuid.uuid4().hex)
    wait: bool = False

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Only what is no Exception, as an interrupt from the keyboard, ends the sweep."""
        job = HydraConfig.get()
        overrides = list(job.overrides.task)
        print(f"\n[run {job.job.num + 1} of {self.total}] {' '.join(overrides)}", flush=True)
        runs_dir = local_path("runs_dir", cfg.runs_dir)
        try:
            with index.under_way(runs_dir, overrides, self.sweep):
                outcome = self._outcome(cfg)
                index.note(runs_dir, overrides, outcome, self.sweep)
        except OSError as error:
            return Outcome(error=f"runs_dir={str(cfg.runs_dir)!r} cannot be written: {error}", code=2)
        return outcome

    def _outcome(self, cfg: DictConfig) -> Outcome:
        before = PATIENT.set(self.wait)
        try:
            made = self.work(cfg)
        except LeaseHeld as error:
            print(str(error), flush=True)
            return Outcome(error=str(error), code=HELD)
        except EXPECTED as error:
            return Outcome(error=str(error).strip(), code=report(error))
        except (Exception, SystemExit) as error:
            if isinstance(error, SystemExit) and error.code == REQUEUED and "SUBMITIT_EXECUTOR" in os.environ:
                raise  # submitit has queued this job again, which goes on where it was
            if (said := disk_fault(error)) is not None:
                print(f"error: {said}", file=sys.stderr)
                return Outcome(error=said, code=1)
            traceback.print_exc()
            return Outcome(error=one_line(error), code=1)
        finally:
            PATIENT.reset(before)
        return Outcome(made.name if isinstance(made, Path) else None)


@dataclass(frozen=True)
class Part:
    """Experiments at one scale.

    Attributes:
        experiments: names.
        scale: name.
        cells: every job, with its overrides at this scale.
        ranks: overrides -> which claim is the first that needs them, of those that a claim reads.
        minutes: that its runs may take together; None: any time.
    """

    experiments: Sequence[str]
    scale: str
    cells: Sequence[tuple[grid.Job, Overrides]]
    ranks: Mapping[Overrides, int]
    minutes: float | None = None

    @property
    def distinct(self) -> list[Overrides]:
        """The runs behind the cells: what claims need first, claim by claim; those of spread exhibits shared out."""
        at_moments = {overrides for job, overrides in self.cells if grid.load(job.experiment).spread}
        runs = sorted(dict.fromkeys(overrides for _, overrides in self.cells), key=self._rank)
        return shared_out([one for one in runs if one not in at_moments], [one for one in runs if one in at_moments])

    def _rank(self, overrides: Overrides) -> float:
        return self.ranks.get(overrides, inf)

    @property
    def head(self) -> str:
        """What it is, in numbers."""
        counts = f"{len(self.cells)} cells, {len(self.distinct)} distinct runs"
        return f"{len(self.experiments)} experiments at scale {self.scale}: {counts}"

    def write_indices(self, runs_dir: Path) -> None:
        """Write which cell has which run, from what is on disk."""
        for name in self.experiments:
            jobs = [(job.labels, overrides) for job, overrides in self.cells if job.experiment == name]
            index.refresh(runs_dir, name, self.scale, jobs)


class Sweep:
    """All jobs of one command line.

    Args:
        task_function: one job.
        config: what Hydra composed of the options that are its own.

    Raises:
        ConfigError: the launcher's package is not installed.
    """

    def __init__(self, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._loader, self._config = hydra_context.config_loader, config
        self._attempt = Attempt(task_function)
        self._folders: dict[Overrides, Path] = {}
        self._choosing: dict[str, bool] = {}
        _check_launcher(config)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=self._attempt, config=config
        )

    def __call__(self, arguments: Sequence[str]) -> None:
        """Run all jobs of the given experiments, or the product of the choices where there is none.

        Raises:
            ConfigError: an unknown experiment or scale, a scale without an experiment, several values of an option
                beside one, or an option that no job can have.
            JobsFailed: at least one job failed; the others are done.
        """
        parser = OverridesParser.create(config_loader=self._loader)
        asked = {o.get_key_element(): o for o in parser.parse_overrides(list(arguments))}
        minutes = _minutes(asked.pop("minutes")) if "minutes" in asked else None
        described = dry.asked(asked.pop("dry").value()) if "dry" in asked else False
        again = _retry(asked.pop("retry")) if "retry" in asked else False
        sizes = _values(asked.pop("scale")) if "scale" in asked else []
        if "experiment" in asked:
            every = experiments(asked.pop("experiment"))
            own = [_single(override) for override in asked.values()]
            parts = [self._part(every, scales.checked(name), own) for name in sizes or ["paper"]]
            parts = parts if minutes is None else [replace(part, minutes=minutes) for part in parts]
            fitting = [self._fitting(part) for part in parts]
            jobs = list(dict.fromkeys(overrides for runs in fitting for overrides in runs))
            if not jobs:
                raise ConfigError("minutes", ", ".join(f"{part.minutes:g}" for part in parts), "time for the first run")
        elif sizes or minutes is not None:
            raise ConfigError("scale" if sizes else "minutes", ", ".join(arguments), "experiment=NAME beside it")
        else:
            parts, jobs = [], product(asked.values())
            fitting = [jobs]
        if again:
            fitting = [[job for job in runs if self._failed(job)] for runs in fitting]
            jobs = [job for job in jobs if self._failed(job)]
            if not jobs:
                print("retry=failed: no run of this sweep has failed")
                return
        if described:
            heads = [part.head for part in parts] or [f"{len(jobs)} runs"]
            recorded = self._forecast(jobs[0]).hours
            told = [
                dry.describe(head, [self._planned(one) for one in runs], recorded)
                for head, runs in zip(heads, fitting, strict=True)
            ]
            print(*told, sep="\n\n")
        else:
            self._run(jobs, parts)

    def _part(self, experiments: Sequence[str], scale: scales.Scale, own: Sequence[str]) -> Part:
        """`own` overrides of the command line stand above everything."""
        jobs = [job for name in experiments for job in grid.load(name).jobs]
        asked: dict[Overrides, list[grid.Job]] = {}
        for job in jobs:
            asked.setdefault(grid.merged([*scale.mapped(job), *own]), []).append(job)
        final: dict[int, Overrides] = {}
        ranks: dict[Overrides, int] = {}
        for each, alike in asked.items():
            most = max((n for n in map(scale.most, alike) if n is not None), default=None)
            run = grid.merged([*scale.capped(each, self._composed(each), most), *own])
            final |= dict.fromkeys(map(id, alike), run)
            found = [scale.ranks[mapped] for mapped in map(scale.mapped, alike) if mapped in scale.ranks]
            ranks |= {run: min(found)} if found else {}
        return Part(experiments, scale.name, [(job, final[id(job)]) for job in jobs], ranks, scale.minutes)

    def _forecast(self, run: Overrides) -> Forecast:
        """By the project's records and those of the folder that a run goes to."""
        return Forecast([REFERENCE, local_path("runs_dir", self._composed(run).runs_dir)])

    def _fitting(self, part: Part) -> list[Overrides]:
        """The runs of a part that its minutes suffice for, in their order; says which do not fit."""
        runs = part.distinct
        if part.minutes is None:
            return runs
        forecast, hours = self._forecast(runs[0]), []
        for one in map(self._planned, runs):
            hours.append(forecast.hours(one) or dry.estimate(one.cfg, one.choices["hardware"]).hours or 0.0)
        fits = [sum(hours[: i + 1]) * 60 <= part.minutes for i in range(len(runs))]
        if left := [run for run, fit in zip(runs, fits, strict=True) if not fit]:
            more = dry.spell(sum(time for time, fit in zip(hours, fits, strict=True) if not fit))
            print(f"left out: {len(left)} of {len(runs)} runs, about {more}, as {part.minutes:g} minutes are given:")
            print(*(f"  {' '.join(run)}" for run in left), "minutes=N gives them another time", sep="\n", flush=True)
        return [run for run, fit in zip(runs, fits, strict=True) if fit]

    def _run(self, jobs: Sequence[Overrides], parts: Sequence[Part]) -> None:
        """One batch, so that the launcher may run jobs at once."""
        for overrides in jobs:  # an option that no job can have is refused before any begins
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
        for part in parts:  # a sweep that is killed leaves what was there before it as well
            part.write_indices(runs_dir)
        self._attempt.total = len(jobs)
        index.ask(runs_dir, jobs, self._attempt.sweep)
        try:
            ends = Batch(self._launcher, _chosen(self._config), self._attempt, runs_dir).ends(jobs)
        finally:
            for part in parts:
                part.write_indices(runs_dir)
        if not parts:  # those of experiments stand in their exhibits
            folders = [
                self._runs_dir(overrides) / end.run
                for overrides, end in zip(jobs, ends, strict=True)
                if end.run is not None
            ]
            if text := comparison_text(these(folders)):
                print(f"\n{text}", flush=True)
        _conclude(jobs, ends)

    def _failed(self, overrides: Overrides) -> bool:
        return index.outcome(self._runs_dir(overrides), overrides).error is not None

    def _planned(self, overrides: Overrides) -> dry.Planned:
        cfg = self._composed(overrides)
        own = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        return dry.Planned(overrides, cfg.hydra.runtime.choices, own)

    def _runs_dir(self, overrides: Sequence[str]) -> Path:
        """Where a job's record goes; jobs that differ in plain values alone are composed once, as that takes 0.1 s."""
        kind = tuple(one if self._chooses(key_of(one)) else one.partition("=")[0] for one in overrides)
        if kind in self._folders:
            return self._folders[kind]
        cfg = self._composed(overrides)
        folder = local_path("runs_dir", plain_value(cfg, "runs_dir"))
        if not OmegaConf.is_interpolation(cfg, "runs_dir"):  # of a plain value, perhaps
            self._folders[kind] = folder
        return folder

    def _chooses(self, key: str) -> bool:
        """Whether more than a plain value changes with it."""
        if key not in self._choosing:  # looking for its files takes as long as a run of the miniature
            group = key.partition("@")[0]
            found = bool(self._loader.get_group_options(group))
            self._choosing[key] = found or key.startswith(("runs_dir", "hydra"))
        return self._choosing[key]

    def _composed(self, overrides: Sequence[str]) -> DictConfig:
        return self._loader.load_sweep_config(self._config, list(overrides))


def _check_launcher(config: DictConfig) -> None:
    """One that builds on no config of its package is composed without it."""
    package = str(config.hydra.launcher._target_).rpartition(".")[0]
    try:
        importlib.import_module(package)
    except ImportError as error:
        extra = next((extra for name, extra in EXTRAS.items() if f"_{name}_" in package), None)
        if extra is None:
            raise
        allowed = f"one that is installed: {installed_by(extra)}"
        raise ConfigError("hydra/launcher", _chosen(config), allowed) from error


def _chosen(config: DictConfig) -> str:
    """The name of the launcher."""
    return str(config.hydra.runtime.choices["hydra/launcher"])


@dataclass
class Batch:
    """Jobs with a launcher, until each has ended: whatever becomes of the processes that it starts.

    Attributes:
        name: of the launcher, as it was asked for.
        runs_dir: where jobs note that they began and what came of them.
    """

    launcher: Launcher
    name: str
    attempt: Attempt
    runs_dir: Path

    def ends(self, jobs: Sequence[Overrides]) -> list[Outcome]:
        """Of each job; first of those that no other process works on."""
        found = self._rounds(jobs)
        if held := [job for job in jobs if found[job].code == HELD]:
            print(f"\n{len(held)} runs that other processes had begun: waiting for them", flush=True)
            self.attempt.wait = True
            found |= self._rounds(held)
        return [found[job] for job in jobs]

    def _rounds(self, jobs: Sequence[Overrides]) -> dict[Overrides, Outcome]:
        """A job whose process ends at two breaks of the launcher runs alone, and has failed if that breaks too.

        Raises:
            ConfigError: the launcher cannot start jobs.
        """
        found: dict[Overrides, Outcome] = {}
        breaks: Counter[Overrides] = Counter()
        while left := [job for job in jobs if job not in found]:
            together = [job for job in left if breaks[job] < 2]
            batch = together or left[:1]
            made, error = self._launched(batch, len(found))
            found |= made
            if error is None:
                continue
            said = f"{type(error).__name__}: {str(error).strip()}"
            lost = index.lost(self.runs_dir, (job for job in batch if job not in made), self.attempt.sweep)
            if not made and not lost:
                raise ConfigError("hydra/launcher", self.name, f"one that works here ({said})") from error
            breaks.update(map(tuple, lost))
            print(f"\n{len(lost)} runs ended with their process ({said.splitlines()[0]})", file=sys.stderr, flush=True)
            if not together:
                end = Outcome(error="its process ended three times: killed, or out of memory", code=1)
                index.note(self.runs_dir, batch[0], end, self.attempt.sweep)
                found[batch[0]] = end
        return found

    def _launched(self, jobs: Sequence[Overrides], first: int) -> tuple[dict[Overrides, Outcome], Exception | None]:
        """What came of the jobs of one batch, and what broke it."""
        try:
            returned = self.launcher.launch([list(job) for job in jobs], initial_job_idx=first)
        except EXPECTED:
            raise
        except Exception as error:  # of whatever the launcher is made of
            known = {job: index.outcome(self.runs_dir, job, self.attempt.sweep) for job in jobs}
            return {job: end for job, end in known.items() if end.known}, error
        return {job: made.return_value for job, made in zip(jobs, returned, strict=True)}, None


def shared_out(runs: Sequence[Overrides], moments: Sequence[Overrides]) -> list[Overrides]:
    """The runs with those of `moments` at equal distances among them: one at the beginning, one at the end."""
    gaps = max(len(moments) - 1, 1)
    at = [round(i * len(runs) / gaps) for i in range(len(moments))]
    found: list[Overrides] = []
    for i in range(len(runs) + 1):
        found += [moment for moment, position in zip(moments, at, strict=True) if position == i]
        found += runs[i : i + 1]
    return found


def product(overrides: Iterable[Override]) -> list[Overrides]:
    """Every combination of the overrides' values, each once.

    Raises:
        ConfigError: the values of an override cannot be listed.
    """
    values = [_choices(override) for override in overrides]
    if (count := math.prod(map(len, values))) > MOST_JOBS:
        raise ConfigError("-m", f"{count} runs", f"at most {MOST_JOBS} in one sweep")
    return list(dict.fromkeys(itertools.product(*values)))


def introduce(arguments: Sequence[str]) -> None:
    """Tell Hydra the names of exhibits, which have no files: it lists, completes and composes what it knows only.

    Args:
        arguments: of the command line; names of experiments are looked up before anything is composed.

    Raises:
        ConfigError: as `grid.filled`, or a run set is written as Hydra writes a choice of a nested group.
    """
    for name in grid.names():
        ConfigStore.instance().store(name=name, node={}, group="experiment")
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key.startswith("experiment/"):
            raise ConfigError(key, value, f"experiment={key.removeprefix('experiment/')}/{value} is how to ask for it")
        if key == "experiment" and "(" not in value:
            for name in map(str.strip, value.split(",")):
                grid.filled(name)
                if "/" not in name:  # a run set by its file's name alone
                    ConfigStore.instance().store(name=name, node={}, group="experiment")


def experiments(override: Override) -> list[str]:
    """Names of the experiments that `experiment=` asks for, each once: by exhibit, run set, or pattern of exhibits.

    Raises:
        ConfigError: there is none of a name, or none that a pattern matches.
    """
    pattern = override.value()
    if not isinstance(pattern, Glob):
        return list(dict.fromkeys(name for value in _values(override) for name in grid.filled(value)))
    found = pattern.filter(grid.names())
    if not found:
        raise ConfigError(
            "experiment", str(override.input_line).partition("=")[2], "a pattern of names of exhibits, as glob(swift_*)"
        )
    return found


def _choices(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise ConfigError(override.get_key_element(), override.input_line, "values that can be listed, as a,b")
    key, text = override.get_key_element(), str(override.input_line).partition("=")[2]
    try:
        values = [f"{key}={value}" for value in itertools.islice(override.sweep_string_iterator(), MOST_JOBS + 1)]
    except ValueError as error:  # of Python's range
        raise ConfigError(key, text, f"values that can be listed ({error})") from None
    if not values:
        among = f", among {', '.join(choices(key))}" if key in CHOSEN else ""
        raise ConfigError(key, text, f"values of which there is one at least{among}")
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
        raise ConfigError(override.get_key_element(), override.input_line, "one value: the grid is the experiment's")
    return str(override.input_line)


def _conclude(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> None:
    """Say what came of every job."""
    print(f"\n{summary(jobs, ends)}", flush=True)
    failed = [end for end in ends if end.error is not None]
    if failed:
        # an unexpected end weighs more than input that cannot work
        raise JobsFailed(f"{len(failed)} of {len(ends)} runs failed", min(end.code for end in failed))


def summary(jobs: Sequence[Overrides], ends: Sequence[Outcome]) -> str:
    """A table of the jobs, by the options in which they differ, and their ends."""
    shared = set(jobs[0]).intersection(*jobs) if len(jobs) > 1 else set()
    rows = [
        (number, " ".join(o for o in overrides if o not in shared), "failed" if end.error else "done",
         end.error or end.run or "")
        for number, (overrides, end) in enumerate(zip(jobs, ends, strict=True), start=1)
    ]  # fmt: skip
    header = ["run", "options", "", "record or error"]
    return tables.terminal(pd.DataFrame(rows, columns=header), wrap=[None, 60, None, None])
