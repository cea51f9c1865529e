"""Experiments at a scale: their jobs' runs, in the order of the papers' claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from omegaconf import DictConfig

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims import claims
from ssd_bench.papers.runs import grid, index
from ssd_bench.papers.runs import scale as scales
from ssd_bench.sweep.overrides import Overrides


@dataclass(frozen=True)
class ScaledExperiments:
    """Experiments at one scale.

    Attributes:
        jobs: every job, with its overrides at this scale.
        ranks: overrides -> position of the first claim that needs them, if any.
        minutes: limit on all runs together, or None.
    """

    experiments: Sequence[str]
    scale: str
    jobs: Sequence[tuple[grid.Job, Overrides]]
    ranks: Mapping[Overrides, int]
    minutes: float | None

    @property
    def distinct_runs(self) -> list[Overrides]:
        """Runs of all jobs, each once: first those that claims need, claim by claim; repeated timings spread evenly."""
        repeats = {overrides for job, overrides in self.jobs if grid.load(job.experiment).spread}
        distinct = dict.fromkeys(overrides for _, overrides in self.jobs)
        runs = sorted(distinct, key=lambda overrides: self.ranks.get(overrides, inf))
        return spread_repeats([run for run in runs if run not in repeats], [run for run in runs if run in repeats])

    @property
    def heading(self) -> str:
        """Numbers of experiments, jobs and runs."""
        counts = f"{len(self.jobs)} results, {len(self.distinct_runs)} distinct runs"
        return f"{len(self.experiments)} experiments at scale {self.scale}: {counts}"

    def write_indices(self, runs_dir: Path) -> None:
        """Write each experiment's index, which names every job's run, from the records on disk."""
        for name in self.experiments:
            jobs = [(job.labels, overrides) for job, overrides in self.jobs if job.experiment == name]
            index.refresh(runs_dir, name, self.scale, jobs)


def scale_experiments(
    experiments: Sequence[str],
    scale: scales.Scale,
    command_line: Sequence[str],
    minutes: float | None,
    compose: Callable[[Overrides], DictConfig],
) -> ScaledExperiments:
    """Return the experiments at a scale; the command line's overrides win over those of jobs and scale.

    Args:
        minutes: limit on all runs together; None: the scale's.
        compose: composes the config of a run.

    Raises:
        ConfigError: an option would give results of different settings the same run.
    """
    jobs = [job for name in experiments for job in grid.load(name).jobs]
    jobs_by_run: dict[Overrides, list[grid.Job]] = {}
    for job in jobs:
        jobs_by_run.setdefault(grid.merge_overrides([*scale.map_job(job), *command_line]), []).append(job)
    run_of_job: dict[int, Overrides] = {}
    ranks: dict[Overrides, int] = {}
    claim_ranks = claims.claim_ranks(scale)
    for overrides, same_jobs in jobs_by_run.items():
        cap = max((n for n in map(scale.prompt_limit, same_jobs) if n is not None), default=None)
        run = grid.merge_overrides([*scale.apply_caps(overrides, compose(overrides), cap), *command_line])
        run_of_job |= dict.fromkeys(map(id, same_jobs), run)
        ranks_of_jobs = [claim_ranks[mapped] for mapped in map(scale.map_job, same_jobs) if mapped in claim_ranks]
        ranks |= {run: min(ranks_of_jobs)} if ranks_of_jobs else {}
    jobs_of_run: dict[Overrides, list[grid.Job]] = {}
    for job in jobs:
        jobs_of_run.setdefault(run_of_job[id(job)], []).append(job)
    for same_jobs in jobs_of_run.values():
        _check_equal(same_jobs, scale, command_line)
    return ScaledExperiments(
        experiments,
        scale.name,
        [(job, run_of_job[id(job)]) for job in jobs],
        ranks,
        scale.minutes if minutes is None else minutes,
    )


def _check_equal(same_jobs: Sequence[grid.Job], scale: scales.Scale, command_line: Sequence[str]) -> None:
    """Refuse an option in which jobs with the same run differ: each result would have the name of another.

    The model may be given: a number is headed by the model that ran.
    """
    overrides = dict.fromkeys(o for job in same_jobs for o in grid.merge_overrides(scale.map_job(job)))
    for option in command_line:
        key, _, value = option.partition("=")
        choices = [o for o in overrides if grid.key_of(o) == grid.key_of(key)]
        if len(choices) > 1 and key != "model":
            names = ", ".join(dict.fromkeys(job.experiment for job in same_jobs))
            reason = f"results of {names} differ in it: {', '.join(choices)}; runs of one value need no experiment"
            raise ConfigError(key, value, reason=reason)


def spread_repeats(runs: Sequence[Overrides], repeats: Sequence[Overrides]) -> list[Overrides]:
    """Return the runs with repeated timings at equal distances, one at the start and one at the end."""
    gaps = max(len(repeats) - 1, 1)
    positions = [round(i * len(runs) / gaps) for i in range(len(repeats))]
    mixed: list[Overrides] = []
    for i in range(len(runs) + 1):
        mixed += [repeat for repeat, position in zip(repeats, positions, strict=True) if position == i]
        mixed += runs[i : i + 1]
    return mixed
