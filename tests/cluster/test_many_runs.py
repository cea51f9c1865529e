"""Many runs on two workers, one in twenty of which fails: one command makes all others.

    SSD_BENCH_CLUSTER_MANY=1000 python -m pytest -m cluster -s tests/cluster/test_many_runs.py

prints where the time went.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.records.files import read_header
from ssd_bench.records.reader import find_runs
from tests.cluster.sweeps import Bench

pytestmark = pytest.mark.cluster
REASONS = (
    "RuntimeError: it raised",
    "SystemExit: 3",
    "its process ended three times: killed, or out of memory",
    "OutOfMemoryError: CUDA out of memory",
)
METHOD = """
import os, signal
import torch
from methods.ar import AR

class Fated(AR):
    def __init__(self, name, fate):
        self.name, self.fate = name, fate

    def prepare(self, probe, samples):
        if self.fate % 20 == 7 and "SPARED" not in os.environ:
            match self.fate // 20 % 4:
                case 0: raise RuntimeError("it raised")
                case 1: raise SystemExit(3)
                case 2: os.kill(os.getpid(), signal.SIGKILL)
                case 3: raise torch.OutOfMemoryError("CUDA out of memory")
"""
CONFIG = "_target_: fated.Fated\nname: fated\nfate: ${seed}\n"


def test_every_run_is_made_but_those_that_end_badly(tmp_path: Path) -> None:
    number = int(os.environ.get("SSD_BENCH_CLUSTER_MANY", "80"))
    bench, runs = Bench(tmp_path / "own", {}), tmp_path / "runs"
    (bench.folder / "fated.py").write_text(METHOD, encoding="utf-8")
    (bench.folder / "conf" / "method" / "fated.yaml").write_text(CONFIG, encoding="utf-8")
    line = ("method=fated", "task=gsm8k", "limit=4", "decode.max_new_tokens=64", "hydra/launcher=workers")
    line += (f"seed={','.join(map(str, range(number)))}",)
    bad = [seed for seed in range(number) if seed % 20 == 7]
    begin = time.time()
    output = bench.swept(runs, *line, seconds=5400, code=1)
    print(account(runs, begin, time.time()))
    assert seeds(runs) == set(range(number)) - set(bad)
    table = output[output.rindex("record or error") :]
    told = Counter(reason for row in table.splitlines() for reason in REASONS if reason in row)
    assert told == Counter(REASONS[seed // 20 % 4] for seed in bad)
    again = Bench(bench.folder, {"SPARED": "1"})
    begin = time.time()
    output = again.swept(runs, *line, seconds=5400)
    print(f"the same command once more: {time.time() - begin:.0f} s")
    assert output.count("already on record") == number - len(bad)
    assert seeds(runs) == set(range(number))


def seeds(runs: Path) -> set[int]:
    return {read_header(path)["config"]["seed"] for path in find_runs(runs)}


def account(runs: Path, begin: float, end: float) -> str:
    """Say where two workers' time went."""
    headers = [read_header(path) for path in find_runs(runs)]
    walls = [header["wall_s"] for header in headers]
    ends = sorted(pd.Timestamp(header["finished_at"]).timestamp() for header in headers)
    gaps = sorted(later - earlier for earlier, later in zip(ends, ends[1:]))
    calm = 2 * gaps[len(gaps) // 2]
    return "\n".join(
        [
            f"{len(walls)} runs in {end - begin:.0f} s; 2 x elapsed over the sum of their wall_s, {sum(walls):.0f} s: "
            f"{2 * (end - begin) / sum(walls):.2f}",
            f"until the first run was done {ends[0] - begin:.0f} s, after the last one {end - ends[-1]:.0f} s",
            f"in between every {calm / 2:.2f} s one was done (median); where it took five times as long, "
            f"{sum(gap > 2.5 * calm for gap in gaps)} times, together "
            f"{sum(gap for gap in gaps if gap > 2.5 * calm):.0f} s",
        ]
    )
