"""A pack of runs: what was packed is read, even if others unpack it or are cut short."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
import zipfile
from multiprocessing import get_context
from pathlib import Path

import pytest

import ssd_bench
from ssd_bench.errors import ConfigError
from ssd_bench.records import pack as module
from ssd_bench.records.pack import KEY, pack, records_folder, unpacked_folder
from ssd_bench.records.reader import find_runs
from tests.kills import kill_at_every_call
from tests.runs import program

PACKAGE = Path(ssd_bench.__file__).parent
OTHERS = (
    "replication/x_table1.mini.json",
    ".outcomes/0a1b.json",
    "searches/one/search.json",
    "searches/one/evaluations.jsonl",
    "frontier/tiny.toy.json",
)
UNPACKED = (
    *(".lock", "run-0/.lock", "replication/.lock", "searches/one/.lock", "run-0/run.json.17.tmp"),
    *("run-0/parts/00000-000.json", "report/index.html", ".hidden/run.json", "notes.txt"),
)


def put(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def put_run(folder: Path, name: str, seed: int = 0, status: str = "complete") -> None:
    put(folder, f"{name}/run.json", json.dumps({"status": status, "schema_version": 1, "seed": seed}).encode())
    for table in ("prompts.parquet", "steps.parquet", "layer_sets.parquet", "vectors.npz"):
        put(folder, f"{name}/{table}", random.Random(f"{name} {table} {seed}").randbytes(400))


def put_runs(folder: Path, runs: int = 3, seed: int = 0) -> Path:
    """A folder of runs with all that belongs to them, and all that does not."""
    for number in range(runs):
        put_run(folder, f"run-{number}", seed)
    put_run(folder, "unfinished", seed, status="running")
    for name in OTHERS:
        put(folder, name, f"{name} {seed} ≈".encode())
    for name in UNPACKED:
        put(folder, name, b'{"status": "complete", "schema_version": 1}')
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files under a folder but the key, by name."""
    found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    return {name: file.read_bytes() for name, file in found.items() if name != KEY}


def packable(folder: Path) -> dict[str, bytes]:
    """Content of a pack of `put_runs`."""
    return {
        name: content
        for name, content in files(folder).items()
        if name not in UNPACKED and not name.startswith("unfinished/")
    }


