"""Sweeps: one batch to the launcher, every job with its own end, and the index of existing records."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf

import ssd_bench.report.closing
import ssd_bench.run.plan
import ssd_bench.run.run
from ssd_bench.bench.bench import bench
from ssd_bench.errors import ConfigError, JobsFailed, LosslessError
from ssd_bench.papers.runs import index
from ssd_bench.papers.runs.index import Outcome
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.run_warnings import warning_kind
from ssd_bench.sweep.batch import Attempt, JobBatch
from ssd_bench.sweep.overrides import product
from ssd_bench.sweep.sweep import summary
from tests.forked import at_once
from tests.runs import CPU, environment, equal, local_model, planned, program, python
from tests.synthetic import unit, write_record

METHODS = """
import os, time
from pathlib import Path
from methods.ar import AR
from methods.knapspec import KnapSpec
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft
from ssd_bench.errors import ConfigError

def meet():
    \"\"\"Wait for another process that is here too.\"\"\"
    if "MEET" in os.environ:
        Path(os.environ["MEET"], str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while len(os.listdir(os.environ["MEET"])) < 2:
            assert time.monotonic() < deadline, "nobody came"
            time.sleep(0.05)

class EveryOther(AR):
    def check(self, dims):
        self.draft = LayerDraft(LayerSet.skipping(dims.n_layers, mlp=range(0, dims.n_layers, 2)), 2)

    def prepare(self, probe, samples):
        meet()

    def propose(self, context):
        return self.draft

class Searching(KnapSpec):
    def prepare(self, probe, samples):
        meet()
        super().prepare(probe, samples)

class Broken(AR):
    def prepare(self, probe, samples):
        raise RuntimeError("it fell over\\nin two lines")

class Refused(AR):
    def prepare(self, probe, samples):
        raise ConfigError("method.size", 3, "less")
"""
CONFIGS = {
    "every_other": "_target_: my_methods.EveryOther\nname: every_other\n",
    "searching": "defaults: [knapspec, _self_]\n_target_: my_methods.Searching\nname: searching\ninterval: 3\n"
    "draft_len: 3\nmin_similarity: -1\ninclude_zero_skip: false\n",
    "broken": "_target_: my_methods.Broken\nname: broken\n",
    "refused": "_target_: my_methods.Refused\nname: refused\n",
}
Swept = tuple[subprocess.CompletedProcess[str], dict[str, Run]]


@pytest.fixture(scope="module")
def sweep(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Swept]:
    """Runs the four methods, with further options and environment."""
    own = tmp_path_factory.mktemp("own")
    (own / "my_methods.py").write_text(METHODS, encoding="utf-8")
    (own / "conf" / "method").mkdir(parents=True)
    for name, text in CONFIGS.items():
        (own / "conf" / "method" / f"{name}.yaml").write_text(text, encoding="utf-8")

    def swept(*options: str, **variables: str) -> Swept:
        runs = tmp_path_factory.mktemp("runs")
        folders = (f"runs_dir={runs}", f"hydra.searchpath=[file://{own}/conf]", f"hydra.sweep.dir={runs}/sweep")
        work = ("method=searching,broken,every_other,refused", "limit=2", "decode.max_new_tokens=12")
        line = ["-m", *work, *local_model(small_checkpoint), *CPU, *folders, *options]
        if variables:  # workers start from the program as it is typed
            done = python("-m", "ssd_bench", *line, extra_path=own, **variables)
        else:
            (done,) = at_once([line], environment(own))
        records = [load_run(path) for path in find_runs(runs)]
        return done, {record.header.method: record for record in records}

    return swept


def shown_warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning: ")]


@pytest.fixture(scope="module")
def serial(sweep: Callable[..., Swept]) -> Swept:
    return sweep()


@pytest.fixture(scope="module")
def parallel(sweep: Callable[..., Swept], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """`meet` in it ends only if two processes run at once."""
    meeting = str(tmp_path_factory.mktemp("meeting"))
    return sweep("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", MEET=meeting)


@pytest.mark.parametrize("how", ["serial", "parallel"])
def test_a_jobs_end_is_its_own(how: str, request: pytest.FixtureRequest) -> None:
    done, records = request.getfixturevalue(how)
    assert set(records) == {"searching", "every_other"}, done.stderr
    table = done.stdout[done.stdout.rindex("record or error") :].splitlines()[2:]
    ends = {line.split()[1].removeprefix("method="): line.split(maxsplit=3)[2:] for line in table}
    assert ends == {
        "searching": ["done", records["searching"].path.name],
        "every_other": ["done", records["every_other"].path.name],
        "broken": ["failed", "RuntimeError: it fell over"],
        "refused": ["failed", "method.size=3 is invalid: expected less"],
    }
    (ran,) = [part for part in done.stdout.split("\n\n") if "(conditions " in part]  # one table: they are comparable
    rows = {line.split()[0]: line for line in ran.splitlines() if "/2" in line or "by definition" in line}
    assert set(rows) == {"searching", "every_other", "ar"} and list(rows)[-1] == "ar"
    assert done.returncode == 1 and "error: 2 of 4 runs failed" in done.stderr
    assert done.stderr.count("Traceback") == 1 and "in two lines" in done.stderr
    # both runs have few prompts; the last lines count them
    kinds = [warning_kind(line.removeprefix("warning: ")) for line in shown_warnings(done.stdout)]
    assert len(kinds) == len(set(kinds)) >= 1
    assert any(line.startswith("  2 of 4 runs: ") for line in done.stdout.splitlines())


def test_two_workers_make_the_records_of_one(serial: Swept, parallel: Swept) -> None:
    for method, one in serial[1].items():
        two = parallel[1][method]
        assert one.header.content_key == two.header.content_key and len(one.prompts) == 4
        assert all("-m method=searching,broken" in record.header.command for record in (one, two))
        equal(one, two)


@pytest.mark.parametrize("error", [ConfigError("field", 3, "less"), LosslessError("a tie"), JobsFailed("1 of 2", 2)])
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and vars(again) == vars(error)


@pytest.fixture
def in_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job's config, as the launcher hands it over."""
    job = OmegaConf.create({"overrides": {"task": ["a=1"]}, "job": {"num": 0}})
    monkeypatch.setattr(HydraConfig, "get", staticmethod(lambda: job))
    return OmegaConf.create({"runs_dir": str(tmp_path)})


def attempt(error: BaseException, cfg: Any) -> Outcome:
    """The outcome of a job that raises."""

    def work(*_: object) -> None:
        raise error

    return Attempt(work, 1, "sweep", Path(cfg.runs_dir) / index.OUTCOMES)(cfg)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("field", 3, "less"), 2, "field=3 is invalid: expected less"),
        (LosslessError("not lossless on a"), 1, "not lossless on a"),
        (MemoryError(), 1, "MemoryError: "),
        (torch.OutOfMemoryError("CUDA out of memory.\nTried to"), 1, "OutOfMemoryError: CUDA out of memory."),
        (SystemExit(3), 1, "SystemExit: 3"),
    ],
)
def test_an_attempt_returns_whatever_was_raised(
    error: BaseException, code: int, message: str, in_a_job: Any, tmp_path: Path
) -> None:
    found = attempt(error, in_a_job)
    assert found == Outcome(None, message, code) == index.read_outcome(tmp_path, ["a=1"])
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_job_that_submitit_has_queued_again_has_not_failed(
    in_a_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attempt(SystemExit(-1), in_a_job).error == "SystemExit: -1", "of any other program it is a failure"
    index.note_outcome(tmp_path, ["a=1"], Outcome())
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    with pytest.raises(SystemExit):
        attempt(SystemExit(-1), in_a_job)
    assert not index.read_outcome(tmp_path, ["a=1"]).has_ended


class Breaking:
    """A launcher that raises a number of times at the first job without a process, while later ones go on."""

    def __init__(self, runs_dir: Path, deadly: str, alive: Sequence[str], deaths: int) -> None:
        self.runs_dir, self.deadly, self.alive, self.deaths = runs_dir, deadly, alive, deaths
        self.batches: list[list[str]] = []

    def launch(self, jobs: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """The end of each job; those alive elsewhere are held the first two times."""
        self.batches.append([name for (name,) in jobs])
        for name in self.batches[-1]:
            with index.mark_running(self.runs_dir, [name], "sweep"):
                if name == self.deadly:
                    begun = next((self.runs_dir / index.OUTCOMES).glob("*.begun"))
                    owner = {**json.loads(begun.read_bytes()), "begun": 1.0}
            if name == self.deadly:
                begun.write_text(json.dumps(owner), encoding="utf-8")
            elif name not in self.alive or len(self.batches) > 2:
                index.note_outcome(self.runs_dir, [name], Outcome(error=name), "sweep")
        self.deaths -= self.deadly in self.batches[-1]
        if self.deadly in self.batches[-1] and self.deaths >= 0:
            raise RuntimeError("killed")
        return [JobReturn(_return_value=Outcome(error=name), status=JobStatus.COMPLETED) for (name,) in jobs]


@pytest.mark.parametrize(("deaths", "end"), [(2, "a=deadly"), (3, "its process ended three times")])
def test_only_whose_process_ended_runs_alone(deaths: int, end: str, tmp_path: Path) -> None:
    """A launcher that reports one lost process leaves the others at work, which is no break of theirs."""
    launcher = Breaking(tmp_path, "a=deadly", ["a=long", "a=longer"], deaths)
    first = Attempt(print, 4, "sweep", tmp_path / index.OUTCOMES)
    batch = JobBatch(lambda _: cast(Launcher, launcher), "breaking", first, tmp_path)
    with index.mark_running(tmp_path, ["a=long"], "sweep"), index.mark_running(tmp_path, ["a=longer"], "sweep"):
        ends = batch.outcomes([("a=deadly",), ("a=short",), ("a=long",), ("a=longer",)])
    assert [end.error for end in ends[1:]] == ["a=short", "a=long", "a=longer"]
    assert end in str(ends[0].error)
    assert launcher.batches == [
        ["a=deadly", "a=short", "a=long", "a=longer"],
        ["a=deadly", "a=long", "a=longer"],
        ["a=long", "a=longer"],
        ["a=deadly"],
    ]


def test_jobs_that_others_work_on_are_launched_again_and_wait(tmp_path: Path) -> None:
    waits: list[bool] = []

    def make_launcher(attempt: Attempt) -> Launcher:
        waits.append(attempt.wait)
        end = Outcome("record") if attempt.wait else Outcome(error="held", code=index.HELD)
        result = JobReturn(_return_value=end, status=JobStatus.COMPLETED)
        return cast(Launcher, SimpleNamespace(launch=lambda jobs, initial_job_idx: [result for _ in jobs]))

    batch = JobBatch(make_launcher, "holding", Attempt(print, 2, "sweep", tmp_path), tmp_path)
    assert batch.outcomes([("a=1",), ("a=2",)]) == [Outcome("record")] * 2 and waits == [False, True]


@pytest.mark.parametrize("launcher", ["box", "workers"])
def test_a_launcher_without_its_package_is_one_message(
    launcher: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ours that build on one of Hydra's, and one composed without it."""
    imported = importlib.import_module

    def without(name: str, package: str | None = None) -> ModuleType:
        if name.startswith("hydra_plugins.hydra_"):
            raise ModuleNotFoundError(name)
        return imported(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    done = program("-m", "method=ar", "seed=0,1", f"hydra/launcher={launcher}", f"runs_dir={tmp_path}/runs")
    assert done.returncode == 2 and done.stderr.endswith("pip install 'ssd-bench[cluster]' has it\n")
    assert not (tmp_path / "runs").exists()


def test_a_launcher_that_cannot_start_jobs_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a machine without a GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code = (
        "import sys, submitit; from ssd_bench.cli import dispatch\n"
        "submitit.Job._results_timeout_s = 0  # it waits for slow file systems\n"
        "sys.exit(dispatch(sys.argv[1:]))"
    )
    line = ("-m", "method=ar", "seed=0,1", "hydra/launcher=box", f"runs_dir={tmp_path}/runs")
    done = python("-c", code, *line, PATH="/usr/bin:/bin")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "error: hydra/launcher='box' is invalid: expected a launcher that works here" in done.stderr


@pytest.mark.parametrize("option", ["--cfg=job", "-c job", "--info", "-i"])
def test_what_shows_one_config_is_refused_beside_a_sweep(option: str) -> None:
    done = program("-m", "method=ar", "seed=0,1", *option.split())
    name = option.replace("=", " ").split()[0]
    assert done.returncode == 2
    assert f"error: option={name!r} is invalid: expected one run, without -m" in done.stderr


def put_record(folder: Path) -> Path:
    """A folder that passes for a record."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text("{}", encoding="utf-8")
    return folder


def test_an_index_is_of_the_records_that_are_there(tmp_path: Path) -> None:
    """Two sweeps that share a job; a deleted record; the same job with a renamed folder."""
    cells = [({"task": name}, [f"task={name}", "runs_dir=x"]) for name in "abc"]
    for name in "ab":
        put_record(tmp_path / name)
        index.note_outcome(tmp_path, [f"task={name}", "runs_dir=y", "force=true"], Outcome(run=name))
    index.note_outcome(tmp_path, ["task=c"], Outcome(error="no memory", code=1))
    first = index.read(index.refresh(tmp_path, "one", "mini", cells[:2]))[2]
    second = index.read(index.refresh(tmp_path, "two", "mini", cells[1:]))[2]
    assert [cell.run for cell in first] == ["a", "b"] and [c.run for c in second] == ["b", None]
    assert second[1].error == "no memory"
    (tmp_path / "b" / "run.json").unlink()
    assert [c.run for c in index.read(index.refresh(tmp_path, "one", "mini", cells[:2]))[2]] == ["a", None]


def test_runs_of_a_sweep_that_goes_on_are_in_its_index(tmp_path: Path) -> None:
    """A sweep writes its index at its start; a table made before its end has the finished runs."""
    options = [[f"task={name}", "runs_dir=x"] for name in "abcd"]
    index.note_outcome(tmp_path, options[1], Outcome(error="no memory", code=1))
    path = index.refresh(tmp_path, "one", "mini", [({}, overrides) for overrides in options])
    for name, overrides in zip("ab", options):
        put_record(tmp_path / name)
        index.note_outcome(tmp_path, overrides, Outcome(run=name))
    index.note_outcome(tmp_path, options[2], Outcome(error="no disk", code=1))
    ends = [(cell.run, cell.error) for cell in index.read(path)[2]]
    assert ends == [("a", None), ("b", None), (None, "no disk"), (None, None)]


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Path]], None]:
    """Let a function make the records of a sweep from its configs, without tables."""

    def replace(execute: Callable[..., Path]) -> None:
        monkeypatch.setattr(ssd_bench.run.run, "execute", execute)
        monkeypatch.setattr(ssd_bench.run.plan, "plan", lambda cfg, *_: cfg)
        monkeypatch.setattr(ssd_bench.report.closing, "print_record", lambda *_: None)
        monkeypatch.setattr(ssd_bench.sweep.sweep, "comparison_text", lambda _: "")
        # whose times a made-up plan cannot scale
        monkeypatch.setattr(ssd_bench.sweep.sweep, "REFERENCE", Path("none"))

    return replace


def test_an_interrupted_sweep_can_be_reported_and_goes_on(
    tmp_path: Path, pretend: Callable[[Callable[..., Path]], None]
) -> None:
    done, states = [], []

    def execute(*_: object) -> Path:
        """Instead of a run: what the index says at its beginning; the second is interrupted, once."""
        ((_, _, cells),) = map(index.read, index.find(tmp_path / "runs"))
        states.append([cell.run for cell in cells])
        if len(states) == 2:
            raise KeyboardInterrupt
        done.append(f"record{len(states)}")
        return put_record(tmp_path / "runs" / done[-1])

    pretend(execute)
    folders = (f"runs_dir={tmp_path}/runs", f"hydra.sweep.dir={tmp_path}")
    line = ("-m", "experiment=knn_ssd_figure1", "scale=mini", *folders)
    end = program(*line)
    assert end.returncode == 130
    assert "interrupted: finished work is on record; the same command resumes the run" in end.stderr
    (path,) = index.find(tmp_path / "runs")
    first = [cell.run for cell in index.read(path)[2]]
    assert set(first) == {"record1", None} and not any(states[0])
    assert program(*line).returncode == 0
    assert states[2] == first and {cell.run for cell in index.read(path)[2]} == set(done[1:])


def test_dry_describes_runs_and_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is not at hand; nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ssd_bench.sweep.sweep, "REFERENCE", tmp_path / "none")  # to read its times takes seconds
    for options, head, methods in (([], "1 run\n", ["ar"]), (["-m"], "2 runs\n", ["ar", "swift"])):
        line = [f"method={','.join(methods)}", "model=llama2_13b", "hardware=sim_h100", "limit=3", "dry=true"]
        end = program(*options, *line)
        rows = [words for words in map(str.split, end.stdout.splitlines()) if words[:1] == ["llama2_13b"]]
        assert end.returncode == 0 and end.stdout.startswith(head) and [words[1] for words in rows] == methods
        assert all(words[2:5] == ["aime24", "hardware=sim_h100", "limit=3"] for words in rows)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("choices", [["method=swift,swift_code"], ["experiment=swift_figure2a", "scale=mini"]])
def test_a_setting_that_the_default_method_lacks_reaches_the_methods_of_a_sweep(
    choices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssd_bench.sweep.sweep, "REFERENCE", Path("none"))
    settings = ("method.max_steps=7", "method.draft_window=[4,252]", "hardware.latency=null")
    end = program("-m", *choices, *settings, "dry=true")
    rows = [line for line in end.stdout.splitlines() if line.startswith("miniature")]
    assert end.returncode == 0 and rows and end.stdout.count("method.max_steps=7") == len(rows), end.stderr
    assert end.stdout.count("method.draft_window=[4,252]") == len(rows)


def test_dry_is_no_part_of_a_run(tmp_path: Path) -> None:
    assert planned(tmp_path, "dry=true").identity.content_key == planned(tmp_path).identity.content_key


def test_a_bench_cannot_be_described() -> None:
    with pytest.raises(ConfigError, match="dry=True is invalid"):
        bench(OmegaConf.create({"dry": True}))


@pytest.mark.parametrize(
    ("options", "folders", "composed"),
    [
        (["seed=0,1,2,3"], ["x"] * 4, 1),
        (["seed=0,1", "runs_dir={0}/a,{0}/b"], ["a", "a", "b", "b"], 2),
        (["seed=0,1", "runs_dir={0}/of${{seed}}"], ["of0", "of1"], None),
        (["seed=0,1", "method=ar,swift"], ["x"] * 4, 2),
    ],
)
def test_jobs_that_differ_in_plain_values_are_composed_once(
    options: list[str],
    folders: list[str],
    composed: int | None,
    tmp_path: Path,
    pretend: Callable[[Callable[..., Path]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each still has its own folder."""
    compose, found, asked = ConfigLoaderImpl.load_sweep_config, [], []

    def counted(self: ConfigLoaderImpl, *given: Any) -> Any:
        asked.append(given)
        return compose(self, *given)

    pretend(lambda cfg, *_: put_record(Path(cfg.runs_dir) / f"{cfg.method.name}{cfg.seed}"))
    monkeypatch.setattr(ssd_bench.sweep.sweep, "load_records", lambda paths: found.extend(paths))
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    line = ["method=ar", f"runs_dir={tmp_path}/x", *(option.format(tmp_path) for option in options)]
    assert program(*line, "--multirun").returncode == 0
    assert [path.parent.name for path in found] == folders
    if composed is not None:
        assert len(asked) == composed + len(found), "and by Hydra, for the job itself"


def test_a_product_has_every_kind_of_choice_once() -> None:
    parsed = OverridesParser.create().parse_overrides(
        ["a=1,2", "b=choice(x,x,y)", "c=range(0,4,2)", "d=[1,2]", "~e", "+f.g='p,q'"]
    )
    found = product(parsed)
    assert found[0] == ("a=1", "b=x", "c=0", "d=[1,2]", "~e", "+f.g='p,q'") and len(found) == len(set(found)) == 8


def test_a_summary_shows_what_differs() -> None:
    jobs = [("model=m", "task=a"), ("model=m", "task=b")]
    text = summary(jobs, [Outcome(run="r1"), Outcome(error="no", code=2)])
    assert "model=m" not in text and [line.split() for line in text.splitlines()[2:]] == [
        ["1", "task=a", "done", "r1"],
        ["2", "task=b", "failed", "no"],
    ]
    assert "model=m task=a" in summary(jobs[:1], [Outcome()])


def test_retry_repeats_what_failed_and_no_other(tmp_path: Path, pretend: Callable[[Callable[..., Path]], None]) -> None:
    ran: list[int] = []

    def execute(cfg: Any, *_: object) -> Path:
        ran.append(int(cfg.seed))
        if cfg.seed in (1, 3) and len(ran) <= 4:
            raise ConfigError("seed", cfg.seed, "even")
        return put_record(tmp_path / f"record{cfg.seed}")

    pretend(execute)
    line = ["-m", "seed=0,1,2,3", f"runs_dir={tmp_path}"]
    ends = [program(*line, *options) for options in ([], ["retry=failed"], ["retry=failed"], ["retry=all"])]
    assert [end.returncode for end in ends] == [2, 0, 0, 2] and ran == [0, 1, 2, 3, 1, 3]
    assert "no run of this sweep has failed" in ends[2].stdout
    assert "retry='all' is invalid: expected failed, or null" in ends[3].stderr


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("timings unreliable: other processes used 57 % of the CPU. Rerun.", "timings unreliable"),
        ("few prompts: n = 8, fewer than 20; the intervals are uncertain", "few prompts"),
        ("only 3 pairs have AR; the speedup is over these", "only N pairs have AR"),
        ("AR reached 1,234.5 tokens/s in float32. ROUGE-2 is 0.51", "AR reached N tokens/s in float32"),
        ("2 faults in rows of b4.jsonl: 5 answer=''", "N faults in rows of b4.jsonl"),
    ],
)
def test_a_kind_of_warning_has_no_numbers(text: str, kind: str) -> None:
    assert warning_kind(text) == kind


def test_a_sweep_shows_each_kind_of_warning_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run has it in full, then a line counts the runs; the records keep all."""
    warnings = [[f"latency profile unreliable: {50 + seed} % of the CPU. Rerun."] for seed in range(3)]
    warnings[2].append("the last run is odd; see its card")

    def execute(cfg: Any, *_: object) -> Path:
        folder = tmp_path / "runs" / f"run{cfg.seed}"
        if not folder.exists():
            write_record(folder, [unit(0), unit(1)], run_id=folder.name, warnings=warnings[cfg.seed])
        return folder

    monkeypatch.setattr(ssd_bench.run.run, "execute", execute)
    monkeypatch.setattr(ssd_bench.run.plan, "plan", lambda cfg, *_: cfg)
    for _ in range(2):  # the second sweep finds the runs on record
        end = program("-m", "seed=0,1,2", f"runs_dir={tmp_path}/runs")
        assert end.returncode == 0
        first, *rest = end.stdout.split("[run ")[1:]
        assert "warning: latency profile unreliable: 50 % of the CPU. Rerun." in first
        kinds = [warning_kind(line.removeprefix("warning: ")) for line in shown_warnings("".join(rest))]
        assert kinds == ["the last run is odd"]
        closing = end.stdout[end.stdout.index("\nWarnings, each in full") :]
        assert "  3 of 3 runs: latency profile unreliable\n" in closing
        assert "  1 of 3 runs: the last run is odd\n" in closing
    assert [load_run(tmp_path / "runs" / f"run{seed}").header.warnings for seed in range(3)] == warnings
    assert not list((tmp_path / "runs" / index.OUTCOMES).glob(".*")), "notes of the kinds shown"
