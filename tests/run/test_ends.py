"""Runs and sweeps cut short by signals, killed workers, full disks and damage: nothing is lost."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from hydra.errors import MissingConfigException

from ssd_bench.cli import dispatch, expand_home
from ssd_bench.console import report
from ssd_bench.model.arithmetic import resolve
from ssd_bench.model.backends.cpu import build, native_problem
from ssd_bench.records import writer as module
from ssd_bench.records.reader import Run, find_runs, load_run
from ssd_bench.stopping import Stopping
from tests.forked import Forked, at_once
from tests.run.test_endings import directory, torn
from tests.runs import CPU, environment, equal, executed, local_model, program
from tests.synthetic import header, unit, with_work, write_run

PROMPTS = 5
METHODS = """
import os, signal, time
from pathlib import Path
from methods.ar import AR
from methods.fixed_layers import FixedLayers

class Deadly(AR):
    \"\"\"Kills its process, and leaves a file.\"\"\"

    def prepare(self, probe, samples):
        Path(os.environ["DEATHS"], str(os.getpid())).touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)

class Waiting(FixedLayers):
    \"\"\"Says that it waits within the second prompt, where there is a gate, until that is open.\"\"\"

    begun = False

    def start(self, prefill):
        if self.begun and "GATE" in os.environ:
            Path(os.environ["GATE"], "waiting").touch()
            while not Path(os.environ["GATE"], "open").exists():
                time.sleep(0.01)
        self.begun = True
        return super().start(prefill)
"""
CONFIGS = {
    "deadly": "_target_: my_methods.Deadly\nname: deadly\n",
    "waiting": "defaults: [fixed_layers, _self_]\n_target_: my_methods.Waiting\nname: waiting\nratio: 0.25\n",
}
COMPILER = """#!/bin/sh
case " $* " in *" -c "*) ;; *) exec c++ "$@" ;; esac
echo "$*" >> {log}
sleep 1
while [ "$1" != -o ]; do shift; done
cp {built} "$2"
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the methods above, from which this process also imports."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "conf" / "method").mkdir(parents=True)
    (folder / "my_methods.py").write_text(METHODS, encoding="utf-8")
    for name, text in CONFIGS.items():
        (folder / "conf" / "method" / f"{name}.yaml").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)
        yield folder
        sys.modules.pop("my_methods", None)


@pytest.fixture(scope="session")
def short(small_checkpoint: Path) -> list[str]:
    """A run of `PROMPTS` prompts, with a method whose steps vary."""
    work = ("task=gsm8k", f"limit={PROMPTS}", "decode.max_new_tokens=48", "method=fixed_layers", "method.ratio=0.25")
    return [*local_model(small_checkpoint), *work, *CPU]


@pytest.fixture(scope="module")
def waiting(short: list[str], own: Path) -> list[str]:
    """The same run, with the method that waits after the first prompt."""
    return [*short, "method=waiting", f"hydra.searchpath=[file://{own}/conf]"]


class Gate:
    """Barrier in a run's second prompt.

    Attributes:
        variables: environment of the run.
    """

    def __init__(self, folder: Path, own: Path) -> None:
        self._folder, self.variables = folder, environment(own) | {"GATE": str(folder)}

    def reached(self) -> bool:
        """Return when the run is there; False if it does not come."""
        deadline = time.monotonic() + 120
        while not (self._folder / "waiting").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return (self._folder / "waiting").exists()

    def open(self) -> None:
        (self._folder / "open").touch()


@pytest.fixture
def gate(own: Path, tmp_path: Path) -> Gate:
    (tmp_path / "gate").mkdir()
    return Gate(tmp_path / "gate", own)