def assert_alone(folder: Path) -> None:
    """Nothing is next to a folder and its pack."""
    assert {path.name for path in folder.parent.iterdir()} <= {folder.name, f"{folder.name}.zip"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put_runs(tmp_path / "source")


@pytest.fixture
def mini(tmp_path: Path, source: Path) -> Path:
    """A folder of which only the pack exists."""
    assert pack(source, tmp_path / "shelf" / "mini.zip") == 3
    return tmp_path / "shelf" / "mini"


@pytest.mark.parametrize("asked", ["mini", "mini.zip", ".", "mini/run-1"])
def test_what_was_packed_is_read(asked: str, source: Path, mini: Path) -> None:
    expected = packable(source)
    assert len(expected) == 3 * 5 + len(OTHERS)
    folder = records_folder("run", str(mini.parent / asked))
    assert folder == mini.parent / asked.removesuffix(".zip")
    assert files(mini) == expected and len(find_runs(folder)) == (1 if asked == "mini/run-1" else 3)
    assert_alone(mini)


def test_no_command_takes_records_as_a_plain_path() -> None:
    """Readers see only folders: whoever reads an option for records unpacks them."""
    files = [file for folder in ("commands", "predict", "report") for file in (PACKAGE / folder).glob("*.py")]
    assert not [
        file.name for file in files if re.search(r'local_path\("(run|runs_dir|path)"', file.read_text(encoding="utf-8"))
    ]


def test_a_relative_path_stays_relative(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mini.parent)
    assert unpacked_folder(Path("mini.zip")) == Path("mini") and (mini / "run-0/run.json").is_file()


@pytest.mark.parametrize("name", ["runs", "none"])
def test_a_folder_without_a_pack_is_itself(name: str, tmp_path: Path) -> None:
    before = files(put_runs(tmp_path / "runs"))
    assert unpacked_folder(tmp_path / name) == unpacked_folder(tmp_path / f"{name}.zip") == tmp_path / name
    assert files(tmp_path / "runs") == before and [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_folder_of_packs_is_read_as_a_whole(source: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    for name in ("one", "two", "deeper/three"):
        pack(source, shelf / f"{name}.zip")
    put_run(shelf, "plain")
    assert len(find_runs(unpacked_folder(shelf))) == 3 * 3 + 1
    assert pack(shelf, tmp_path / "all.zip") == 3 * 3 + 1
    assert len(find_runs(unpacked_folder(tmp_path / "all"))) == 3 * 3 + 1


def test_the_same_files_make_the_same_bytes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, again = (tmp_path / f"{name}.zip" for name in ("first", "second", "again"))
    pack(source, first)
    copy = tmp_path / "copy"
    for name in sorted(files(source), reverse=True):  # other times, rights and order on disk
        put(copy, name, (source / name).read_bytes())
        (copy / name).chmod(0o600)
        os.utime(copy / name, (1, 1))
    pack(copy, second)
    pack(unpacked_folder(first), again)
    assert first.read_bytes() == second.read_bytes() == again.read_bytes()


def test_what_is_unpacked_is_not_unpacked_again(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked_folder(mini)
    monkeypatch.setattr(module, "_extract", lambda *_: pytest.fail("unpacked again"))
    os.utime(f"{mini}.zip", (1, 1))  # as by a checkout
    unpacked_folder(mini)


def test_a_folder_of_another_pack_is_refused_until_it_is_deleted(source: Path, mini: Path) -> None:
    unpacked_folder(mini)
    put(mini, "run-9/run.json", b"hours")
    before = files(mini)
    unpacked_folder(mini)
    put_run(source, "run-3")
    pack(source, Path(f"{mini}.zip"))
    with pytest.raises(ConfigError, match=r"present .*mini\.zip: move your own runs away"):
        unpacked_folder(mini)
    assert files(mini) == before
    shutil.rmtree(mini)
    assert files(unpacked_folder(mini)) == packable(source)
    assert_alone(mini)


def test_an_unpacked_folder_may_be_added_to_and_packed(mini: Path) -> None:
    unpacked_folder(mini)
    put_run(mini, "run-9")
    assert pack(mini, Path(f"{mini}.zip")) == 4
    before = files(mini)
    assert files(unpacked_folder(mini)) == before and "run-9/run.json" in before


def test_somebodys_own_folder_is_read_as_it_is(source: Path, mini: Path) -> None:
    put_run(mini, "own")
    before = files(mini)
    for asked in (mini, Path(f"{mini}.zip"), mini.parent):
        unpacked_folder(asked)
    assert files(mini) == before and not (mini / KEY).exists()


def test_an_empty_folder_is_nobodys(source: Path, mini: Path) -> None:
    mini.mkdir()
    assert files(unpacked_folder(mini)) == packable(source)


def test_several_processes_may_open_a_pack_at_once(tmp_path: Path) -> None:
    source, shelf = put_runs(tmp_path / "source", runs=40), tmp_path / "shelf"
    pack(source, shelf / "mini.zip")
    expected, start = packable(source), time.monotonic() + 0.1

    def read(folder: Path) -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        unpacked_folder(folder)
        assert files(shelf / "mini") == expected

    readers = [get_context("fork").Process(target=read, args=(folder,)) for folder in (shelf / "mini", shelf) * 4]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 8
    assert_alone(shelf / "mini")


def test_an_unpacking_that_is_killed_is_done_again(source: Path, mini: Path, tmp_path: Path) -> None:
    """Its folder stays unread."""

    def copy_pack(folder: Path) -> None:
        folder.mkdir(parents=True)
        shutil.copy(f"{mini}.zip", folder)

    kill_at_every_call(tmp_path / "killed", ("mkdir", "rename"), unpacked_folder, copy_pack)
    *killed, finished = sorted((tmp_path / "killed").iterdir(), key=lambda folder: int(folder.name))
    assert len(killed) > 3 + len({Path(name).parent for name in OTHERS}) and len(find_runs(finished)) == 3
    for folder in killed:
        assert not (folder / "mini").exists() and not find_runs(folder)
        assert len(find_runs(unpacked_folder(folder))) == 3 and files(folder / "mini") == packable(source)


def test_damage_anywhere_is_refused_by_name_or_harmless(source: Path, mini: Path) -> None:
    """A pack that is cut, or of which a byte is another; harmless: the bytes of a time or a right."""
    packed, expected, rng = Path(f"{mini}.zip"), packable(source), random.Random(0)
    content = packed.read_bytes()
    cuts = [content[cut] for cut in (slice(0), slice(100), slice(-1), slice(100, None))]
    flips = [(rng.randrange(len(content)), rng.randrange(1, 256)) for _ in range(100)]
    flipped = [content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :] for at, bits in flips]
    refusals = {}
    for number, damaged in enumerate((*cuts, *flipped)):
        packed.write_bytes(damaged)
        try:
            assert files(unpacked_folder(mini)) == expected
            shutil.rmtree(mini)
        except ConfigError as error:
            refusals[number] = str(error)
        assert_alone(mini)
        assert not mini.exists()
    assert [*refusals][:4] == [0, 1, 2, 3] and len(refusals) > 70
    assert all(str(packed) in refusal for refusal in refusals.values())


@pytest.mark.parametrize("name", ["/etc/x", "../x", "run-0/../../x", "C:/x", "C:x", "..\\x", "a\\b", "//host/share/x"])
def test_a_name_outside_the_folder_is_refused(name: str, mini: Path) -> None:
    with zipfile.ZipFile(f"{mini}.zip", "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(ConfigError, match=r"mini\.zip") as caught:
        unpacked_folder(mini)
    assert repr(name) in str(caught.value) and not mini.exists()
    assert_alone(mini)


def test_a_link_in_a_pack_leads_nowhere(mini: Path) -> None:
    entry = zipfile.ZipInfo("link")
    entry.create_system, entry.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(f"{mini}.zip", "a") as archive:
        archive.writestr(entry, b"/etc")
    unpacked_folder(mini)
    assert (mini / "link").read_bytes() == b"/etc" and not (mini / "link").is_symlink()


def test_a_place_that_cannot_be_written_is_named(mini: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But an unpacked folder is read there."""

    def refuse(*_: object, **named: object) -> None:
        raise PermissionError("read-only")

    with monkeypatch.context() as patched:
        patched.setattr(module.tempfile, "TemporaryDirectory", refuse)
        with pytest.raises(ConfigError, match=r"mini\.zip can be unpacked into \(read-only\)"):
            unpacked_folder(mini)
    unpacked_folder(mini)
    monkeypatch.setattr(module.tempfile, "TemporaryDirectory", refuse)
    assert len(find_runs(unpacked_folder(mini))) == 3


def test_what_cannot_be_packed_is_refused(source: Path, tmp_path: Path) -> None:
    put_run(tmp_path / "begun", "unfinished", status="running")
    put_run(tmp_path / "broken", "run-1")
    (tmp_path / "broken/run-1/run.json").write_bytes(b"{")
    for folder, out, message in (
        (tmp_path / "none", "x.zip", "at least one complete run"),
        (tmp_path / "begun", "x.zip", "at least one complete run"),
        (source, "x.tar", "^out="),
        (source, "source/notes.txt/x.zip", "^out="),
        (tmp_path / "broken", "x.zip", r"run-1/run\.json"),
    ):
        with pytest.raises(ConfigError, match=message):
            pack(folder, tmp_path / out)
    assert not list(tmp_path.glob("x.*"))


def test_the_command_says_what_it_wrote(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.zip"
    end = program("pack", f"runs_dir={source}", f"out={out}")
    assert (end.returncode, end.stdout) == (0, f"{out}: 3 runs, 20 files, 0.0 MB\n")
    for wrong in ([], [f"runs_dir={source}"], [f"out={out}"], [f"runs_dir={source}", f"out={out}", "x=1"]):
        assert program("pack", *wrong).returncode == 2
    assert "pack runs_dir=DIR out=FILE.zip" in program("pack", "--help").stdout
