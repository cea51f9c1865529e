"""A run's end is said in its record and in one message; a killed process's leftovers are removed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from methods.ar import AR
from ssd_bench.cli import dispatch
from ssd_bench.commands.status import look
from ssd_bench.errors import Lost
from ssd_bench.lease import NAME, Lease
from ssd_bench.records import writer as module
from ssd_bench.records.reader import load_run
from ssd_bench.run import run
from ssd_bench.run.arms import Arms
from ssd_bench.stopping import Stopped
from tests.kills import dead
from tests.runs import CPU, environment, exit_code
from tests.synthetic import header, unit, with_work, write_record

LINE = (*CPU, "limit=2", "decode.max_new_tokens=4", "method=ar", "runs_dir=runs")
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


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Exit code and errors of a command, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def code(*arguments: str) -> tuple[int, str]:
        GlobalHydra.instance().clear()
        return dispatch(arguments), capsys.readouterr().err

    return code


def record() -> Path:
    (folder,) = (path for path in Path("runs").iterdir() if not path.name.startswith("."))
    return folder


def content() -> dict[str, object]:
    found: dict[str, object] = json.loads((record() / "run.json").read_bytes())
    return found


@pytest.mark.parametrize(
    ("stage", "error"), [*((stage, "error") for stage in STAGES), *(("decode", error) for error in [*ERRORS][1:])]
)
def test_whatever_ends_a_run_is_in_its_record(
    stage: str, error: str, answer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised, status, said = ERRORS[error]
    calls, (place, name) = 0, STAGES[stage]
    original = getattr(place, name)

    def broken(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if stage == "write" and "parts" not in Path(str(arguments[0])).parts:
            return original(*arguments)
        if stage == "score" and calls < 3:
            return original(*arguments)  # the first prompt is finished
        raise raised

    with monkeypatch.context() as patched:
        patched.setattr(place, name, broken)
        if error in ("error", "memory", "device"):
            with pytest.raises(type(raised)):
                answer(*LINE)
        else:
            code, message = answer(*LINE)
            assert code == {"file": 1, "interrupt": 130, "signal": 143}[error] and message.count("\n") == 1
    assert content()["status"] == status and str(content()["error"]).startswith(said)
    assert "\n" not in str(content()["error"]) and not (record() / NAME).exists()
    (line,) = look(Path("runs"))
    assert (line.state, line.more) == (status, content()["error"])
    assert answer(*LINE)[0] == 0
    assert load_run(record()).header.status == "complete" and not load_run(record()).header.error


def test_an_error_is_shown_without_lines_of_hydra(
    answer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("it broke")

    monkeypatch.setattr(run, "load_model", broken)
    with pytest.raises(ValueError, match="it broke"):
        answer(*LINE)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "settings",
    [
        "decode.temperature=1e-06",
        "decode.temperature=1e300",
        "decode.top_p=1e-300",
        "decode.top_k=9223372036854775807",
        "seed=9223372036854775807",
    ],
)
def test_sampling_at_its_limits_works(settings: str, answer: Callable[..., tuple[int, str]]) -> None:
    assert answer(*LINE, "decode=sample", *settings.split())[0] == 0


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


@pytest.mark.parametrize("finished", [True, False])
def test_what_a_killed_process_left_is_removed_by_the_same_command(
    finished: bool, answer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease may be left, too."""
    with monkeypatch.context() as patched:
        if not finished:
            patched.setattr(Arms, "_decode_turn", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert answer(*LINE)[0] == (0 if finished else 130)
    for lease in (True, False):
        for leave in LEFT.values():
            leave(record())
        if lease:
            dead(record() / NAME)
        assert answer(*LINE)[0] == 0
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


def test_who_works_on_a_deleted_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with Lease(tmp_path / "run") as lease:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(Lost, match=r"run: the folder, or \.lease in it, was deleted during the run"):
            lease.check()


@pytest.mark.parametrize("sweep", [False, True])
def test_a_folder_that_is_deleted_during_the_run_is_one_message(
    sweep: bool, answer: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Arms._decode_turn

    def deleting(*arguments: object) -> object:
        shutil.rmtree(record())
        return turn(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Arms, "_decode_turn", deleting)
        code, said = answer(*(["-m"] if sweep else []), *LINE)
    assert code == 1 and said.count("was deleted during the run") == 1 and "Traceback" not in said
    assert sweep or said.count("\n") == 1
    assert answer(*LINE)[0] == 0 and load_run(record()).header.status == "complete"


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


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("finished") / "runs"
    assert exit_code([*LINE[:-1], f"runs_dir={runs}"]) == 0
    return runs


@pytest.mark.parametrize("odd", [directory, empty, pipe, dangling])
@pytest.mark.parametrize("name", ["run.json", "steps.parquet"])
def test_odd_files_in_a_finished_record_are_named_and_force_replaces_them(
    name: str, odd: Callable[[Path], None], one_run: Path, answer: Callable[..., tuple[int, str]]
) -> None:
    shutil.copytree(one_run, "runs")
    odd(record() / name)
    code, said = answer(*LINE)
    if (name, odd) == ("run.json", dangling):
        assert code == 0  # nothing is there, and nothing is lost
    else:
        assert code == 2 and said.count("\n") == 1 and f"{name}' is invalid: expected an intact file (" in said
        assert "force=true in its command measures the run again" in said
        assert answer(*LINE, "force=true")[0] == 0
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


@pytest.mark.parametrize("sweep", [False, True])
def test_a_folder_that_cannot_be_written_is_one_message(sweep: bool, answer: Callable[..., tuple[int, str]]) -> None:
    code, said = answer(*(["-m"] if sweep else []), *LINE[:-1], "runs_dir=/proc/nowhere/runs")
    assert code == 2 and said.startswith("error: runs_dir='/proc/nowhere/runs") and said.count("\n") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB, if this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full_is_one_message_and_goes_on_with_more_room(
    small_disk: Path, answer: Callable[..., tuple[int, str]]
) -> None:
    line = [*LINE[:-1], "limit=12", "decode.max_new_tokens=48", f"runs_dir={small_disk}"]
    code, said = answer(*line)
    assert (
        code == 1 and "Traceback" not in said and said.splitlines()[-1].startswith("error: No space left on device, ")
    )
    (folder,) = small_disk.glob("miniature-*")
    done = len(list((folder / "parts").glob("*.json")))
    assert 0 < done < 12 and not list(folder.glob("**/*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    code, said = answer(*line)
    assert code == 0 and f"[1/{12 - done}]" in said and len(load_run(folder).prompts) == 24
