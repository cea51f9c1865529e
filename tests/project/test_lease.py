"""Work on a folder: one process at a time, after any kill, on any machine."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ssd_bench import lease as module
from ssd_bench.errors import Lost
from ssd_bench.lease import NAME, SILENT, Lease, LeaseHeld, Owner, abandoned_leases, has_expired, holder
from tests.kills import dead
from tests.runs import environment

HOLD = """
import sys, time
from pathlib import Path
from ssd_bench.lease import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def held_by_another(folder: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", HOLD, str(folder)]
    other = subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, encoding="utf-8")
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    return other


def elsewhere(folder: Path, age: float) -> Path:
    """A lease of a process on another machine, last touched `age` seconds ago."""
    path = folder / NAME
    path.write_text(json.dumps(vars(replace(Owner.current(), token="x", host="far", space="far"))), encoding="utf-8")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_one_at_a_time(tmp_path: Path) -> None:
    with Lease(tmp_path):
        with pytest.raises(LeaseHeld, match=f"process {os.getpid()} on "):
            Lease(tmp_path, wait=False)
        with Lease(tmp_path, name="another"):
            assert holder(tmp_path / NAME) != holder(tmp_path / "another")
    assert not list(tmp_path.iterdir())
    with Lease(tmp_path):
        pass


def test_who_is_killed_loses_it_at_once(tmp_path: Path) -> None:
    """Also before its parent, which may be the one that waits, has buried it."""
    other = held_by_another(tmp_path)
    with pytest.raises(LeaseHeld, match=f"process {other.pid} on "):
        Lease(tmp_path, wait=False)
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(other.pid).status() == psutil.STATUS_ZOMBIE
    with Lease(tmp_path, wait=False) as own:
        assert own.is_held
    other.wait()


def test_a_number_that_another_process_has_by_now_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(vars(replace(Owner.current(), begun=1.0))), encoding="utf-8")
    assert Lease(tmp_path, wait=False).is_held


def test_elsewhere_only_silence_says_that_it_is_gone(tmp_path: Path) -> None:
    elsewhere(tmp_path, SILENT / 2)
    with pytest.raises(LeaseHeld, match="on far"):
        Lease(tmp_path, wait=False)
    elsewhere(tmp_path, SILENT + 5)
    assert Lease(tmp_path, wait=False).is_held


def test_who_is_elsewhere_has_time_to_show_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has a heartbeat, another none; a third lives here, a fourth lets go meanwhile."""
    beating, silent, leaving = (tmp_path / name for name in ("beating", "silent", "leaving"))
    for folder in (beating, silent, leaving):
        folder.mkdir()
        elsewhere(folder, 10)

    def pause(_: float) -> None:
        os.utime(beating / NAME)
        (leaving / NAME).unlink()
        monkeypatch.setattr(module, "SILENT", 5)  # as if the time had passed

    monkeypatch.setattr(module.time, "sleep", pause)
    with Lease(tmp_path):
        leases = [folder / NAME for folder in (tmp_path, beating, silent, leaving, tmp_path / "none")]
        assert abandoned_leases(leases) == {silent / NAME}


def test_one_that_cannot_be_read_is_somebodys_who_is_just_writing_it(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(b"")
    assert not has_expired(path, holder(path))
    os.utime(path, (1, 1))
    assert has_expired(path, holder(path)) and Lease(tmp_path, wait=False).is_held


def test_a_heartbeat_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT", 0.01)
    with Lease(tmp_path):
        os.utime(tmp_path / NAME, (1, 1))
        deadline = time.monotonic() + 30
        while (tmp_path / NAME).stat().st_mtime < 2:
            assert time.monotonic() < deadline, "no heartbeat"
            time.sleep(0.01)


def test_who_was_silent_finds_that_out(tmp_path: Path) -> None:
    own = Lease(tmp_path)
    own.check()
    elsewhere(tmp_path, 0)
    with pytest.raises(Lost, match="no heartbeat"):
        own.check()
    own.close()
    assert holder(tmp_path / NAME) is not None, "it is the other's"


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr(os, "link", refuse)
    with Lease(tmp_path), pytest.raises(LeaseHeld):
        Lease(tmp_path, wait=False)
    assert not list(tmp_path.iterdir())


def count(folder: Path, times: int) -> None:
    for _ in range(times):
        with Lease(folder):
            counter = folder / "counter"
            seen = int(counter.read_text(encoding="utf-8"))
            time.sleep(0.001)
            counter.write_text(str(seen + 1), encoding="utf-8")


def test_a_lease_released_between_two_looks_is_not_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may replace the lease of whoever takes it then."""
    created, create = [], module._create

    def release_after_first_look(path: Path, content: bytes) -> bool:
        created.append(create(path, content))
        if len(created) == 1:
            path.unlink()
        return created[-1]

    def replace_a_lease(*_: object) -> None:
        raise AssertionError("the lease may be another's by now")

    elsewhere(tmp_path, 0)
    monkeypatch.setattr(module, "_create", release_after_first_look)
    monkeypatch.setattr(module.os, "replace", replace_a_lease)
    assert Lease(tmp_path, wait=False).is_held and created == [False, True]


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_an_owner_that_ended_is_claimed_once(content: bytes, tmp_path: Path) -> None:
    """A living claim keeps others away; ended and unreadable ones do not."""
    dead(tmp_path / NAME)
    ended = holder(tmp_path / NAME)
    assert ended is not None
    claim = tmp_path / f"{NAME}.{ended.token}.claim.tmp"
    claim.write_text(json.dumps(vars(Owner.current())), encoding="utf-8")
    with pytest.raises(LeaseHeld):
        Lease(tmp_path, wait=False)
    claim.write_bytes((tmp_path / NAME).read_bytes())  # as files that were copied
    (tmp_path / f"{NAME}.1.claim.tmp").write_bytes(content)
    with pytest.raises(LeaseHeld):
        Lease(tmp_path, wait=False)
    os.utime(tmp_path / f"{NAME}.1.claim.tmp", (1, 1))
    with Lease(tmp_path, wait=False):
        assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("claimed", [False, True])
def test_no_two_ever_have_it(claimed: bool, tmp_path: Path) -> None:
    """Even if a killed owner is followed by several at once, and so is the first of them."""
    other = held_by_another(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    if claimed:
        ended = holder(tmp_path / NAME)
        assert ended is not None
        dead(tmp_path / f"{NAME}.{ended.token}.claim.tmp")
    (tmp_path / "counter").write_text("0", encoding="utf-8")
    context = multiprocessing.get_context("fork")  # a spawned one imports torch first
    processes = [context.Process(target=count, args=(tmp_path, 25)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "counter").read_text(encoding="utf-8") == "100"
    assert [path.name for path in tmp_path.iterdir()] == ["counter"]
