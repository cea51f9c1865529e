"""A run whose prompts several jobs share equals one job's run."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ssd_bench.records.files import read_header
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.records.validation import record_faults
from ssd_bench.records.writer import RunWriter
from ssd_bench.results.digest import summarise
from ssd_bench.run import run as runner
from ssd_bench.run import shards
from ssd_bench.run.plan import Shard
from ssd_bench.run.shards import execute_shard, merge_shards
from tests.forked import Forked
from tests.runs import CPU, equal, executed, local_model, planned

METHODS = {
    "given": ("method=fixed_layers", "method.ratio=0.25"),
    "per prompt": ("method=knapspec", "method.interval=3"),
    "searched": ("method=knn_ssd", "method.search.iterations=3", "method.search.new_tokens=4", "method.calibration=2"),
}


@pytest.fixture(scope="module")
def options(small_checkpoint: Path) -> list[str]:
    return [*local_model(small_checkpoint), "task=gsm8k", "limit=5", "decode.max_new_tokens=8", "repeats=2"]


@pytest.fixture(scope="module")
def given(options: list[str]) -> list[str]:
    """A run whose layers are given."""
    return [*options, *METHODS["given"]]


@pytest.fixture(scope="module")
def whole(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return executed(tmp_path_factory.mktemp("whole"), *given)


@pytest.mark.parametrize("method", METHODS)
def test_shards_in_any_order_make_the_record_of_one_job(
    method: str, options: list[str], whole: Run, tmp_path: Path
) -> None:
    line = [*options, *METHODS[method]]
    whole = whole if method == "given" else executed(tmp_path / "whole", *line)
    made = [execute_shard(planned(tmp_path / "shared", *line, f"shard={n}/3")) for n in (2, 3, 1)]
    assert made[:2] == [None, None] and made[2] is not None and find_runs(tmp_path / "shared") == [made[2]]
    run = load_run(made[2])
    equal(run, whole)
    assert record_faults(run.path) == []
    assert run.path.name == whole.path.name and run.header.content_key == whole.header.content_key
    assert run.header.scores == whole.header.scores and run.header.config["shard"] is None
    assert {*read_header(whole.path)} <= {*read_header(run.path)} and len(run.header.shards) == 3
    assert [search.name for search in run.header.searches] == [search.name for search in whole.header.searches]
    assert run.header.wall_s == sum(shard["wall_s"] for shard in run.header.shards)
    assert {*summarise(run).row} == {*summarise(whole).row}
    assert not (tmp_path / "shared" / ".shards" / run.path.name).exists()
    assert execute_shard(planned(tmp_path / "shared", *line, "shard=2/3")) == made[2], "it is on record"


def test_each_prompt_is_one_shards(given: list[str], tmp_path: Path) -> None:
    plan = planned(tmp_path, *given, "shard=1/3")
    units = [unit for n in (1, 2, 3) for unit in Shard(n, 3).share(plan.run_items)]
    assert sorted(units) == sorted(plan.run_items) and len(units) == 10
    assert plan.work_items == [unit for unit in plan.run_items if unit[0] in (0, 3)]
    assert [i for i, repeat in Shard(3, 3).share(plan.run_items) if not repeat] == [2]


def test_a_shard_goes_on_where_it_was(given: list[str], whole: Run, tmp_path: Path) -> None:
    """A damaged prompt is measured again, and those that a killed process did not finish."""

    def execute(number: int) -> Path | None:
        return execute_shard(planned(tmp_path, *given, f"shard={number}/2"))

    assert execute(1) is None
    folder = planned(tmp_path, *given, "shard=1/2").identity.folder
    damaged, missing, *kept = sorted((folder / "parts").iterdir())
    times = {part: part.stat().st_mtime_ns for part in kept}
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert execute(1) is None
    header = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps(header | {"status": "running"}), encoding="utf-8")
    missing.unlink()
    assert execute(1) is None
    assert {part: part.stat().st_mtime_ns for part in kept} == times and missing.is_file()
    made = execute(2)
    assert made is not None
    equal(load_run(made), whole)


def test_of_shards_that_end_at_once_one_makes_the_record(
    given: list[str], whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [planned(tmp_path, *given, f"shard={n}/3") for n in (1, 2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(shards, "merge_shards", lambda plan: False)
        assert [execute_shard(plan) for plan in plans] == [None] * 3
    together, made = threading.Barrier(len(plans)), []

    def scores(plan: Any, writer: RunWriter) -> dict[str, float]:
        time.sleep(0.3)  # the others come meanwhile
        made.append(writer.path)
        return {}

    def ends(plan: Any) -> bool:
        together.wait()
        return merge_shards(plan)

    monkeypatch.setattr(shards, "task_scores", scores)
    with ThreadPoolExecutor(len(plans)) as jobs:
        assert list(jobs.map(ends, plans)) == [True] * 3
    assert made == find_runs(tmp_path) == [plans[0].identity.run_dir]
    assert not any((tmp_path / ".shards").iterdir())
    equal(load_run(made[0]), whole)


def test_a_shard_whose_run_was_made_while_it_waited_is_not_measured_again(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = (planned(tmp_path, *given, f"shard={n}/2") for n in (1, 2))
    assert execute_shard(first) is None

    def after_a_twin(*args: Any, **words: Any) -> RunWriter:
        monkeypatch.undo()
        assert execute_shard(last) == last.identity.run_dir
        monkeypatch.setattr(shards, "measure", lambda *_: pytest.fail("it is on record"))
        return RunWriter(*args, **words)

    monkeypatch.setattr(runner, "RunWriter", after_a_twin)
    assert execute_shard(last) == last.identity.run_dir
    assert not any((tmp_path / ".shards").iterdir())


@pytest.mark.parametrize("before", [(), ("force=true",)], ids=["kept", "forced"])
def test_force_takes_no_shard_of_before(
    before: tuple[str, ...], given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed after it wrote the record left its shards, which the next command removes."""
    with monkeypatch.context() as patched:
        patched.setattr(shards, "_remove", lambda plan: None)
        made = [execute_shard(planned(tmp_path, *given, *before, f"shard={n}/2")) for n in (1, 2)][-1]
    assert made is not None
    first = load_run(made).header.finished_at
    again = [planned(tmp_path, *given, f"shard={n}/2", "force=true") for n in (1, 2)]
    assert all(plan.identity.folder.exists() for plan in again)
    assert execute_shard(again[0]) is None
    assert load_run(made).header.finished_at == first, "the second shard is not made again yet"
    assert execute_shard(planned(tmp_path, *given, "shard=2/2")) == made, "it is on record"
    assert [plan.identity.folder.exists() for plan in again] == [True, False], "the first is of a record to come"
    assert execute_shard(again[1]) == made and load_run(made).header.finished_at > first
    assert not any((tmp_path / ".shards").iterdir())


def test_a_shard_that_somebody_works_on_is_not_removed(given: list[str], tmp_path: Path) -> None:
    """Another division of the same prompts finds the record when done."""
    other = planned(tmp_path, *given, "shard=1/3")
    with RunWriter(other.identity.folder, runner.initial_header(other)) as writer:
        assert [execute_shard(planned(tmp_path, *given, f"shard={n}/2")) for n in (1, 2)][-1] == other.identity.run_dir
        writer.finish_shard({})
    assert merge_shards(other) and not any((tmp_path / ".shards").iterdir())


def test_a_sweep_of_all_shards_on_two_workers_shows_the_run(given: list[str], whole: Run, tmp_path: Path) -> None:
    workers = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    line = ["-m", *given, *CPU, f"runs_dir={tmp_path}", "shard=1/4,2/4,3/4,4/4", *workers]
    with Forked(line, forks=True) as sweep:
        done = sweep.communicate()
    assert done.returncode == 0, done.stderr
    (path,) = find_runs(tmp_path)
    equal(load_run(path), whole)