@pytest.fixture(scope="module")
def whole(waiting: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return executed(tmp_path_factory.mktemp("whole"), *waiting)


@pytest.mark.parametrize(
    ("number", "code", "said", "done"),
    [
        (signal.SIGUSR1, 143, "stopped by a signal, after the prompt in flight", 2),
        (signal.SIGINT, 130, "interrupted", 1),
    ],
)
def test_a_signal_ends_a_run_and_the_same_command_goes_on(
    number: signal.Signals,
    code: int,
    said: str,
    done: int,
    waiting: list[str],
    gate: Gate,
    whole: Run,
    tmp_path: Path,
) -> None:
    line = [*waiting, f"runs_dir={tmp_path}"]
    with Forked(line, gate.variables) as run:
        assert gate.reached()
        run.send_signal(number)
        gate.open()
        rest = run.stderr.read()
        assert run.wait() == code and "Traceback" not in rest
    last = rest.splitlines()[-1]
    assert last == f"{said}: finished work is on record; the same command resumes the run"
    (folder,) = tmp_path.glob("*-gsm8k-*")
    assert len(list((folder / "parts").glob("*.json"))) == done and not (folder / ".lease").exists()
    again = program(*line)
    assert again.returncode == 0 and f"[1/{PROMPTS - done}]" in again.stderr
    equal(load_run(folder), whole)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as in a terminal: tests that a shell started in the background ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


class Last:
    """An object interrupted while it is deleted."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_where_python_ignores_exceptions_is_not_lost(interruptible: None) -> None:
    stopping, finished = Stopping(), []

    def work() -> None:
        with stopping.listening(), stopping.finishing():
            Last()
            finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stopping = Stopping()
        with stopping.listening(), stopping.finishing():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_a_signal_while_nothing_is_measured_ends_it_at_once(waiting: list[str], gate: Gate, tmp_path: Path) -> None:
    """Here while it waits for the process that has the run."""
    line = [*waiting, f"runs_dir={tmp_path}"]
    with Forked(line, gate.variables) as first:
        assert gate.reached()
        with Forked(line, gate.variables) as second:
            assert f"process {first.pid} on" in second.stderr.readline()
            second.send_signal(signal.SIGTERM)
            assert second.wait() == 143
        gate.open()
        first.stderr.read()
        assert first.wait() == 0


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A compiler that notes its calls, takes a second, and has made the kernels before; its notes are in its folder."""
    if problem := native_problem():
        pytest.skip(problem)
    built = build.build_directory(resolve("auto")) / "cpu.o"
    (tmp_path / "c++").write_text(COMPILER.format(log=tmp_path / "calls", built=built), encoding="utf-8")
    (tmp_path / "c++").chmod(0o755)
    return tmp_path / "c++"


def test_equal_commands_that_are_started_at_once_make_a_run_once(
    short: list[str], compiler: Path, tmp_path: Path
) -> None:
    """And compile the kernels once."""
    variables = {"SSD_BENCH_CACHE": str(tmp_path / "cache"), "CXX": str(compiler)}
    ends = at_once([[*short, f"runs_dir={tmp_path / 'runs'}"]] * 3, environment() | variables)
    assert [end.returncode for end in ends] == [0] * 3, ends
    assert len((tmp_path / "calls").read_text(encoding="utf-8").splitlines()) == 1
    assert len(find_runs(tmp_path / "runs")) == 1
    assert sum(f"[1/{PROMPTS}]" in end.stderr for end in ends) == 1, ends
    assert sum("already on record" in end.stdout for end in ends) == 2


def test_two_equal_sweeps_share_their_runs(short: list[str], tmp_path: Path) -> None:
    """The other's current runs come last; runs at the same time are those of one alone."""
    ends = at_once([["-m", *short, "seed=0,1", f"runs_dir={tmp_path}/runs"]] * 2)
    assert [end.returncode for end in ends] == [0, 0], ends
    found = [load_run(path) for path in find_runs(tmp_path / "runs")]
    assert sorted(run.header.seed for run in found) == [0, 1]
    assert sum(end.stderr.count(f"[1/{PROMPTS}]") for end in ends) == 2, ends
    assert all(end.stdout.count("fixed_layers-gsm8k-") >= 2 for end in ends)
    for run in found:
        equal(run, executed(tmp_path / "alone", *short, f"seed={run.header.seed}"))


def test_runs_that_ask_for_it_measure_one_after_the_other(short: list[str], tmp_path: Path) -> None:
    lines = [[*short, f"seed={seed}", "hardware.exclusive=true", f"runs_dir={tmp_path}/runs"] for seed in range(2)]
    ends = at_once(lines, environment() | {"TMPDIR": str(tmp_path)})
    assert [end.returncode for end in ends] == [0, 0], ends
    headers = [load_run(path).header for path in find_runs(tmp_path / "runs")]
    (first_end, _), (second_end, seconds) = sorted(
        (pd.Timestamp(header.finished_at).timestamp(), header.wall_s) for header in headers
    )
    assert first_end < second_end - seconds + 0.2


def test_a_killed_worker_ends_no_other_run(short: list[str], own: Path, tmp_path: Path) -> None:
    """It is restarted twice, the second time alone; then it has failed (test_sweep has one that does not)."""
    (tmp_path / "deaths").mkdir()
    work = [option for option in short if not option.startswith("method")]
    line = ["-m", *work, "method=ar,deadly,fixed_layers", "limit=2", f"runs_dir={tmp_path}/runs"]
    line += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"hydra.searchpath=[file://{own}/conf]"]
    with Forked(line, environment(own) | {"DEATHS": str(tmp_path / "deaths")}, forks=True) as sweep:
        end = sweep.communicate()
    names = {load_run(path).header.method for path in find_runs(tmp_path / "runs")}
    assert "Traceback" not in end.stderr, end.stderr
    assert (end.returncode, names) == (1, {"ar", "fixed_layers"}), end.stderr
    assert "its process ended three times: killed, or out of memory" in end.stdout
    assert len(list((tmp_path / "deaths").iterdir())) == 3


