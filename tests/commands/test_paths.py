"""Paths in options: any name valid on the file system works to the end, others are refused before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench import load_runs
from ssd_bench.errors import ConfigError
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.reader import find_runs, load_run
from tests.runs import CPU, program
from tests.synthetic import unit, write_record, write_run

NAMES = ("s3:/x", "a%20b #?*[x]{y}$z", "-日本", "./x/../it's/", "n" * 200, "~/runs")
SHORT = (*CPU, "hardware.kernels=torch", "limit=1", "decode.max_new_tokens=4", "method=ar")
TOOLS = (
    *(f"{name} runs_dir=" for name in ("status", "report", "claims", "pack out=x.zip")),
    *("pack runs_dir=runs out=", "advise hardware=sim_h100 model=llama3_8b runs_dir="),
    *("advise hardware=sim_h100 model=local model.path=", "explain run=", "replay hardware=sim_h100 run="),
    *("export to=x run=", "export run=x to=", "searches ", "audit out=", "shapes read="),
    "data check ",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, which is also the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def quoted(name: str) -> str:
    return "'" + name.replace("'", "\\'") + "'"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_goes_to_any_folder_and_is_read_back(name: str) -> None:
    line = [*SHORT, f"runs_dir={quoted(name)}"]
    assert program(*line).returncode == 0
    assert len(find_runs(local_path("runs_dir", name))) == 1 and len(load_runs(name)) == 1
    again = program(*line)
    assert (again.returncode, again.stderr) == (0, "") and "already on record" in again.stdout


def test_sweeps_and_tools_go_to_it_too(no_page: None) -> None:
    name = "~/exp:2"
    assert program("-m", "seed=1,2", *SHORT, f"runs_dir={quoted(name)}").returncode == 0
    (first, _) = find_runs(local_path("runs_dir", name))
    for tool in ("report out=rep:1", "status", "claims", "pack out=p:1.zip"):
        assert program(*tool.split(), f"runs_dir={name}").returncode == 0, tool
    assert program("explain", f"run={name}/{first.name}").returncode == 0
    assert Path("rep:1", "README.md").is_file() and not Path("~").exists()


@pytest.mark.parametrize(
    "option",
    [
        *("runs_dir=", "-m seed=1,2 runs_dir=", "model=local model.template=plain model.path="),
        *("data=local data.root=", "task=jsonl task.path="),
        *TOOLS,
    ],
)
def test_a_uri_is_refused_before_anything_is_opened(option: str) -> None:
    end = program(*f"{option}s3://bucket/runs.jsonl".split())
    assert end.returncode == 2 and end.stderr.count("\n") == 1
    assert "='s3://bucket/runs.jsonl' is invalid: expected a path on this" in end.stderr
    assert list(Path.cwd().iterdir()) == []


def test_every_uri_is_one() -> None:
    for uri in ("s3://bucket/runs", "file:///runs", "file:runs", "hf://a/b", "https://a/b", "S3://x"):
        with pytest.raises(ConfigError, match="not a URI: download or mount what it names"):
            local_path("runs_dir", uri)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "a path"),
        ("", "a path"),
        (3, "a path"),
        ("a\nb", "without line breaks"),
        ("a\0b", "without line breaks"),
        (os.fsdecode(b"a\xff"), "UTF-8"),
        ("n" * 201, "at most 200"),
        ("é" * 101, "at most 200"),
        ("abc/" * 1000, "at most 3500 bytes"),
    ],
)
def test_what_no_file_system_or_record_takes_is_refused(value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        local_path("runs_dir", value)
    assert caught.value.field == "runs_dir" and len(str(caught.value)) < 400


def test_a_path_is_absolute_and_a_link_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("HOME", "/home/her")
    texts = {"link": tmp_path / "link", "./x/../link/": tmp_path / "link", "~": "/home/her", "~/x": "/home/her/x"}
    for text, path in {**texts, "/a/b": "/a/b"}.items():
        assert local_path("a", text) == Path(path)
    assert display_path(tmp_path / "link") == "link" and display_path(Path("/a/b")) == "/a/b"
    write_record(tmp_path / "link" / "run", [unit(0)])
    assert [path.parent.name for path in find_runs(local_path("a", "link"))] == ["link"]


def test_a_folder_that_was_deleted_under_the_shell_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the current folder was deleted"):
        local_path("runs_dir", "runs")


def test_a_relative_path_given_to_the_reader_itself_is_no_uri(tmp_path: Path) -> None:
    run = write_run(tmp_path / "exp:2" / "run", [unit(0)])
    for path in (Path("exp:2/run"), "exp:2/run"):
        pd.testing.assert_frame_equal(load_run(path).steps, run.steps)
