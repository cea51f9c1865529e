"""Jobs of a sweep as one batch for Hydra's launcher, perhaps in parallel and in other processes."""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from ssd_bench.compose.application import EXPECTED, JobFunction
from ssd_bench.console import disk_fault, report
from ssd_bench.errors import ConfigError, one_line
from ssd_bench.lease import LeaseHeld
from ssd_bench.papers.runs import index
from ssd_bench.papers.runs.index import HELD, Outcome
from ssd_bench.paths import local_path
from ssd_bench.run_warnings import WarningLog
from ssd_bench.sweep.overrides import Overrides

REQUEUED = -1  # exit code of a process whose job submitit has queued again


@dataclass(frozen=True)
class Attempt:
    """A job for the launcher that returns its outcome instead of raising, in any process.

    The outcome is also written to disk, so that an interrupted sweep can be reported.

    Attributes:
        total: jobs in the sweep.
        sweep: its unique name.
        notes: folder of notes on the kinds of warnings shown.
        wait: wait for a run that another process works on; if false, the outcome is `HELD`.
    """

    work: JobFunction
    total: int
    sweep: str
    notes: Path
    wait: bool = False

    def __call__(self, cfg: DictConfig) -> Outcome:
        """Run the job and return its outcome; raise only a BaseException, such as a KeyboardInterrupt."""
        job = HydraConfig.get()
        overrides = list(job.overrides.task)
        print(f"[run {job.job.num + 1} of {self.total}] {' '.join(overrides)}", flush=True)
        runs_dir = local_path("runs_dir", cfg.runs_dir)
        log = WarningLog(self.notes, self.sweep)
        try:
            with index.mark_running(runs_dir, overrides, self.sweep):
                outcome = replace(self._outcome(cfg, log), warnings=tuple(log.kinds))
                index.note_outcome(runs_dir, overrides, outcome, self.sweep)
        except OSError as error:
            return Outcome(error=f"runs_dir={str(cfg.runs_dir)!r} cannot be written: {error}", code=2)
        return outcome

    def _outcome(self, cfg: DictConfig, log: WarningLog) -> Outcome:
        try:
            record = self.work(cfg, self.wait, log)
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
        return Outcome(record.name if isinstance(record, Path) else None)


@dataclass(frozen=True)
class JobBatch:
    """Runs jobs with a launcher until each has an outcome, even if the launcher's processes die.

    Attributes:
        name: the chosen `hydra/launcher`.
        runs_dir: folder of notes on beginnings and outcomes.
    """

    make_launcher: Callable[[Attempt], Launcher]
    name: str
    attempt: Attempt
    runs_dir: Path

    def outcomes(self, jobs: Sequence[Overrides]) -> list[Outcome]:
        """Return the jobs' outcomes; jobs that another process works on run last."""
        outcomes = self._launch_all(jobs, self.attempt)
        if held := [job for job in jobs if outcomes[job].code == HELD]:
            print(f"\nwaiting for {len(held)} runs of other processes", flush=True)
            outcomes |= self._launch_all(held, replace(self.attempt, wait=True))
        return [outcomes[job] for job in jobs]

    def _launch_all(self, jobs: Sequence[Overrides], attempt: Attempt) -> dict[Overrides, Outcome]:
        """Launch the jobs until each has an outcome.

        A job whose process died in two broken launches runs alone; if that launch breaks as well, the job has failed.

        Raises:
            ConfigError: the launcher cannot start jobs.
        """
        launcher = self.make_launcher(attempt)
        outcomes: dict[Overrides, Outcome] = {}
        breaks: Counter[Overrides] = Counter()
        while pending := [job for job in jobs if job not in outcomes]:
            batchable = [job for job in pending if breaks[job] < 2]
            batch = batchable or pending[:1]  # each suspect alone
            new_outcomes, error = self._launch(launcher, batch, len(outcomes))
            outcomes |= new_outcomes
            if error is None:
                continue
            message = f"{type(error).__name__}: {str(error).strip()}"
            lost = index.lost_jobs(self.runs_dir, (job for job in batch if job not in new_outcomes), self.attempt.sweep)
            if not new_outcomes and not lost:
                raise ConfigError("hydra/launcher", self.name, f"a launcher that works here ({message})") from error
            breaks.update(map(tuple, lost))
            first_line = message.splitlines()[0]
            print(f"\nthe process of {len(lost)} runs has died ({first_line})", file=sys.stderr, flush=True)
            if not batchable:
                end = Outcome(error="its process ended three times: killed, or out of memory", code=1)
                index.note_outcome(self.runs_dir, batch[0], end, self.attempt.sweep)
                outcomes[batch[0]] = end
        return outcomes

    def _launch(
        self, launcher: Launcher, jobs: Sequence[Overrides], first_number: int
    ) -> tuple[dict[Overrides, Outcome], Exception | None]:
        """Launch one batch; return the outcomes of ended jobs, and the error that broke the launch, if any."""
        try:
            returned = launcher.launch([list(job) for job in jobs], initial_job_idx=first_number)
        except EXPECTED:
            raise
        except Exception as error:  # a launcher may raise anything
            outcomes = {job: index.read_outcome(self.runs_dir, job, self.attempt.sweep) for job in jobs}
            return {job: end for job, end in outcomes.items() if end.has_ended}, error
        return {job: job_return.return_value for job, job_return in zip(jobs, returned, strict=True)}, None