def test_a_full_disk_is_one_message_and_costs_nothing_that_was_done(
    waiting: list[str], whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace, is_full = os.replace, False

    def full(source: Path, target: Path) -> None:
        nonlocal is_full
        is_full = is_full or Path(target).name.startswith("00003")
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        assert dispatch([*waiting, f"runs_dir={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"error: No space left on device, \S+00003-000.json: finished work is on record", said)
    assert "Traceback" not in said
    (folder,) = tmp_path.glob("*-gsm8k-*")
    assert len(list((folder / "parts").glob("*.json"))) == 3 and not list(folder.glob("**/*.tmp"))
    assert dispatch([*waiting, f"runs_dir={tmp_path}"]) == 0
    equal(load_run(folder), whole)


def copied(file: Path) -> None:
    shutil.copy(file, file.with_name("00005-000.json"))


@pytest.mark.parametrize("damage", [torn, directory, copied])
@pytest.mark.parametrize("learns", [False, True])
def test_damaged_parts_are_named_set_aside_and_measured_again(
    damage: Callable[[Path], None], learns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method that learns repeats all later ones, too: it goes on from there."""
    with module.RunWriter(tmp_path / "run", header()) as begun:
        for number in range(4):
            begun.add(number, 0, with_work(unit(number)), b"%d" % number if learns else None)
    damage(tmp_path / "run" / "parts" / "00001-000.json")
    with module.RunWriter(tmp_path / "run", header()) as again:
        whole = {0, 1, 2, 3} if damage is copied else {0} if learns else {0, 2, 3}
        assert again.done == {(number, 0) for number in whole}
        assert again.last_state() == (b"%d" % max(whole) if learns else None)
        for number in sorted({0, 1, 2, 3} - whole):
            again.add(number, 0, with_work(unit(number)), b"%d" % number if learns else None)
        again.finish({})
    said = capsys.readouterr().err
    name = "00005-000.json" if damage is copied else "00001-000.json"
    assert f"{name} is damaged" in said and "measured again" in said
    assert len(list((tmp_path / "run" / ".damaged").iterdir())) == (3 if learns and damage is not copied else 1)
    equal(load_run(tmp_path / "run"), write_run(tmp_path / "other", [unit(number) for number in range(4)]))


def test_the_home_folder_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/her")
    assert expand_home("runs_dir=~/x") == "runs_dir=/home/her/x"
    assert expand_home("runs_dir='~/x'") == "runs_dir='/home/her/x'"
    for unchanged in ("~seed", "method=a~b", "runs_dir=~", "--help"):
        assert expand_home(unchanged) == unchanged


@pytest.mark.parametrize(
    ("said", "end"),
    [
        (
            "In 'hydra/launcher/ray_nodes': Could not load 'hydra/launcher/ray'.\nsearched in",
            "'hydra/launcher/ray': pip install 'ssd-bench[ray]' has it\n",
        ),
        (
            "Could not find 'hydra/launcher/mine'\n\nAvailable options in 'hydra/launcher':\n\tray_nodes",
            "Available options in 'hydra/launcher':\n\tray_nodes\n",
        ),
    ],
)
def test_a_launcher_that_is_not_installed_names_the_extra_that_has_it(
    said: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(MissingConfigException(said, "x")) == 2
    assert capsys.readouterr().err.endswith(end)
