"""A run's end is said in its record and in one message; a killed process's leftovers are removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from methods.ar import AR
from ssd_bench.commands.status import look
from ssd_bench.errors import ConfigError
from ssd_bench.lease import NAME, Lease
from ssd_bench.records import writer as module
from ssd_bench.records.reader import is_complete, load_run
from ssd_bench.run import run
from ssd_bench.run.arms import Arms
from ssd_bench.stopping import Stopped
from tests.kills import dead
from tests.runs import CPU, environment, equal, exit_code, program
from tests.synthetic import header, unit, with_work, write_record, write_run

LINE = (*CPU, "limit=2", "decode.max_new_tokens=4", "method=ar")
FILES = ["layer_sets.parquet", "prompts.parquet", "run.json", "steps.parquet", "work.parquet"]
OF_A_RUN = sorted([*FILES, "results.parquet"])
STAGES = {
    "load": (run, "load_model"),
    "profile": (run, "latency_of"),
    "search": (AR, "prepare"),
    "warm-up": (Arms, "warm_up"),
    "decode": (Arms, "_decode_turn"),
    "score": (Arms, "_record"),
    "write": (module, "write_atomic"),
    "finish": (module.RunWriter, "finish"),
}
ERRORS = {
    "error": (ValueError("it broke\nhere"), "failed", "ValueError: it broke"),
    "memory": (MemoryError(), "failed", "MemoryError"),
    "device": (torch.OutOfMemoryError("out of memory"), "failed", "OutOfMemoryError: out of memory"),
    "file": (FileNotFoundError(errno.ENOENT, "No such file", "/a"), "failed", "FileNotFoundError: [Errno 2] No such"),
    "interrupt": (KeyboardInterrupt(), "stopped", "KeyboardInterrupt"),
    "signal": (Stopped(), "stopped", "Stopped"),
}
ENDS = [(stage, error) for stage in STAGES for error in (ERRORS if stage == "decode" else ["error"])]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def record() -> Path:
    (folder,) = (path for path in Path("runs").iterdir() if not path.name.startswith("."))
    return folder


def content() -> dict[str, object]:
    found: dict[str, object] = json.loads((record() / "run.json").read_bytes())
    return found


def broken(stage: str, error: BaseException) -> Callable[..., object]:
    """A stage's function that raises: a score of the second prompt, the write of a prompt, anything else at once."""
    original, calls = getattr(*STAGES[stage]), count()

    def call(*arguments: object) -> object:
        is_first_prompt = stage == "score" and next(calls) < 2
        is_header = stage == "write" and "parts" not in Path(str(arguments[0])).parts
        if is_first_prompt or is_header:
            return original(*arguments)
        raise error

    return call


def test_whatever_ends_a_run_is_in_its_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that ends early again and again, at later and later stages."""
    for stage, error in ENDS:
        raised, status, said = ERRORS[error]
        with monkeypatch.context() as patched:
            patched.setattr(*STAGES[stage], broken(stage, raised))
            if error in ("error", "memory", "device"):
                with pytest.raises(type(raised)):
                    exit_code(LINE)
                assert stage != "load" or capsys.readouterr().err == "", "no lines of Hydra"
            else:
                end = program(*LINE)
                assert end.returncode == {"file": 1, "interrupt": 130, "signal": 143}[error]
                assert end.stderr.count("\n") == 1
        assert content()["status"] == status and str(content()["error"]).startswith(said), (stage, error)
        assert "\n" not in str(content()["error"]) and not (record() / NAME).exists()
        (line,) = look(Path("runs"))
        assert (line.state, line.more) == (status, content()["error"])
    assert program(*LINE).returncode == 0
    assert load_run(record()).header.status == "complete" and not load_run(record()).header.error


@pytest.mark.parametrize(
    "settings",
    [
        "decode.temperature=1e-06 decode.top_k=9223372036854775807 seed=9223372036854775807",
        "decode.temperature=1e300 decode.top_p=1e-300",
    ],
)
def test_sampling_at_its_limits_works(settings: str) -> None:
    assert program(*LINE, "decode=sample", *settings.split()).returncode == 0


def folder_with_a_file(path: Path) -> None:
    path.mkdir()
    (path / "00000-000.json").write_text("{}", encoding="utf-8")


LEFT: dict[str, Callable[[Path], object]] = {
    ".lease.x.claim.tmp": lambda folder: dead(folder / f"{NAME}.x.claim.tmp"),
    ".lease.x.tmp": lambda folder: dead(folder / f"{NAME}.x.tmp"),
    ".discarded": lambda folder: folder_with_a_file(folder / ".discarded"),
    "parts": lambda folder: (folder / "parts").mkdir(exist_ok=True),
    "steps.parquet.x.tmp": lambda folder: (folder / "steps.parquet.x.tmp").write_bytes(b"x"),
}


def test_what_a_killed_process_left_is_removed_by_the_same_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """First in an unfinished run, then in a finished one; a lease may be left, too."""
    with monkeypatch.context() as patched:
        patched.setattr(Arms, "_decode_turn", broken("decode", KeyboardInterrupt()))
        assert program(*LINE).returncode == 130
    for lease in (True, True, False):
        for leave in LEFT.values():
            leave(record())
        if lease:
            dead(record() / NAME)
        assert program(*LINE).returncode == 0
        assert sorted(path.name for path in record().iterdir()) == OF_A_RUN
        assert load_run(record()).header.status == "complete"


@pytest.mark.parametrize("left", LEFT)
def test_each_of_them_is_removed_alone(left: str, tmp_path: Path) -> None:
    write_record(tmp_path / "run", [unit(0)])
    LEFT[left](tmp_path / "run")
    module.clear_leftovers(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == FILES


def test_leftovers_are_no_fault_where_nothing_can_be_written_or_somebody_works(tmp_path: Path) -> None:
    (tmp_path / ".discarded").mkdir()
    with Lease(tmp_path):
        module.clear_leftovers(tmp_path)
    assert (tmp_path / ".discarded").is_dir()
    module.clear_leftovers(tmp_path / "nowhere")


KILL_IN_A_LEASE = """
import sys
from pathlib import Path
from ssd_bench.lease import Lease
from tests.kills import dead, kill_at_every_call

