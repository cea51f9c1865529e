"""Sweeps as a user starts them, in the launchers' own processes, and what their records must have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from ssd_bench.records.reader import find_runs, load_run
from tests.cluster.services import until
from tests.runs import CPU, ROOT, TIMES, environment

MINIATURE = ("model=miniature", "limit=2", "decode.max_new_tokens=24")
METHOD = '''
import json, os, time
from pathlib import Path
from methods.ar import AR

class Staying(AR):
    """Says where it runs; stays at its third prompt until it is let go."""

    def prepare(self, probe, samples):
        self.prompts, self.begun = 0, time.time()
        self.say()

    def say(self):
        said = {"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "prompts": self.prompts,
                "begun": self.begun, "seen": time.time(), "cores": sorted(os.sched_getaffinity(0))}
        path = Path(os.environ["STAY"], f"{os.getpid()}.json")
        path.with_suffix(".tmp").write_text(json.dumps(said))
        path.with_suffix(".tmp").replace(path)

    def start(self, prefill):
        self.prompts += 1
        self.say()
        deadline = time.monotonic() + 120
        while self.prompts == 3 and not Path(os.environ["STAY"], "go").exists():
            assert time.monotonic() < deadline, "nobody let it go"
            time.sleep(0.1)
            self.say()
'''
CONFIG = "_target_: staying.Staying\nname: staying\n"


@dataclass(frozen=True)
class Sweep:
    """A sweep that runs."""

    process: subprocess.Popen[bytes]
    log: Path

    def ended(self, seconds: float = 600, code: int | None = 0) -> str:
        """Return its output when it has ended with this code, or None: any; kill it if it takes longer."""
        try:
            actual = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not done within {seconds:g} s:\n{self._output[-3000:]}") from None
        assert code is None or actual == code, self._output
        return self._output

    def kill(self) -> None:
        """Kill it, not its jobs."""
        self.process.kill()
        self.process.wait(30)

    @property
    def _output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class Bench:
    """A folder with a user's method, and sweeps that may use it.

    Attributes:
        folder: for the method and its reports.
        variables: environment of the cluster.
    """

    folder: Path
    variables: Mapping[str, str]

    def __post_init__(self) -> None:
        for name, text in {"staying.py": METHOD, "conf/method/staying.yaml": CONFIG}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")
        self.stay.mkdir(exist_ok=True)

    @property
    def stay(self) -> Path:
        """Folder in which a staying method reports, and looks whether it may go on."""
        return self.folder / "stay"

    def start(self, runs: Path, *options: str) -> Sweep:
        line = ["-m", "ssd_bench", "-m", f"runs_dir={runs}", *CPU, *MINIATURE]
        line += [f"hydra.searchpath=[file://{self.folder}/conf]", *options]
        env = {**environment(self.folder), **self.variables, "STAY": str(self.stay)}
        log = self.folder / f"{uuid.uuid4().hex}.log"  # no pipe: jobs that outlive their sweep would hold it
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, *line], cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True
            )
        return Sweep(process, log)

    def swept(self, runs: Path, *options: str, seconds: float = 600, code: int = 0) -> str:
        return self.start(runs, *options).ended(seconds, code)

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in self.stay.glob("*.json")]

    def staying(self, count: int = 1) -> list[int]:
        """Wait until so many jobs stay at their third prompt; return their processes."""

        def processes() -> list[int]:
            return [
                int(report["pid"])
                for report in self.reports()
                if report["prompts"] == 3 and psutil.pid_exists(int(report["pid"]))
            ]

        until(lambda: len(processes()) >= count, f"{count} jobs in their middle", seconds=180)
        return processes()

    def go(self) -> None:
        """Let all staying jobs go on, and none stay from now on."""
        (self.stay / "go").touch()


def records(runs: Path) -> dict[str, dict[str, pd.DataFrame]]:
    """Return every run's tables without times, by name."""
    by_name = {}
    for path in find_runs(runs):
        run = load_run(path)
        tables = {"prompts": run.prompts, "steps": run.steps, "layer_sets": run.layer_sets}
        by_name[path.name] = {name: table.drop(columns=[*TIMES], errors="ignore") for name, table in tables.items()}
    return by_name


def assert_same(runs: Path, expected_runs: Path) -> None:
    """Compare runs, outputs, steps and layer sets."""
    actual, expected = records(runs), records(expected_runs)
    assert sorted(actual) == sorted(expected)
    for name, tables in expected.items():
        for table, frame in tables.items():
            pd.testing.assert_frame_equal(actual[name][table], frame, obj=f"{name}: {table}")


def assert_whole(runs: Path, prompts: int, count: int) -> None:
    """Check for so many runs, each with every prompt once in every arm."""
    by_name = records(runs)
    assert len(by_name) == count
    for tables in by_name.values():
        counts = tables["prompts"].groupby("arm")["prompt_index"].apply(sorted)
        assert dict(counts) == {arm: list(range(prompts)) for arm in ("ar", "method")}


def asked_runs() -> int:
    """Return every launcher's number of runs: 6, or SSD_BENCH_CLUSTER_RUNS."""
    return int(os.environ.get("SSD_BENCH_CLUSTER_RUNS", "6"))