def prepare(folder):
    folder.mkdir()
    dead(folder / ".lease")

take = lambda folder: Lease(folder, wait=False).close()
kill_at_every_call(Path(sys.argv[1]), ("link", "replace", "unlink"), take, prepare)
"""


def test_a_kill_at_any_moment_of_taking_a_lease_over_leaves_it_to_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILL_IN_A_LEASE, str(tmp_path)], check=True, timeout=60, env=environment())
    attempts = list(tmp_path.iterdir())
    left = {file.name for folder in attempts for file in folder.iterdir()}
    assert len(attempts) > 5 and ".lease" in left and any(name.endswith(".claim.tmp") for name in left)
    for folder in attempts:
        Lease(folder, wait=False).close()
        assert list(folder.iterdir()) == []


def test_a_folder_that_is_deleted_during_the_run_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Arms._decode_turn

    def deleting(*arguments: object) -> object:
        shutil.rmtree(record())
        return turn(*arguments)  # type: ignore[arg-type]

    for words in (["-m", *LINE], LINE):
        with monkeypatch.context() as patched:
            patched.setattr(Arms, "_decode_turn", deleting)
            end = program(*words)
        assert end.returncode == 1 and end.stderr.count("was deleted during the run") == 1
        assert "Traceback" not in end.stderr
    assert end.stderr.count("\n") == 1
    assert program(*LINE).returncode == 0 and load_run(record()).header.status == "complete"


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside").touch()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("nowhere")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        *((name, torn) for name in FILES if name != "work.parquet"),
        *(("run.json", odd) for odd in (directory, empty, pipe)),
        *(("steps.parquet", odd) for odd in (directory, empty, pipe, dangling, Path.unlink)),
    ],
)
def test_odd_files_in_a_finished_record_are_named_and_replaced(
    name: str, odd: Callable[[Path], None], tmp_path: Path
) -> None:
    finished = write_run(tmp_path / "run", [unit(0), unit(1)])
    assert is_complete(finished.path, "key")
    odd(finished.path / name)
    readers: list[Callable[[Path], object]] = [lambda path: is_complete(path, "key"), load_run]
    for reader in [lambda path: module.RunWriter(path, header())] if name == "run.json" else readers:
        with pytest.raises(ConfigError, match=rf"{name}.*force=true in its command measures the run again"):
            reader(finished.path)
    with module.RunWriter(finished.path, header(), fresh=True) as again:
        for number in range(2):
            again.add(number, 0, with_work(unit(number)), None)
        again.finish({})
    equal(load_run(finished.path), finished)
    assert sorted(path.name for path in finished.path.iterdir()) == FILES


def test_an_odd_file_in_a_finished_record_is_one_message() -> None:
    assert program(*LINE).returncode == 0
    directory(record() / "steps.parquet")
    end = program(*LINE)
    assert end.returncode == 2 and end.stderr.count("\n") == 1
    assert "steps.parquet' is invalid: expected an intact file (" in end.stderr
    assert program(*LINE, "force=true").returncode == 0
    dangling(record() / "run.json")
    assert program(*LINE).returncode == 0, "nothing is there, and nothing is lost"
    assert load_run(record()).header.status == "complete"
    assert sorted(path.name for path in record().iterdir()) == OF_A_RUN


@pytest.mark.parametrize("odd", [directory, empty, pipe, dangling])
@pytest.mark.parametrize("name", ["parts", "steps.parquet", "x.tmp", ".discarded"])
def test_odd_files_in_a_begun_record_are_not_in_its_way(name: str, odd: Callable[[Path], None], tmp_path: Path) -> None:
    with module.RunWriter(tmp_path, header()) as begun:
        begun.add(0, 0, with_work(unit(0)), None)
    if name == "parts":
        shutil.rmtree(tmp_path / "parts")
    odd(tmp_path / name)
    with module.RunWriter(tmp_path, header()) as again:
        for number in {0, 1} - {prompt for prompt, _ in again.done}:
            again.add(number, 0, with_work(unit(number)), None)
        again.finish({})
    assert {path.name for path in tmp_path.iterdir()} - {".damaged"} == set(FILES)
    assert len(load_run(tmp_path).prompts) == 4


def test_a_folder_that_cannot_be_written_is_one_message() -> None:
    for words in (["-m", *LINE], LINE):
        end = program(*words, "runs_dir=/proc/nowhere/runs")
        assert end.returncode == 2 and end.stderr.count("\n") == 1
        assert end.stderr.startswith("error: runs_dir='/proc/nowhere/runs")
